#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace weir {

// Whom the coordinator waits for when the job is over, since they would look for it in vain: workers of a job
// that is done who may come yet, and members of one that has failed.
//
// Belongs to the coordinator's queue.
class Farewell {
 public:
  // A process that lives although its connection broke is heard of by then.
  static constexpr absl::Duration kComesBack = absl::Seconds(1);

  // Ranks are 0 to workers - 1.
  Farewell(uint32_t workers, absl::Duration lease) : workers_(workers), lease_(lease) {}

  // ---- a job that is done

  // Training has started, or goes on: for a lease from now, workers that were not there yet may come. A job
  // may be shorter than the start of a process.
  void OnStart(absl::Time now) { expected_until_ = now + lease_; }
  // A process of this rank is in.
  void OnMember(uint32_t rank);
  // A member was lost. Its process may live: one that fell silent may have been stopped or cut off, and wake.
  // `disconnected`: its connection broke before.
  void OnLost(uint32_t rank, std::string task, absl::Time now, bool disconnected);
  // A member left for a reason, and not since the work is done.
  void OnGaveUp(uint32_t rank) { gave_up_.insert(rank); }
  // A process of this rank has heard that the job is done.
  void OnTold(uint32_t rank);
  // The job is not done after all.
  void OnMore() { told_.clear(); }

  // Ranks that gave up, and did not come back.
  const std::set<uint32_t>& gave_up() const { return gave_up_; }
  // Who may come yet, for messages. `saved_at`: when the end of the job was saved; `name`: of a rank.
  std::vector<std::string> MayCome(absl::Time now, absl::Time saved_at,
                                   const std::function<std::string(uint32_t)>& name) const;

  // ---- a job that has failed

  // The members and readers that have to hear of it, by incarnation. They get two seconds.
  //
  // A member has heard of it when it leaves the job. That its heartbeat was answered shows nothing: a process
  // that ends while the kernel holds unread bytes of a connection resets the connection, and the kernel at
  // the other end then drops what its process has not read yet.
  void OnFailure(std::set<uint64_t> incarnations, absl::Time now);
  // It has left the job, or its process is gone.
  void OnLeft(uint64_t incarnation) { untold_.erase(incarnation); }
  void WaitNoLonger() { untold_.clear(); }
  bool AllKnow(absl::Time now) const { return untold_.empty() || now >= tell_until_; }

 private:
  struct Lost {
    std::string task;
    absl::Time since;
    bool disconnected = false;
  };
  const uint32_t workers_;
  const absl::Duration lease_;
  // Ranks.
  std::set<uint32_t> told_, gave_up_;
  std::map<uint32_t, Lost> lost_;
  absl::Time expected_until_ = absl::InfinitePast();
  // Incarnations.
  std::set<uint64_t> untold_;
  absl::Time tell_until_ = absl::InfinitePast();
};

}  // namespace weir
