#include "common/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/manifest.h"
#include "common/telemetry/logging.h"

namespace weir {
namespace {

// The last part of DIR/best, a path that people may give.
constexpr char kBest[] = "best";
// What MarkDamaged() writes at most.
constexpr size_t kMaxMark = 4096;

bool IsTemporary(absl::string_view name) {
  return absl::StartsWith(name, ".") && absl::StrContains(name, ".tmp-");
}

// True for files that Weir writes; a user's own files stay.
bool IsOurs(absl::string_view name) {
  return IsTemporary(name) || name == kManifestName || name == kDamagedName ||
         (absl::StartsWith(name, "shard-") && absl::EndsWith(name, ".safetensors"));
}

// Continues until no such file is left, because a file that is renamed meanwhile has another name. A file
// that is gone already is no error.
absl::Status RemoveFiles(FileSystem& fs, const std::string& folder, bool (*which)(absl::string_view)) {
  for (bool found = true; found;) {
    found = false;
    const absl::StatusOr<std::vector<std::string>> names = fs.List(folder);
    if (absl::IsNotFound(names.status())) return absl::OkStatus();
    WEIR_RETURN_IF_ERROR(names.status());
    for (const std::string& name : *names) {
      if (!which(name)) continue;
      const absl::Status removed = fs.Remove(JoinPath(folder, name));
      if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
      found = true;
    }
  }
  return absl::OkStatus();
}

// Removes a checkpoint that does not count any more. The manifest goes first, or its reservation, so that
// what is left after a crash is not taken for a checkpoint.
absl::Status RemoveAll(FileSystem& fs, FileSystem& held, const std::string& folder) {
  if (absl::Status removed = held.Remove(JoinPath(folder, kManifestName)); !removed.ok()) {
    if (!absl::IsNotFound(removed)) return removed;
  }
  WEIR_RETURN_IF_ERROR(held.SyncFolder(folder));
  WEIR_RETURN_IF_ERROR(RemoveFiles(held, folder, IsOurs));
  // The folder stays if a user's own files are in it.
  if (absl::Status removed = fs.RemoveFolder(folder);
      !removed.ok() && !absl::IsFailedPrecondition(removed) && !absl::IsNotFound(removed)) {
    return removed;
  }
  return fs.SyncFolder(ParentFolder(folder));
}

// Makes a folder, durably. Syncs the parent also if the folder is there already: a crash may have come before
// the sync.
absl::Status MakeFolderForGood(FileSystem& fs, const std::string& path) {
  absl::Status made = fs.MakeFolder(path);
  const std::string parent = ParentFolder(path);
  if (absl::IsNotFound(made) && parent != path) {
    WEIR_RETURN_IF_ERROR(MakeFolderForGood(fs, parent));
    made = fs.MakeFolder(path);
  }
  WEIR_RETURN_IF_ERROR(made);
  return fs.SyncFolder(parent);
}

// The inverse of CheckpointFolder(), for the last part of the path.
bool ParseName(absl::string_view name, uint64_t* step, uint64_t* attempt) {
  const absl::string_view all = name;
  if (!absl::ConsumePrefix(&name, "step-")) return false;
  const size_t dot = name.find('.');
  *attempt = 0;
  if (dot != absl::string_view::npos && !absl::SimpleAtoi(name.substr(dot + 1), attempt)) return false;
  return absl::SimpleAtoi(name.substr(0, dot), step) &&
         absl::EndsWith(CheckpointFolder("", *step, *attempt), absl::StrCat("/", all));
}

// Sees that a checkpoint with this manifest can be loaded, as far as can be seen without reading all its
// files.
absl::Status CheckComplete(FileSystem& fs, const std::string& folder,
                           const v1::CheckpointManifest& manifest) {
  for (const v1::CheckpointFile& file : manifest.files()) {
    WEIR_RETURN_IF_ERROR(CheckRecorded(fs, folder, file));
  }
  WEIR_ASSIGN_OR_RETURN(const std::vector<ChainLink> chain, ReadChain(fs, folder, manifest));
  return CheckChainFiles(fs, folder, manifest, chain);
}

absl::StatusOr<v1::CheckpointManifest> ReadComplete(FileSystem& fs, const std::string& folder) {
  WEIR_ASSIGN_OR_RETURN(v1::CheckpointManifest manifest, ReadManifest(fs, folder));
  WEIR_RETURN_IF_ERROR(CheckComplete(fs, folder, manifest));
  return manifest;
}

}  // namespace

std::string CheckpointFolder(const std::string& dir, uint64_t step, uint64_t attempt) {
  const std::string folder = JoinPath(dir, absl::StrFormat("step-%08u", step));
  return attempt == 0 ? folder : absl::StrCat(folder, ".", attempt);
}

bool IsCheckpointFolder(const std::string& name, uint64_t step) {
  uint64_t of_step = 0, attempt = 0;
  return ParseName(name, &of_step, &attempt) && of_step == step;
}

std::string ShardFileName(uint32_t shard, uint32_t num_shards) {
  return absl::StrFormat("shard-%05u-of-%05u.safetensors", shard, num_shards);
}

std::string LogsFolder(const std::string& dir) { return JoinPath(dir, "log"); }

absl::StatusOr<bool> HoldsLog(FileSystem& fs, const std::string& dir) {
  absl::StatusOr<std::vector<std::string>> shards = fs.List(LogsFolder(dir));
  if (absl::IsNotFound(shards.status())) return false;
  WEIR_RETURN_IF_ERROR(shards.status());
  return !shards->empty();
}

std::string TemporaryName(const std::string& name, uint64_t incarnation) {
  return absl::StrCat(".", name, ".tmp-", incarnation);
}

absl::StatusOr<std::vector<CheckpointEntry>> FindCheckpoints(FileSystem& fs, const std::string& dir) {
  absl::StatusOr<std::vector<std::string>> names = fs.List(dir);
  if (absl::IsNotFound(names.status())) names.emplace();
  WEIR_RETURN_IF_ERROR(names.status());
  std::vector<CheckpointEntry> found;
  for (const std::string& name : *names) {
    CheckpointEntry entry;
    entry.folder = JoinPath(dir, name);
    if (!ParseName(name, &entry.step, &entry.attempt)) continue;
    const absl::StatusOr<std::vector<std::string>> inside = fs.List(entry.folder);
    // On a disk: not a folder, or removed meanwhile. In object storage a list that cannot be read says
    // nothing.
    if (!inside.ok() && !fs.HoldsFolders(dir) && !absl::IsNotFound(inside.status())) return inside.status();
    if (!inside.ok()) continue;
    entry.has_manifest = std::count(inside->begin(), inside->end(), kManifestName) > 0;
    entry.damaged = std::count(inside->begin(), inside->end(), kDamagedName) > 0;
    found.push_back(std::move(entry));
  }
  std::sort(found.begin(), found.end(), [](const CheckpointEntry& a, const CheckpointEntry& b) {
    return std::make_pair(a.step, a.attempt) < std::make_pair(b.step, b.attempt);
  });
  return found;
}

namespace {

// The folder of the newest attempt at a step, of those that are complete if only they count. Empty: none.
absl::StatusOr<std::string> NewestAttempt(FileSystem& fs, const std::string& dir, uint64_t step,
                                          bool only_complete) {
  WEIR_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries, FindCheckpoints(fs, dir));
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    if (entry->step == step && (entry->has_manifest || !only_complete)) return entry->folder;
  }
  return "";
}

}  // namespace

