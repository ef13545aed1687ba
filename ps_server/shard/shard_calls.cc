// The part of Shard that answers pulls, continues waiting calls, and ends those that have waited too long.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/handshake.h"
#include "common/protocol/job_failure.h"
#include "common/telemetry/logging.h"
#include "ps_server/shard/shard.h"

namespace weir {

absl::Status Shard::CheckAddressee(uint64_t job, uint32_t shard_plus_one) const {
  return weir::CheckAddressee(job_, options_.index.value_or(install_.shard()), job, shard_plus_one);
}

void Shard::HandlePull(ParkedPull pull) {
  const v1::PullRequest& request = pull.request;
  if (absl::Status addressee = CheckAddressee(request.caller().job(), request.caller().shard_plus_one());
      !addressee.ok()) {
    return pull.done(addressee);
  }
  bool lost = false;
  const auto live = [&] {
    const absl::StatusOr<Verdict> standing = now_.members().Check(request.caller());
    return standing.ok() && standing->outcome == v1::OK;
  };
  if (mode_.keeps_clocks && now_.store() != nullptr && request.pin() == 0 && live()) {
    if (request.answered_clock() > request.clock()) {
      return pull.done(absl::InvalidArgumentError(absl::StrCat(
          "answered_clock: ", request.answered_clock(), " is above the pull's clock ", request.clock())));
    }
    // If a push of this worker is pending in the log, the pull waits for it, and the clock must not change.
    const uint32_t worker = request.caller().worker();
    lost = !log_.OnItsWay(worker) && now_.DeclareLost(worker, request.answered_clock());
  }
  if (!TryAnswerPull(pull)) {
    if (absl::Status full = calls_.CheckRoom(pull.worker(), now_.members()); !full.ok())
      return pull.done(full);
    pull.turn = calls_.NewTurn();
    calls_.parked.Add(std::move(pull));
    counters_.parked_pulls = calls_.parked.size();
  }
  if (lost) Wake();
}

bool Shard::TryAnswerPull(const ParkedPull& pull) {
  const v1::PullRequest& request = pull.request;
  // `at`: the version of the rows; null: the newest one.
  const auto answer = [&](const Verdict& verdict, std::shared_ptr<const LentVersion> version,
                          const ShardTables::Pinned* at = nullptr) {
    PullAnswer out;
    out.header = NewPullReply(verdict, request.with_clocks());
    if (version != nullptr && !pull.rows->empty()) {
      absl::StatusOr<std::shared_ptr<const ReadRows>> rows = now_.tables()->Read(*pull.rows, row_memory_, at);
      if (!rows.ok()) {
        pull.done(rows.status());
        return true;
      }
      out.rows = *std::move(rows);
      for (const TableKeys& of : *pull.rows) {
        CountPulled(of.count * now_.tables()->table(of.table).dim(), request.dtype());
      }
    }
    if (version != nullptr) {
      if (RowsOnArrival(options_.config)) {
        out.header.set_table_version(at == nullptr ? now_.tables()->version() : at->version());
      }
      out.header.mutable_version()->set_count(version->count);
      if (!request.header_only()) {
        CountPulled(static_cast<uint64_t>(now_.store()->elements()), request.dtype());
        out.version = std::move(version);
      }
    }
    pull.done(std::move(out));
    return true;
  };
  const auto holder = [&] { return Holder{pull.session, request.caller().worker(), request.pin()}; };
  if (over_) return answer(JobOver(), nullptr);
  if (now_.store() == nullptr) {
    pull.done(absl::UnavailableError("this shard has no model yet"));
    return true;
  }
  if (request.caller().model_hash() != now_.model_hash()) {
    pull.done(
        absl::InvalidArgumentError("the pull is for a different model from this job's (model_hash differs)"));
    return true;
  }
  if (initial_.awaited()) {
    pull.done(absl::UnavailableError("this shard has no initial values yet"));
    return true;
  }
  if (request.pin() != 0) {
    const UpdateRoom::Pin* const pin = room_.Find(request.pin());
    if (pin == nullptr) {
      pull.done(absl::FailedPreconditionError(
          absl::StrCat("pin ", request.pin(), " is not held here; its lease may have ended")));
      return true;
    }
    return answer({}, now_.store()->LendAgain(*pin->version, holder()), pin->tables.get());
  }
  if (const absl::StatusOr<Verdict> standing = now_.members().Check(request.caller()); !standing.ok()) {
    pull.done(standing.status());
    return true;
  } else if (standing->outcome != v1::OK) {
    return answer(*standing, nullptr);
  }
  // The rows are the newest, whatever the weights are.
  if (request.header_only() && request.rows_alone() && RowsOnArrival(options_.config)) {
    return answer({}, now_.store()->Lend(holder()));
  }
  switch (now_.policy()->OnPull(request.caller().worker(), request.clock())) {
    case PullDecision::kWait:
      return false;
    case PullDecision::kPast:
      return answer({v1::STEP_PAST, absl::StrCat("step ", request.clock(), " is past")}, nullptr);
    case PullDecision::kReady:
      return answer({}, now_.store()->Lend(holder()));
  }
  return false;
}

// ---- answers

Verdict Shard::JobOver() const { return {v1::JOB_OVER, std::string(over_->message())}; }

PushAnswer Shard::NewAnswer(const Verdict& verdict) const {
  PushAnswer answer;
  v1::PushReply& reply = answer.reply;
  reply.set_outcome(verdict.outcome);
  reply.set_reason(verdict.reason);
  if (verdict.outcome == v1::JOB_OVER) reply.set_failure_kind(KindOf(*over_));
  reply.set_epoch(now_.members().epoch());
  reply.mutable_version()->set_incarnation(now_.number());
  if (now_.store() != nullptr) reply.mutable_version()->set_count(now_.store()->count());
  return answer;
}

void Shard::Answer(const PushDone& done, const absl::StatusOr<Verdict>& verdict) const {
  done(verdict.ok() ? absl::StatusOr<PushAnswer>(NewAnswer(*verdict)) : verdict.status());
}

v1::PullReply Shard::NewPullReply(const Verdict& verdict, bool with_clocks) const {
  v1::PullReply reply;
  reply.set_outcome(verdict.outcome);
  reply.set_reason(verdict.reason);
  if (verdict.outcome == v1::JOB_OVER) reply.set_failure_kind(KindOf(*over_));
  reply.set_epoch(now_.members().epoch());
  reply.mutable_version()->set_incarnation(now_.number());
  if (now_.store() == nullptr) return reply;
  reply.mutable_version()->set_count(now_.store()->count());
  reply.set_elements(now_.store()->elements());
  if (with_clocks && mode_.keeps_clocks) {
    for (const WorkerClockValue& value : now_.policy()->Clocks()) {
      v1::WorkerClock* clock = reply.add_clocks();
      clock->set_worker(value.worker);
      clock->set_clock(value.clock);
    }
  }
  return reply;
}

bool Shard::ShortOfMemory() const {
  if (now_.staged().late_commit.has_value()) return true;
  return log_.kept() ? log_.NextDurable() != nullptr : !calls_.ready.empty();
}

// ---- calls that can continue

void Shard::Wake() {
  calls_.changes.all = true;
  WakeMoved();
}

void Shard::WakeMoved() {
  calls_.Resume([this] { ResumeWaiting(); });
}

void Shard::ResumeWaiting() {
  bool all = std::exchange(calls_.changes.all, false);
  const bool held = std::exchange(calls_.changes.held, false) || all;
  ApplyDurable();
  while (true) {
    EndIf(
        calls_.ready, [](const ReadyPush& push) { return push.arrival->overtaken(); },
        [&](const ReadyPush& push) {
          Answer(push.done, Verdict{v1::SEND_AGAIN, ""});
        });
    if (calls_.ready.empty() || !CanDecide(calls_.ready.front().arrival->header())) break;
    ReadyPush ready = std::move(calls_.ready.front());
    calls_.ready.pop_front();
    HandlePush(std::move(ready), /*waited=*/true);
  }
  if (now_.staged().late_commit.has_value() && room_.Make()) {
    const StagedParts::LateCommit late = *std::exchange(now_.staged().late_commit, std::nullopt);
    HandleCommit(late.commit);
    for (const v1::PinVersion& pin : late.pins) HandlePin(pin);
    if (late.freeze.has_value()) HandleFreeze(*late.freeze);
    if (late.checkpoint.has_value()) HandleCheckpoint(*late.checkpoint);
  }
  room_.SetShort(ShortOfMemory());
  // A pull may wait for the slowest worker, which may have changed.
  if (now_.policy() == nullptr) return;
  const uint64_t slowest = now_.policy()->JoinClock();
  all |= std::exchange(resumed_at_, slowest) != slowest;
  const std::vector<uint32_t> moved = std::exchange(calls_.changes.moved, {});
  const auto begin = [this](const std::vector<uint64_t>& turns) {
    for (const uint64_t turn : turns) {
      if (calls_.held.Find(turn) != nullptr) HandleBegin(calls_.held.Take(turn));
    }
  };
  const auto answer = [this](const std::vector<uint64_t>& turns) {
    for (const uint64_t turn : turns) {
      const ParkedPull* const pull = calls_.parked.Find(turn);
      if (pull != nullptr && TryAnswerPull(*pull)) calls_.parked.Take(turn);
    }
  };
  if (held || log_.kept()) {
    // With the log, a push may wait for another worker's push of the same batch.
    begin(calls_.held.Turns());
  } else {
    for (const uint32_t worker : moved) begin(calls_.held.TurnsOf(worker));
  }
  // If one of these pushes has to wait again, so do all after it.
  for (const uint64_t turn : calls_.behind_stream.Turns()) {
    HandleBegin(calls_.behind_stream.Take(turn));
    if (calls_.behind_stream.Find(turn) != nullptr) break;
  }
  if (all) {
    answer(calls_.parked.Turns());
  } else {
    for (const uint32_t worker : moved) answer(calls_.parked.TurnsOf(worker));
  }
  counters_.parked_pulls = calls_.parked.size();
}

// ---- calls that end

void Shard::HandleEnd(Session session) {
  const auto cancel = [](const auto& call) { call.done(absl::CancelledError("the connection has ended")); };
  const auto ended = [session](const auto& call) { return call.session == session; };
  calls_.EndSession(session, {cancel, cancel, cancel});
  now_.staged().EndWaiters(ended, [&](uint32_t, const StagedParts::Waiter& waiter) { cancel(waiter); });
  initial_.EndWaiter(ended, cancel);
  log_.AnswerIf(ended, cancel);
  counters_.parked_pulls = calls_.parked.size();
}

void Shard::HandleTick() {
  if (!over_) loader_.Tick();
  const absl::Time now = options_.clock->Now();
  const absl::Time limit = now - absl::Seconds(options_.config.cluster().wait_seconds());
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
  calls_.EndFromBefore(limit, answers);
  if (log_.writes() > 0 && log_.moved() <= limit) {
    FailLog(absl::DeadlineExceededError(
        absl::StrCat("the disk has answered none of ", log_.writes(), " writes for ", waited(log_.moved()))));
  }
  // The part stays staged, so a repeat of the push finds it.
  now_.staged().EndWaiters([&](const StagedParts::Waiter& waiter) { return waiter.since <= limit; },
                           [&](uint32_t part, const StagedParts::Waiter& waiter) {
                             late(waiter, "part ", part, " waited ", waited(waiter.since), " for ",
                                  waits_.OfPart());
                           });
  // The uploaded values stay, too.
  initial_.EndWaiter([&](const InitialValues::Waiter& waiter) { return waiter.since <= limit; },
                     [&](const InitialValues::Waiter& waiter) {
                       late(waiter, "the upload of the initial values waited ", waited(waiter.since), " for ",
                            WaitReport::OfUpload());
                     });
  room_.EndPins();
  // Arrivals are destroyed without notice to the shard, so a held push may now be able to begin.
  if (now_.store() != nullptr) {
    room_.RevokeLate();
    calls_.changes.held = true;
    WakeMoved();
  }
  table_report_.Update();
  room_.SetTableBytes(table_report_.bytes());
  counters_.longest_wait_ms = static_cast<uint64_t>(absl::ToInt64Milliseconds(waits_.Longest()));
  if (!over_) waits_.Watch();
}

void Shard::FailWaiting(const std::function<bool(uint32_t)>& which, const Verdict& verdict) {
  const auto answer = [&](const auto& push) { Answer(push.done, verdict); };
  WaitingCalls::Answers answers;
  answers.held = [&](const HeldPush& push) { push.done(PushBegin(NewAnswer(verdict))); };
  answers.ready = answer;
  answers.parked = [&](const ParkedPull& pull) { pull.done(PullAnswer{NewPullReply(verdict), nullptr}); };
  calls_.EndWorkers(which, answers);
  log_.AnswerIf([&](const Decision& decision) { return which(decision.worker()); }, answer);
  counters_.parked_pulls = calls_.parked.size();
}

void Shard::FailAll(const Verdict& verdict) {
  FailWaiting([](uint32_t) { return true; }, verdict);
  // Waits for a commit do not belong to a worker: they end only with the step.
  const auto all = [](const StagedParts::Waiter&) { return true; };
  now_.staged().EndWaiters(
      all, [&](uint32_t, const StagedParts::Waiter& waiter) { Answer(waiter.done, verdict); });
  initial_.EndWaiter(all, [&](const StagedParts::Waiter& waiter) { Answer(waiter.done, verdict); });
}

}  // namespace weir
