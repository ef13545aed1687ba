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
    SerialQueue* queue = nullptr;
    const Clock* clock = nullptr;
    // Runs slow, blocking work.
    std::function<void(std::function<void()>)> background;
    // As Shard::Options.
    absl::optional<uint32_t> index;
    uint64_t memory_bytes = 0;
    // What is the same for each Install.
    BlockStore::Options store;
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
  // The shard's part of the model, as Install describes it. Errors: what is wrong with the Install, or that
  // there is too little memory for it.
  absl::StatusOr<BlockStore::Options> Check(const v1::Install& install) const;

  using Done = std::function<void(absl::StatusOr<Loaded>)>;
  // `done` gets the result in the queue, unless Abandon() is called before. ResourceExhausted: there is not
  // enough memory. DataLoss: files of the checkpoint are damaged or missing. A damaged log is
  // FailedPrecondition: no other checkpoint helps. FAILURE_RESOURCE (job_failure.h): the disk has had no
  // room for the log for checkpoint.save_wait_seconds, for which Tick() tries again.
  void Load(v1::Install install, v1::JobIdentity job, BlockStore::Options store, Done done);
  // Must be called regularly.
  void Tick();

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
  // The disk has no room for the log. OK: loads again; or else the time for this is over.
  absl::Status LoadLater(const Task& task, const absl::Status& why);
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
  // A load for which the disk had no room.
  struct Late {
    Task task;
    absl::Time since, next;
  };
  std::optional<Late> late_;
};

}  // namespace weir
