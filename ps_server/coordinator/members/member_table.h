#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/coordinator.pb.h"
#include "proto/shard_control.pb.h"
#include "ps_server/coordinator/job/job.h"

namespace weir {

// The share of the last ten seconds or so that a worker spent computing, from its reports. It is for people
// and autoscalers: no decision of the job depends on it. Not thread-safe.
class ComputeShare {
 public:
  // Takes WorkerReport.compute_seconds of a report that came now.
  void OnReport(absl::Time now, double compute_seconds);
  // In [0, 1], whatever the worker reports. nullopt: fewer than two reports have come.
  std::optional<double> Value() const;

 private:
  // By rising time.
  std::deque<std::pair<absl::Time, double>> samples_;
};

// The workers and readers of a job with their leases, the processes that wait to join, and the memberships
// that have ended. Also answers heartbeats: if the caller knows the newest revision of the job's state, its
// heartbeat waits for the next revision.
//
// Belongs to the coordinator's queue.
class MemberTable {
 public:
  template <typename Reply>
  using Done = std::function<void(absl::StatusOr<Reply>)>;
  // If a process is alive although its connection broke, it calls again within this time.
  static constexpr absl::Duration kComesBack = absl::Seconds(1);

  struct WaitingJoin {
    v1::JoinRequest request;
    Done<v1::JoinReply> done;
    uint64_t call = 0;
    absl::Time since;

    bool worker() const { return request.role() == v1::WORKER; }
  };
  // A heartbeat that waits for its answer. `done` empty: no heartbeat waits.
  struct ParkedHeartbeat {
    Done<v1::HeartbeatReply> done;
    uint64_t incarnation = 0;  // the caller's
    // The revision that the caller knows already; 0: the caller wants everything.
    uint64_t known_revision = 0;
    absl::Time until;
  };
  // The fields that workers and readers have in common.
  struct Process {
    std::string task;
    uint64_t instance = 0;
    // Whether the process's calls carry its instance. A stranger could guess the other fields of a call.
    bool says_instance = false;
    bool evaluates = false;  // when it is asked to
    uint64_t incarnation = 0;
    absl::Time lease_end, last_heard;
    // The connection broke, and no message has come since that proves that the process is alive.
    bool disconnected = false;
    // A heartbeat has come since the break, and was answered.
    bool answered_since = false;
    ParkedHeartbeat heartbeat;
  };
  enum class Phase {
    kJoining,     // the shards are told, and each answers with its floor
    kActivating,  // the shards are told its start clock
    kLive,
    kIdle,  // has a lease, but no work
  };
  struct Worker : Process {
    bool admitted() const { return phase == Phase::kLive || phase == Phase::kIdle; }

    Phase phase = Phase::kJoining;
    uint64_t start_clock = 0;
    // The first start clock that the worker got.
    std::optional<uint64_t> first_clock;
    // When the worker's Join was answered. Before that no process can know of the membership.
    absl::Time live_since = absl::InfiniteFuture();
    // `known_revision`: the newest revision that the worker's heartbeats confirm. `heard`: a heartbeat or a
    // Leave has come, so the process has the answer to its Join.
    uint64_t known_revision = 0;
    bool heard = false;
    ComputeShare compute_share;
    // sync: v1.Member.share, and whether its process knows of shares.
    uint32_t share = 0;
    bool knows_shares = false;
    // Batches since it joined, and the share when a report last showed that they had grown: at the job's end
    // a worker has nothing to compute.
    uint64_t batches = 0;
    std::optional<double> share_at_work;
    // The Join, which waits until the worker is live.
    std::optional<WaitingJoin> join;
    // The parked call of NextRange. Empty: no call is parked.
    Done<v1::NextRangeReply> next_range;
    absl::Time next_range_until;
  };
  struct Reader : Process {};

