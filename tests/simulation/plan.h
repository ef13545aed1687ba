#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/job_config.pb.h"
#include "tests/simulation/ledger.h"
#include "tests/simulation/network.h"

namespace weir {

// One fault that strikes at a set time.
struct FaultPlan {
  enum class Kind {
    kWorkerPause,    // SIGSTOP, for `duration`
    kWorkerCrash,    // and again after `duration`
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
    kCrashAtDisk,      // ps:`first`, in the midst of its `second`-th operation on the disk from then on
    kPowerLoss,        // all servers, and what the disk had not synced
    kDiskFull,         // for `duration`
    kDiskErrors,       // one operation in four fails, for `duration`
    kDiskHangs,        // of ps:`first`: what goes to it gets there after `duration`
    kServerPartition,  // between ps:0 and ps:`first`, both ways
    // Of ps:`first`, from then on: what it does in the background stands still in the midst of its
    // `second`-th step on the disk (an operation is two: before its effect, and after), for `duration`.
    kDiskHangsWithin,
    // The same of ps:0's store, or, `back`, of all that ps:0 does there; meanwhile another ps:0 takes its
    // place, for good.
    kReplaced,
  };
  Kind kind = Kind::kWorkerPause;
  absl::Duration at, duration;
  // Workers by rank, servers by index: of kPartition, kOneWay, kSlowLink and kStreamsBreak `first` is a
  // worker.
  uint32_t first = 0, second = 0;
  // kOneWay: from the server to the worker. kReplaced: see there.
  bool back = false;
};
const char* Name(FaultPlan::Kind kind);

struct WorkerPlan {
  // When its process starts.
  absl::Duration start;
  // A gradient takes so long to compute.
  absl::Duration compute_least, compute_most;
  // It asks for the next weights beside its push, not with it. Not in sync.
  bool pulls_apart = false;
  // What it reads in place it lets go when the next is there, which may take long; else once the gradient is
  // computed.
  bool holds_view = false;
  // Of the weights that it reads in place from `keeps_from` on it keeps so many versions for so long,
  // whatever it gets next.
  uint32_t keeps = 0;
  absl::Duration keeps_from, keeps_for;
};

// An evaluator.
struct ReaderPlan {
  enum class Habit {
    kReads,  // lets go what it has read
    kHangs,  // from `at` on it reads its streams no more, with `holds` reads begun
    kPins,   // from `at` on it pins `holds` versions for as long as it may, and lets none go
  };
  Habit habit = Habit::kReads;
  absl::Duration at;
  uint32_t holds = 0;
};

// All that a seed decides beforehand. Pure.
struct Plan {
  uint64_t seed = 0;
  v1::JobConfig config;
  Ledger::Options ledger;
  std::vector<WorkerPlan> workers;
  std::vector<ReaderPlan> readers;
  // Clients read weights where the shards have them.
  bool shared_memory = false;
  NetworkFaults network;
  std::vector<FaultPlan> faults;
  // Afterwards nothing strikes any more.
  absl::Duration heal;
  // In so much time after `heal` the job must have ended.
  absl::Duration patience;
  // The plan holds a fault that the job need not survive.
  bool may_fail = false;

  bool sync() const { return ledger.sync; }
  bool logs() const { return config.server().durability() == v1::ServerConfig::DURABILITY_LOG; }
  // A lost server comes back.
  bool recoverable() const { return config.checkpoint().has_directory(); }
  uint32_t shards() const { return ledger.shards; }
  // One line.
  std::string ToString() const;
};

Plan MakePlan(uint64_t seed);

}  // namespace weir
