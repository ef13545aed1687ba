#include "ps_server/coordinator/checkpoints/folder_claim.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <iterator>
#include <random>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "common/base/checksums.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/config/json_document.h"
#include "common/config/proto_json.h"
#include "common/telemetry/logging.h"

namespace weir {
namespace {

// The content of a file. Empty: the file cannot be read.
std::string Content(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::string BootId() {
  std::string id = Content("/proc/sys/kernel/random/boot_id");
  while (!id.empty() && id.back() == '\n') id.pop_back();
  return id;
}

std::string PidNamespace() {
  char name[64];
  const ssize_t length = readlink("/proc/self/ns/pid", name, sizeof(name));
  return length < 0 ? "" : std::string(name, static_cast<size_t>(length));
}

struct ProcessState {
  char state = '?';
  uint64_t start_ticks = 0;
  uint64_t pending_signals = 0;
};

// proc(5): /proc/PID/stat. nullopt: there is no such process.
std::optional<ProcessState> StateOf(uint64_t pid) {
  const std::string stat = Content(absl::StrCat("/proc/", pid, "/stat"));
  // The second field, the process's name, may contain anything.
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  const std::vector<absl::string_view> fields =
      absl::StrSplit(absl::string_view(stat).substr(name_end + 1), ' ', absl::SkipEmpty());
  constexpr size_t kFirst = 3, kState = 3, kStart = 22, kPending = 31;
  ProcessState state;
  if (fields.size() <= kPending - kFirst || !absl::SimpleAtoi(fields[kStart - kFirst], &state.start_ticks) ||
      !absl::SimpleAtoi(fields[kPending - kFirst], &state.pending_signals)) {
    return std::nullopt;
  }
  state.state = fields[kState - kFirst][0];
  return state;
}

constexpr char kFolderName[] = "coordinator";
// The single record of earlier versions, which they replaced.
constexpr char kEarlierName[] = "coordinator.json";
// 1: CoordinatorMemory.job.
constexpr DiskFormat kFormat = {1, 1};
constexpr uint64_t kMaxRecord = 64 << 10;
// This many of the newest records stay.
constexpr uint64_t kKept = 8;
// If a process loses this many races, the disk is broken.
constexpr int kAttempts = 100;

std::string NameOf(uint64_t number) { return absl::StrFormat("%08u.json", number); }

// The number of a record, or of a temporary file for one. 0: the name is neither.
uint64_t NumberOf(absl::string_view name) {
  absl::ConsumePrefix(&name, ".");
  uint64_t number = 0;
  const size_t dot = name.find('.');
  if (dot == absl::string_view::npos || !absl::SimpleAtoi(name.substr(0, dot), &number)) return 0;
  const std::string expected = NameOf(number);
  return name == expected || absl::StartsWith(name, absl::StrCat(expected, ".tmp-")) ? number : 0;
}

std::string Trailer(uint32_t crc32c) { return absl::StrFormat(",\n\"crc32c\": \"%08x\"\n}\n", crc32c); }

std::string Encode(const v1::CoordinatorMemory& memory) {
  const auto no_defaults = [](const google::protobuf::Message&, const google::protobuf::FieldDescriptor&) {
    return false;
  };
  const std::string text = absl::StrCat("{\n\"memory\": ", WriteProto(memory, no_defaults));
  return absl::StrCat(text, Trailer(Crc32c(text)));
}

// NotFound: there is no such file.
absl::StatusOr<v1::CoordinatorMemory> Read(FileSystem& fs, const std::string& path) {
  WEIR_ASSIGN_OR_RETURN(const std::string text, fs.ReadFile(path, kMaxRecord));
  const size_t content = text.size() - std::min(text.size(), Trailer(0).size());
  const bool whole = absl::EndsWith(text, Trailer(Crc32c(absl::string_view(text).substr(0, content))));
  const absl::StatusOr<JsonValue> json = ParseJson(text, path);
  const JsonMember* const member = whole && json.ok() ? json->Find("memory") : nullptr;
  v1::CoordinatorMemory memory;
  ConfigProblems problems;
  if (member != nullptr) ReadProto(member->value, "", &memory, &problems, UnknownFields::kIgnore);
  WEIR_RETURN_IF_ERROR(CheckMajor(path, "record", {memory.format(), memory.format_minor()}, kFormat));
  if (member == nullptr || !problems.ToStatus().ok()) {
    return absl::DataLossError(
        absl::StrCat(path,
                     " is damaged. It holds the epochs that must not be used again; remove it only when "
                     "no server and no worker of the job is running any more"));
  }
  return memory;
}

}  // namespace

v1::FolderHolder ThisProcess() {
  v1::FolderHolder holder;
  char host[256] = "";
  if (gethostname(host, sizeof(host) - 1) == 0) holder.set_host(host);
  holder.set_since(std::time(nullptr));
  holder.set_pid(static_cast<uint64_t>(getpid()));
  holder.set_boot_id(BootId());
  holder.set_pid_namespace(PidNamespace());
  if (const auto state = StateOf(holder.pid()); state.has_value()) holder.set_start_ticks(state->start_ticks);
  std::random_device random;
  holder.set_nonce(uint64_t{random()} << 32 | random());
  return holder;
}

bool CertainlyRuns(const v1::FolderHolder& holder) {
  if (holder.pid() == 0 || holder.pid() == static_cast<uint64_t>(getpid()) || holder.boot_id().empty() ||
      holder.boot_id() != BootId() || holder.pid_namespace() != PidNamespace()) {
    return false;
  }
  const std::optional<ProcessState> state = StateOf(holder.pid());
  if (!state.has_value() || state->start_ticks != holder.start_ticks()) return false;
  const bool dead = state->state == 'Z' || state->state == 'X';
  const bool dying = (state->pending_signals >> (SIGKILL - 1) & 1) != 0;
  return !dead && !dying;
}

std::string Describe(const v1::FolderHolder& holder) {
  return absl::StrCat(
      "process ", holder.pid(), " on ", holder.host().empty() ? "?" : holder.host(), ", since ",
      absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixSeconds(holder.since()), absl::UTCTimeZone()));
}

FolderClaim::FolderClaim(Options options)
    : options_(std::move(options)),
      fs_(*options_.file_system),
      folder_(JoinPath(options_.directory, kFolderName)) {}

std::string FolderClaim::PathOf(uint64_t number) const { return JoinPath(folder_, NameOf(number)); }

absl::StatusOr<uint64_t> FolderClaim::Highest() const {
  const absl::StatusOr<std::vector<std::string>> names = fs_.List(folder_);
  // Object storage has no empty folders.
  if (absl::IsNotFound(names.status()) && !fs_.HoldsFolders(folder_)) return 0;
  WEIR_RETURN_IF_ERROR(names.status());
  uint64_t highest = 0;
  for (const std::string& name : *names) {
    if (!absl::StartsWith(name, ".")) highest = std::max(highest, NumberOf(name));
  }
  return highest;
}

absl::StatusOr<FolderClaim::Record> FolderClaim::Newest() const {
  Record record;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    WEIR_ASSIGN_OR_RETURN(record.number, Highest());
    if (record.number == 0) return record;
    absl::StatusOr<v1::CoordinatorMemory> memory = Read(fs_, PathOf(record.number));
    if (memory.ok()) {
      record.memory = *std::move(memory);
      return record;
    }
    // If the record is gone, many others have followed it.
    if (!absl::IsNotFound(memory.status())) return memory.status();
  }
  return absl::UnavailableError(absl::StrCat(folder_, ": other processes keep writing there"));
}

