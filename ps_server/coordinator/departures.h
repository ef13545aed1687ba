#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "proto/coordinator.pb.h"

namespace weir {

// Memberships that have ended.
//
// Belongs to the coordinator's queue.
class Departures {
 public:
  // A worker is out of the job. `left`: it left by itself, its work done; otherwise it was lost.
  void Add(const std::string& task, uint64_t incarnation, bool left) {
    v1::TaskStatus status;
    status.set_task(task);
    status.set_phase(left ? v1::TASK_LEFT : v1::TASK_LOST);
    status.set_incarnation(incarnation);
    shown_.push_back(std::move(status));
    if (shown_.size() > kShown) shown_.pop_front();
  }
  // Whether the worker of this incarnation left by itself.
  bool Left(uint64_t incarnation) const {
    return std::any_of(shown_.begin(), shown_.end(), [&](const v1::TaskStatus& task) {
      return task.incarnation() == incarnation && task.phase() == v1::TASK_LEFT;
    });
  }
  // The job goes back, so the workers that left have more to do.
  void ForgetLeft() {
    shown_.erase(std::remove_if(shown_.begin(), shown_.end(),
                                [](const v1::TaskStatus& task) { return task.phase() == v1::TASK_LEFT; }),
                 shown_.end());
  }
  // The newest departures, for the job's status.
  const std::deque<v1::TaskStatus>& shown() const { return shown_; }

  // All members with incarnations up to this one are out of the job, for this reason, unless their own leases
  // ended.
  void Fence(uint64_t up_to, std::string why) {
    fenced_up_to_ = up_to;
    fenced_why_ = std::move(why);
  }
  // The reason of the last Fence() if it is why this incarnation is out. Empty: it is not.
  std::string WhyOut(uint64_t incarnation) const { return incarnation <= fenced_up_to_ ? fenced_why_ : ""; }

  // Refuses later Joins of this instance. Its process got the answer to its Join, and would join again as
  // another instance. So a Join that still comes is a late repeat, and would make a member without a process.
  void Refuse(uint64_t instance) {
    refused_.push_back(instance);
    if (refused_.size() > kRefused) refused_.pop_front();
  }
  bool Refuses(uint64_t instance) const {
    return std::find(refused_.begin(), refused_.end(), instance) != refused_.end();
  }

 private:
  static constexpr size_t kShown = 100;
  static constexpr size_t kRefused = 4096;

  std::deque<v1::TaskStatus> shown_;
  uint64_t fenced_up_to_ = 0;
  std::string fenced_why_;
  std::deque<uint64_t> refused_;
};

}  // namespace weir
