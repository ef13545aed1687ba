#include "cli/local_cluster/task_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cli/report/format.h"
#include "common/system/unique_fd.h"

namespace weir {
namespace {

constexpr size_t kKeptLines = 10;

// "2026-11-21T10:26:55.123Z", by its shape.
bool IsTime(absl::string_view text) {
  constexpr absl::string_view kShape = "0000-00-00T00:00:00.000Z";
  if (text.size() != kShape.size()) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (kShape[i] == '0' ? !absl::ascii_isdigit(text[i]) : text[i] != kShape[i]) return false;
  }
  return true;
}

}  // namespace

LogLine ParseLogLine(absl::string_view line, absl::string_view task) {
  constexpr size_t kTime = 24;
  // "TIME L task message"
  if (line.size() < kTime + 3 || !IsTime(line.substr(0, kTime)) || line[kTime] != ' ' ||
      line[kTime + 2] != ' ') {
    return {LogLine::Level::kUnknown, Printable(line)};
  }
  LogLine out;
  const char letter = line[kTime + 1];
  out.level = letter == 'E'   ? LogLine::Level::kError
              : letter == 'W' ? LogLine::Level::kWarning
                              : LogLine::Level::kInfo;
  absl::string_view message = line.substr(kTime + 3);
  if (absl::ConsumePrefix(&message, task)) absl::ConsumePrefix(&message, " ");
  // The time of day alone: a person who watches knows the date.
  out.text = absl::StrCat(line.substr(11, 12), " ", line.substr(kTime + 1, 2), Printable(message));
  return out;
}

absl::StatusOr<std::unique_ptr<TaskLog>> TaskLog::Open(Options options) {
  const int fd = open(options.path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write the log ", options.path));
  return std::unique_ptr<TaskLog>(new TaskLog(std::move(options), fd));
}

TaskLog::~TaskLog() { close(fd_); }

void TaskLog::Add(absl::string_view line) {
  const LogLine parsed = ParseLogLine(line, options_.task);
  // A message's further lines are indented by the logger and go where its first one went.
  const bool continued = parsed.level == LogLine::Level::kUnknown && absl::StartsWith(line, "    ");
  int error = 0;
  bool show;
  {
    MutexLock lock(mutex_);
    if (writable_ && !WriteAll(fd_, absl::StrCat(line, "\n"))) {
      error = errno;
      writable_ = false;
    }
    last_.push_back(Printable(line));
    if (last_.size() > kKeptLines) last_.pop_front();
    if (!continued) showed_last_ = options_.verbose || parsed.level != LogLine::Level::kInfo;
    show = showed_last_ && !muted_;
    if (show && !options_.verbose) {
      held_.emplace_back(options_.clock->Now(), parsed.text);
      show = false;
    }
  }
  if (error != 0) {
    options_.console->Warn(absl::StrCat("cannot write ", options_.path, " any more: ", std::strerror(error)));
  }
  if (show) Show(parsed.text);
}

void TaskLog::Show(absl::string_view text) {
  options_.console->Line(absl::StrCat("[", options_.task, "] "), options_.color, text);
}

void TaskLog::ShowHeld(absl::Time until) {
  std::vector<std::string> due;
  {
    MutexLock lock(mutex_);
    for (; !held_.empty() && held_.front().first <= until; held_.pop_front()) {
      due.push_back(std::move(held_.front().second));
    }
  }
  for (const auto& text : due) Show(text);
}

void TaskLog::Mute() {
  MutexLock lock(mutex_);
  muted_ = true;
  held_.clear();
}

std::vector<std::string> TaskLog::LastLines() const {
  MutexLock lock(mutex_);
  return {last_.begin(), last_.end()};
}

}  // namespace weir
