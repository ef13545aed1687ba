#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/job_config.pb.h"
#include "tests/simulation/ledger.h"
#include "tests/simulation/network.h"

namespace weir {

// One fault at a set time.
struct FaultPlan {
  enum class Kind {
    kWorkerPause,    // SIGSTOP, for `duration`
    kWorkerCrash,    // restarts after `duration`
    kWorkerGone,     // a crash for good, if another worker is left
    kPartition,      // between the two, both ways, for `duration`
    kOneWay,         // from the first to the second
    kSlowLink,       // between the two
    kStreamsBreak,   // between the two
    kWorkerHangs,    // SIGSTOP until the job has ended, if another worker is left
    kServerPause,    // without checkpoints shorter than a lease
    kControlBreaks,  // the coordinator's stream to the shard `first`
    // With checkpoints only. A server comes back after `duration`.
    kServerCrash,      // ps:`first`
    kCrashAtDisk,      // ps:`first`, in its `second`-th disk operation from then on
    kPowerLoss,        // all servers; unsynced data are lost
    kDiskFull,         // for `duration`
    kDiskErrors,       // one operation in four fails, for `duration`
    kDiskHangs,        // of ps:`first`: operations take effect after `duration`
    kServerPartition,  // between ps:0 and ps:`first`, both ways
    // ps:`first`, from then on: its background work hangs in its `second`-th step on the disk (an operation
    // is two: before its effect, and after), for `duration`.
    kDiskHangsWithin,
    // As kDiskHangsWithin, for ps:0's store, or, `back`, for all that ps:0 does on the disk. Meanwhile
    // another ps:0 takes its place, for good.
    kReplaced,
    // Of the newest checkpoint's data, once the one before is whole; ps:`first`, whose part it is, crashes
    // then, comes back after `duration`, and reads the checkpoint.
    kBitFlips,
  };
  Kind kind = Kind::kWorkerPause;
  absl::Duration at, duration;
  // Workers by rank, servers by index. For kPartition, kOneWay, kSlowLink and kStreamsBreak `first` is a
  // worker.
  uint32_t first = 0, second = 0;
  // kOneWay: from the server to the worker. kReplaced: see above.
  bool back = false;
};
const char* Name(FaultPlan::Kind kind);

struct WorkerPlan {
  // When its process starts.
  absl::Duration start;
  // The time to compute a gradient.
  absl::Duration compute_least, compute_most;

  // The worker reads weights in place, in a training program of the simulation; else it runs the program of
  // `worker`.
  bool in_place = false;
  // The program of `worker` computes on a device, from which gradients are copied to memory of its own.
  bool device = false;
  // The fields below are for the program that reads in place.
  //
  // The worker asks for the next weights beside its push, not with it. Not in sync.
  bool pulls_apart = false;
  // The worker releases a view when the next one is there, which may take long; else once the gradient is
  // computed.
  bool holds_view = false;
  // Of the views that the worker reads from `keeps_from` on, it keeps this many versions for `keeps_for`,
  // whatever it gets next.
  uint32_t keeps = 0;
  absl::Duration keeps_from, keeps_for;
};

// An evaluator.
struct ReaderPlan {
  enum class Habit {
    kReads,  // releases what it has read
    kHangs,  // from `at` on it no longer reads its streams, with `holds` reads begun
    kPins,   // from `at` on it pins `holds` versions for as long as it may, and releases none
  };
  Habit habit = Habit::kReads;
  absl::Duration at;
  uint32_t holds = 0;
};

// Everything that a seed decides beforehand. Pure.
struct Plan {
  uint64_t seed = 0;
  v1::JobConfig config;
  Ledger::Options ledger;
  std::vector<WorkerPlan> workers;
  std::vector<ReaderPlan> readers;
  // Clients read weights in place.
  bool shared_memory = false;
  NetworkFaults network;
  std::vector<FaultPlan> faults;
  // Servers that hold no shard, beside those that hold one each.
  uint32_t standby = 0;
  // The probability that a server other than ps:0 that comes back listens at another address.
  double moves = 0;
  // No fault strikes after this time.
  absl::Duration heal;
  // The job must have ended this long after `heal`.
  absl::Duration patience;
  // The plan holds a fault that the job need not survive.
  bool may_fail = false;

  bool sync() const { return ledger.sync; }
  bool early_rows() const { return ledger.early_rows; }
  bool scales() const { return staleness_policy().type() == v1::StalenessPolicy::STALENESS_SCALE; }
  // Beyond it pushes are dropped.
  std::optional<uint64_t> staleness_limit() const {
    if (staleness_policy().type() != v1::StalenessPolicy::STALENESS_DROP) return std::nullopt;
    return staleness_policy().limit();
  }
  const v1::StalenessPolicy& staleness_policy() const { return config.consistency().staleness_policy(); }
  bool logs() const { return config.server().durability() == v1::ServerConfig::DURABILITY_LOG; }
  // A lost server comes back.
  bool recoverable() const { return config.checkpoint().has_directory(); }
  uint32_t shards() const { return ledger.shards; }
  uint32_t servers() const { return shards() + standby; }
  // One line.
  std::string ToString() const;
};

// `with_table`: the job has a table, and so no server stands by; otherwise some jobs have one.
Plan MakePlan(uint64_t seed, bool with_table = false);

}  // namespace weir
