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

// The folder of a job's checkpoints, which its coordinator keeps: DIR/step-00001200/ with a file of each
// shard and manifest.json, which is written last (docs/checkpoint_format.md). All servers see the same
// folder. One coordinator works there at a time. A shard or coordinator that was taken for dead, and still
// writes there, never harms a checkpoint.
//
// A coordinator that hangs anywhere, and is replaced meanwhile, does no harm when it continues, either. A
// function that removes files, or makes a checkpoint of files, first holds the folder
// (FileSystem::OpenFolder), and then makes sure that the job is still the caller's (Confirm). Then it works
// in the folder that it holds. The next coordinator does not continue in the folder that the old one was
// working in, but removes it (job_store_on_disk.cc). So the old coordinator is left with a folder that no
// process sees any more.
//
// In object storage no folder can be held (FileSystem::HoldsFolders). There each attempt at a checkpoint has
// a folder of its own, step-00001200.41/, whose name is never used again, and a reservation of the manifest's
// name. The next coordinator removes both, and a manifest without its reservation cannot be written.
namespace weir {

// Returns OK if the job is still the caller's. May be empty, if there can be no other coordinator.
using Confirm = std::function<absl::Status()>;

// Where folders cannot be held, an attempt is above 0, and higher than any earlier one.
std::string CheckpointFolder(const std::string& dir, uint64_t step, uint64_t attempt = 0);
// Whether this is the name of such a folder of this step.
bool IsCheckpointFolder(const std::string& name, uint64_t step);
std::string ShardFileName(uint32_t shard, uint32_t num_shards);
// The name of a file that is being written. `incarnation`: the writer's.
std::string TemporaryName(const std::string& name, uint64_t incarnation);
constexpr const char kManifestName[] = "manifest.json";
// Beside the checkpoints: where the logs of pushes lie, a folder for each shard (ps_server/push_log).
std::string LogsFolder(const std::string& dir);
// Whether some log has been begun there.
absl::StatusOr<bool> HoldsLog(FileSystem& fs, const std::string& dir);
// Lies in a checkpoint that was found damaged when its files were read: says which file, and what is wrong.
// The checkpoint stays for people to look at, and no job continues from it any more.
constexpr const char kDamagedName[] = "damaged.txt";

struct CheckpointEntry {
  uint64_t step = 0;
  uint64_t attempt = 0;
  std::string folder;
  // There is a manifest, valid or not.
  bool has_manifest = false;
  // It was found damaged before (MarkDamaged).
  bool damaged = false;
};
// By rising step and attempt. Empty if there is no such folder.
absl::StatusOr<std::vector<CheckpointEntry>> FindCheckpoints(FileSystem& fs, const std::string& dir);

// The folder of a checkpoint that was begun and is not complete: of its newest attempt. NotFound: there is
// none.
absl::StatusOr<std::string> FindFolder(FileSystem& fs, const std::string& dir, uint64_t step);

struct FoundCheckpoint {
  std::string folder;
  v1::CheckpointManifest manifest;
  // Newer checkpoints that were passed over, and why. For the log.
  std::vector<std::string> refused;
};
// The bytes of all files of a checkpoint, without the manifest.
uint64_t CheckpointBytes(const v1::CheckpointManifest& manifest);

// Whether an error that came while a checkpoint was read means that its files are damaged or missing. Another
// error (no permission, no answer, a newer format) says nothing about the checkpoint, and an older one is no
// substitute for it.
bool IsDamage(const absl::Status& status);

// Above all steps.
constexpr uint64_t kNoStep = ~uint64_t{0};
// The newest checkpoint of a step below `below` whose manifest is undamaged, whose files are there in their
// full lengths, and that was not found damaged before. The files' content is checked when it is loaded.
// NotFound: there is none; says what was refused. Unimplemented: a newer program has written a checkpoint
// that may be the newest. Unavailable: object storage cannot be reached.
absl::StatusOr<FoundCheckpoint> LatestComplete(FileSystem& fs, const std::string& dir,
                                               uint64_t below = kNoStep);
// LatestComplete() for a path that people give: a folder of checkpoints, one checkpoint, or DIR/best.
// DIR/best is the checkpoint in DIR that the newest one names as the best (CoordinatorState.best). NotFound:
// the newest one names none.
absl::StatusOr<FoundCheckpoint> ResolveCheckpoint(FileSystem& fs, const std::string& path,
                                                  uint64_t below = kNoStep);
// Whether the path is a folder of checkpoints, so that ResolveCheckpoint() takes the newest one in it.
bool IsFolderOfCheckpoints(FileSystem& fs, const std::string& path);
// The folder of the checkpoint of this step in `dir`. Exists if that checkpoint is complete.
absl::StatusOr<std::string> CompleteFolder(FileSystem& fs, const std::string& dir, uint64_t step);
// The folder that ResolveCheckpoint() found, if its checkpoint was of this step. Does not depend on which
// checkpoint is the newest or the best by now.
absl::StatusOr<std::string> FolderOfStep(FileSystem& fs, const std::string& path, uint64_t step);

// Makes the folder of a new checkpoint, and removes what a failed attempt has left in it. Called before any
// shard writes. AlreadyExists: there is a manifest; a checkpoint is never written anew.
absl::Status BeginCheckpoint(FileSystem& fs, const std::string& dir, uint64_t step,
                             const Confirm& confirm = nullptr);

// Begins a checkpoint where folders cannot be held: removes what earlier attempts left, complete or not, and
// reserves the name of the manifest. The caller has the job since it drew the number of the attempt.
absl::Status BeginAttempt(FileSystem& fs, const std::string& dir, uint64_t step, uint64_t attempt);
// Removes all attempts at a step with numbers below this one.
absl::Status RemoveAttempts(FileSystem& fs, const std::string& dir, uint64_t step, uint64_t below);

// Removes the manifest first, so that what is left after a crash is not taken for a checkpoint. OK if there
// is no such folder.
absl::Status RemoveCheckpoint(FileSystem& fs, const std::string& folder, const Confirm& confirm = nullptr);

// Removes what was written of a checkpoint that failed. A checkpoint with a manifest stays as it is.
absl::Status DiscardCheckpoint(FileSystem& fs, const std::string& folder, const Confirm& confirm = nullptr);

// The text of a marked checkpoint's mark, for people.
std::string WhyMarked(FileSystem& fs, const std::string& folder);
// Marks a checkpoint as damaged. OK if it is marked already.
absl::Status MarkDamaged(FileSystem& fs, const std::string& folder, const std::string& why);

// Of the checkpoints up to step `newest`, keeps the newest `keep` >= 1 that LatestComplete would accept, and
// everything newer than the last of these. Also keeps the checkpoint of step `best`, and the chains of all
// these (manifest.h). Removes the rest, failed checkpoints before `newest` included, and temporary
// files in the checkpoints that stay. Called after the commit of `newest` has returned OK, since only then
// `newest` surely outlives a crash. Later checkpoints are not touched: a coordinator that has taken over
// meanwhile may have made them, and knows which of them it needs.
absl::Status RemoveOldCheckpoints(FileSystem& fs, const std::string& dir, uint64_t newest, int keep,
                                  std::optional<uint64_t> best = std::nullopt);

}  // namespace weir
