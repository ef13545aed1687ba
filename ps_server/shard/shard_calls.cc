#include "ps_server/shard/shard_calls.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/codec/value_codec.h"
#include "common/codec/wire_codec.h"
#include "common/protocol/handshake.h"
#include "common/protocol/job_failure.h"
#include "common/telemetry/logging.h"
#include "ps_server/shard/shard.h"

namespace weir {

ShardCalls::ShardCalls(const Parts& parts, Options options)
    : of_(parts),
      mode_(TraitsOf(of_.config)),
      options_(std::move(options)),
      waits_({of_.clock, of_.now, arrivals_, calls_, of_.log, of_.initial, of_.room}) {}

// ---- pushes

void ShardCalls::CountPushed(const v1::PushRequest& header) {
  uint64_t bytes = EncodedBytes(TypeOf(header), header.elements());
  for (const v1::Rows& rows : header.rows()) {
    const uint64_t dim = of_.config.tables(static_cast<int>(rows.table())).dim();
    bytes += rows.keys() * (sizeof(uint64_t) + EncodedBytes(header.dtype(), dim));
  }
  of_.counters.bytes_pushed += bytes;
}

std::optional<absl::StatusOr<Verdict>> ShardCalls::Refuse(const v1::PushRequest& header) const {
  if (of_.over) return of_.answers.JobOver();
  if (absl::Status status = of_.now.CheckModel(header); !status.ok()) return status;
  if (of_.initial.awaited() && !header.initial_values()) {
    return absl::UnavailableError("this shard has no initial values yet");
  }
  absl::Status fits =
      header.initial_values() ? InitialValues::CheckHeader(header) : of_.now.CheckHeader(header);
  if (!fits.ok()) return fits;
  absl::StatusOr<Verdict> standing = of_.now.members().Check(header.caller());
  if (!standing.ok() || standing->outcome != v1::OK) return standing;
  if (header.initial_values()) return of_.initial.Answer(header.caller(), of_.now.members());
  return std::nullopt;
}

void ShardCalls::Begin(HeldPush push) {
  const v1::PushRequest& header = push.header;
  if (auto refused = Refuse(header))
    return of_.answers.Answer(AsPush(std::move(push.done)), *std::move(refused));
  if (header.initial_values()) {
    if (of_.initial.staged()) {
      return of_.initial.Wait({push.session, AsPush(std::move(push.done)), of_.clock.Now()});
    }
    std::unique_ptr<PushArrival> arrival = Arrive(push.session, header);
    if (arrival != nullptr) return push.done(std::move(arrival));
    return push.done(absl::UnavailableError("the same upload is arriving twice already; send it again"));
  }
  if (mode_.keeps_clocks) {
    // The worker's clock is about to change, and the pending answer is also the answer to a repeat.
    if (of_.log.OnItsWay(push.worker())) return Hold(calls_.held, std::move(push));
    if (header.answered_clock() > header.clock()) {
      return push.done(absl::InvalidArgumentError(absl::StrCat(
          "answered_clock: ", header.answered_clock(), " is above the push's clock ", header.clock())));
    }
    if (of_.now.DeclareLost(header.caller().worker(), header.answered_clock())) Wake();
  }
  const PushDecision decision = of_.now.policy()->OnPush(KeyOf(header));
  switch (decision) {
    case PushDecision::kApply:
    case PushDecision::kStage: {
      absl::StatusOr<Verdict> verdict = of_.now.VerdictOn(header, of_.log.updates());
      if (!verdict.ok()) return push.done(verdict.status());
      if (verdict->outcome != v1::OK && decision == PushDecision::kStage) {
        return StagePush(header, nullptr, {}, std::move(verdict->reason), push.session,
                         AsPush(std::move(push.done)));
      }
      if (verdict->outcome != v1::OK) {
        if (of_.log.kept() && !of_.log.HasTurn(header)) break;
        PushDone done = AsPush(std::move(push.done));
        Decide({push.session,
                header,
                *std::move(verdict),
                nullptr,
                nullptr,
                {},
                1,
                std::move(done),
                push.since});
        return Wake();
      }
      if (decision == PushDecision::kStage) {
        if (absl::Status full = of_.room.CheckStepRows(header, arrivals_); !full.ok()) return push.done(full);
      }
      if (WaitsForStream(header)) return Hold(calls_.behind_stream, std::move(push));
      std::unique_ptr<PushArrival> arrival = Arrive(push.session, header);
      if (arrival == nullptr) break;
      if (push.fill == nullptr) return push.done(std::move(arrival));
      if (absl::Status bad = push.fill(*arrival); !bad.ok()) return push.done(bad);
      CountPushed(header);
      return FinishPush({push.session, std::move(arrival), AsPush(std::move(push.done)), absl::Time()},
                        decision, *std::move(verdict), /*waited=*/false);
    }
    case PushDecision::kRepeat:
      return RepeatPush(push.session, header, AsPush(std::move(push.done)));
    case PushDecision::kHold:
      break;
    case PushDecision::kInvalid:
      return push.done(absl::InvalidArgumentError(absl::StrCat(
          "no push of worker ", header.caller().worker(), " can come with clock ", header.clock(),
          " and part ", header.part(), " while this shard is at version ", of_.now.store()->count())));
  }
  Hold(calls_.held, std::move(push));
}

void ShardCalls::HandleUpload(SessionId session, std::unique_ptr<PushArrival> arrival, PushDone done) {
  if (auto refused = Refuse(arrival->header())) return of_.answers.Answer(done, *std::move(refused));
  const bool again = of_.initial.staged();
  if (absl::Status status = of_.initial.Stage(*arrival, *of_.now.store()); !status.ok()) return done(status);
  if (!again) options_.report(of_.initial.Report());
  of_.initial.Wait({session, std::move(done), of_.clock.Now()});
}

void ShardCalls::Hold(CallList<HeldPush>& among, HeldPush push) {
  const absl::Status full = calls_.CheckRoom(push.worker(), of_.now.members());
  if (!full.ok()) return push.done(full);
  if (push.turn == 0) push.turn = calls_.NewTurn();
  among.Add(std::move(push));
}

bool ShardCalls::WaitsForStream(const v1::PushRequest& header) {
  const auto bytes =
      static_cast<int64_t>(EncodedBytes(TypeOf(header), static_cast<uint64_t>(of_.now.store()->elements())));
  // A push of this size comes in one or two messages.
  if (bytes <= kMaxChunkBytes) return false;
  const std::optional<uint64_t> chunks = of_.now.store()->chunks_built();
  if (!chunks.has_value()) return false;
  const absl::Duration wait = arrivals_.WaitForStream(bytes, *chunks, of_.clock.Now());
  if (wait == absl::ZeroDuration()) return false;
  if (options_.nudge) options_.nudge(wait);
  return true;
}

std::unique_ptr<PushArrival> ShardCalls::Arrive(SessionId session, v1::PushRequest header) {
  const PushKey key = KeyOf(header);
  std::shared_ptr<const void> presence = arrivals_.Add(key, BytesOfRows(of_.config.tables(), header));
  if (presence == nullptr) return nullptr;
  std::shared_ptr<VersionBuilder> builder;
  if (!header.initial_values() && mode_.applies_alone && !of_.log.kept() &&
      of_.config.server().apply() == v1::ServerConfig::APPLY_STREAMED && !arrivals_.WasOvertaken(key)) {
    builder = of_.now.store()->Build({session, key.worker, 0}, of_.now.FactorOf(header, 0));
    if (builder == nullptr && !of_.now.store()->readers().MayBuild() && options_.on_short)
      options_.on_short();
  }
  Slab gradient;
  if (builder == nullptr) {
    gradient = of_.now.store()->TakeSlab();
  } else {
    arrivals_.BeginStream(key, of_.clock.Now());
  }
  return std::make_unique<PushArrival>(std::move(header), std::move(builder), std::move(gradient),
                                       of_.now.tables(), std::move(presence), options_.chunk_unit);
}

bool ShardCalls::AnswersAfter(const v1::PushRequest& push) const {
  if (mode_.commits_steps) return false;
  const uint32_t worker = push.caller().worker();
  const std::vector<uint32_t> awaited = of_.now.policy()->WaitingFor(worker, push.clock() + 1);
  return std::all_of(awaited.begin(), awaited.end(), [worker](uint32_t other) { return other == worker; });
}

void ShardCalls::Push(ReadyPush push, bool waited) {
  const v1::PushRequest& header = push.arrival->header();
  if (header.initial_values()) {
    return HandleUpload(push.session, std::move(push.arrival), std::move(push.done));
  }
  if (of_.over) return of_.answers.Answer(push.done, of_.answers.JobOver());
  // The checks are repeated, because the state may have changed while the push arrived.
  const absl::StatusOr<Verdict> standing = of_.now.members().Check(header.caller());
  if (!standing.ok()) {
    return push.done(absl::UnavailableError("the shard was restarted while the push arrived"));
  }
  if (standing->outcome != v1::OK) return of_.answers.Answer(push.done, standing);
  const PushDecision decision = of_.now.policy()->OnPush(KeyOf(header));
  if (decision == PushDecision::kRepeat) return RepeatPush(push.session, header, std::move(push.done));
  if (decision != PushDecision::kApply && decision != PushDecision::kStage) {
    return push.done(absl::UnavailableError(absl::StrCat(
        "the push at clock ", header.clock(), " has lost its turn while it arrived; send it again")));
  }
  absl::StatusOr<Verdict> verdict = of_.now.VerdictOn(header, of_.log.updates());
  if (!verdict.ok()) {
    arrivals_.Remove(KeyOf(header));
    push.done(verdict.status());
    return Wake();
  }
  FinishPush(std::move(push), decision, *std::move(verdict), waited);
}

void ShardCalls::FinishPush(ReadyPush push, PushDecision decision, Verdict verdict, bool waited) {
  PushArrival& arrival = *push.arrival;
  const v1::PushRequest& header = arrival.header();
  if (verdict.outcome == v1::OK && arrival.overtaken()) {
    return of_.answers.Answer(push.done, Verdict{v1::SEND_AGAIN, ""});
  }
  // Without the log, a push that makes no version needs no turn.
  const bool takes_turn = decision == PushDecision::kStage ? of_.now.rows_early() && arrival.finite()
                                                           : of_.log.kept() || verdict.outcome == v1::OK;
  if (takes_turn && !waited && (!calls_.ready.empty() || !CanDecide(header))) {
    if (absl::Status full = calls_.CheckRoom(push.worker(), of_.now.members()); !full.ok())
      return push.done(full);
    push.since = of_.clock.Now();
    calls_.ready.push_back(std::move(push));
    of_.room.SetShort(ShortOfMemory());
    return;
  }
  arrivals_.Remove(KeyOf(header));
  if (decision == PushDecision::kStage) {
    std::string refusal = arrival.finite() ? "" : of_.now.NonFinite(arrival);
    return StagePush(header, arrival.TakeGradient(), arrival.TakeRows(), std::move(refusal), push.session,
                     std::move(push.done));
  }
  if (verdict.outcome == v1::OK && !arrival.finite()) verdict = {v1::REFUSED, of_.now.NonFinite(arrival)};
  const bool applies = verdict.outcome == v1::OK;
  Decide({push.session, header, std::move(verdict), applies ? arrival.TakeGradient() : nullptr,
          applies ? arrival.builder() : nullptr,
          applies ? std::make_shared<const PushedRows>(arrival.TakeRows()) : nullptr,
          applies ? of_.now.FactorOf(header, of_.log.updates()) : 1, std::move(push.done), of_.clock.Now()});
  push.arrival = nullptr;
  WakeMoved();
}

void ShardCalls::TakeEffect(const Decision& decision) {
  const v1::PushRequest& header = decision.header;
  const uint32_t worker = header.caller().worker();
  std::shared_ptr<const LentVersion> made;
  if (decision.builder != nullptr) {
    made = decision.builder->version();
    arrivals_.EndStream();
  } else if (decision.verdict.outcome == v1::OK) {
    arrivals_.Overtake();
  }
  if (const absl::Status status = of_.now.Apply(decision); !status.ok()) {
    options_.fail(status);
    if (decision.done) of_.answers.Answer(decision.done, of_.answers.JobOver());
    return;
  }
  PushAnswer answer = of_.answers.ToPush(decision.verdict);
  of_.now.Record(header, &answer.reply);
  if (decision.verdict.outcome == v1::OK) waits_.Mark();
  if (!calls_.held.empty() || !calls_.parked.empty()) calls_.changes.moved.push_back(worker);
  arrivals_.ForgetOvertaken(worker);
  if (decision.builder != nullptr &&
      of_.now.policy()->OnPull(worker, header.clock() + 1) == PullDecision::kReady) {
    answer.made = of_.answers.ToPull({}, header.with_clocks());
    answer.version = std::move(made);
  }
  if (decision.done) decision.done(std::move(answer));
}

void ShardCalls::StagePush(const v1::PushRequest& header, Slab gradient, PushedRows rows, std::string refusal,
                           SessionId session, PushDone done) {
  StagedParts::Waiter waiter{session, std::move(done), of_.clock.Now()};
  auto staged = of_.now.Stage(header, std::move(gradient), std::move(rows), std::move(refusal), waiter);
  if (!staged.ok()) {
    options_.fail(staged.status());
    return of_.answers.Answer(waiter.done, of_.answers.JobOver());
  }
  if (staged->has_value()) options_.report(**std::move(staged));
}

void ShardCalls::RepeatPush(SessionId session, const v1::PushRequest& header, PushDone done) {
  ++of_.counters.pushes_repeated;
  if (mode_.commits_steps) {
    if (of_.now.policy()->JoinClock() == header.clock() && of_.now.staged().Has(header.part())) {
      const absl::Status full =
          of_.now.staged().AddWaiter(header.clock(), header.part(), {session, done, of_.clock.Now()});
      if (!full.ok()) done(full);
      return;
    }
    const Verdict verdict = of_.now.staged().VerdictAt(header.clock(), header.part());
    PushAnswer answer = of_.answers.ToPush(verdict);
    if (verdict.outcome == v1::OK) answer.reply.mutable_version()->set_count(header.clock() + 1);
    return done(std::move(answer));
  }
  const v1::PushReply* answer = of_.now.members().AnswerAt(header.caller().worker(), header.clock());
  if (answer != nullptr) return done(PushAnswer{*answer, {}});
  // The answer is no longer recorded, or the clock is below this incarnation's first clock.
  done(absl::InvalidArgumentError(absl::StrCat("clock ", header.clock(), " of worker ",
                                               header.caller().worker(),
                                               " is long completed and its answer no longer on record")));
}

bool ShardCalls::CanDecide(const v1::PushRequest& header) {
  // The dense values need no room before the commit.
  if (mode_.commits_steps) return of_.room.MakeForRows();
  if (!of_.log.kept()) return of_.room.Make();
  // A decided push must not wait for memory of rows: the checkpoint that holds it may wait for the decision.
  return of_.log.HasTurn(header) && of_.room.MakeForRows();
}

void ShardCalls::Decide(Decision decision) {
  if (!of_.log.kept()) return TakeEffect(decision);
  of_.log.Append(std::move(decision), of_.now.store()->count());
}

// ---- pulls

void ShardCalls::Pull(ParkedPull pull) {
  const v1::PullRequest& request = pull.request;
  bool lost = false;
  const auto live = [&] {
    const absl::StatusOr<Verdict> standing = of_.now.members().Check(request.caller());
    return standing.ok() && standing->outcome == v1::OK;
  };
  if (mode_.keeps_clocks && of_.now.store() != nullptr && request.pin() == 0 && live()) {
    if (request.answered_clock() > request.clock()) {
      return pull.done(absl::InvalidArgumentError(absl::StrCat(
          "answered_clock: ", request.answered_clock(), " is above the pull's clock ", request.clock())));
    }
    // If a push of this worker is pending in the log, the pull waits for it, and the clock must not change.
    const uint32_t worker = request.caller().worker();
    lost = !of_.log.OnItsWay(worker) && of_.now.DeclareLost(worker, request.answered_clock());
  }
  if (!of_.answers.TryPull(pull)) {
    if (absl::Status full = calls_.CheckRoom(pull.worker(), of_.now.members()); !full.ok())
      return pull.done(full);
    pull.turn = calls_.NewTurn();
    calls_.parked.Add(std::move(pull));
    of_.counters.parked_pulls = calls_.parked.size();
  }
  if (lost) Wake();
}

void ShardCalls::ApplyDurable() {
  for (const Decision* next = of_.log.NextDurable();
       next != nullptr && (next->verdict.outcome != v1::OK || of_.room.MakeForWeights());
       next = of_.log.NextDurable()) {
    TakeEffect(of_.log.Take());
  }
  while (const std::optional<v1::ControlMessage> message = of_.log.NextDeferred()) options_.control(*message);
}

bool ShardCalls::ShortOfMemory() const {
  if (of_.now.staged().late_commit.has_value()) return true;
  return of_.log.kept() ? of_.log.NextDurable() != nullptr : !calls_.ready.empty();
}

// ---- calls that can continue

void ShardCalls::Wake() {
  calls_.changes.all = true;
  WakeMoved();
}

void ShardCalls::WakeMoved() {
  calls_.Resume([this] { ResumeWaiting(); });
}

void ShardCalls::ResumeWaiting() {
  bool all = std::exchange(calls_.changes.all, false);
  const bool held = std::exchange(calls_.changes.held, false) || all;
  ApplyDurable();
  while (true) {
    EndIf(
        calls_.ready, [](const ReadyPush& push) { return push.arrival->overtaken(); },
        [&](const ReadyPush& push) {
          of_.answers.Answer(push.done, Verdict{v1::SEND_AGAIN, ""});
        });
    if (calls_.ready.empty() || !CanDecide(calls_.ready.front().arrival->header())) break;
    ReadyPush ready = std::move(calls_.ready.front());
    calls_.ready.pop_front();
    Push(std::move(ready), /*waited=*/true);
  }
  if (of_.now.staged().late_commit.has_value()) options_.continue_commit();
  of_.room.SetShort(ShortOfMemory());
  // A pull may wait for the slowest worker, which may have changed.
  if (of_.now.policy() == nullptr) return;
  const uint64_t slowest = of_.now.policy()->JoinClock();
  all |= std::exchange(resumed_at_, slowest) != slowest;
  const std::vector<uint32_t> moved = std::exchange(calls_.changes.moved, {});
  const auto begin = [this](const std::vector<uint64_t>& turns) {
    for (const uint64_t turn : turns) {
      if (calls_.held.Find(turn) != nullptr) Begin(calls_.held.Take(turn));
    }
  };
  const auto answer = [this](const std::vector<uint64_t>& turns) {
    for (const uint64_t turn : turns) {
      const ParkedPull* const pull = calls_.parked.Find(turn);
      if (pull != nullptr && of_.answers.TryPull(*pull)) calls_.parked.Take(turn);
    }
  };
  if (held || of_.log.kept()) {
    // With the log, a push may wait for another worker's push of the same batch.
    begin(calls_.held.Turns());
  } else {
    for (const uint32_t worker : moved) begin(calls_.held.TurnsOf(worker));
  }
  // If one of these pushes has to wait again, so do all after it.
  for (const uint64_t turn : calls_.behind_stream.Turns()) {
    Begin(calls_.behind_stream.Take(turn));
    if (calls_.behind_stream.Find(turn) != nullptr) break;
  }
  if (all) {
    answer(calls_.parked.Turns());
  } else {
    for (const uint32_t worker : moved) answer(calls_.parked.TurnsOf(worker));
  }
  of_.counters.parked_pulls = calls_.parked.size();
}

// ---- calls that end

void ShardCalls::End(SessionId session) {
  const auto cancel = [](const auto& call) { call.done(absl::CancelledError("the connection has ended")); };
  const auto ended = [session](const auto& call) { return call.session == session; };
  calls_.End(ended, {cancel, cancel, cancel});
  of_.now.staged().EndWaiters(ended, [&](uint32_t, const StagedParts::Waiter& waiter) { cancel(waiter); });
  of_.initial.EndWaiter(ended, cancel);
  of_.log.AnswerIf(ended, cancel);
  of_.counters.parked_pulls = calls_.parked.size();
}

void ShardCalls::Tick() {
  const absl::Time now = of_.clock.Now();
  const absl::Time limit = now - absl::Seconds(of_.config.cluster().wait_seconds());
  const auto waited = [now](absl::Time since) { return absl::FormatDuration(now - since); };
  const auto late = [](const auto& call, const auto&... why) {
    call.done(absl::DeadlineExceededError(absl::StrCat(why...)));
  };
  WaitingCalls::Answers answers;
  answers.parked = [&](const ParkedPull& pull) {
    const uint64_t clock = pull.request.clock();
    late(pull, "a pull at clock ", clock, " waited ", waited(pull.since), " for ",
         waits_.OfPull(pull.worker(), clock));
  };
  answers.held = [&](const HeldPush& push) {
    late(push, "the push at clock ", push.header.clock(),
         " waited for the pushes of the same worker before it, which did not come");
  };
  answers.ready = [&](const ReadyPush& push) {
    late(push, "the push at clock ", push.arrival->header().clock(), " waited ", waited(push.since), " for ",
         waits_.OfReady());
  };
  if (calls_.oldest() <= limit)
    calls_.End([limit](const auto& call) { return call.since <= limit; }, answers);
  // The part stays staged, so a repeat of the push finds it.
  of_.now.staged().EndWaiters([&](const StagedParts::Waiter& waiter) { return waiter.since <= limit; },
                              [&](uint32_t part, const StagedParts::Waiter& waiter) {
                                late(waiter, "part ", part, " waited ", waited(waiter.since), " for ",
                                     waits_.OfPart());
                              });
  // The uploaded values stay, too.
  of_.initial.EndWaiter([&](const InitialValues::Waiter& waiter) { return waiter.since <= limit; },
                        [&](const InitialValues::Waiter& waiter) {
                          late(waiter, "the upload of the initial values waited ", waited(waiter.since),
                               " for ", WaitReport::OfUpload());
                        });
  of_.room.EndPins();
  // Arrivals are destroyed without notice to the shard, so a held push may now be able to begin.
  if (of_.now.store() != nullptr) {
    of_.room.RevokeLate();
    calls_.changes.held = true;
    WakeMoved();
  }
  of_.counters.longest_wait_ms = static_cast<uint64_t>(absl::ToInt64Milliseconds(waits_.Longest()));
  if (!of_.over) waits_.Watch();
}

void ShardCalls::FailWaiting(const std::function<bool(uint32_t)>& which, const Verdict& verdict) {
  const auto answer = [&](const auto& push) { of_.answers.Answer(push.done, verdict); };
  WaitingCalls::Answers answers;
  answers.held = [&](const HeldPush& push) { push.done(PushBegin(of_.answers.ToPush(verdict))); };
  answers.ready = answer;
  answers.parked = [&](const ParkedPull& pull) {
    pull.done(PullAnswer{of_.answers.ToPull(verdict), nullptr});
  };
  const auto of_worker = [&](const auto& call) { return which(call.worker()); };
  calls_.End(of_worker, answers);
  of_.log.AnswerIf(of_worker, answer);
  of_.counters.parked_pulls = calls_.parked.size();
}

void ShardCalls::FailWorker(uint32_t worker, const Verdict& verdict) {
  arrivals_.RemoveWorker(worker);
  FailWaiting([worker](uint32_t other) { return other == worker; }, verdict);
}

void ShardCalls::Drop(const Verdict& verdict) {
  FailAll(verdict);
  arrivals_ = PushArrivals();
}

void ShardCalls::FailAll(const Verdict& verdict) {
  FailWaiting([](uint32_t) { return true; }, verdict);
  // Waits for a commit do not belong to a worker: they end only with the step.
  const auto all = [](const StagedParts::Waiter&) { return true; };
  of_.now.staged().EndWaiters(
      all, [&](uint32_t, const StagedParts::Waiter& waiter) { of_.answers.Answer(waiter.done, verdict); });
  of_.initial.EndWaiter(all,
                        [&](const StagedParts::Waiter& waiter) { of_.answers.Answer(waiter.done, verdict); });
}

}  // namespace weir
