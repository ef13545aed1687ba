#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/system/file_system.h"
#include "common/threads/serial_queue.h"
#include "proto/checkpoint.pb.h"
#include "proto/shard_control.pb.h"
#include "ps_server/shard/decision_log.h"
#include "ps_server/shard/rows/shard_tables.h"
#include "ps_server/shard/versions/block_store.h"

namespace weir {

// Takes a shard's checkpoints, one at a time: keeps a version with its state in one turn of the queue, and
// writes both to files while training continues.
//
// Belongs to the shard's queue.
class ShardCheckpoint {
 public:
  struct Options {
    // These outlive this object.
    FileSystem* files = nullptr;
    DecisionLog* log = nullptr;
    // checkpoint.directory. Empty: the config has none.
    std::string directory;
    // sync: a checkpoint has the version of its step, or an older version.
    bool commits_steps = false;
    SerialQueue* queue = nullptr;
    // As ShardLoader::Options.
    std::function<void(std::function<void()>)> background;
    // As ShardLoader::generation(). A checkpoint of an earlier generation is no longer wanted.
    std::function<uint64_t()> generation;
    // A checkpoint has ended. `report`: for the coordinator; nullopt: it does not wait for the checkpoint.
    std::function<void(bool ok, std::optional<v1::ShardReport> report)> done;
  };
  explicit ShardCheckpoint(Options options) : options_(std::move(options)) {}

  // Keeps the newest version for the checkpoint of this step. `follows`: the step of the checkpoint that
  // deltas of tables may build on. `tables` null: the job has none.
  // FailedPrecondition: the shard cannot take the checkpoint.
  absl::Status Keep(uint64_t step, std::optional<uint64_t> follows, BlockStore& store,
                    const std::shared_ptr<ShardTables>& tables, v1::ShardState state);
  bool keeps(uint64_t step) const;
  // Writes the kept version, once the log has reached it, too. Then Options::done is called.
  void Write(uint64_t attempt);
  // Drops the kept version, unless it is being written.
  void Forget();

  // The version of these tables that is kept or being written. nullopt: none is.
  std::optional<uint64_t> RowsKept(const std::shared_ptr<ShardTables>& tables) const;

  static v1::ShardReport ReportOf(uint64_t step, uint64_t attempt,
                                  const absl::StatusOr<v1::CheckpointFile>& file);

 private:
  struct Work;
  void WriteWhenLogged(const std::shared_ptr<Work>& work);
  // Runs in the background, and copies the rows of tables in turns of the queue.
  absl::StatusOr<v1::CheckpointFile> WriteFiles(Work& work, uint64_t generation) const;

  const Options options_;
  bool writing_ = false;
  // Kept for Write(). Null: no version is.
  std::shared_ptr<Work> frozen_;
  // The version that was kept last. Expired: its checkpoint is written, or given up.
  std::weak_ptr<const Work> kept_;
};

}  // namespace weir
