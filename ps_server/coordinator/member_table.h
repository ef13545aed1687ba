#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/coordinator.pb.h"
#include "proto/shard_control.pb.h"

namespace weir {

// The workers and readers of a job, and the processes that wait to be one.
//
// Belongs to the coordinator's queue.
class MemberTable {
 public:
  template <typename Reply>
  using Done = std::function<void(absl::StatusOr<Reply>)>;

  struct WaitingJoin {
    v1::JoinRequest request;
    Done<v1::JoinReply> done;
    uint64_t call = 0;
    absl::Time since;

    bool worker() const { return request.role() == v1::WORKER; }
  };
  // A heartbeat that is to be answered; empty: there is none.
  struct ParkedHeartbeat {
    Done<v1::HeartbeatReply> done;
    uint64_t incarnation = 0;  // the caller's
    // The revision that the caller need not be told of; 0: it wants all.
    uint64_t known_revision = 0;
    absl::Time until;
  };
  // What workers and readers have in common.
  struct Process {
    std::string task;
    uint64_t instance = 0;
    // Its calls bring the instance; what else they say can be guessed.
    bool says_instance = false;
    bool evaluates = false;  // when it is asked to
    uint64_t incarnation = 0;
    absl::Time lease_end, last_heard;
    ParkedHeartbeat heartbeat;
  };
  enum class Phase {
    kJoining,     // sent to the shards, to get a floor from each
    kActivating,  // sent with its start clock
    kLive,
    kIdle,  // keeps its lease, has no work
  };
  struct Worker : Process {
    bool admitted() const { return phase == Phase::kLive || phase == Phase::kIdle; }

    Phase phase = Phase::kJoining;
    uint64_t start_clock = 0;
    // The first of these.
    std::optional<uint64_t> first_clock;
    // When its Join was answered; no process can hear of it before.
    absl::Time live_since = absl::InfiniteFuture();
    // By its heartbeats; `heard`: there was one, or a Leave, so that it has had the answer to its Join.
    uint64_t known_revision = 0;
    bool heard = false;
    // Its connection broke, and nothing was heard of it since that it cannot have said before.
    bool disconnected = false;
    // It has sent a heartbeat since, and was answered.
    bool answered_since = false;
    // Waits until the worker is live.
    std::optional<WaitingJoin> join;
    // A parked call; an empty function if there is none.
    Done<v1::NextRangeReply> next_range;
    absl::Time next_range_until;
  };
  struct Reader : Process {};

  // By rank.
  std::map<uint32_t, Worker>& workers() { return workers_; }
  const std::map<uint32_t, Worker>& workers() const { return workers_; }
  // By the number that Caller.worker has for a reader.
  std::map<uint32_t, Reader>& readers() { return readers_; }
  const std::map<uint32_t, Reader>& readers() const { return readers_; }
  // In the order in which they came.
  std::vector<WaitingJoin>& waiting() { return waiting_; }
  const std::vector<WaitingJoin>& waiting() const { return waiting_; }

  // Both begin with a lease until then. The worker keeps the Join, which waits until it is live.
  Worker& Admit(WaitingJoin join, uint64_t incarnation, absl::Time now, absl::Time lease_end);
  std::pair<uint32_t, Reader*> AdmitReader(const v1::JoinRequest& request, uint64_t incarnation,
                                           absl::Time now, absl::Time lease_end);

  // The caller, if it is in; null: it is not, or not any more.
  Worker* FindWorker(const v1::Caller& caller);
  Reader* FindReader(const v1::Caller& caller);
  // Aborted: the caller is no member, or not any more. PermissionDenied: it is another process than the
  // member.
  absl::Status CheckCaller(const v1::Caller& caller) const;
  // Unavailable: too many processes of its task wait already, or too many readers are there.
  absl::Status CheckRoom(const v1::JoinRequest& request) const;

  // A change of the membership is under way: a worker joins.
  bool Admitting() const;
  // A process waits to be the worker of this rank, or of any.
  bool Waits(uint32_t rank) const;
  bool AnyWorkerWaits() const;
  // Ranks of which a process is there, in or waiting.
  std::set<uint32_t> Ranks() const;
  // "": no process has this incarnation.
  std::string TaskOf(uint64_t incarnation) const;
  // Who is there to evaluate, by preference: evaluators, then workers from the last on, since the first has
  // the final evaluation to make. Incarnations.
  std::vector<uint64_t> Evaluators() const;
  // Workers that are admitted and connected, and readers. Incarnations.
  std::set<uint64_t> Connected() const;

  // Every worker, as shards are to know it.
  v1::Membership ForShards(uint64_t epoch) const;
  // The workers that are admitted, as members are to know them.
  v1::Membership ForMembers(uint64_t epoch) const;

 private:
  std::map<uint32_t, Worker> workers_;
  std::map<uint32_t, Reader> readers_;
  std::vector<WaitingJoin> waiting_;
  uint32_t readers_so_far_ = 0;
};

}  // namespace weir
