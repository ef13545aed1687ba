// The part of Shard that takes pushes: when and how a push may arrive, and its outcome.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/codec/value_codec.h"
#include "common/codec/wire_codec.h"
#include "common/protocol/limits.h"
#include "common/protocol/part_assignment.h"
#include "ps_server/shard/shard.h"

namespace weir {
std::optional<absl::StatusOr<Verdict>> Shard::Refuse(const v1::PushRequest& header) const {
  if (over_) return JobOver();
  if (absl::Status status = now_.CheckModel(header); !status.ok()) return status;
  if (initial_.awaited() && !header.initial_values()) {
    return absl::UnavailableError("this shard has no initial values yet");
  }
  absl::Status fits =
      header.initial_values() ? InitialValues::CheckHeader(header) : Incarnation::CheckHeader(header);
  if (!fits.ok()) return fits;
  absl::StatusOr<Verdict> standing = now_.members().Check(header.caller());
  if (!standing.ok() || standing->outcome != v1::OK) return standing;
  if (header.initial_values()) return initial_.Answer(header.caller(), now_.members());
  return std::nullopt;
}

void Shard::HandleBegin(HeldPush push) {
  const v1::PushRequest& header = push.header;
  if (absl::Status addressee = CheckAddressee(header.caller().job(), header.caller().shard_plus_one());
      !addressee.ok()) {
    return push.done(addressee);
  }
  if (auto refused = Refuse(header)) return Answer(AsPush(std::move(push.done)), *std::move(refused));
  if (header.initial_values()) {
    if (initial_.staged()) {
      return initial_.Wait({push.session, AsPush(std::move(push.done)), options_.clock->Now()});
    }
    std::unique_ptr<PushArrival> arrival = Arrive(push.session, header);
    if (arrival != nullptr) return push.done(std::move(arrival));
    return push.done(absl::UnavailableError("the same upload is arriving twice already; send it again"));
  }
  if (mode_.keeps_clocks) {
    // The worker's clock is about to change, and the pending answer is also the answer to a repeat.
    if (log_.OnItsWay(push.worker())) return Hold(calls_.held, std::move(push));
    if (header.answered_clock() > header.clock()) {
      return push.done(absl::InvalidArgumentError(absl::StrCat(
          "answered_clock: ", header.answered_clock(), " is above the push's clock ", header.clock())));
    }
    if (now_.DeclareLost(header.caller().worker(), header.answered_clock())) Wake();
  }
  const PushDecision decision = now_.policy()->OnPush(KeyOf(header));
  switch (decision) {
    case PushDecision::kApply:
    case PushDecision::kStage: {
      absl::StatusOr<Verdict> verdict = now_.VerdictOn(header);
      if (!verdict.ok()) return push.done(verdict.status());
      if (verdict->outcome != v1::OK && decision == PushDecision::kStage) {
        return StagePush(header, nullptr, {}, std::move(verdict->reason), push.session,
                         AsPush(std::move(push.done)));
      }
      if (verdict->outcome != v1::OK) {
        if (log_.kept() && !log_.HasTurn(header)) break;
        Decide({push.session,
                header,
                *std::move(verdict),
                nullptr,
                nullptr,
                {},
                AsPush(std::move(push.done)),
                push.since});
        return Wake();
      }
      if (decision == PushDecision::kStage) {
        if (absl::Status full = room_.CheckStepRows(header, arrivals_); !full.ok()) return push.done(full);
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
          " and part ", header.part(), " while this shard is at version ", now_.store()->count())));
  }
  Hold(calls_.held, std::move(push));
}

void Shard::HandleUpload(Session session, std::unique_ptr<PushArrival> arrival, PushDone done) {
  if (auto refused = Refuse(arrival->header())) return Answer(done, *std::move(refused));
  const bool again = initial_.staged();
  if (absl::Status status = initial_.Stage(*arrival, *now_.store()); !status.ok()) return done(status);
  if (!again) Report(initial_.Report());
  initial_.Wait({session, std::move(done), options_.clock->Now()});
}

void Shard::Hold(CallList<HeldPush>& among, HeldPush push) {
  const absl::Status full = calls_.CheckRoom(push.worker(), now_.members());
  if (!full.ok()) return push.done(full);
  if (push.turn == 0) push.turn = calls_.NewTurn();
  among.Add(std::move(push));
}

