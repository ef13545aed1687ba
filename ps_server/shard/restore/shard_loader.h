#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "common/system/clock.h"
#include "common/system/file_system.h"
#include "common/threads/serial_queue.h"
#include "proto/checkpoint.pb.h"
#include "proto/job_config.pb.h"
#include "proto/push_log.pb.h"
#include "proto/shard_control.pb.h"
#include "ps_server/push_log/push_log.h"
#include "ps_server/shard/restore/restore.h"
#include "ps_server/shard/rows/shard_tables.h"
#include "ps_server/shard/versions/block_store.h"

namespace weir {

// Makes, in the background, what an incarnation of a shard begins with: its part of the model, at version 0
// or from a checkpoint, and its log.
//
// With the log, one load runs at a time, because two would begin the same segment. A later load waits, and
// replaces a load that waits already. All calls come from the shard's queue.
class ShardLoader {
 public:
  struct Options {
    // These outlive the loader.
    const v1::JobConfig* config = nullptr;
    FileSystem* files = nullptr;
    SerialQueue* queue = nullptr;
    const Clock* clock = nullptr;
    // Runs slow, blocking work.
    std::function<void(std::function<void()>)> background;
    // As Shard::Options.
    absl::optional<uint32_t> index;
    uint64_t memory_bytes = 0;
    // The options that are the same for each Install.
    BlockStore::Options store;
  };
  explicit ShardLoader(Options options);

  struct Loaded {
    std::shared_ptr<BlockStore> store;
    // nullptr: the job has no embedding tables.
    std::shared_ptr<ShardTables> tables;
    v1::ShardState state;
    // The pushes after the checkpoint, without their gradients, which `store` has already.
    std::vector<v1::LoggedPush> records;
    // nullptr: this incarnation keeps no log.
    std::shared_ptr<PushLog> log;
  };
  // The shard's part of the model, as Install describes it. Errors: the Install is wrong, or there is too
  // little memory for the part.
  absl::StatusOr<BlockStore::Options> Check(const v1::Install& install) const;

  using Done = std::function<void(absl::StatusOr<Loaded>)>;
  // Loads; `done` gets the result in the queue, unless Abandon() is called before. ResourceExhausted: there
  // is not enough memory. DataLoss: files of the checkpoint are damaged or missing. FailedPrecondition: for
  // example a damaged log, for which no other checkpoint helps. FAILURE_RESOURCE (job_failure.h): the disk
  // had no room for the log, although Tick() tried again for checkpoint.save_wait_seconds.
  void Load(v1::Install install, v1::JobIdentity job, BlockStore::Options store, Done done);
  // Must be called regularly.
  void Tick();

  // The shard begins anew, has a new coordinator, or is at its end. Loads and all other background work that
  // was begun for the shard no longer have an effect.
  void Abandon();
  // Whether the newest load neither ended nor was abandoned. Any thread.
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
  // The disk has no room for the log. OK: the load is tried again later. Error: the time for this is over.
  absl::Status LoadLater(const Task& task, const absl::Status& why);
  // These run in the background.
  absl::StatusOr<Loaded> Make(const Task& task, uint64_t generation) const;
  absl::StatusOr<Loaded> MakeParts(const Task& task, uint64_t generation) const;
  absl::Status OpenLog(const Task& task, const LogPosition& position, uint64_t generation,
                       Loaded* loaded) const;
  bool logs() const { return options_.config->server().durability() == v1::ServerConfig::DURABILITY_LOG; }

  const Options options_;
  // Background work reads it, too.
  std::atomic<uint64_t> generation_{0};
  std::atomic<bool> under_way_{false};
  // With the log: a load runs in the background, and the load that comes next.
  bool loading_ = false;
  std::optional<Task> next_;
  // A load for which the disk had no room.
  struct Late {
    Task task;
    absl::Time since, next;
  };
  std::optional<Late> late_;
};

}  // namespace weir
