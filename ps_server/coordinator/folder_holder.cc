#include "ps_server/coordinator/folder_holder.h"

#include <signal.h>
#include <unistd.h>

#include <ctime>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"

namespace weir {
namespace {

// Empty if the file cannot be read.
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

}  // namespace weir