absl::Status FolderClaim::Make(const Record& record) const {
  const std::string temporary =
      JoinPath(folder_, TemporaryName(NameOf(record.number), options_.holder.nonce()));
  return fs_.WriteNew(PathOf(record.number), temporary, Encode(record.memory));
}

uint64_t FolderClaim::number() const {
  MutexLock lock(mutex_);
  return last_.number;
}

void FolderClaim::RemoveOld(uint64_t newest) const {
  const absl::StatusOr<std::vector<std::string>> names = fs_.List(folder_);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    const uint64_t number = NumberOf(name);
    // The next call tries again.
    if (number != 0 && number + kKept <= newest) fs_.Remove(JoinPath(folder_, name)).IgnoreError();
  }
}

absl::Status FolderClaim::Replaced(const v1::CoordinatorMemory& by) const {
  return absl::AbortedError(absl::StrCat(options_.directory, " belongs to another ps:0 now, ",
                                         Describe(by.holder()), " (incarnation ",
                                         by.coordinator_incarnation(), ")"));
}

absl::StatusOr<std::unique_ptr<FolderClaim>> FolderClaim::Take(Options options, const Next& next) {
  auto claim = absl::WrapUnique(new FolderClaim(std::move(options)));
  FileSystem& fs = claim->fs_;
  const std::string& directory = claim->options_.directory;
  WEIR_RETURN_IF_ERROR(fs.MakeFolder(claim->folder_));
  WEIR_RETURN_IF_ERROR(fs.SyncFolder(directory));
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    WEIR_ASSIGN_OR_RETURN(const Record newest, claim->Newest());
    const v1::FolderHolder& holder = newest.memory.holder();
    if (claim->options_.certainly_runs && claim->options_.certainly_runs(holder)) {
      return absl::FailedPreconditionError(
          absl::StrCat(directory, " is in use by another ps:0, ", Describe(holder),
                       ", which is still running. End that one first, or give this job a folder of its own"));
    }
    claim->before_ = newest.memory;
    const std::string earlier = JoinPath(directory, kEarlierName);
    const absl::StatusOr<v1::CoordinatorMemory> memory = Read(fs, earlier);
    if (memory.ok()) {
      v1::CoordinatorMemory& before = claim->before_;
      before.set_coordinator_incarnation(
          std::max(before.coordinator_incarnation(), memory->coordinator_incarnation()));
      before.set_epoch_limit(std::max(before.epoch_limit(), memory->epoch_limit()));
      before.set_incarnation_limit(std::max(before.incarnation_limit(), memory->incarnation_limit()));
    } else if (!absl::IsNotFound(memory.status())) {
      return memory.status();
    }
    Record record{newest.number + 1, next(claim->before_)};
    record.memory.set_format(kFormat.major);
    record.memory.set_format_minor(kFormat.minor);
    *record.memory.mutable_holder() = claim->options_.holder;
    const absl::Status made = claim->Make(record);
    if (absl::IsAlreadyExists(made) || absl::IsNotFound(made)) continue;
    WEIR_RETURN_IF_ERROR(made);
    WEIR_ASSIGN_OR_RETURN(const uint64_t highest, claim->Highest());
    if (highest != record.number) continue;
    if (memory.ok()) {
      if (absl::Status removed = fs.Remove(earlier); !removed.ok() && !absl::IsNotFound(removed))
        return removed;
    }
    if (newest.number > 0 && holder.pid() != 0) {
      LogInfo("took over ", directory, " from ", Describe(holder));
    }
    claim->RemoveOld(record.number);
    MutexLock lock(claim->mutex_);
    claim->last_ = std::move(record);
    return claim;
  }
  return absl::UnavailableError(absl::StrCat(claim->folder_, ": other processes keep claiming it"));
}