  struct Options {
    v1::JobIdentity identity;
    // How messages name the workers, by rank. May be short or empty.
    std::vector<std::string> names;
    // Fills in the job's state in this heartbeat's answer. `news`: the caller lacks the newest revision.
    std::function<void(const ParkedHeartbeat& heartbeat, bool news, v1::HeartbeatReply* reply)> describe;
  };
  MemberTable(const JobContext& job, Options options) : job_(job), options_(std::move(options)) {}

  // By rank.
  std::map<uint32_t, Worker>& workers() { return workers_; }
  const std::map<uint32_t, Worker>& workers() const { return workers_; }
  // By the number that Caller.worker has for a reader.
  const std::map<uint32_t, Reader>& readers() const { return readers_; }
  // In the order of their arrival.
  const std::vector<WaitingJoin>& waiting() const { return waiting_; }

  // Takes a worker's report of now.
  void OnReport(const v1::WorkerReport& report, Worker* worker);

  // A process waits to join.
  void Wait(WaitingJoin join) { waiting_.push_back(std::move(join)); }
  // If the process of this Join waits already, or is a member, its call takes the place of the earlier one,
  // or is answered with `reply`. Returns false if the process is neither.
  bool Repeat(
      const v1::JoinRequest& request, uint64_t call, Done<v1::JoinReply>& done,
      absl::FunctionRef<v1::JoinReply(uint32_t id, uint64_t incarnation, uint64_t start_clock)> reply);
  // The caller of this Join, whose process waits, went away. nullopt: no such process waits.
  std::optional<v1::JoinRequest> Cancel(uint64_t instance, uint64_t call);
  // Both make a member. A worker keeps its Join, which waits until the worker is live.
  Worker& Admit(WaitingJoin join, uint64_t incarnation);
  std::pair<uint32_t, Reader*> AdmitReader(const v1::JoinRequest& request, uint64_t incarnation);
  // Removes the waiting processes of this role, and returns them. TakeForFreeRanks(): the first worker for
  // each rank that has no member.
  std::vector<WaitingJoin> TakeWaiting(v1::Role role);
  std::vector<WaitingJoin> TakeForFreeRanks();
  // Answers waiting Joins with `joins`, and waiting NextRange calls with `others`.
  void AnswerAll(const absl::Status& joins, const absl::Status& others);

  // The member that is the caller. Null: the caller is not a member, or no longer.
  Worker* FindWorker(const v1::Caller& caller);
  Reader* FindReader(const v1::Caller& caller);
  Process* FindProcess(const v1::Caller& caller);
  // Aborted: the caller is of a different job, which this ps:0, or an earlier one at its address, had before.
  absl::Status CheckJob(uint64_t job) const;
  // As CheckJob(), and Aborted: the caller is not a member, or no longer. PermissionDenied: another process.
  absl::Status CheckCaller(const v1::Caller& caller) const;
  // Unavailable (LimitReached): too many processes of this task wait, or there are too many readers.
  absl::Status CheckRoom(const v1::JoinRequest& request) const;

  // Whether every worker knows this revision, so that none calls a shard at an earlier address. A worker that
  // is still joining has not called any shard.
  bool AllKnow(uint64_t revision) const;
  // Whether a worker is being admitted, so that a change of the membership is under way.
  bool Admitting() const;
  // The instances of the processes that wait to be the worker of this rank.
  std::set<uint64_t> Waiting(uint32_t rank) const;
  // Whether a process waits to be a worker, of any rank.
  bool AnyWorkerWaits() const;
  // The ranks of which a process is a member or waits.
  std::set<uint32_t> Ranks() const;
  // The name of this rank's worker in messages, whether it is there or not.
  std::string NameOf(uint32_t rank) const;
  // The task of the member with this incarnation. Empty: there is no such member.
  std::string TaskOf(uint64_t incarnation) const;
  // The incarnations of the members that evaluate, by preference: readers first, then workers from the
  // highest rank down, because the lowest rank makes the final evaluation.
  std::vector<uint64_t> Evaluators() const;
  // The incarnations of readers, and of workers that are admitted and connected.
  std::set<uint64_t> Connected() const;

  // ---- heartbeats and leases

