#include "client/job/history.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"

namespace weir {
namespace {

std::vector<nlohmann::json> Lines(const std::string& path) {
  std::ifstream file(path);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

std::string TemporaryPath(const std::string& name) {
  const char* folder = std::getenv("TEST_TMPDIR");
  return std::string(folder == nullptr ? "/tmp" : folder) + "/" + name;
}

TEST_CASE("each answer is a line of JSON") {
  const std::string path = TemporaryPath("history.jsonl");
  auto history = History::Open(path);
  REQUIRE(history.ok());
  History::Pull pull;
  pull.worker = 1;
  pull.worker_incarnation = 7;
  pull.shard = 2;
  pull.clock = 4;
  pull.version = 9;
  pull.incarnation = 3;
  pull.clocks = {{0, 3}, {1, 4}};
  (*history)->Add(pull);
  pull.outcome = "STEP_PAST";
  pull.pin = 5;
  pull.clocks.clear();
  (*history)->Add(pull);
  History::Push push;
  push.worker = 1;
  push.worker_incarnation = 7;
  push.shard = 2;
  push.clock = 4;
  push.part = 6;
  push.batch = ~uint64_t{0};
  push.outcome = "REFUSED";
  push.version = 10;
  push.incarnation = 3;
  push.staleness = 1;
  (*history)->Add(push);
  REQUIRE((*history)->Close().ok());
  (*history)->Add(push);
  CHECK((*history)->Close().ok());

  std::vector<nlohmann::json> lines = Lines(path);
  REQUIRE(lines.size() == 3);
  for (nlohmann::json& line : lines) {
    CHECK(line["t_ns"].get<int64_t>() > 0);
    line.erase("t_ns");
  }
  CHECK(lines[0] == nlohmann::json::parse(
                        R"({"op":"pull","worker":1,"worker_incarnation":7,"shard":2,"clock":4,"version":9,
                                             "incarnation":3,"clocks":[[0,3],[1,4]]})"));
  CHECK(lines[1] ==
        nlohmann::json::parse(R"({"op":"pull","worker":1,"worker_incarnation":7,"shard":2,"clock":4,"pin":5,
                                             "outcome":"STEP_PAST","version":9,"incarnation":3,"clocks":[]})"));
  CHECK(lines[2] ==
        nlohmann::json::parse(R"({"op":"push","worker":1,"worker_incarnation":7,"shard":2,"clock":4,"part":6,
                                             "batch":18446744073709551615,"outcome":"REFUSED","version":10,
                                             "incarnation":3,"staleness":1})"));
}

TEST_CASE("a path that cannot be written is an error that names it") {
  const auto history = History::Open("/nowhere/at/all");
  CHECK(history.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(history.status().message() ==
        "cannot write the history to /nowhere/at/all: No such file or directory");
}

TEST_CASE("a file that another process writes is refused, and stays as it is") {
  const std::string path = TemporaryPath("taken.jsonl");
  auto first = History::Open(path);
  REQUIRE(first.ok());
  (*first)->Add(History::Push());
  for (const bool append : {false, true}) {
    const pid_t other = fork();
    if (other == 0) {
      const std::string why(History::Open(path, append).status().message());
      const bool refused =
          why.find("another worker writes there; a path with {task} is") != std::string::npos;
      _exit(refused ? 7 : 1);
    }
    int status = 0;
    REQUIRE(waitpid(other, &status, 0) == other);
    CHECK(WEXITSTATUS(status) == 7);
  }
  CHECK((*first)->Close().ok());
  CHECK(Lines(path).size() == 1);
  CHECK(History::Open(path, /*append=*/true).ok());
}

TEST_CASE("a full disk is told at the end") {
  auto history = History::Open("/dev/full");
  REQUIRE(history.ok());
  (*history)->Add(History::Push());
  const absl::Status closed = (*history)->Close();
  CHECK(closed.code() == absl::StatusCode::kDataLoss);
  CHECK(closed.message() == "the history in /dev/full is not whole: No space left on device");
}

}  // namespace
}  // namespace weir
