#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/system/file_system.h"
#include "proto/checkpoint.pb.h"
#include "proto/job_config.pb.h"
#include "proto/push_log.pb.h"
#include "proto/shard_control.pb.h"
#include "ps_server/push_log/push_log.h"
#include "ps_server/shard/block_store.h"
#include "ps_server/shard/restore.h"
#include "ps_server/shard/shard_tables.h"

namespace weir {

// Makes what an incarnation of a shard begins with, in the background: its part of the model, from nothing or
// from a checkpoint, and its log.
//
// With the log one load at a time: two at once would begin the same segment. A load that comes meanwhile
// waits; the newest one counts. All calls come from the shard's queue.
class ShardLoader {
 public:
  struct Options {
    // These outlive the loader.
    const v1::JobConfig* config = nullptr;
    FileSystem* files = nullptr;
    // Runs slow, blocking work.
    std::function<void(std::function<void()>)> background;
    // Runs a function in the shard's queue.
    std::function<void(std::function<void()>)> post;
  };
  explicit ShardLoader(Options options);

  struct Loaded {
    std::shared_ptr<BlockStore> store;
    // nullptr: the job has no embedding tables.
    std::shared_ptr<ShardTables> tables;
    v1::ShardState state;
    // What the shard did after the checkpoint; `store` has their weights already.
    std::vector<v1::LoggedPush> records;
    // nullptr: this incarnation keeps no log.
    std::shared_ptr<PushLog> log;
  };
  using Done = std::function<void(absl::StatusOr<Loaded>)>;
  // `done` gets the result in the queue, unless Abandon() is called before. ResourceExhausted: there is not
  // enough memory. DataLoss: files of the checkpoint are damaged or missing. A damaged log is
  // FailedPrecondition: no other checkpoint helps. FAILURE_RESOURCE
  // (job_failure.h): the log cannot be begun as long as its disk is as it is.
  void Load(v1::Install install, v1::JobIdentity job, BlockStore::Options store, Done done);

  // All background work that was begun for the shard has no effect any more, be it a load or not: the shard
  // begins anew, has another coordinator, or is at its end.
  void Abandon();
  // The newest load has not ended yet, and was not abandoned. Any thread.
  bool under_way() const { return under_way_; }
  // Rises with each Abandon().
  uint64_t generation() const { return generation_; }

 private:
  struct Task {
    v1::Install install;
    v1::JobIdentity job;
    BlockStore::Options store;
    Done done;
  };
  void Start(Task task);
  // These run in the background.
  absl::StatusOr<Loaded> Make(const Task& task, uint64_t generation) const;
  absl::StatusOr<Loaded> MakeParts(const Task& task, uint64_t generation) const;
  absl::Status OpenLog(const Task& task, const LogPosition& position, uint64_t generation,
                       Loaded* loaded) const;
  bool logs() const { return options_.config->server().durability() == v1::ServerConfig::DURABILITY_LOG; }

  const Options options_;
  // The background reads it, too.
  std::atomic<uint64_t> generation_{0};
  std::atomic<bool> under_way_{false};
  // With the log: the background has a load, and the one that comes after it.
  bool loading_ = false;
  std::optional<Task> next_;
};

}  // namespace weir
