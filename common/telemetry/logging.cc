#include "common/telemetry/logging.h"

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/base/bounded.h"
#include "common/telemetry/escape.h"
#include "spdlog/formatter.h"
#include "spdlog/logger.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace weir {
namespace {

// Of a message. A peer's own words may be in it.
constexpr size_t kMostBytes = 8192;

struct LevelName {
  LogLevel level;
  char letter;
  const char* name;
  spdlog::level::level_enum spdlog_level;
};

constexpr LevelName kLevels[] = {
    {LogLevel::kDebug, 'D', "debug", spdlog::level::debug},
    {LogLevel::kInfo, 'I', "info", spdlog::level::info},
    {LogLevel::kWarning, 'W', "warning", spdlog::level::warn},
    {LogLevel::kError, 'E', "error", spdlog::level::err},
};

const LevelName& Name(LogLevel level) { return kLevels[static_cast<int>(level)]; }

void AppendTextMessage(absl::string_view message, std::string& out) {
  for (const char c : ValidUtf8(message)) {
    if (c == '\n') {
      out.append("\n    ");
    } else if ((static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7F) {
      absl::StrAppendFormat(&out, "\\x%02x", static_cast<unsigned char>(c));
    } else {
      out.push_back(c);
    }
  }
}

// Not spdlog's pattern formatter, which does not escape the message.
class Formatter : public spdlog::formatter {
 public:
  explicit Formatter(LoggingOptions options) : options_(std::move(options)) {}

  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    const LevelName* level = &Name(LogLevel::kInfo);
    for (const auto& candidate : kLevels) {
      if (candidate.spdlog_level == message.level) level = &candidate;
    }
    const std::string line =
        FormatLogLine(options_, level->level, message.time, {message.payload.data(), message.payload.size()});
    out.append(line.data(), line.data() + line.size());
  }

  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<Formatter>(options_); }

 private:
  const LoggingOptions options_;
};

// Never destroyed: threads may log while the process ends.
spdlog::logger& Logger() {
  static spdlog::logger* logger = [] {
    auto* made = new spdlog::logger("weir", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_formatter(std::make_unique<Formatter>(LoggingOptions{}));
    made->set_level(spdlog::level::info);
    return made;
  }();
  return *logger;
}

}  // namespace

void InitLogging(const LoggingOptions& options) {
  Logger().set_formatter(std::make_unique<Formatter>(options));
  Logger().set_level(Name(options.level).spdlog_level);
}

absl::StatusOr<LogFormat> ParseLogFormat(absl::string_view name) {
  if (name == "text") return LogFormat::kText;
  if (name == "json") return LogFormat::kJson;
  return absl::InvalidArgumentError(absl::StrCat("log format is '", name, "'; allowed are text and json"));
}

absl::StatusOr<LogLevel> ParseLogLevel(absl::string_view name) {
  for (const auto& level : kLevels) {
    if (name == level.name) return level.level;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("log level is '", name, "'; allowed are debug, info, warning and error"));
}

bool LogEnabled(LogLevel level) { return Logger().should_log(Name(level).spdlog_level); }

void Log(LogLevel level, absl::string_view message) {
  Logger().log(Name(level).spdlog_level, spdlog::string_view_t(message.data(), message.size()));
}

std::string FormatLogLine(const LoggingOptions& options, LogLevel level,
                          std::chrono::system_clock::time_point time, absl::string_view said) {
  const std::string message = Shortened(said, kMostBytes);
  const std::string at =
      absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromChrono(time), absl::UTCTimeZone());
  std::string out;
  if (options.format == LogFormat::kText) {
    absl::StrAppend(&out, at, " ", std::string(1, Name(level).letter), " ");
    if (!options.task.empty()) absl::StrAppend(&out, options.task, " ");
    AppendTextMessage(message, out);
  } else {
    absl::StrAppend(&out, R"({"time":")", at, R"(","level":")", Name(level).name, "\"");
    if (!options.task.empty()) {
      out.append(R"(,"task":)");
      AppendJsonString(options.task, out);
    }
    out.append(R"(,"message":)");
    AppendJsonString(message, out);
    out.push_back('}');
  }
  out.push_back('\n');
  return out;
}

}  // namespace weir
