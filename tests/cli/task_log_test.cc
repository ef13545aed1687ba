#include "cli/local_cluster/task_log.h"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "catch2/catch.hpp"
#include "common/telemetry/logging.h"

namespace weir {
namespace {

std::string TempFile(const std::string& name) { return std::string(std::getenv("TEST_TMPDIR")) + "/" + name; }

std::string Logged(LogLevel level, const std::string& message) {
  LoggingOptions options;
  options.task = "worker:1";
  std::string line = FormatLogLine(options, level, std::chrono::system_clock::time_point(), message);
  line.pop_back();
  return line;
}

TEST_CASE("a line of a task's logger") {
  const auto info = ParseLogLine(Logged(LogLevel::kInfo, "joined"), "worker:1");
  CHECK(info.level == LogLine::Level::kInfo);
  CHECK(info.text == "00:00:00.000 I joined");
  CHECK(ParseLogLine(Logged(LogLevel::kDebug, "x"), "worker:1").level == LogLine::Level::kInfo);
  CHECK(ParseLogLine(Logged(LogLevel::kWarning, "x"), "worker:1").level == LogLine::Level::kWarning);
  CHECK(ParseLogLine(Logged(LogLevel::kError, "x"), "worker:1").level == LogLine::Level::kError);
}

TEST_CASE("any other line") {
  for (const char* line :
       {"", "Aborted", "2026-11-21T10:26:55.123Z", "2026-11-21 10:26:55.123Z E worker:1 x"}) {
    const auto parsed = ParseLogLine(line, "worker:1");
    CHECK(parsed.level == LogLine::Level::kUnknown);
    CHECK(parsed.text == line);
  }
  CHECK(ParseLogLine("\x1b[31mred", "worker:1").text == "\\x1b[31mred");
}

TEST_CASE("all lines go to the file, and those that matter to the console") {
  std::string screen;
  Console::Options console_options;
  console_options.write = [&](absl::string_view text) { screen.append(text.data(), text.size()); };
  Console console(console_options);
  TaskLog::Options options;
  options.task = "worker:1";
  options.path = TempFile("worker-1.log");
  options.console = &console;
  options.verbose = GENERATE(false, true);
  ManualClock clock;
  options.clock = &clock;
  auto log = TaskLog::Open(options);
  REQUIRE(log.ok());
  (*log)->Add(Logged(LogLevel::kInfo, "joined"));
  (*log)->Add("    further line of it");
  (*log)->Add(Logged(LogLevel::kWarning, "slow"));
  (*log)->Add("    why");
  (*log)->Add("Aborted");
  CHECK(screen.empty() == !options.verbose);
  const absl::Time then = clock.Now();
  clock.Advance(absl::Seconds(1));
  (*log)->ShowHeld(then);
  const std::string shown = screen;
  if (!options.verbose) (*log)->Add("held until it is muted");
  (*log)->ShowHeld(then);
  (*log)->Mute();
  (*log)->ShowHeld(absl::InfiniteFuture());
  (*log)->Add("muted");
  (*log)->ShowHeld(absl::InfiniteFuture());
  CHECK(screen == shown);

  const std::string notable = "[worker:1] 00:00:00.000 W slow\n[worker:1]     why\n[worker:1] Aborted\n";
  const std::string all = "[worker:1] 00:00:00.000 I joined\n[worker:1]     further line of it\n" + notable;
  CHECK(screen == (options.verbose ? all : notable));
  std::ostringstream file;
  file << std::ifstream(options.path).rdbuf();
  CHECK(file.str() == Logged(LogLevel::kInfo, "joined") + "\n    further line of it\n" +
                          Logged(LogLevel::kWarning, "slow") + "\n    why\nAborted\n" +
                          (!options.verbose ? "held until it is muted\n" : "") + "muted\n");

  for (int i = 0; i < 20; ++i) (*log)->Add(std::to_string(i));
  const auto last = (*log)->LastLines();
  CHECK(last.size() == 10);
  CHECK(last.front() == "10");
  CHECK(last.back() == "19");
}

TEST_CASE("a log that cannot be made") {
  TaskLog::Options options;
  options.path = "/no/such/folder/x.log";
  CHECK_THAT(std::string(TaskLog::Open(options).status().message()), Catch::Contains(options.path));
}

}  // namespace
}  // namespace weir
