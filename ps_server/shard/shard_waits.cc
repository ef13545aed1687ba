// The part of Shard that handles waiting calls: it continues those that can go on, and ends those that have
// waited too long.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/telemetry/logging.h"
#include "ps_server/shard/shard.h"

namespace weir {

bool Shard::ShortOfMemory() const {
  if (staged_.late_commit.has_value()) return true;
  return log_.kept() ? log_.NextDurable() != nullptr : !calls_.ready.empty();
}

// ---- what can go on

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
  if (staged_.late_commit.has_value() && room_.Make()) {
    const StagedParts::LateCommit late = *std::exchange(staged_.late_commit, std::nullopt);
    HandleCommit(late.commit);
    for (const v1::PinVersion& pin : late.pins) HandlePin(pin);
    if (late.freeze.has_value()) HandleFreeze(*late.freeze);
    if (late.checkpoint.has_value()) HandleCheckpoint(*late.checkpoint);
  }
  room_.SetShort(ShortOfMemory());
  // A pull may wait for the slowest worker, whoever that is.
  if (policy_ == nullptr) return;
  const uint64_t slowest = policy_->JoinClock();
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
  // Once one of these has to wait again, all do.
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

// ---- what ends

void Shard::HandleEnd(Session session) {
  const auto cancel = [](const auto& call) { call.done(absl::CancelledError("the connection has ended")); };
  const auto ended = [session](const auto& call) { return call.session == session; };
  calls_.EndSession(session, {cancel, cancel, cancel});
  staged_.EndWaiters(ended, [&](uint32_t, const StagedParts::Waiter& waiter) { cancel(waiter); });
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
  staged_.EndWaiters([&](const StagedParts::Waiter& waiter) { return waiter.since <= limit; },
                     [&](uint32_t part, const StagedParts::Waiter& waiter) {
                       late(waiter, "part ", part, " waited ", waited(waiter.since), " for ",
                            waits_.OfPart());
                     });
  // The values stay, too.
  initial_.EndWaiter([&](const InitialValues::Waiter& waiter) { return waiter.since <= limit; },
                     [&](const InitialValues::Waiter& waiter) {
                       late(waiter, "the upload of the initial values waited ", waited(waiter.since), " for ",
                            WaitReport::OfUpload());
                     });
  room_.EndPins();
  // Arrivals are destroyed without notice to the shard, so a held push may now be able to begin.
  if (store_ != nullptr) {
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
  staged_.EndWaiters(all, [&](uint32_t, const StagedParts::Waiter& waiter) { Answer(waiter.done, verdict); });
  initial_.EndWaiter(all, [&](const StagedParts::Waiter& waiter) { Answer(waiter.done, verdict); });
}

}  // namespace weir
