#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/system/file_system.h"
#include "proto/checkpoint.pb.h"

// The folder of a job's checkpoints, as its coordinator keeps it: DIR/step-00001200/ with a file of each
// shard and manifest.json, which is written last (docs/checkpoint_format.md). All servers see one folder. One
// coordinator at a time; what a shard or coordinator that was taken for dead still writes there never harms a
// checkpoint.
//
// A coordinator that hangs at any place, and is replaced meanwhile, does no harm when it goes on, either.
// What takes something away, or makes a checkpoint of what is there, does so in a folder that it holds
// (FileSystem::OpenFolder) since before it was last told that the job is its own (Confirm). Its successor
// does not go on in the folder that it was at work in, but removes it (job_store_on_disk.cc); so it is left
// with a folder that nobody sees any more.
namespace weir {

// OK: the job is still the caller's. May be empty, where nobody else can be there.
using Confirm = std::function<absl::Status()>;

std::string CheckpointFolder(const std::string& dir, uint64_t step);
std::string ShardFileName(uint32_t shard, uint32_t num_shards);
// Of a file that is being written. The incarnation is that of who writes it.
std::string TemporaryName(const std::string& name, uint64_t incarnation);
constexpr const char kManifestName[] = "manifest.json";

struct CheckpointEntry {
  uint64_t step = 0;
  std::string folder;
  // Whether there is a manifest, whatever it says.
  bool has_manifest = false;
};
// By rising step. None if there is no such folder.
absl::StatusOr<std::vector<CheckpointEntry>> FindCheckpoints(FileSystem& fs, const std::string& dir);

struct FoundCheckpoint {
  std::string folder;
  v1::CheckpointManifest manifest;
  // Newer ones that were passed over, and why. For the log.
  std::vector<std::string> refused;
};
// The newest whose manifest is undamaged and whose files are there in their full lengths; their content is
// checked when it is loaded. NotFound: none is, with what was refused. Unimplemented: a newer program has
// written one that may be the newest; what is older is no substitute for it.
absl::StatusOr<FoundCheckpoint> LatestComplete(FileSystem& fs, const std::string& dir);
// The same for a path that people give: a folder of checkpoints, one checkpoint, or DIR/best, which is the
// one in the folder DIR that the newest names as the best (CoordinatorState.best). NotFound: it names none.
absl::StatusOr<FoundCheckpoint> ResolveCheckpoint(FileSystem& fs, const std::string& path);
// The folder that it found, if the checkpoint was of this step; whatever is the newest or the best by now.
std::string FolderOfStep(FileSystem& fs, const std::string& path, uint64_t step);

// Makes the folder of a new checkpoint, and clears away what an attempt that came to nothing has left in it.
// Before any shard writes. AlreadyExists: there is a manifest; a checkpoint is never written anew.
absl::Status BeginCheckpoint(FileSystem& fs, const std::string& dir, uint64_t step,
                             const Confirm& confirm = nullptr);

// The manifest first, so that what is left after a crash is not taken for a checkpoint. OK if it is not
// there.
absl::Status RemoveCheckpoint(FileSystem& fs, const std::string& folder, const Confirm& confirm = nullptr);

// Clears away what was written of a checkpoint that came to nothing. One with a manifest stays as it is.
absl::Status DiscardCheckpoint(FileSystem& fs, const std::string& folder, const Confirm& confirm = nullptr);

// Keeps the newest `keep` >= 1 that LatestComplete would accept and all that is newer than the last of these,
// and that of step `best`, and removes the rest; also what came to nothing before the newest, and temporary
// files in those that stay. After a commit that has returned OK: only then is it sure that the newest
// outlives a crash.
absl::Status RemoveOldCheckpoints(FileSystem& fs, const std::string& dir, int keep,
                                  std::optional<uint64_t> best = std::nullopt);

}  // namespace weir
