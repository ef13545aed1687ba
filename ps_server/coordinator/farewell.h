#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace weir {

// The processes that the coordinator waits for when the job is over, because they would look for it in vain:
// workers that may still come to a job that is done, members of a job that has failed, and servers.
//
// Belongs to the coordinator's queue.
class Farewell {
 public:
  // A process that is alive although its connection broke calls again within this time.
  static constexpr absl::Duration kComesBack = absl::Seconds(1);
  // The time to hear of a failure, or on another link of the end.
  static constexpr absl::Duration kTellFailure = absl::Seconds(2);

  // Ranks are 0 to workers - 1.
  Farewell(uint32_t workers, absl::Duration lease) : workers_(workers), lease_(lease) {}

  // ---- a job that is done

  // Training has started or goes on. Workers that were not there yet may come for a lease from now, because a
  // job may be shorter than the start of a process.
  void OnStart(absl::Time now) { expected_until_ = now + lease_; }
  // A process of this rank became a member.
  void OnMember(uint32_t rank);
  // A member was lost. Its process may be alive: a silent process may have been stopped or cut off, and wake.
  // `disconnected`: its connection broke before. `others`: the instances of processes that wait to be the
  // worker of this rank. None of them is the lost one, even if it was started again in its place: a late
  // repeat of a Join looks the same.
  void OnLost(uint32_t rank, std::string task, absl::Time now, bool disconnected, std::set<uint64_t> others);
  // The connection of a process broke that waited to join.
  void OnJoinBroken(uint32_t rank, std::string task, absl::Time now);
  // A member left for a reason other than that the work is done.
  void OnGaveUp(uint32_t rank) { gave_up_.insert(rank); }
  // The process of this rank and instance has heard that the job is done.
  void OnTold(uint32_t rank, uint64_t instance);
  // The job is not done after all.
  void OnMore() { told_.clear(); }

  // Ranks that gave up, and did not come back.
  const std::set<uint32_t>& gave_up() const { return gave_up_; }
  // The processes that may still come, for messages. `saved_at`: when the end of the job was saved. `name`
  // returns the name of a rank.
  std::vector<std::string> MayCome(absl::Time now, absl::Time saved_at,
                                   const std::function<std::string(uint32_t)>& name) const;

  // ---- a job that has failed

  // The job has failed. These members and readers, by incarnation, get two seconds to hear of it.
  //
  // A member has heard of the failure when it leaves the job. An answered heartbeat proves nothing: a process
  // that ends while the kernel holds unread bytes of a connection resets the connection, and the kernel at
  // the other end then drops what its process has not read yet.
  void OnFailure(std::set<uint64_t> incarnations, absl::Time now);
  // This member has left the job, or its process is gone.
  void OnLeft(uint64_t incarnation) { untold_.erase(incarnation); }

  // ---- servers, however the job ends

  // These servers were told, and are waited for until they confirm that.
  void OnServersTold(std::set<uint32_t> servers, absl::Time until);
  void OnServerKnows(uint32_t server) { untold_servers_.erase(server); }
  // The link to a server broke. One that is alive can be told on another link soon.
  void OnServerBroke(absl::Time now);
  const std::set<uint32_t>& untold_servers() const { return untold_servers_; }

  // ---- all of them

  void WaitNoLonger() { tell_until_ = servers_until_ = absl::InfinitePast(); }
  bool AllKnow(absl::Time now) const {
    return (untold_.empty() || now >= tell_until_) && (untold_servers_.empty() || now >= servers_until_);
  }

 private:
  struct Lost {
    std::string task;
    absl::Time since;
    bool disconnected = false;
    bool member = false;
    std::set<uint64_t> others;
  };
  absl::Time ComesUntil(const Lost& lost, absl::Time saved_at) const;

  const uint32_t workers_;
  const absl::Duration lease_;
  // Ranks.
  std::set<uint32_t> told_, gave_up_;
  std::map<uint32_t, Lost> lost_;
  absl::Time expected_until_ = absl::InfinitePast();
  // Incarnations.
  std::set<uint64_t> untold_;
  absl::Time tell_until_ = absl::InfinitePast();
  std::set<uint32_t> untold_servers_;
  absl::Time servers_until_ = absl::InfinitePast();
};

}  // namespace weir