absl::StatusOr<std::string> FindFolder(FileSystem& fs, const std::string& dir, uint64_t step) {
  if (fs.HoldsFolders(dir)) return CheckpointFolder(dir, step);
  WEIR_ASSIGN_OR_RETURN(std::string newest, NewestAttempt(fs, dir, step, /*only_complete=*/false));
  if (!newest.empty()) return newest;
  return absl::NotFoundError(absl::StrCat("no checkpoint of step ", step, " was begun in ", dir,
                                          "; all servers must see the same checkpoint.directory"));
}

uint64_t CheckpointBytes(const v1::CheckpointManifest& manifest) {
  uint64_t bytes = 0;
  for (const v1::CheckpointFile& file : manifest.files()) {
    bytes += file.bytes();
    for (const v1::CheckpointTable& table : file.tables()) bytes += table.bytes();
  }
  return bytes;
}

bool IsDamage(const absl::Status& status) { return absl::IsDataLoss(status) || absl::IsNotFound(status); }

std::string WhyMarked(FileSystem& fs, const std::string& folder) {
  const absl::StatusOr<std::string> text = fs.ReadFile(JoinPath(folder, kDamagedName), kMaxMark);
  return absl::StrCat(folder, ": was found damaged before",
                      text.ok() ? absl::StrCat(": ", absl::StripAsciiWhitespace(*text)) : "",
                      " (once it is whole ", "again, remove its ", kDamagedName, ")");
}