bool Shard::WaitsForStream(const v1::PushRequest& header) {
  const int64_t bytes = now_.store()->elements() * BytesPerValue(header.dtype());
  // A push of this size comes in one or two messages.
  if (bytes <= kMaxChunkBytes) return false;
  const std::optional<uint64_t> chunks = now_.store()->chunks_built();
  if (!chunks.has_value()) return false;
  const absl::Duration wait = arrivals_.WaitForStream(bytes, *chunks, options_.clock->Now());
  if (wait == absl::ZeroDuration()) return false;
  if (options_.nudge) options_.nudge(wait);
  return true;
}

std::unique_ptr<PushArrival> Shard::Arrive(Session session, v1::PushRequest header) {
  const PushKey key = KeyOf(header);
  std::shared_ptr<const void> presence = arrivals_.Add(key, BytesOfRows(tables(), header));
  if (presence == nullptr) return nullptr;
  std::shared_ptr<VersionBuilder> builder;
  if (!header.initial_values() && mode_.applies_alone && !log_.kept() &&
      options_.config.server().apply() == v1::ServerConfig::APPLY_STREAMED && !arrivals_.WasOvertaken(key)) {
    builder = now_.store()->Build({session, key.worker, 0});
    if (builder == nullptr && !now_.store()->readers().MayBuild() && options_.on_short) options_.on_short();
  }
  Slab gradient;
  if (builder == nullptr) {
    gradient = now_.store()->TakeSlab();
  } else {
    arrivals_.BeginStream(key, options_.clock->Now());
  }
  return std::make_unique<PushArrival>(std::move(header), std::move(builder), std::move(gradient),
                                       now_.tables(), std::move(presence), options_.chunk_unit);
}

bool Shard::AnswersAfter(const v1::PushRequest& push) const {
  if (mode_.commits_steps) return false;
  const uint32_t worker = push.caller().worker();
  const std::vector<uint32_t> awaited = now_.policy()->WaitingFor(worker, push.clock() + 1);
  return std::all_of(awaited.begin(), awaited.end(), [worker](uint32_t other) { return other == worker; });
}

void Shard::HandlePush(ReadyPush push, bool waited) {
  const v1::PushRequest& header = push.arrival->header();
  if (header.initial_values()) {
    return HandleUpload(push.session, std::move(push.arrival), std::move(push.done));
  }
  if (over_) return Answer(push.done, JobOver());
  // The checks are repeated, because the state may have changed while the push arrived.
  const absl::StatusOr<Verdict> standing = now_.members().Check(header.caller());
  if (!standing.ok()) {
    return push.done(absl::UnavailableError("the shard was restarted while the push arrived"));
  }
  if (standing->outcome != v1::OK) return Answer(push.done, standing);
  const PushDecision decision = now_.policy()->OnPush(KeyOf(header));
  if (decision == PushDecision::kRepeat) return RepeatPush(push.session, header, std::move(push.done));
  if (decision != PushDecision::kApply && decision != PushDecision::kStage) {
    return push.done(absl::UnavailableError(absl::StrCat(
        "the push at clock ", header.clock(), " has lost its turn while it arrived; send it again")));
  }
  absl::StatusOr<Verdict> verdict = now_.VerdictOn(header);
  if (!verdict.ok()) {
    arrivals_.Remove(KeyOf(header));
    push.done(verdict.status());
    return Wake();
  }
  FinishPush(std::move(push), decision, *std::move(verdict), waited);
}

void Shard::FinishPush(ReadyPush push, PushDecision decision, Verdict verdict, bool waited) {
  PushArrival& arrival = *push.arrival;
  const v1::PushRequest& header = arrival.header();
  if (verdict.outcome == v1::OK && arrival.overtaken()) {
    return Answer(push.done, Verdict{v1::SEND_AGAIN, ""});
  }
  // Without the log, a push that makes no version needs no turn.
  const bool takes_turn = decision == PushDecision::kStage ? now_.rows_early() && arrival.finite()
                                                           : log_.kept() || verdict.outcome == v1::OK;
  if (takes_turn && !waited && (!calls_.ready.empty() || !CanDecide(header))) {
    if (absl::Status full = calls_.CheckRoom(push.worker(), now_.members()); !full.ok())
      return push.done(full);
    push.since = options_.clock->Now();
    calls_.ready.push_back(std::move(push));
    room_.SetShort(ShortOfMemory());
    return;
  }
  arrivals_.Remove(KeyOf(header));
  if (decision == PushDecision::kStage) {
    std::string refusal = arrival.finite() ? "" : now_.NonFinite(arrival);
    return StagePush(header, arrival.TakeGradient(), arrival.TakeRows(), std::move(refusal), push.session,
                     std::move(push.done));
  }
  if (verdict.outcome == v1::OK && !arrival.finite()) verdict = {v1::REFUSED, now_.NonFinite(arrival)};
  const bool applies = verdict.outcome == v1::OK;
  Decide({push.session, header, std::move(verdict), applies ? arrival.TakeGradient() : nullptr,
          applies ? arrival.builder() : nullptr,
          applies ? std::make_shared<const PushedRows>(arrival.TakeRows()) : nullptr, std::move(push.done),
          options_.clock->Now()});
  push.arrival = nullptr;
  WakeMoved();
}

