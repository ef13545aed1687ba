#include "common/telemetry/logging.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/random.h"
#include "nlohmann/json.hpp"

namespace weir {
namespace {

const std::chrono::system_clock::time_point kTime(std::chrono::milliseconds(1766226415123));

std::string Json(const std::string& message) {
  return FormatLogLine({LogFormat::kJson, LogLevel::kInfo, "worker:1"}, LogLevel::kInfo, kTime, message);
}

TEST_CASE("a text line") {
  CHECK(FormatLogLine({LogFormat::kText, LogLevel::kInfo, "worker:1"}, LogLevel::kWarning, kTime, "slow") ==
        "2025-12-20T10:26:55.123Z W worker:1 slow\n");
  CHECK(FormatLogLine({}, LogLevel::kError, kTime, "a\nb\x1b[31m\r\t\xff") ==
        "2025-12-20T10:26:55.123Z E a\n    b\\x1b[31m\\x0d\t\xEF\xBF\xBD\n");
}

TEST_CASE("of a very long message the beginning is shown") {
  const std::string line = FormatLogLine({}, LogLevel::kError, kTime, std::string(5 << 20, 'x'));
  CHECK(line.size() < 8400);
  CHECK_THAT(line, Catch::EndsWith("x... (5234688 bytes more)\n"));
}

TEST_CASE("a JSON line") {
  CHECK(Json("joined") ==
        R"({"time":"2025-12-20T10:26:55.123Z","level":"info","task":"worker:1","message":"joined"})"
        "\n");
  const auto parsed = nlohmann::json::parse(Json("tab\t, \"quote\", back\\slash, \n, \xC3\xA9 and \x01"));
  CHECK(parsed["message"] == "tab\t, \"quote\", back\\slash, \n, \xC3\xA9 and \x01");
}

TEST_CASE("a JSON line is one valid line whatever the bytes") {
  const std::vector<std::string> bad = {std::string("\0", 1), "\xC0\x80", "\xED\xA0\x80",
                                        "\xF4\x90\x80\x80",   "\xE2\x82", "\x80",
                                        "\xF0\x8F\xBF\xBF",   "\xFF\xFE"};
  for (const auto& message : bad) CHECK_NOTHROW(nlohmann::json::parse(Json(message)));

  RandomStream random(RandomKey(1, "bytes"), 0);
  int invalid = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string message;
    for (uint32_t n = random.NextBelow(40); n > 0; --n)
      message.push_back(static_cast<char>(random.Next() & 0xFF));
    const std::string line = Json(message);
    if (!nlohmann::json::accept(line) || line.find('\n') != line.size() - 1) ++invalid;
  }
  CHECK(invalid == 0);
}

TEST_CASE("valid UTF-8 is left alone, the rest replaced byte by byte") {
  const std::string valid =
      "a\xC2\x80\xDF\xBF\xE0\xA0\x80\xED\x9F\xBF\xEE\x80\x80\xF0\x90\x80\x80\xF4\x8F\xBF\xBF";
  CHECK(ValidUtf8(valid) == valid);
  const std::string replacement = "\xEF\xBF\xBD";
  CHECK(ValidUtf8("x\xE2\x82y") == "x" + replacement + replacement + "y");
  CHECK(ValidUtf8("\xED\xA0\x80") == replacement + replacement + replacement);
}

TEST_CASE("names of formats and levels") {
  CHECK(*ParseLogFormat("json") == LogFormat::kJson);
  CHECK(*ParseLogFormat("text") == LogFormat::kText);
  CHECK_THAT(std::string(ParseLogFormat("xml").status().message()),
             Catch::Contains("'xml'") && Catch::Contains("text and json"));
  CHECK(*ParseLogLevel("warning") == LogLevel::kWarning);
  CHECK_THAT(std::string(ParseLogLevel("loud").status().message()), Catch::Contains("'loud'"));
}

// Runs `body` with standard error redirected to a file, and returns the file's lines.
template <typename Body>
std::vector<std::string> Captured(Body body) {
  const char* dir = getenv("TEST_TMPDIR");
  const std::string path = std::string(dir != nullptr ? dir : "/tmp") + "/stderr.txt";
  const int saved = dup(STDERR_FILENO);
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  dup2(file, STDERR_FILENO);
  body();
  dup2(saved, STDERR_FILENO);
  close(file);
  close(saved);
  std::vector<std::string> lines;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST_CASE("the log goes to standard error as set up, whole lines from many threads") {
  const auto lines = Captured([] {
    InitLogging({LogFormat::kJson, LogLevel::kWarning, "ps:0"});
    LogInfo("not shown");
    LogWarning("staleness ", 3, " of ", 2.5);
    LogError("{} %s \"");
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([t] {
        for (int i = 0; i < 100; ++i) LogError("thread ", t, " line ", i);
      });
    }
    for (auto& thread : threads) thread.join();
    InitLogging({});
    LogDebug("not shown");
    LogInfo("plain");
  });
  REQUIRE(lines.size() == 403);
  const auto first = nlohmann::json::parse(lines[0]);
  CHECK(first["message"] == "staleness 3 of 2.5");
  CHECK(first["level"] == "warning");
  CHECK(first["task"] == "ps:0");
  CHECK(nlohmann::json::parse(lines[1])["message"] == "{} %s \"");
  int invalid = 0;
  for (size_t i = 2; i < 402; ++i) invalid += nlohmann::json::accept(lines[i]) ? 0 : 1;
  CHECK(invalid == 0);
  CHECK_THAT(lines[402], Catch::EndsWith(" I plain"));
}

}  // namespace
}  // namespace weir
