#pragma once

#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/system/clock.h"
#include "common/threads/mutex.h"

namespace weir {

// Writes lines that stay and, below them, one status line that is rewritten in place. If the output is no
// terminal, the status is a plain line in each `plain_interval`, the first after one interval. Thread-safe;
// lines of several threads do not mix.
class Console {
 public:
  struct Options {
    std::function<void(absl::string_view)> write;
    bool terminal = false;
    bool color = false;          // only on a terminal
    std::function<int()> width;  // of the terminal, asked each time; 0 or absent: unlimited
    absl::Duration plain_interval = absl::Seconds(3);
    const Clock* clock = &Clock::Real();
  };
  explicit Console(Options options) : options_(std::move(options)) {}
  // Options to write to standard error, since standard output is for a command's result.
  static Options StandardError();

  enum class Color { kNone, kRed, kYellow, kTask0 };  // kTask0 + n: the color of the n-th task
  // `text` has no line feed. Only `prefix` is coloured.
  void Line(absl::string_view text) { Line("", Color::kNone, text); }
  void Line(absl::string_view prefix, Color color, absl::string_view text);
  void Warn(absl::string_view text) { Line("warning: ", Color::kYellow, text); }
  void Error(absl::string_view text) { Line("error: ", Color::kRed, text); }
  // Sets the status line, cut to the terminal's width. "" removes it.
  void SetStatus(absl::string_view text);

 private:
  void Erase() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Draw() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  Mutex mutex_;
  std::string status_ ABSL_GUARDED_BY(mutex_);  // as shown; "": none
  absl::Time next_plain_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace weir
