// The part of Shard that answers pulls, lets those calls wait that have to, and words the answers.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/job_failure.h"
#include "common/planted_bug.h"
#include "common/telemetry/logging.h"
#include "ps_server/shard/shard.h"

namespace weir {
namespace {

// How long a reader may hold an old version while others wait for its memory.
constexpr absl::Duration kReaderPatience = absl::Seconds(5);

// Answers and drops those calls of a list for which `which` holds.
template <typename Calls, typename Which, typename Answer>
void EndIf(Calls& calls, const Which& which, const Answer& answer) {
  for (auto it = calls.begin(); it != calls.end();) {
    if (!which(*it)) {
      ++it;
      continue;
    }
    answer(*it);
    it = calls.erase(it);
  }
}

}  // namespace

void Shard::HandlePull(ParkedPull pull) {
  const v1::PullRequest& request = pull.request;
  bool lost = false;
  if (!sync() && store_ != nullptr && request.pin() == 0 && Check(request.caller()) == CallerCheck::kLive) {
    if (request.answered_clock() > request.clock()) {
      return pull.done(absl::InvalidArgumentError(absl::StrCat(
          "answered_clock: ", request.answered_clock(), " is above the pull's clock ", request.clock())));
    }
    // With one on its way the pull waits for that, and the clock must not change under it.
    const uint32_t worker = request.caller().worker();
    lost = !OnItsWay(worker) && DeclareLost(worker, request.answered_clock());
  }
  if (!TryAnswerPull(pull)) {
    parked_.push_back(std::move(pull));
    counters_.parked_pulls = parked_.size();
  }
  if (lost) Wake();
}

bool Shard::DeclareLost(uint32_t worker, uint64_t answered_clock) {
  MemberState& member = members_.at(worker);
  bool any = false;
  const auto lose = [&](uint64_t begin, uint64_t end) {
    if (begin >= end || Planted("lost clocks not declared")) return;
    any = true;
    member.lost.Insert(begin, end);
    counters_.pushes_lost += end - begin;
    LogWarning("lost ", end - begin, " acknowledged push(es) of ", member.task, ", clocks ", begin, " to ",
               end - 1, ": this shard was restored from before them");
  };
  member.unheard = false;
  const IntervalSet passed = member.passed.TakeBelow(answered_clock);
  for (const auto& [begin, end] : passed.intervals()) lose(begin, end);
  lose(policy_->Skip(worker, answered_clock), answered_clock);
  return any;
}

bool Shard::TryAnswerPull(const ParkedPull& pull) {
  const v1::PullRequest& request = pull.request;
  const auto answer = [&](v1::Outcome outcome, std::string reason,
                          std::shared_ptr<const ShardVersion> version) {
    PullAnswer out;
    out.header = NewPullReply(outcome, std::move(reason));
    if (version != nullptr) {
      out.header.mutable_version()->set_count(version->count);
      if (!request.header_only()) {
        counters_.bytes_pulled += static_cast<uint64_t>(store_->elements()) * sizeof(float);
        out.revoked = Lease(version);
        out.version = std::move(version);
      }
    }
    pull.done(std::move(out));
    return true;
  };
  if (over_) return answer(v1::JOB_OVER, failure_, nullptr);
  if (store_ == nullptr) {
    pull.done(absl::UnavailableError("this shard has no model yet"));
    return true;
  }
  if (request.caller().model_hash() != model_hash_) {
    pull.done(
        absl::InvalidArgumentError("the pull is for another model than this job's (model_hash differs)"));
    return true;
  }
  if (request.pin() != 0) {
    const auto pin = pins_.find(request.pin());
    if (pin == pins_.end()) {
      pull.done(absl::FailedPreconditionError(
          absl::StrCat("pin ", request.pin(), " is not held here; its lease may have ended")));
      return true;
    }
    return answer(v1::OK, "", pin->second.version);
  }
  switch (Check(request.caller())) {
    case CallerCheck::kUnknownYet:
      pull.done(absl::UnavailableError("this shard does not know the caller's membership epoch yet"));
      return true;
    case CallerCheck::kFenced:
      return answer(v1::FENCED, Fenced(request.caller()), nullptr);
    case CallerCheck::kLive:
      break;
  }
  switch (policy_->OnPull(request.caller().worker(), request.clock())) {
    case PullDecision::kWait:
      return false;
    case PullDecision::kPast:
      return answer(v1::STEP_PAST, absl::StrCat("step ", request.clock(), " is past"), nullptr);
    case PullDecision::kReady:
      return answer(v1::OK, "", store_->Current());
  }
  return false;
}

bool Shard::ShortOfMemory() const {
  if (late_commit_.has_value()) return true;
  return log_ == nullptr ? !ready_.empty() : !logging_.empty() && logging_.front().durable;
}

std::shared_ptr<const std::atomic<bool>> Shard::Lease(const std::shared_ptr<const ShardVersion>& version) {
  readings_.remove_if([](const Reading& reading) { return reading.version.expired(); });
  for (const Reading& reading : readings_) {
    if (reading.version.lock() == version) return reading.revoked;
  }
  readings_.push_back({version, std::make_shared<std::atomic<bool>>(false)});
  return readings_.back().revoked;
}

// ---- waiting

void Shard::Wake() {
  Settle();
  while (!ready_.empty() && CanDecide(ready_.front().arrival->header())) {
    ReadyPush ready = std::move(ready_.front());
    ready_.pop_front();
    short_since_ = options_.clock->Now();
    HandlePush(ready.session, std::move(ready.arrival), std::move(ready.done), /*waited=*/true);
  }
  if (late_commit_.has_value() && store_->CanPublish()) {
    const v1::CommitStep commit = *std::move(late_commit_);
    late_commit_.reset();
    HandleCommit(commit);
  }
  short_of_memory_ = ShortOfMemory();
  std::list<HeldPush> held;
  held.swap(held_);
  for (HeldPush& push : held) HandleBegin(std::move(push));
  for (auto it = parked_.begin(); it != parked_.end();) {
    it = TryAnswerPull(*it) ? parked_.erase(it) : std::next(it);
  }
  counters_.parked_pulls = parked_.size();
}

void Shard::HandleEnd(Session session) {
  const auto ended = [session](const auto& call) { return call.session == session; };
  const auto cancel = [](const auto& call) { call.done(absl::CancelledError("the connection has ended")); };
  EndIf(held_, ended, cancel);
  EndIf(ready_, ended, cancel);
  EndIf(parked_, ended, cancel);
  for (auto& [part, staged] : staged_) EndIf(staged.waiters, ended, cancel);
  for (Decision& decision : logging_) {
    // It is decided on all the same.
    if (!decision.done || !ended(decision)) continue;
    cancel(decision);
    decision.done = nullptr;
  }
  counters_.parked_pulls = parked_.size();
}

void Shard::HandleTick() {
  const absl::Time now = options_.clock->Now();
  const auto late = [&](const auto& call) { return call.since <= now - wait_limit(); };
  EndIf(parked_, late, [&](const ParkedPull& pull) {
    pull.done(absl::DeadlineExceededError(absl::StrCat("a pull at clock ", pull.request.clock(), " waited ",
                                                       absl::FormatDuration(now - pull.since), " for ",
                                                       WhoIsAwaited(pull.request))));
  });
  EndIf(held_, late, [](const HeldPush& push) {
    push.done(absl::DeadlineExceededError(
        absl::StrCat("the push at clock ", push.header.clock(),
                     " waited for the pushes of the same worker before it, which did not come")));
  });
  for (auto& [part, staged] : staged_) {
    // The part stays staged: a repeat of the push finds it.
    EndIf(staged.waiters, late, [&, part = part](const StagedPart::Waiter& waiter) {
      waiter.done(absl::DeadlineExceededError(absl::StrCat(
          "part ", part, " waited ", absl::FormatDuration(now - waiter.since), " for ", MissingParts())));
    });
  }
  for (auto it = pins_.begin(); it != pins_.end();) {
    it = it->second.deadline <= now ? pins_.erase(it) : std::next(it);
  }
  if (ShortOfMemory() && now - short_since_ > kReaderPatience) {
    readings_.remove_if([](const Reading& reading) { return reading.version.expired(); });
    if (!readings_.empty()) *readings_.front().revoked = true;
  }
  // Arrivals are given up without a word.
  if (store_ != nullptr) Wake();
}

void Shard::FailWaiting(const std::function<bool(uint32_t)>& which, v1::Outcome outcome,
                        const std::string& reason) {
  const auto push_answer = [&] { return PushAnswer{NewReply(outcome, reason), {}, nullptr}; };
  EndIf(
      held_, [&](const HeldPush& push) { return which(push.header.caller().worker()); },
      [&](const HeldPush& push) { push.done(PushBegin(NewReply(outcome, reason))); });
  EndIf(
      ready_, [&](const ReadyPush& push) { return which(push.arrival->header().caller().worker()); },
      [&](const ReadyPush& push) { push.done(push_answer()); });
  for (Decision& decision : logging_) {
    if (!decision.done || !which(decision.header.caller().worker())) continue;
    decision.done(push_answer());
    decision.done = nullptr;
  }
  EndIf(
      parked_, [&](const ParkedPull& pull) { return which(pull.request.caller().worker()); },
      [&](const ParkedPull& pull) {
        pull.done(PullAnswer{NewPullReply(outcome, reason), nullptr, nullptr});
      });
  counters_.parked_pulls = parked_.size();
}

void Shard::FailAll(v1::Outcome outcome, const std::string& reason) {
  FailWaiting([](uint32_t) { return true; }, outcome, reason);
  // Staged parts have no owner: whoever computed them, they are the step's. Only its end ends their wait.
  for (auto& [part, staged] : staged_) {
    for (const StagedPart::Waiter& waiter : staged.waiters) {
      waiter.done(PushAnswer{NewReply(outcome, reason), {}, nullptr});
    }
    staged.waiters.clear();
  }
}

// ---- words

Shard::CallerCheck Shard::Check(const v1::Caller& caller) const {
  if (epoch_ == 0) return CallerCheck::kUnknownYet;
  const auto it = members_.find(caller.worker());
  if (it != members_.end() && it->second.incarnation == caller.incarnation()) return CallerCheck::kLive;
  return caller.epoch() > epoch_ ? CallerCheck::kUnknownYet : CallerCheck::kFenced;
}

std::string Shard::WhoIsAwaited(const v1::PullRequest& request) const {
  if (policy_ == nullptr) return "the coordinator";
  std::vector<std::string> names;
  const std::vector<WorkerClockValue> clocks = policy_->Clocks();
  for (uint32_t worker : policy_->WaitingFor(request.caller().worker(), request.clock())) {
    const auto member = members_.find(worker);
    std::string name = member == members_.end() ? absl::StrCat("worker ", worker) : member->second.task;
    for (const WorkerClockValue& value : clocks) {
      if (value.worker == worker) absl::StrAppend(&name, " (at clock ", value.clock, ")");
    }
    names.push_back(std::move(name));
  }
  return names.empty() ? "the coordinator's commit" : absl::StrJoin(names, ", ");
}

std::string Shard::MissingParts() const {
  v1::PullRequest next;
  next.set_clock(policy_->JoinClock() + 1);
  return WhoIsAwaited(next);
}

std::string Shard::Fenced(const v1::Caller& caller) const {
  return absl::StrCat("worker ", caller.worker(), " with incarnation ", caller.incarnation(),
                      " is not in membership epoch ", epoch_);
}

std::string Shard::NonFinite(const PushArrival& arrival) const {
  const v1::PushRequest& push = arrival.header();
  return NonFinitePush(
      push.caller().worker(), members_.at(push.caller().worker()).task,
      absl::StrCat("the gradient of ", store_->Describe(arrival.non_finite()), " is not finite"),
      push.clock());
}

std::string Shard::CommittedWithout(uint64_t step, uint32_t part) {
  return absl::StrCat("step ", step, " was committed without part ", part,
                      ", which a shard refused or which came late");
}

v1::PushReply Shard::NewReply(v1::Outcome outcome, std::string reason) const {
  v1::PushReply reply;
  reply.set_outcome(outcome);
  reply.set_reason(std::move(reason));
  reply.set_epoch(epoch_);
  reply.mutable_version()->set_incarnation(incarnation_);
  if (store_ != nullptr) reply.mutable_version()->set_count(store_->count());
  return reply;
}

v1::PullReply Shard::NewPullReply(v1::Outcome outcome, std::string reason) const {
  v1::PullReply reply;
  reply.set_outcome(outcome);
  reply.set_reason(std::move(reason));
  reply.set_epoch(epoch_);
  reply.mutable_version()->set_incarnation(incarnation_);
  if (store_ == nullptr) return reply;
  reply.mutable_version()->set_count(store_->count());
  reply.set_elements(store_->elements());
  if (!sync()) {
    for (const WorkerClockValue& value : policy_->Clocks()) {
      v1::WorkerClock* clock = reply.add_clocks();
      clock->set_worker(value.worker);
      clock->set_clock(value.clock);
    }
  }
  return reply;
}

}  // namespace weir
