#include "common/telemetry/logging.h"

#include <algorithm>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "common/config/json_document.h"
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

constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";

// The length of the UTF-8 sequence that `text` begins with, or 0 if it is not one (overlong, a surrogate, too
// large, cut).
size_t SequenceLength(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xC2 && first <= 0xDF   ? 2
                        : first >= 0xE0 && first <= 0xEF ? 3
                        : first >= 0xF0 && first <= 0xF4 ? 4
                                                         : 0;
  if (length == 0 || text.size() < length) return 0;
  // The second byte's range is narrower after these (Unicode, table 3-7).
  const uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  return length;
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
    if (!options.task.empty()) absl::StrAppend(&out, R"(,"task":)", JsonQuote(ValidUtf8(options.task)));
    absl::StrAppend(&out, R"(,"message":)", JsonQuote(ValidUtf8(message)), "}");
  }
  out.push_back('\n');
  return out;
}

std::string ValidUtf8(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t length = SequenceLength(text);
    absl::StrAppend(&out, length == 0 ? kReplacement : text.substr(0, length));
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return out;
}

}  // namespace weir
