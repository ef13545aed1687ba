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
  while (true) {
    PendingWork::NextPart next;
    {
      MutexLock lock(mutex_);
      // Each wait is for a call, which has a deadline of its own, or for an evaluation, for which the
      // coordinator has a deadline.
      while (true) {
        if (absl::Status alive = Alive(); !alive.ok()) return alive;
        next = work_.NextOfParts(news_.work_end(), news_.ExamplesDone());
        if (next.result.has_value()) return next.result;
        if (next.probe.has_value()) break;
        if (Steady::now() >= deadline) return std::nullopt;
        AwaitChange(deadline);
      }
    }
    Probe(*next.probe);
  }
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
  return work_.NextOfRanges(news_.ExamplesDone());
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
        if (work_.MayTakeRange()) break;
        if (work_.pushes_out() > 0 || work_.taking_range()) {
          AwaitChange();
        } else if (!changed_.WaitFor(mutex_, left()) && left() <= std::chrono::nanoseconds::zero() &&
                   work_.pushes_out() == 0) {
          return absl::DeadlineExceededError(absl::StrCat("NextWork() gave out the work at clock ",
                                                          work_.oldest_clock(), ", which was never pushed"));
        }
      }
      completed = work_.BeginTaking();
    }
    absl::StatusOr<bool> taken = TakeRange(completed);
    MutexLock lock(mutex_);
    work_.EndTaking();
    Changed();
    if (!taken.ok()) return taken.status();
    if (*taken) continue;
    if (news_.awaits_evaluation()) deadline = awake.Now() + absl::FromChrono(wait_);
    if (left() <= std::chrono::nanoseconds::zero()) {
      std::vector<std::string> others;
      for (const v1::Member& member : news_.membership().members()) {
        if (member.worker() != caller_.worker()) others.push_back(member.task());
      }
      return absl::DeadlineExceededError(absl::StrCat("no examples came free within cluster.wait_seconds = ",
                                                      std::chrono::duration<double>(wait_).count(),
                                                      " s; they are out to: ", absl::StrJoin(others, ", ")));
    }
    // The coordinator holds such a call for a while; this wait is in case it does not.
    changed_.WaitFor(mutex_, std::min<std::chrono::nanoseconds>(left(), backoff.Next()));
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
  return work_.TakeRange(reply, completed);
}

}  // namespace weir