void Shard::TakeEffect(const Decision& decision) {
  const v1::PushRequest& header = decision.header;
  const uint32_t worker = header.caller().worker();
  std::shared_ptr<const LentVersion> made;
  if (decision.builder != nullptr) {
    made = decision.builder->version();
    arrivals_.EndStream();
  } else if (decision.verdict.outcome == v1::OK) {
    arrivals_.Overtake();
  }
  if (const absl::Status status = now_.Apply(decision); !status.ok()) {
    Fail(status);
    if (decision.done) Answer(decision.done, JobOver());
    return;
  }
  PushAnswer answer = NewAnswer(decision.verdict);
  now_.Record(header, &answer.reply);
  if (decision.verdict.outcome == v1::OK) waits_.Mark();
  if (!calls_.held.empty() || !calls_.parked.empty()) calls_.changes.moved.push_back(worker);
  arrivals_.ForgetOvertaken(worker);
  if (decision.builder != nullptr &&
      now_.policy()->OnPull(worker, header.clock() + 1) == PullDecision::kReady) {
    answer.made = NewPullReply({}, header.with_clocks());
    answer.version = std::move(made);
  }
  if (decision.done) decision.done(std::move(answer));
}

void Shard::StagePush(const v1::PushRequest& header, Slab gradient, PushedRows rows, std::string refusal,
                      Session session, PushDone done) {
  StagedParts::Waiter waiter{session, std::move(done), options_.clock->Now()};
  auto staged = now_.Stage(header, std::move(gradient), std::move(rows), std::move(refusal), waiter);
  if (!staged.ok()) {
    Fail(staged.status());
    return Answer(waiter.done, JobOver());
  }
  if (staged->has_value()) Report(**std::move(staged));
}

void Shard::RepeatPush(Session session, const v1::PushRequest& header, PushDone done) {
  ++counters_.pushes_repeated;
  if (mode_.commits_steps) {
    if (now_.policy()->JoinClock() == header.clock() && now_.staged().Has(header.part())) {
      const absl::Status full =
          now_.staged().AddWaiter(header.clock(), header.part(), {session, done, options_.clock->Now()});
      if (!full.ok()) done(full);
      return;
    }
    const Verdict verdict = now_.staged().VerdictAt(header.clock(), header.part());
    PushAnswer answer = NewAnswer(verdict);
    if (verdict.outcome == v1::OK) answer.reply.mutable_version()->set_count(header.clock() + 1);
    return done(std::move(answer));
  }
  const v1::PushReply* answer = now_.members().AnswerAt(header.caller().worker(), header.clock());
  if (answer != nullptr) return done(PushAnswer{*answer, {}});
  // The answer is no longer recorded, or the clock is below this incarnation's first clock.
  done(absl::InvalidArgumentError(absl::StrCat("clock ", header.clock(), " of worker ",
                                               header.caller().worker(),
                                               " is long completed and its answer no longer on record")));
}

bool Shard::CanDecide(const v1::PushRequest& header) {
  // The dense values need no room before the commit.
  if (mode_.commits_steps) return room_.MakeForRows();
  if (!log_.kept()) return room_.Make();
  // A decided push must not wait for memory of rows: the checkpoint that holds it may wait for the decision.
  return log_.HasTurn(header) && room_.MakeForRows();
}

void Shard::Decide(Decision decision) {
  if (!log_.kept()) return TakeEffect(decision);
  log_.Append(std::move(decision), now_.store()->count());
}

void Shard::ApplyDurable() {
  for (const Decision* next = log_.NextDurable();
       next != nullptr && (next->verdict.outcome != v1::OK || room_.MakeForWeights());
       next = log_.NextDurable()) {
    TakeEffect(log_.Take());
  }
  while (const std::optional<v1::ControlMessage> message = log_.NextDeferred()) Handle(*message);
}

}  // namespace weir
