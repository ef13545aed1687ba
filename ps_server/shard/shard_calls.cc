// The part of Shard that answers pulls, and words the answers.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/planted_bug.h"
#include "common/protocol/job_failure.h"
#include "common/telemetry/logging.h"
#include "ps_server/shard/shard.h"

namespace weir {
void Shard::HandlePull(ParkedPull pull) {
  const v1::PullRequest& request = pull.request;
  bool lost = false;
  if (mode_.keeps_clocks && store_ != nullptr && request.pin() == 0 &&
      Check(request.caller()) == CallerCheck::kLive) {
    if (request.answered_clock() > request.clock()) {
      return pull.done(absl::InvalidArgumentError(absl::StrCat(
          "answered_clock: ", request.answered_clock(), " is above the pull's clock ", request.clock())));
    }
    // With one on its way the pull waits for that, and the clock must not change under it.
    const uint32_t worker = request.caller().worker();
    lost = !OnItsWay(worker) && DeclareLost(worker, request.answered_clock());
  }
  if (!TryAnswerPull(pull)) {
    if (absl::Status full = CheckRoomToWait(request.caller().worker()); !full.ok()) return pull.done(full);
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
    LogWarning("lost the acknowledged pushes of ", member.task, " at clocks ", begin, " to ", end - 1, ", ",
               end - begin, " at most: this shard was restored from before them");
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
                          std::shared_ptr<const LentVersion> version) {
    PullAnswer out;
    out.header = NewPullReply(outcome, std::move(reason), request.with_clocks());
    if (version != nullptr) {
      out.header.mutable_version()->set_count(version->count);
      if (!request.header_only()) {
        counters_.bytes_pulled += static_cast<uint64_t>(store_->elements()) * sizeof(float);
        out.version = std::move(version);
      }
    }
    pull.done(std::move(out));
    return true;
  };
  const auto holder = [&] { return Holder{pull.session, request.caller().worker(), request.pin()}; };
  if (over_) return answer(v1::JOB_OVER, std::string(failure_.message()), nullptr);
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
    return answer(v1::OK, "", store_->LendAgain(*pin->second.version, holder()));
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
      return answer(v1::OK, "", store_->Lend(holder()));
  }
  return false;
}

// ---- words

Shard::CallerCheck Shard::Check(const v1::Caller& caller) const {
  if (epoch_ == 0) return CallerCheck::kUnknownYet;
  const auto it = members_.find(caller.worker());
  if (it != members_.end() && it->second.incarnation == caller.incarnation()) return CallerCheck::kLive;
  return caller.epoch() > epoch_ ? CallerCheck::kUnknownYet : CallerCheck::kFenced;
}

std::string Shard::Fenced(const v1::Caller& caller) const {
  return absl::StrCat("worker ", caller.worker(), " with incarnation ", caller.incarnation(),
                      " is not in membership epoch ", epoch_);
}

std::string Shard::NonFinite(const PushArrival& arrival) const {
  const v1::PushRequest& push = arrival.header();
  const auto& [at, value] = *arrival.non_finite();
  return NonFinitePush(push.caller().worker(), members_.at(push.caller().worker()).task,
                       NonFiniteValue(absl::StrCat("the gradient of ", store_->Describe(at)), value),
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
  if (outcome == v1::JOB_OVER) reply.set_failure_kind(KindOf(failure_));
  reply.set_epoch(epoch_);
  reply.mutable_version()->set_incarnation(incarnation_);
  if (store_ != nullptr) reply.mutable_version()->set_count(store_->count());
  return reply;
}

v1::PullReply Shard::NewPullReply(v1::Outcome outcome, std::string reason, bool with_clocks) const {
  v1::PullReply reply;
  reply.set_outcome(outcome);
  reply.set_reason(std::move(reason));
  if (outcome == v1::JOB_OVER) reply.set_failure_kind(KindOf(failure_));
  reply.set_epoch(epoch_);
  reply.mutable_version()->set_incarnation(incarnation_);
  if (store_ == nullptr) return reply;
  reply.mutable_version()->set_count(store_->count());
  reply.set_elements(store_->elements());
  if (with_clocks && mode_.keeps_clocks) {
    for (const WorkerClockValue& value : policy_->Clocks()) {
      v1::WorkerClock* clock = reply.add_clocks();
      clock->set_worker(value.worker);
      clock->set_clock(value.clock);
    }
  }
  return reply;
}

}  // namespace weir