absl::Status FolderClaim::Look() const {
  WEIR_ASSIGN_OR_RETURN(const Record newest, Newest());
  return newest.memory.holder().nonce() == options_.holder.nonce() ? absl::OkStatus()
                                                                   : Replaced(newest.memory);
}

absl::Status FolderClaim::Write(const std::function<void(v1::CoordinatorMemory&)>& change) {
  MutexLock lock(mutex_);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    Record record{last_.number + 1, last_.memory};
    change(record.memory);
    const absl::Status made = Make(record);
    if (!made.ok() && !absl::IsAlreadyExists(made) && !absl::IsNotFound(made)) return made;
    WEIR_ASSIGN_OR_RETURN(const Record newest, Newest());
    if (newest.memory.holder().nonce() != options_.holder.nonce()) {
      // The record that was just made does not count.
      if (made.ok() && newest.number != record.number) fs_.Remove(PathOf(record.number)).IgnoreError();
      return Replaced(newest.memory);
    }
    last_ = newest;
    if (made.ok()) {
      RemoveOld(last_.number);
      return absl::OkStatus();
    }
    // The number is of an earlier record of this claim, whose writing had seemed to fail.
  }
  return absl::UnavailableError(absl::StrCat(folder_, ": nothing can be written there"));
}

}  // namespace weir
