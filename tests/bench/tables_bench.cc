// `./dev bench tables`: the speed and the memory of embedding tables, against targets. See docs/benchmarks.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "bench/contest.h"
#include "bench/server_process.h"
#include "common/base/host.h"
#include "common/telemetry/grpc_process.h"
#include "ps_server/table/table.h"
#include "tests/bench/row_contestants.h"
#include "tests/bench/row_gather.h"
#include "tests/bench/table_engine.h"
#include "tests/bench/table_races.h"
#include "tests/bench/table_targets.h"

namespace weir::bench {
namespace {

struct Flags {
  uint64_t rows = 20'000'000, plan_rows = 50'000'000, dim = 32;
  int rounds = 31, steps = 0;
  bool quick = false;
  std::vector<std::string> only = {"gather", "plan", "engine"};
  std::string json, scratch, transport = "auto", ps_server;

  bool Wants(const char* part) const { return absl::c_linear_search(only, part); }
};

int Fail(const std::string& why) {
  std::fprintf(stderr, "tables_bench: %s\n", why.c_str());
  return 1;
}

// A new folder in `parent`, which is removed with all that is in it.
class ScratchFolder {
 public:
  explicit ScratchFolder(const std::string& parent) : path_(parent + "/tables_bench.XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  ~ScratchFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Returns the bytes that the run takes at most, in the part that needs most.
uint64_t NeededBytes(const Flags& flags) {
  uint64_t needed = 0;
  if (flags.Wants("engine")) needed = TableEngineBytes(flags.rows, flags.dim);
  // A table of rows of 64 values, and a map of their addresses.
  if (flags.Wants("gather")) needed = std::max(needed, flags.rows * (2 * 64 * sizeof(float) + 80));
  // Twice the rows, since a checkpoint may be written while the table grows.
  if (flags.Wants("plan")) needed = std::max(needed, 2 * flags.plan_rows * (17 * sizeof(float) + 40));
  return needed;
}

int Run(const Flags& flags) {
  const uint64_t needed = NeededBytes(flags);
  if (const uint64_t available = LookAtMemory().available; available != 0 && available < needed) {
    return Fail(
        absl::StrCat("it takes up to ", needed >> 20, " MiB, and ", available >> 20,
                     " MiB are free; lower --rows, --plan_rows or --dim, or leave parts out (--only)"));
  }
  ServerProcess::SetProgram(flags.ps_server);
  AddKind("bare rows", BareRowsKind());
  AddKind("raw rows", RawRowsKind());
  AddKind("weir rows", WeirRowsKind());
  // The host and contestants are forked, so they come before the engine's threads.
  absl::StatusOr<std::unique_ptr<ServerHost>> host = ServerHost::Local();
  if (!host.ok()) return Fail(std::string(host.status().message()));
  if (flags.steps > 0) {
    const absl::Status status = PrintSteps(flags.rows, flags.dim, flags.transport, flags.steps, host->get());
    return status.ok() ? 0 : Fail(std::string(status.message()));
  }
  TableTargets targets;
  if (flags.Wants("gather")) MeasureGather(flags.rows, flags.rounds, host->get(), &targets);
  if (flags.Wants("plan")) {
    const ScratchFolder scratch(flags.scratch);
    if (scratch.path().empty()) return Fail(absl::StrCat("--scratch=", flags.scratch, " cannot be written"));
    MeasurePlan(flags.plan_rows, scratch.path(), host->get(), &targets);
  }
  if (flags.Wants("engine")) MeasureTableEngine(flags.rows, flags.dim, flags.rounds, &targets);
  std::printf("%s\n", targets.missed.empty() ? "all targets are met" : ("missed:" + targets.missed).c_str());
  if (!flags.json.empty()) {
    nlohmann::json& json = targets.json;
    json["missed"] = targets.missed;
    json["rows"] = flags.rows;
    json["plan_rows"] = flags.plan_rows;
    json["dim"] = flags.dim;
    json["rounds"] = flags.rounds;
    json["only"] = flags.only;
    std::ofstream out(flags.json);
    out << json.dump(2) << "\n";
    out.close();
    if (!out) return Fail(absl::StrCat("--json=", flags.json, " cannot be written"));
  }
  return targets.missed.empty() ? 0 : 1;
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Speed and memory of embedding tables", "./dev bench tables");
  app.add_option("--rows", flags.rows, "rows of a table; the engine makes two, the races one and a bare copy")
      ->check(CLI::Range(uint64_t{kBatchKeys}, uint64_t{1} << 31))
      ->capture_default_str();
  app.add_option("--plan_rows", flags.plan_rows, "rows of the server whose memory is compared with its plan")
      ->check(CLI::Range(uint64_t{kBatchKeys}, uint64_t{1} << 31))
      ->capture_default_str();
  app.add_option("--dim", flags.dim, "float32 values of a row of the engine, and of --steps")
      ->check(CLI::Range(uint64_t{1}, uint64_t{Table::kMaxDim}))
      ->capture_default_str();
  app.add_option("--rounds", flags.rounds, "measurements of each rate")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--only", flags.only, "some of these parts")
      ->delimiter(',')
      ->check(CLI::IsMember({"gather", "plan", "engine"}))
      ->default_str(absl::StrJoin(flags.only, ","));
  app.add_flag("--quick", flags.quick,
               "few rows and rounds: shows that everything runs; the numbers mean nothing");
  app.add_option("--scratch", flags.scratch,
                 "where a folder for checkpoints may be made; twice the plan's size")
      ->default_str("TMPDIR, or /tmp");
  app.add_option("--json", flags.json, "also write the results there");
  app.add_option("--ps_server", flags.ps_server, "the program ps_server")->required();
  app.add_option("--steps", flags.steps,
                 "instead: only print the steps a second of two workers on two servers, which read and push "
                 "a batch's rows, as JSON, from as many steps of each")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--transport", flags.transport, "of --steps: wire.transport")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (flags.quick) {
    flags.rows = std::min<uint64_t>(flags.rows, 200'000);
    flags.plan_rows = std::min<uint64_t>(flags.plan_rows, 400'000);
    flags.rounds = std::min(flags.rounds, 3);
  }
  if (flags.scratch.empty()) {
    const char* const folder = std::getenv("TMPDIR");
    flags.scratch = folder != nullptr ? folder : "/tmp";
  }
  return Run(flags);
}

}  // namespace
}  // namespace weir::bench

int main(int argc, char** argv) {
  weir::PrepareGrpc();
  return weir::bench::Main(argc, argv);
}