absl::StatusOr<FoundCheckpoint> LatestComplete(FileSystem& fs, const std::string& dir, uint64_t below) {
  WEIR_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries, FindCheckpoints(fs, dir));
  FoundCheckpoint found;
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    if (!entry->has_manifest || entry->step >= below) continue;
    if (entry->damaged) {
      found.refused.push_back(WhyMarked(fs, entry->folder));
      continue;
    }
    absl::StatusOr<v1::CheckpointManifest> manifest = ReadComplete(fs, entry->folder);
    if (manifest.ok()) {
      found.folder = entry->folder;
      found.manifest = *std::move(manifest);
      return found;
    }
    // On a disk: something that is no file has the name of a file.
    const bool no_file = fs.HoldsFolders(dir) && absl::IsFailedPrecondition(manifest.status());
    if (!no_file && !IsDamage(manifest.status())) return manifest.status();
    found.refused.push_back(std::string(manifest.status().message()));
  }
  return absl::NotFoundError(
      absl::StrCat("there is no complete checkpoint in ", dir,
                   found.refused.empty() ? "" : "; refused: ", absl::StrJoin(found.refused, "; ")));
}

namespace {

// Returns whether a path that is no checkpoint means DIR/best, and is no folder of checkpoints itself.
bool MeansBest(FileSystem& fs, const std::string& path) {
  if (JoinPath(ParentFolder(path), kBest) != path) return false;
  const absl::StatusOr<std::vector<CheckpointEntry>> there = FindCheckpoints(fs, path);
  return !there.ok() || there->empty();
}

// For a path that names a checkpoint without an attempt where checkpoints have attempts: the path with it.
absl::StatusOr<std::string> WithAttempt(FileSystem& fs, const std::string& path) {
  uint64_t step = 0, attempt = 0;
  if (fs.HoldsFolders(path) || !ParseName(path.substr(path.rfind('/') + 1), &step, &attempt)) return path;
  return attempt == 0 ? CompleteFolder(fs, ParentFolder(path), step) : path;
}

absl::StatusOr<FoundCheckpoint> BestOf(FileSystem& fs, const std::string& dir) {
  WEIR_ASSIGN_OR_RETURN(FoundCheckpoint newest, LatestComplete(fs, dir));
  if (!newest.manifest.job().has_best()) {
    return absl::NotFoundError(absl::StrCat(
        "the job of ", newest.folder, " keeps no best weights (evaluation.keep_best), or has none yet"));
  }
  FoundCheckpoint found;
  found.refused = newest.refused;
  WEIR_ASSIGN_OR_RETURN(found.folder, CompleteFolder(fs, dir, newest.manifest.job().best().checkpoint()));
  WEIR_ASSIGN_OR_RETURN(found.manifest, ReadComplete(fs, found.folder));
  return found;
}

}  // namespace

absl::StatusOr<std::string> CompleteFolder(FileSystem& fs, const std::string& dir, uint64_t step) {
  const std::string plain = CheckpointFolder(dir, step);
  if (fs.HoldsFolders(dir)) return plain;
  WEIR_ASSIGN_OR_RETURN(std::string complete, NewestAttempt(fs, dir, step, /*only_complete=*/true));
  return complete.empty() ? plain : complete;
}

absl::StatusOr<FoundCheckpoint> ResolveCheckpoint(FileSystem& fs, const std::string& given, uint64_t below) {
  // Messages name a checkpoint without the number of its attempt.
  WEIR_ASSIGN_OR_RETURN(const std::string path, WithAttempt(fs, given));
  const absl::Status manifest = fs.Open(JoinPath(path, kManifestName)).status();
  if (absl::IsNotFound(manifest)) {
    return MeansBest(fs, path) ? BestOf(fs, ParentFolder(path)) : LatestComplete(fs, path, below);
  }
  WEIR_RETURN_IF_ERROR(manifest);
  FoundCheckpoint found{path, {}, {}};
  WEIR_ASSIGN_OR_RETURN(found.manifest, ReadComplete(fs, path));
  return found;
}

bool IsFolderOfCheckpoints(FileSystem& fs, const std::string& given) {
  const absl::StatusOr<std::string> path = WithAttempt(fs, given);
  return path.ok() && absl::IsNotFound(fs.Open(JoinPath(*path, kManifestName)).status()) &&
         !MeansBest(fs, *path);
}

absl::StatusOr<std::string> FolderOfStep(FileSystem& fs, const std::string& given, uint64_t step) {
  WEIR_ASSIGN_OR_RETURN(const std::string path, WithAttempt(fs, given));
  if (fs.Open(JoinPath(path, kManifestName)).ok()) return path;
  return CompleteFolder(fs, MeansBest(fs, path) ? ParentFolder(path) : path, step);
}

