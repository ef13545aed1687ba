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
#include "ps_server/coordinator/job/job.h"

namespace weir {

// The end of a job: why it ends, whether the end is saved, and which processes have yet to be told. These are
// workers that may still come to a job that is done, members of a job that has failed, and servers. Once the
// coordinator has ended, they would look for it without success.
//
// Belongs to the coordinator's queue.
class JobEnding {
 public:
  using Leave = std::function<void(absl::StatusOr<v1::LeaveReply>)>;
  // Members have this time to confirm a failure, and a server whose link broke to confirm on a new link.
  static constexpr absl::Duration kTellFailure = absl::Seconds(2);

  struct Options {
    std::function<std::string(uint32_t rank)> worker_name;
    // Asks the store whether the job is still this coordinator's. If it is not, `done` gets Aborted.
    std::function<void(std::function<void(const absl::Status&)> done)> confirm;
    // Whether all shards are installed. While a shard is away, a failure to save does not count as trouble,
    // because the coordinator waits for the shard anyway.
    std::function<bool()> all_installed;
    // The end is saved, and the workers that waited have left.
    std::function<void()> saved;
    // Called once: the job is over, and no process is awaited any more.
    std::function<void()> settled;
  };
  // `checkpoints` outlives the object.
  JobEnding(const JobContext& job, Checkpoints& checkpoints, Options options)
      : job_(job), checkpoints_(checkpoints), options_(std::move(options)) {}

  // ---- why the job ends

  // The job is to be saved, and then fails.
  void Drain() { drained_ = true; }
  bool drained() const { return drained_; }
  // Fails the job, unless the store says that another coordinator has the job, which is then the likely
  // cause. The first failure counts. If the store does not answer in time, the job fails.
  void FailUnlessReplaced(const absl::Status& failure);
  // The job was done and its end was saved before this coordinator began.
  void EndAgain();
  bool ends_again() const { return ends_again_; }

  // The job is over: done if `failure` is OK. Call Await() in the same turn.
  void End(const absl::Status& failure) { failure_ = failure; }
  // OK: the job has not failed.
  const absl::Status& failure() const { return failure_; }
  // The answers to a Join, once nothing is left to do, and to other calls, once the job is over.
  absl::Status ForJoin() const;
  absl::Status ForCall() const;

  // ---- whether the end is saved: no worker may leave before, because its work might have to be done again

  // All examples are done, as many as `examples`. Saves the job; if that fails, tries again, for
  // checkpoint.save_wait_seconds at most.
  void Save(uint64_t examples);
  bool saved() const { return saved_; }
  // Why the last try to save failed. Empty: it did not fail.
  const std::string& save_trouble() const { return trouble_; }
  // A worker that has done its work waits until the end is saved.
  void Wait(Leave leave) { leaving_.push_back(std::move(leave)); }
  // Answers the waiting workers with this error.
  void Refuse(const absl::Status& why);
  // Tries to save again, or says what the last checkpoint waits for. Call it from time to time.
  void TickSave();

  // ---- workers that may still come

  // Training starts or continues. Workers that were not there yet are expected for one lease from now,
  // because a job may be shorter than the start of a process.
  void OnStart() { expected_until_ = now() + job_.lease(); }
  // A process of this rank became a member.
  void OnMember(uint32_t rank);
  // A member was lost. Its process may be alive: a silent process may have been stopped or cut off, and may
  // continue. `disconnected`: its connection broke before. `others`: the instances of processes that wait to
  // be the worker of this rank. None of them counts as the lost process, even if it was started in its place,
  // because a late repeat of an earlier Join cannot be told from it.
  void OnLost(uint32_t rank, std::string task, bool disconnected, std::set<uint64_t> others);
  // The connection of a process that waited to join broke.
  void OnJoinBroken(uint32_t rank, std::string task);
  // A member left for a reason other than that the work is done.
  void OnGaveUp(uint32_t rank) { gave_up_.insert(rank); }
  // The process of this rank and instance has been told that the job is done.
  void OnTold(uint32_t rank, uint64_t instance);
  // The job is not done after all, for this reason, and its end will have to be saved again.
  void OnMore(const absl::Status& why);

  // The ranks that gave up and did not come back.
  const std::set<uint32_t>& gave_up() const { return gave_up_; }
  // The processes that may still come, for messages.
  std::vector<std::string> MayCome() const;
  // Whether any process may still come. Logs the names the first time.
  bool AwaitsWorkers();

  // ---- processes that have yet to hear that the job is over

  // Waits until these servers have confirmed the end, for `limit` at most, and until these members and
  // readers (incarnations) have left, for kTellFailure at most.
  //
  // A member that leaves the job has heard of the failure. An answered heartbeat does not prove that. If a
  // process ends while the kernel holds unread bytes of a connection, the connection is reset. Then the
  // kernel at the other end drops all bytes that its process has not read yet.
  void Await(std::set<uint32_t> servers, absl::Duration limit, std::set<uint64_t> members);
  // This member has left the job, or its process is gone.
  void OnLeft(uint64_t incarnation);
  void OnServerKnows(uint32_t server);
  // The link to a server broke. A live server can soon be told on a new link, for which kTellFailure remains.
  // Returns false if the server is not awaited.
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
  // The failure with which the job ends, once the store says that no other coordinator has the job, or when
  // it has not answered until suspected_until_.
  std::optional<absl::Status> suspected_;
  absl::Time suspected_until_;

  // Set by Save(): how many examples are done.
  std::optional<uint64_t> saving_;
  bool saved_ = false;
  // Infinite past: the end was saved before this coordinator began.
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
  // `awaits_`: Await() was called. `said_over_`: Options::settled was called.
  bool awaits_ = false, said_over_ = false;
};

}  // namespace weir
