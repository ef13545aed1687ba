// `weir bench` as a process, without regard to its numbers.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/system/subprocess.h"
#include "nlohmann/json.hpp"

namespace weir {
namespace {

using Catch::Contains;
using nlohmann::json;

constexpr std::chrono::seconds kLimit{120};

std::string File(const std::string& name) { return std::string(std::getenv("TEST_TMPDIR")) + "/" + name; }

CommandResult Run(std::vector<std::string> args) {
  Subprocess::Options options;
  options.args = std::move(args);
  options.environment["TMPDIR"] = std::getenv("TEST_TMPDIR");
  const auto result = RunCommand(std::move(options), kLimit);
  INFO(result.status());
  REQUIRE(result.ok());
  // No temporary folder stays.
  for (const auto& entry : std::filesystem::directory_iterator(std::getenv("TEST_TMPDIR"))) {
    CHECK_THAT(entry.path().filename().string(), !Catch::StartsWith("weir-"));
  }
  return *result;
}

std::set<std::string> CheckCells(const json& table) {
  CHECK(table["raw_setting"]["window_bytes"] > 0);
  CHECK_FALSE(table["machine"]["cpu"].get<std::string>().empty());
  std::set<std::string> contestants;
  for (const json& cell : table["cells"]) {
    INFO(cell.dump());
    contestants.insert(cell["contestant"].get<std::string>());
    REQUIRE_FALSE(cell.contains("error"));
    CHECK(cell["gb_per_second"] > 0);
    CHECK(cell["p50_seconds"] <= cell["p99_seconds"]);
    CHECK(cell["client_cpu_seconds_per_gb"] > 0);
    CHECK(cell["server_cpu_seconds_per_gb"] > 0);
    CHECK(cell["of_limit"] > 0);
  }
  return contestants;
}

TEST_CASE("weir bench wire measures every form and writes its table") {
  const std::string file = File("wire.json");
  const CommandResult result =
      Run({"cli/weir", "bench", "wire", "--sizes=1KB,256KB", "--layouts=1x1,2x2", "--optimizers=adam",
           "--rounds=1", "--turn_seconds=0.002", "--json=" + file,
           "--contestants=raw tcp,raw unix,weir tcp,weir tcp bf16,weir unix,"
           "weir shared memory,weir shared memory copied"});
  INFO(result.output);
  REQUIRE(result.exit.ok());
  CHECK_THAT(result.output, Contains("256KB    2x2 adam      weir shared memory"));
  CHECK_THAT(result.output, Contains("3 of 4 races are done; about ") && !Contains("4 of 4"));
  const json table = json::parse(std::ifstream(file));
  CHECK(table["cells"].size() == 2 * 2 * 7);
  CHECK(CheckCells(table).size() == 7);
}

TEST_CASE("weir bench wire between two hosts") {
  std::promise<std::string> listening;
  Subprocess::Options options;
  options.args = {"bench/weir_bench", "wire", "--listen=127.0.0.1:0", "--ps_server=ps_server/ps_server"};
  options.environment["TMPDIR"] = std::getenv("TEST_TMPDIR");
  options.on_line = [&listening, told = false](absl::string_view line) mutable {
    const absl::string_view start = "listening at ";
    if (told || line.substr(0, start.size()) != start) return;
    told = true;
    listening.set_value(std::string(line.substr(start.size())));
  };
  auto address = listening.get_future();
  const auto servers = Subprocess::Start(std::move(options));
  REQUIRE(servers.ok());
  REQUIRE(address.wait_for(kLimit) == std::future_status::ready);
  const std::string file = File("two_hosts.json");
  const CommandResult result = Run({"bench/weir_bench", "wire", "--connect=" + address.get(), "--sizes=64KB",
                                    "--layouts=1x1", "--rounds=1", "--turn_seconds=0.002", "--json=" + file});
  INFO(result.output);
  REQUIRE(result.exit.ok());
  // Contestants that share memory are left out.
  CHECK(CheckCells(json::parse(std::ifstream(file))) == std::set<std::string>{"raw tcp", "weir tcp"});
}

TEST_CASE("nobody listens") {
  const CommandResult result = Run({"bench/weir_bench", "wire", "--connect=127.0.0.1:1"});
  CHECK(result.exit.status() == 70);
  CHECK_THAT(result.output, Contains("--listen=HOST:PORT") && Contains("127.0.0.1:1"));
}

TEST_CASE("the scale table has a cell for each job, and names one that failed") {
  const std::string file = File("scale.json");
  const std::vector<std::string> scale = {"tests/bench/scale_bench", "--models=tiny", "--workers=3",
                                          "--pushes=30", "--json=" + file};
  const auto run = [&scale](std::vector<std::string> more) {
    more.insert(more.begin(), scale.begin(), scale.end());
    return Run(std::move(more));
  };
  const CommandResult result = run({"--servers=1,2", "--ps_server=ps_server/ps_server"});
  INFO(result.output);
  REQUIRE(result.exit.ok());
  const json report = json::parse(std::ifstream(file));
  REQUIRE(report["cells"].size() == 3 * 2);
  for (const json& cell : report["cells"]) {
    INFO(cell.dump());
    CHECK(cell["pushes"] == 30);
    CHECK(cell["pushes_per_second"] > 0);
    if (cell["mode"] == "sync") CHECK(cell["fairness"] == 1);
    CHECK(cell["p50_seconds"] <= cell["p99_seconds"]);
    CHECK(cell["peak_bytes_per_worker"] >= cell["idle_bytes_per_worker"]);
    CHECK(cell["ps0_cpu_us_per_push"] > 0);
  }
  const CommandResult failed = run({"--modes=sync", "--servers=1", "--ps_server=/no/such/ps_server"});
  CHECK(failed.exit.status() == 1);
  CHECK_THAT(failed.output, Contains("failed: "));
  CHECK(json::parse(std::ifstream(file))["cells"][0].contains("error"));
}

#if !defined(WEIR_ASAN) && !defined(WEIR_TSAN)  // sanitizers keep memory of their own for each allocation
TEST_CASE("an idle worker of a small model takes hardly more of a server over shared memory than over TCP") {
  std::map<std::string, double> idle;
  for (const std::string transport : {"tcp", "shared_memory"}) {
    const std::string file = File(transport + ".json");
    const CommandResult result =
        Run({"tests/bench/scale_bench", "--models=tiny", "--modes=sync", "--servers=1", "--workers=16",
             "--pushes=64", "--transport=" + transport, "--ps_server=ps_server/ps_server", "--json=" + file});
    INFO(result.output);
    REQUIRE(result.exit.ok());
    idle[transport] = json::parse(std::ifstream(file))["cells"][0]["idle_bytes_per_worker"];
  }
  CHECK(idle["shared_memory"] - idle["tcp"] < 256 << 10);
}
#endif

}  // namespace
}  // namespace weir
