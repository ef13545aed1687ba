#pragma once

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cli/report/console.h"
#include "common/system/clock.h"
#include "common/threads/mutex.h"

namespace weir {

// A line of a task's text log, without the date, and without the task's name, which the console's prefix has.
// A line of any other form is kept whole.
struct LogLine {
  enum class Level { kInfo, kWarning, kError, kUnknown };
  Level level = Level::kUnknown;
  std::string text;
};
LogLine ParseLogLine(absl::string_view line, absl::string_view task);

// The output of one task: kept in a file, shown on the console behind "[worker:1] ". If it is not `verbose`,
// the console gets only warnings, errors, and output that the task's logger did not write (a crash's last
// words). They are held until ShowHeld(), so that a task's end is reported before what others say about its
// loss. Thread-safe.
class TaskLog {
 public:
  struct Options {
    std::string task;
    std::string path;
    bool verbose = false;        // all lines are shown at once
    Console* console = nullptr;  // outlives this
    Console::Color color = Console::Color::kNone;
    const Clock* clock = &Clock::Real();
  };
  static absl::StatusOr<std::unique_ptr<TaskLog>> Open(Options options);
  ~TaskLog();
  TaskLog(const TaskLog&) = delete;
  TaskLog& operator=(const TaskLog&) = delete;

  void Add(absl::string_view line);
  // Shows the held lines that came at `until` or earlier.
  void ShowHeld(absl::Time until);
  // From now on lines go to the file alone. Lines that are held are not shown.
  void Mute();
  std::vector<std::string> LastLines() const;

 private:
  void Show(absl::string_view text);
  TaskLog(Options options, int fd) : options_(std::move(options)), fd_(fd) {}

  const Options options_;
  const int fd_;
  mutable Mutex mutex_;
  std::deque<std::string> last_ ABSL_GUARDED_BY(mutex_);
  bool writable_ ABSL_GUARDED_BY(mutex_) = true;
  std::deque<std::pair<absl::Time, std::string>> held_ ABSL_GUARDED_BY(mutex_);
  bool muted_ ABSL_GUARDED_BY(mutex_) = false;
  bool showed_last_ ABSL_GUARDED_BY(mutex_) = true;
};

}  // namespace weir
