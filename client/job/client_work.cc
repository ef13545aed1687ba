// What NextWork() does: which work there is, and what it waits for.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/call/backoff.h"
#include "client/job/client_impl.h"
#include "common/base/status_macros.h"
#include "common/system/clock.h"

namespace weir {

void ClientImpl::Learn(const InFlight& call, const absl::StatusOr<Answers>& answers) {
  MutexLock lock(mutex_);
  if (call.push.has_value()) {
    --pushes_out_;
    // DataLoss: the pull lost weights that had been handed over in part, after its push had taken effect.
    if (answers.ok() || absl::IsDataLoss(answers.status())) {
      ranges_.Acknowledge(call.push->first);
    } else {
      failed_pushes_.emplace(*call.push, answers.status());
    }
  }
  if (call.pull.has_value()) {
    pulls_out_.erase(pulls_out_.find(*call.pull));
    if (call.probe) probe_error_ = answers.status();
  }
  if (mode_.commits_steps && answers.ok()) {
    for (const ShardAnswer& answer : *answers) {
      // The version of either answer is the number of a step that is open.
      if (answer.push.outcome() == v1::OK) parts_.OpenStep(answer.push.version().count());
      if (answer.pull.outcome() == v1::OK || answer.pull.outcome() == v1::STEP_PAST) {
        parts_.OpenStep(answer.pull.version().count());
      }
    }
  }
  Changed();
}

absl::StatusOr<std::optional<Work>> ClientImpl::NextWork() {
  if (options_.reader) return absl::FailedPreconditionError("a reader has no work");
  return mode_.works_on_parts ? *NextPart(Steady::time_point::max()) : NextOfRanges();
}

std::optional<ClientImpl::WorkResult> ClientImpl::NextWorkBy(Steady::time_point deadline) {
  if (options_.reader) return NextWork();
  if (mode_.works_on_parts) return NextPart(deadline);
  MutexLock lock(mutex_);
  return RangeWorkAtHand();
}

std::optional<ClientImpl::WorkResult> ClientImpl::NextPart(Steady::time_point deadline) {
  mutex_.Lock();
  // Every wait below is for a call, which has its own deadline, or for an evaluation, for which the
  // coordinator has a deadline.
  std::optional<WorkResult> result;
  while (true) {
    if (absl::Status alive = Alive(); !alive.ok()) {
      result = alive;
      break;
    }
    const bool held = work_end_.has_value() && parts_.open_step() >= *work_end_;
    const bool done = ExamplesDone() || (parts_.done() && !work_end_.has_value());
    if (done && pushes_out_ == 0) {
      result = WorkResult(std::nullopt);
      break;
    }
    if (std::optional<Work> work; !done && !held && (work = parts_.Next()).has_value()) {
      work_clock_ = work->clock;
      result = WorkResult(work);
      break;
    }
    if (!probe_error_.ok()) {
      result = std::exchange(probe_error_, absl::OkStatus());
      break;
    }
    // Past steps were made without the failed pushes.
    const auto failed = failed_pushes_.lower_bound({parts_.open_step(), 0});
    if (failed != failed_pushes_.end()) {
      result = failed->second;
      break;
    }
    const uint64_t next = parts_.open_step() + 1;
    if (done || held || pulls_out_.lower_bound(next) != pulls_out_.end()) {
      if (Steady::now() >= deadline) break;
      AwaitChange(deadline);
      continue;
    }
    mutex_.Unlock();
    Probe(next);
    mutex_.Lock();
  }
  mutex_.Unlock();
  return result;
}

void ClientImpl::Probe(uint64_t step) {
  ShardSet::Pull probe;
  probe.request.set_clock(step);
  probe.request.set_header_only(true);
  probe.want.assign(1, step);
  Start(1, std::nullopt, std::move(probe), /*rows=*/nullptr, [](const absl::StatusOr<Answers>&) {});
}

std::optional<ClientImpl::WorkResult> ClientImpl::RangeWorkAtHand() {
  if (absl::Status alive = Alive(); !alive.ok()) return alive;
  if (!failed_pushes_.empty()) return failed_pushes_.begin()->second;
  if (std::optional<Work> work = ranges_.Next(); work.has_value()) {
    work_clock_ = work->clock;
    return WorkResult(work);
  }
  if (ranges_.outstanding().empty() && (ranges_done_ || ExamplesDone())) return WorkResult(std::nullopt);
  return std::nullopt;
}

absl::StatusOr<std::optional<Work>> ClientImpl::NextOfRanges() {
  // The deadline is an awake time.
  const Clock& awake = loop_->awake();
  absl::Time deadline = awake.Now() + absl::FromChrono(wait_);
  const auto left = [&] { return absl::ToChronoNanoseconds(deadline - awake.Now()); };
  Backoff backoff(std::chrono::milliseconds(20), std::chrono::milliseconds(500),
                  [this] { return loop_->Random(); });
  while (true) {
    std::vector<uint64_t> completed;
    {
      MutexLock lock(mutex_);
      while (true) {
        if (std::optional<WorkResult> known = RangeWorkAtHand(); known.has_value()) return *std::move(known);
        // A range is reported, and the next one asked for, when its last push is acknowledged.
        if (ranges_.outstanding().empty() && !taking_range_) break;
        if (pushes_out_ > 0 || taking_range_) {
          AwaitChange();
        } else if (!news_.WaitFor(mutex_, left()) && left() <= std::chrono::nanoseconds::zero() &&
                   pushes_out_ == 0) {
          return absl::DeadlineExceededError(absl::StrCat("NextWork() gave out the work at clock ",
                                                          ranges_.outstanding().begin()->first,
                                                          ", which was never pushed"));
        }
      }
      taking_range_ = true;
      completed = ranges_.CompletedRanges();
    }
    absl::StatusOr<bool> taken = TakeRange(completed);
    MutexLock lock(mutex_);
    taking_range_ = false;
    Changed();
    if (!taken.ok()) return taken.status();
    if (*taken) continue;
    if (work_waits_) deadline = awake.Now() + absl::FromChrono(wait_);
    if (left() <= std::chrono::nanoseconds::zero()) {
      std::vector<std::string> others;
      for (const v1::Member& member : membership_.members()) {
        if (member.worker() != caller_.worker()) others.push_back(member.task());
      }
      return absl::DeadlineExceededError(absl::StrCat("no examples came free within cluster.wait_seconds = ",
                                                      std::chrono::duration<double>(wait_).count(),
                                                      " s; they are out to: ", absl::StrJoin(others, ", ")));
    }
    // The coordinator holds such a call for a while; this wait is in case it does not.
    news_.WaitFor(mutex_, std::min<std::chrono::nanoseconds>(left(), backoff.Next()));
  }
}

absl::StatusOr<bool> ClientImpl::TakeRange(const std::vector<uint64_t>& completed) {
  v1::NextRangeRequest request;
  *request.mutable_caller() = CallerNow();
  for (uint64_t id : completed) request.add_completed_ranges(id);
  WEIR_ASSIGN_OR_RETURN(const v1::NextRangeReply reply, coordinator_.NextRange(request, limits()).Get());
  if (reply.fenced()) {
    const absl::Status fenced = absl::AbortedError(
        absl::StrCat("fenced: the coordinator took ", options_.task, " out of the job; its lease had ended"));
    Fail(fenced);
    return fenced;
  }
  MutexLock lock(mutex_);
  ranges_.Reported(completed);
  ranges_.RaiseClock(reply.clock());
  if (!reply.has_range()) {
    ranges_done_ = reply.done();
    return ranges_done_;
  }
  const v1::Range& range = reply.range();
  if (!ranges_.AddRange(range.id(), range.first_batch(), range.batches())) {
    return absl::InternalError(absl::StrCat("the coordinator handed out range ", range.id(), " (batches ",
                                            range.first_batch(), " + ", range.batches(),
                                            "), which is beyond the job or in work already"));
  }
  return true;
}

}  // namespace weir
