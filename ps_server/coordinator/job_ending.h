#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/telemetry/logging.h"
#include "proto/coordinator.pb.h"
#include "ps_server/coordinator/checkpoints/checkpoints.h"
#include "ps_server/coordinator/job/job_context.h"

namespace weir {

// How a job ends: why, whether its end is saved, and which processes have yet to hear of the end. They would
// look for the coordinator in vain once it is gone: workers that may still come to a job that is done,
// members of a job that has failed, and servers.
//
// Belongs to the coordinator's queue.
class JobEnding {
 public:
  using Leave = std::function<void(absl::StatusOr<v1::LeaveReply>)>;
  // The time to hear of a failure, or on another link of the end.
  static constexpr absl::Duration kTellFailure = absl::Seconds(2);

  struct Options {
    std::function<std::string(uint32_t rank)> worker_name;
    // Asks the store whether the job is still this coordinator's; `done` gets Aborted if it is not.
    std::function<void(std::function<void(const absl::Status&)> done)> confirm;
    // Whether all shards are installed. While one is away, other code waits for it, and no save is tried.
    std::function<bool()> all_installed;
    // The end is saved: the workers that waited have left.
    std::function<void()> saved;
    // Called once: the job is over, and nobody is waited for any more.
    std::function<void()> settled;
  };
  // `checkpoints` outlives the object.
  JobEnding(const JobContext& job, Checkpoints& checkpoints, Options options)
      : job_(job), checkpoints_(checkpoints), options_(std::move(options)) {}

  // ---- why

  // The job is saved, and then fails.
  void Drain() { drained_ = true; }
  bool drained() const { return drained_; }
  // Fails the job unless the store says that another coordinator has it: then that is the likely cause. The
  // first failure counts, and a store that says nothing is believed to agree.
  void FailUnlessReplaced(const absl::Status& failure);
  // The job was done, and its end was saved, when this coordinator began.
  void EndAgain();
  bool ends_again() const { return ends_again_; }

  // The job is over: done if `failure` is OK. Call Await() in the same turn.
  void End(const absl::Status& failure) { failure_ = failure; }
  // OK: the job has not failed.
  const absl::Status& failure() const { return failure_; }
  // What callers hear once the job is over: the answer to a Join, if the job has failed; to any other call.
  absl::Status ForJoin() const;
  absl::Status ForCall() const;

  // ---- whether the end is saved: no worker may leave before, because its work might have to be done again

  // All of so many examples are done: saves the job, again and again for checkpoint.save_wait_seconds at
  // most.
  void Save(uint64_t examples);
  bool saved() const { return saved_; }
  // Why the last try failed. Empty: it did not.
  const std::string& save_trouble() const { return trouble_; }
  // A worker that has done its work waits until the end is saved.
  void Wait(Leave leave) { leaving_.push_back(std::move(leave)); }
  // Answers the waiting workers with this error.
  void Refuse(const absl::Status& why);
  // Tries to save again, or says what the last checkpoint waits for. Call it from time to time.
  void TickSave();

  // ---- workers that may still come

  // Training has started or continues. Workers that were not there yet may come for a lease from now, because
  // a job may be shorter than the start of a process.
  void OnStart() { expected_until_ = now() + job_.lease(); }
  // A process of this rank became a member.
  void OnMember(uint32_t rank);
  // A member was lost. Its process may be alive: a silent process may have been stopped or cut off, and wake.
  // `disconnected`: its connection broke before. `others`: the instances of processes that wait to be the
  // worker of this rank. None of them is the lost one, even if it was started again in its place: a late
  // repeat of a Join looks the same.
  void OnLost(uint32_t rank, std::string task, bool disconnected, std::set<uint64_t> others);
  // The connection of a process broke that waited to join.
  void OnJoinBroken(uint32_t rank, std::string task);
  // A member left for a reason other than that the work is done.
  void OnGaveUp(uint32_t rank) { gave_up_.insert(rank); }
  // The process of this rank and instance has heard that the job is done.
  void OnTold(uint32_t rank, uint64_t instance);
  // The job is not done after all, for this reason: the end is to be saved again.
  void OnMore(const absl::Status& why);

  // Ranks that gave up, and did not come back.
  const std::set<uint32_t>& gave_up() const { return gave_up_; }
  // The processes that may still come, for messages.
  std::vector<std::string> MayCome() const;
  // Whether there is such a process; logs the first time which.
  bool AwaitsWorkers();

  // ---- processes that have yet to hear that the job is over

  // Waits until these servers confirm the end, for `limit` at most, and these members and readers
  // (incarnations) have left, for two seconds at most.
  //
  // A member has heard of a failure when it leaves the job. An answered heartbeat proves nothing: a process
  // that ends while the kernel holds unread bytes of a connection resets the connection, and the kernel at
  // the other end then drops what its process has not read yet.
  void Await(std::set<uint32_t> servers, absl::Duration limit, std::set<uint64_t> members);
  // This member has left the job, or its process is gone.
  void OnLeft(uint64_t incarnation);
  void OnServerKnows(uint32_t server);
  // The link to a server broke. A live one can be told on another link soon. False: it is not waited for.
  bool OnServerBroke(uint32_t server);
  void WaitNoLonger();
  const std::set<uint32_t>& awaited_servers() const { return awaited_servers_; }
  // Call it from time to time.
  void Tick();

 private:
  struct Lost {
    std::string task;
    absl::Time since;
    bool disconnected = false;
    bool member = false;
    std::set<uint64_t> others;
  };
  absl::Time now() const { return job_.now(); }
  void Try();
  void OnSaved();
  void CannotSave(const std::string& why);
  absl::Time ComesUntil(const Lost& lost) const;
  bool AllKnow() const;
  // Calls Options::settled if it is time.
  void Settle();

  const JobContext& job_;
  Checkpoints& checkpoints_;
  const Options options_;
  bool drained_ = false, ends_again_ = false;
  absl::Status failure_;
  // What the job fails with once the store says that no other coordinator has the job, or has said nothing
  // until `until`.
  std::optional<absl::Status> suspected_;
  absl::Time suspected_until_;

  // Save() was called, for so many examples.
  std::optional<uint64_t> saving_;
  bool saved_ = false;
  // Infinite past: the end was saved before this coordinator.
  absl::Time saved_at_ = absl::InfinitePast();
  absl::Time next_try_ = absl::InfinitePast();
  std::string trouble_;
  absl::Time trouble_since_;
  LogLimit complaints_{absl::Seconds(10)};
  std::vector<Leave> leaving_;

  // Ranks.
  std::set<uint32_t> told_, gave_up_;
  std::map<uint32_t, Lost> lost_;
  absl::Time expected_until_ = absl::InfinitePast();
  bool said_waiting_ = false;

  std::set<uint64_t> awaited_members_;
  std::set<uint32_t> awaited_servers_;
  absl::Time members_until_, servers_until_;
  // Await() was called; Options::settled was.
  bool awaits_ = false, said_over_ = false;
};

}  // namespace weir