absl::Status BeginCheckpoint(FileSystem& fs, const std::string& dir, uint64_t step, const Confirm& confirm) {
  const std::string folder = CheckpointFolder(dir, step);
  WEIR_RETURN_IF_ERROR(MakeFolderForGood(fs, dir));
  WEIR_RETURN_IF_ERROR(fs.MakeFolder(folder));
  WEIR_RETURN_IF_ERROR(fs.SyncFolder(dir));
  WEIR_ASSIGN_OR_RETURN(const std::unique_ptr<FileSystem> held, fs.OpenFolder(folder));
  if (confirm) WEIR_RETURN_IF_ERROR(confirm());
  WEIR_ASSIGN_OR_RETURN(const std::vector<std::string> names, held->List(folder));
  if (std::count(names.begin(), names.end(), kManifestName) > 0) {
    return absl::AlreadyExistsError(absl::StrCat(folder, " is a checkpoint already"));
  }
  return RemoveFiles(*held, folder, IsOurs);
}

absl::Status BeginAttempt(FileSystem& fs, const std::string& dir, uint64_t step, uint64_t attempt) {
  WEIR_RETURN_IF_ERROR(RemoveAttempts(fs, dir, step, attempt));
  return fs.Reserve(JoinPath(CheckpointFolder(dir, step, attempt), kManifestName));
}

absl::Status RemoveAttempts(FileSystem& fs, const std::string& dir, uint64_t step, uint64_t below) {
  WEIR_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries, FindCheckpoints(fs, dir));
  for (const CheckpointEntry& entry : entries) {
    if (entry.step != step || entry.attempt >= below) continue;
    if (entry.damaged) LogWarning("removes ", entry.folder, ", which is damaged: its step is saved again");
    WEIR_RETURN_IF_ERROR(RemoveCheckpoint(fs, entry.folder));
  }
  return absl::OkStatus();
}

absl::Status RemoveCheckpoint(FileSystem& fs, const std::string& folder, const Confirm& confirm) {
  const absl::StatusOr<std::unique_ptr<FileSystem>> held = fs.OpenFolder(folder);
  if (absl::IsNotFound(held.status())) return absl::OkStatus();
  WEIR_RETURN_IF_ERROR(held.status());
  if (confirm) WEIR_RETURN_IF_ERROR(confirm());
  return RemoveAll(fs, **held, folder);
}

absl::Status DiscardCheckpoint(FileSystem& fs, const std::string& folder, const Confirm& confirm) {
  const absl::StatusOr<std::unique_ptr<FileSystem>> held = fs.OpenFolder(folder);
  if (absl::IsNotFound(held.status())) return absl::OkStatus();
  WEIR_RETURN_IF_ERROR(held.status());
  if (confirm) WEIR_RETURN_IF_ERROR(confirm());
  const absl::StatusOr<std::vector<std::string>> names = (*held)->List(folder);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  WEIR_RETURN_IF_ERROR(names.status());
  if (std::count(names->begin(), names->end(), kManifestName) > 0) return absl::OkStatus();
  return RemoveAll(fs, **held, folder);
}

absl::Status MarkDamaged(FileSystem& fs, const std::string& folder, const std::string& why) {
  const std::string path = JoinPath(folder, kDamagedName);
  const absl::Status marked = fs.WriteNew(path, JoinPath(folder, TemporaryName(kDamagedName, 0)),
                                          absl::StrCat(absl::string_view(why).substr(0, kMaxMark - 1), "\n"));
  return absl::IsAlreadyExists(marked) ? absl::OkStatus() : marked;
}

absl::Status RemoveOldCheckpoints(FileSystem& fs, const std::string& dir, uint64_t newest, int keep,
                                  std::optional<uint64_t> best) {
  WEIR_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries, FindCheckpoints(fs, dir));
  int whole = 0;
  // A chain is older than what builds on it, and so comes later in this loop.
  std::set<std::string> chains;
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    const bool later = entry->step > newest, of_newest = !later && whole < keep;
    if (!entry->has_manifest || !(later || of_newest || entry->step == best)) {
      if (later || whole == 0 || chains.count(entry->folder) > 0) continue;
      if (entry->damaged) {
        LogWarning("removes ", entry->folder, ", which is damaged: ", whole, " newer ones are whole");
      }
      WEIR_RETURN_IF_ERROR(RemoveCheckpoint(fs, entry->folder));
      continue;
    }
    const absl::StatusOr<v1::CheckpointManifest> manifest = ReadManifest(fs, entry->folder);
    if (manifest.ok()) {
      for (const v1::CheckpointLink& link : manifest->chain()) chains.insert(JoinPath(dir, link.folder()));
      if (of_newest && !entry->damaged && CheckComplete(fs, entry->folder, *manifest).ok()) ++whole;
    } else if (!absl::IsDataLoss(manifest.status()) && !absl::IsNotFound(manifest.status())) {
      return manifest.status();  // its chain is not known
    }
    if (of_newest) WEIR_RETURN_IF_ERROR(RemoveFiles(fs, entry->folder, IsTemporary));
  }
  return absl::OkStatus();
}

}  // namespace weir
