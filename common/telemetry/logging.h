#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/bounded.h"

namespace weir {

// The process's log: one line per event on standard error, whole lines only, whichever threads write.
// Thread-safe. Without InitLogging: text, from kInfo on, no task. spdlog stays in the .cc file.

enum class LogFormat {
  // 2026-11-21T10:26:55.123Z I worker:1 joined as worker 1
  kText,
  // {"time":"2026-11-21T10:26:55.123Z","level":"info","task":"worker:1","message":"joined as worker 1"}
  kJson,
};

enum class LogLevel { kDebug, kInfo, kWarning, kError };

struct LoggingOptions {
  LogFormat format = LogFormat::kText;
  LogLevel level = LogLevel::kInfo;
  std::string task;  // "worker:1"; empty: not shown
};

// Called once, at the start of main; other threads may be logging.
void InitLogging(const LoggingOptions& options);

// Parse "text", "json" and "debug", "info", "warning", "error".
absl::StatusOr<LogFormat> ParseLogFormat(absl::string_view name);
absl::StatusOr<LogLevel> ParseLogLevel(absl::string_view name);

bool LogEnabled(LogLevel level);
void Log(LogLevel level, absl::string_view message);

// LogInfo("shard ", k, " has ", n, " blocks"): pieces as for absl::StrCat, joined only if they are shown.
template <typename... Pieces>
void LogDebug(const Pieces&... pieces) {
  if (LogEnabled(LogLevel::kDebug)) Log(LogLevel::kDebug, absl::StrCat(pieces...));
}
template <typename... Pieces>
void LogInfo(const Pieces&... pieces) {
  if (LogEnabled(LogLevel::kInfo)) Log(LogLevel::kInfo, absl::StrCat(pieces...));
}
template <typename... Pieces>
void LogWarning(const Pieces&... pieces) {
  if (LogEnabled(LogLevel::kWarning)) Log(LogLevel::kWarning, absl::StrCat(pieces...));
}
template <typename... Pieces>
void LogError(const Pieces&... pieces) {
  if (LogEnabled(LogLevel::kError)) Log(LogLevel::kError, absl::StrCat(pieces...));
}

// The line that Log writes, with its line feed. Text: a message's further lines are indented, and its other
// control characters shown as \xNN, so that a peer's text can neither forge a line nor steer a terminal. Of a
// very long message only the beginning is shown, so that it cannot fill a disk.
std::string FormatLogLine(const LoggingOptions& options, LogLevel level,
                          std::chrono::system_clock::time_point time, absl::string_view message);

// Limits log lines that come again and again to one in an interval. Not thread-safe.
class LogLimit {
 public:
  explicit LogLimit(absl::Duration interval) : interval_(interval) {}

  // Whether a line may be logged now. Then the next one may follow after the interval.
  bool Due(absl::Time now) {
    if (now < next_) {
      ++unsaid_;
      return false;
    }
    Begin(now);
    return true;
  }
  // The interval begins now.
  void Begin(absl::Time now) {
    next_ = now + interval_;
    left_out_ = std::exchange(unsaid_, 0);
  }
  // How many lines were left out before the interval.
  uint64_t left_out() const { return left_out_; }
  bool Over(absl::Time now) const { return now >= next_; }

 private:
  const absl::Duration interval_;
  absl::Time next_ = absl::InfinitePast();
  uint64_t unsaid_ = 0, left_out_ = 0;
};

// A LogLimit for each of many keys (BoundedByKey): while `most` keys have had a line in the last interval,
// all other keys share one limit. Not thread-safe.
class LogLimits {
 public:
  LogLimits(absl::Duration interval, size_t most) : limits_(LogLimit(interval), most, interval) {}

  // How many lines of the key were left out before this one; nullopt: this one is left out, too.
  std::optional<uint64_t> Due(const std::string& key, absl::Time now) {
    LogLimit& limit = limits_.Of(key, now, [now](const LogLimit& other) { return other.Over(now); });
    if (!limit.Due(now)) return std::nullopt;
    return limit.left_out();
  }

 private:
  BoundedByKey<LogLimit> limits_;
};

// `text` with each byte that is no part of valid UTF-8 replaced by U+FFFD.
std::string ValidUtf8(absl::string_view text);

}  // namespace weir
