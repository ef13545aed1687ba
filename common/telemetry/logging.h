#pragma once

#include <chrono>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

// The process's log: one line per event on standard error, whole lines only, whichever threads write.
// Thread-safe. Without InitLogging: text, from kInfo on, no task. spdlog stays in the .cc file.
namespace weir {

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

}  // namespace weir
