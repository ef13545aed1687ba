#include "client/job/history.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/system/unique_fd.h"

namespace weir {
namespace {

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

absl::StatusOr<std::unique_ptr<History>> History::Open(const std::string& path, bool append) {
  const auto error = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("cannot write the history to ", path, ": ", why));
  };
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!fd.valid()) return error(std::strerror(errno));
  // A process that was forked from this one, such as a loader of data, must not keep the file when this one
  // has died: it does not inherit this kind of lock. A file system without locks has none to break.
  struct flock whole = {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  if (fcntl(fd.get(), F_SETLK, &whole) != 0 && (errno == EAGAIN || errno == EACCES)) {
    return error("another worker writes there; a path with {task} is a file of each worker's own");
  }
  // A device or a pipe has no length.
  if (!append && ftruncate(fd.get(), 0) != 0 && errno != EINVAL) return error(std::strerror(errno));
  std::FILE* const file = fdopen(fd.get(), "a");
  if (file == nullptr) return error(std::strerror(errno));
  fd.Release();
  return absl::WrapUnique(new History(path, file));
}

History::~History() { Close().IgnoreError(); }

void History::Add(const Pull& pull) {
  std::string line = absl::StrCat("{\"op\":\"pull\",\"worker\":", pull.worker,
                                  ",\"worker_incarnation\":", pull.worker_incarnation,
                                  ",\"shard\":", pull.shard, ",\"clock\":", pull.clock);
  if (pull.pin != 0) absl::StrAppend(&line, ",\"pin\":", pull.pin);
  if (pull.outcome != "OK") absl::StrAppend(&line, ",\"outcome\":\"", pull.outcome, "\"");
  absl::StrAppend(&line, ",\"version\":", pull.version, ",\"incarnation\":", pull.incarnation,
                  ",\"clocks\":[",
                  absl::StrJoin(pull.clocks, ",",
                                [](std::string* out, const std::pair<uint32_t, uint64_t>& clock) {
                                  absl::StrAppend(out, "[", clock.first, ",", clock.second, "]");
                                }),
                  "],\"t_ns\":", NowNs(), "}\n");
  Write(line);
}

void History::Add(const Push& push) {
  Write(absl::StrCat("{\"op\":\"push\",\"worker\":", push.worker, ",\"worker_incarnation\":",
                     push.worker_incarnation, ",\"shard\":", push.shard, ",\"clock\":", push.clock,
                     ",\"part\":", push.part, ",\"batch\":", push.batch, ",\"outcome\":\"", push.outcome,
                     "\",\"version\":", push.version, ",\"incarnation\":", push.incarnation,
                     ",\"staleness\":", push.staleness, ",\"t_ns\":", NowNs(), "}\n"));
}

void History::Write(const std::string& line) {
  MutexLock lock(mutex_);
  if (file_ == nullptr || error_ != 0) return;
  if (std::fwrite(line.data(), 1, line.size(), file_) != line.size()) error_ = errno;
}

absl::Status History::Close() {
  MutexLock lock(mutex_);
  if (file_ != nullptr) {
    if (std::fclose(file_) != 0 && error_ == 0) error_ = errno;
    file_ = nullptr;
  }
  if (error_ == 0) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("the history in ", path_, " is not whole: ", std::strerror(error_)));
}

void HistoryObserver::OnPush(const ShardSet::Push& push, uint32_t shard, const v1::PushReply& reply) {
  History::Push line;
  line.worker = caller_.worker();
  line.worker_incarnation = caller_.incarnation();
  line.shard = shard;
  line.clock = push.work.clock;
  line.part = push.work.part;
  line.batch = push.work.batch;
  line.outcome = v1::Outcome_Name(reply.outcome());
  line.version = reply.version().count();
  line.incarnation = reply.version().incarnation();
  line.staleness = reply.staleness();
  history_->Add(line);
}

void HistoryObserver::OnPull(const ShardSet::Pull& pull, uint32_t shard, const v1::PullReply& reply) {
  History::Pull line;
  line.worker = caller_.worker();
  line.worker_incarnation = caller_.incarnation();
  line.shard = shard;
  line.clock = pull.request.clock();
  line.pin = pull.request.pin();
  line.outcome = v1::Outcome_Name(reply.outcome());
  line.version = reply.version().count();
  line.incarnation = reply.version().incarnation();
  for (const v1::WorkerClock& clock : reply.clocks()) line.clocks.emplace_back(clock.worker(), clock.clock());
  history_->Add(line);
}

}  // namespace weir
