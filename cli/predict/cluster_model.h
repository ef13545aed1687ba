#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace weir {

// A cluster and its job, as far as their speed depends on them. A plain value. Times are in seconds, sizes in
// bytes, speeds in bytes a second, each way. All servers are alike: each holds an equal share of the model.
struct ClusterModel {
  enum class Mode { kSync, kBounded, kAsync };

  Mode mode = Mode::kSync;
  uint32_t staleness = 0;       // bounded
  bool prefetch = false;        // bounded, staleness >= 1
  uint32_t parts = 0;           // sync; 0: as many as workers
  uint32_t backup_workers = 0;  // sync, below parts
  uint32_t commit_rounds = 0;   // sync: rounds between ps:0 and the other servers before a step commits
  uint32_t local_steps = 1;     // batches of a push
  uint32_t workers = 1;
  uint32_t servers = 1;  // that hold a part of the model

  // The gradient of a batch takes batch_seconds, times the worker's factor, times slow_factor with the
  // probability slow_share, times exp(jitter n) with a normal n.
  double batch_seconds = 0;
  std::vector<double> factors;  // by worker; missing ones are 1
  double slow_factor = 1;
  double slow_share = 0;
  double jitter = 0;
  // Before its push a worker waits for a time that is uniform in [0, delay). Not set: all workers do.
  double delay = 0;
  std::optional<uint32_t> delayed_worker;

  // A push of the whole model, to all servers together, and a pull of it.
  double push_bytes = 0;
  double pull_bytes = 0;
  // 0: no limit.
  double worker_bandwidth = 0;
  double server_bandwidth = 0;
  double latency = 0;  // from a worker to a server, or between servers; half of a round trip
  // The costs of an exchange, a push and the pull after it, at each end: a fixed time, and a time for each
  // byte that the end sends or receives. A server works for one worker at a time.
  struct End {
    double seconds = 0;
    double seconds_per_byte = 0;
  };
  End server, worker;

  uint64_t seed = 1;
};

// The result of PredictCluster(). Shares are of the time of all workers.
struct ClusterPrediction {
  // A step is a commit in sync, and otherwise as many pushes as there are workers. Pushes count if they take
  // effect.
  double steps_per_second = 0;
  double pushes_per_second = 0;
  double batches_per_second = 0;
  double computing = 0;       // utilization
  double waiting = 0;         // for other workers
  double exchanging = 0;      // all else: on links and servers, or in their queues
  double server_busy = 0;     // the busiest of a server's processor, link in and link out
  double mean_staleness = 0;  // of versions, as docs/concepts.md has it; 0 in sync
  double dropped = 0;         // share of pushes that came too late for their step (backup_workers)
  double pushed_bytes_per_second = 0;
  double pulled_bytes_per_second = 0;
  // The figures above are means over these.
  uint64_t pushes = 0;
  double simulated_seconds = 0;
};

// Simulates the cluster event by event, with a message's chunks on their way through worker's link, server's
// link and server at once, and first come, first served. Only arithmetic: equal models have equal
// predictions. Left out: checkpoints, evaluations, lost tasks, rows of embedding tables.
//
// Requires workers, servers, local_steps >= 1, backup_workers < parts, and a model in which time passes: some
// batch, link or server takes time.
ClusterPrediction PredictCluster(const ClusterModel& model);

}  // namespace weir