  // The revision of the job's state, as members know it.
  uint64_t revision() const { return revision_; }
  // The state has changed: answers waiting heartbeats.
  void Changed();
  // If the caller is a member, renews its lease. Returns whether its heartbeat must be answered at once.
  bool Renew(const v1::HeartbeatRequest& request);
  // Answers the heartbeat, or lets it wait.
  void Park(const v1::HeartbeatRequest& request, bool at_once, Done<v1::HeartbeatReply> done);
  // Answers the waiting heartbeat of a process that is out of the job, for this reason.
  void AnswerFenced(Process& process, const std::string& why = "") { Answer(process.heartbeat, true, why); }
  // The member's connection broke: shortens its lease to the grace.
  void Disconnect(Process& process);
  // Until when a call may wait, so that members' reports come often enough.
  absl::Time ParkUntil() const;
  // Answers calls that have waited for long, and extends leases. `installed`: all shards are installed; while
  // a shard is away, a worker that is being admitted keeps its lease. `stood_still`: this process stood
  // still, and calls of members may have failed meanwhile.
  void Tick(bool installed, bool stood_still);
  // The workers, by rank, and readers, by number, whose leases have ended.
  std::vector<uint32_t> ExpiredWorkers() const { return Expired(workers_); }
  std::vector<uint32_t> ExpiredReaders() const { return Expired(readers_); }
  // Refuses processes that wait for the rank of a worker that is alive.
  void RefuseSecond();

  // ---- memberships that have ended

  // Removes the worker of this rank. `left`: it left by itself, after its work; otherwise it was lost.
  Worker Remove(uint32_t rank, bool left);
  Reader RemoveReader(uint32_t id);
  // Whether the worker of this incarnation left by itself.
  bool Left(uint64_t incarnation) const;
  // The job goes back, so the workers that left have more to do.
  void ForgetLeft();
  // The workers that left or were lost last, for the job's status.
  const std::deque<v1::TaskStatus>& departed() const { return departed_; }

  // The members with incarnations up to this one are out of the job, for this reason.
  void Fence(uint64_t up_to, std::string why) {
    fenced_up_to_ = up_to;
    fenced_why_ = std::move(why);
  }
  // The reason of the last Fence(), if it covers this incarnation. Empty: it does not.
  std::string WhyOut(uint64_t incarnation) const { return incarnation <= fenced_up_to_ ? fenced_why_ : ""; }

  // Refuses later Joins of this instance. Its process got the answer to its Join, and would join again as a
  // new instance. So a Join that still comes is a late repeat, and would make a member without a process.
  void Refuse(uint64_t instance);
  bool Refuses(uint64_t instance) const;

  // ---- for messages

  // The membership with all workers, in the form for shards.
  v1::Membership ForShards(uint64_t epoch) const { return Members(epoch, /*for_shards=*/true); }
  // The membership with the admitted workers, in the form for members.
  v1::Membership ForMembers(uint64_t epoch) const { return Members(epoch, /*for_shards=*/false); }

 private:
  v1::Membership Members(uint64_t epoch, bool for_shards) const;
  // No effect if the heartbeat is empty.
  void Answer(ParkedHeartbeat& heartbeat, bool fenced, const std::string& why = "");
  template <typename Processes>
  std::vector<uint32_t> Expired(const Processes& processes) const {
    std::vector<uint32_t> expired;
    for (const auto& [id, process] : processes) {
      if (process.lease_end <= job_.now()) expired.push_back(id);
    }
    return expired;
  }

  const JobContext& job_;
  const Options options_;
  uint64_t revision_ = 1;
  std::map<uint32_t, Worker> workers_;
  std::map<uint32_t, Reader> readers_;
  std::vector<WaitingJoin> waiting_;
  uint32_t readers_so_far_ = 0;
  std::deque<v1::TaskStatus> departed_;
  uint64_t fenced_up_to_ = 0;
  std::string fenced_why_;
  std::deque<uint64_t> refused_;
};

}  // namespace weir
