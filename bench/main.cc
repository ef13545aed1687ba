// The command line of `weir_bench`, which `weir bench` and `./dev bench` start.
#include <sys/utsname.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "bench/host.h"
#include "bench/scale.h"
#include "bench/server_process.h"
#include "bench/sweep.h"
#include "bench/targets.h"
#include "bench/weir_contestant.h"
#include "bench/wire_table.h"
#include "common/program/command_line.h"
#include "common/program/exit_codes.h"
#include "common/system/process.h"
#include "common/telemetry/grpc_process.h"

namespace weir::bench {
namespace {

using nlohmann::json;

constexpr const char* kWireExamples = R"(Examples:
  weir bench wire
  weir bench wire --sizes=1KB,64MB --layouts=1x1,2x4 --optimizers=sgd,adam --json=wire.json
  weir bench wire --small --contestants="weir tcp,weir shared memory"
Two hosts, servers on the first:
  weir bench wire --listen=10.0.0.1:7000
  weir bench wire --connect=10.0.0.1:7000)";

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
  return status.code() == absl::StatusCode::kInvalidArgument ? kExitUsage : kExitInternal;
}

std::string CpuModel() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (absl::StartsWith(line, "model name")) return line.substr(line.find(": ") + 2);
  }
  return "";
}

json Machine() {
  utsname system{};
  uname(&system);
  std::string own_congestion_control;
  std::getline(std::ifstream("/proc/sys/net/ipv4/tcp_congestion_control"), own_congestion_control);
  return {{"cpu", CpuModel()},
          {"cores", std::thread::hardware_concurrency()},
          {"kernel", std::string(system.release)},
          {"congestion_control", own_congestion_control}};
}

absl::Status WriteJson(const std::string& path, const json& value) {
  if (path.empty()) return absl::OkStatus();
  std::ofstream file(path);
  file << value.dump(2) << "\n";
  file.close();
  if (!file) return absl::InvalidArgumentError(absl::StrCat("--json=", path, " cannot be written"));
  return absl::OkStatus();
}

int RunWireTable(WireTableOptions options, const std::vector<std::string>& sizes, const std::string& connect,
                 const std::string& json_file) {
  for (const std::string& size : sizes) {
    const absl::StatusOr<int64_t> bytes = ParseSize(size);
    if (!bytes.ok()) return Fail(bytes.status());
    options.sizes.push_back(*bytes);
  }
  for (const std::string& layout : options.layouts) {
    const auto shape = ParseLayout(layout);
    if (!shape.ok()) return Fail(shape.status());
  }
  options.two_hosts = !connect.empty();
  const auto host = connect.empty() ? ServerHost::Local() : ServerHost::Remote(connect);
  if (!host.ok()) return Fail(host.status());
  absl::StatusOr<json> table = PrintWireTable(options, host->get());
  if (!table.ok()) return Fail(table.status());
  (*table)["machine"] = Machine();
  const absl::Status written = WriteJson(json_file, *table);
  return written.ok() ? kExitOk : Fail(written);
}

std::string Show(const Target& target, double value) {
  // Three significant digits, or the whole number.
  const int decimals = std::abs(value) >= 100 || value == std::floor(value) ? 0
                       : std::abs(value) >= 10                              ? 1
                                                                            : 2;
  char text[64];
  std::snprintf(
      text, sizeof text, "%.*f%s", decimals, value,
      target.unit.empty() || target.unit == "x" ? target.unit.c_str() : (" " + target.unit).c_str());
  return text;
}

int RunTargets(const TargetOptions& options, const std::string& json_file) {
  for (const std::string& row : options.rows) {
    if (std::find(kTargetRows.begin(), kTargetRows.end(), row) == kTargetRows.end()) {
      return Fail(absl::InvalidArgumentError(
          absl::StrCat("--rows: there is no row '", row, "', but ", absl::StrJoin(kTargetRows, ", "))));
    }
  }
  const auto host = ServerHost::Local();
  if (!host.ok()) return Fail(host.status());
  const Report report = MeasureTargets(options, host->get());

  json targets = json::array();
  std::vector<std::string> short_of;
  std::printf("%-10s %-100s %10s %10s\n", "row", "work", "measured", "bound");
  for (const Target& target : report.targets) {
    const std::string bound = (target.at_least ? ">= " : "<= ") + Show(target, target.bound);
    const std::string value = target.status.ok() ? Show(target, target.value) : "failed";
    std::printf("%-10s %-100s %10s %10s %s\n", target.row.c_str(), target.work.c_str(), value.c_str(),
                bound.c_str(), target.met() ? "" : "MISSED");
    if (!target.status.ok()) std::printf("           %s\n", std::string(target.status.message()).c_str());
    if (!target.met()) short_of.push_back(absl::StrCat(target.row, " (", value, ", ", bound, ")"));
    json entry = {{"row", target.row},     {"work", target.work}, {"at_least", target.at_least},
                  {"bound", target.bound}, {"unit", target.unit}, {"met", target.met()}};
    if (target.status.ok()) {
      entry["value"] = target.value;
      entry["samples"] = target.samples;
    } else {
      entry["error"] = std::string(target.status.message());
    }
    targets.push_back(std::move(entry));
  }
  for (const std::string& why : report.invalid) std::printf("invalid: %s\n", why.c_str());
  const absl::Status written = WriteJson(json_file, {{"machine", Machine()},
                                                     {"pairs", options.pairs},
                                                     {"quick", options.quick},
                                                     {"valid", report.invalid.empty()},
                                                     {"invalid", report.invalid},
                                                     {"targets", targets},
                                                     {"details", report.details}});
  if (!written.ok()) return Fail(written);
  if (!report.invalid.empty()) {
    std::printf("the run is invalid: %s\n", report.invalid.front().c_str());
  } else if (!short_of.empty()) {
    std::printf("short: %s\n", absl::StrJoin(short_of, "; ").c_str());
  } else {
    std::printf("all %zu targets are met\n", report.targets.size());
  }
  return report.invalid.empty() && short_of.empty() ? kExitOk : 1;
}

int RunScale(const ScaleOptions& options, const std::string& json_file, const std::string& plot_file) {
  const std::vector<ScaleRow> rows = MeasureScales(options);
  json cells = json::array(), targets = json::array();
  bool good = true;
  for (const ScaleRow& row : rows) {
    json cell = row.cell;
    cell["again"] = row.again;
    if (row.status.ok()) {
      cell.update(json(row.result));
    } else {
      cell["error"] = std::string(row.status.message());
      good = false;
    }
    cells.push_back(std::move(cell));
  }
  std::printf("\n");
  for (const ScaleTarget& target : JudgeScale(rows)) {
    std::printf("%-66s %8.3f %-3s %s %g%s\n", target.what.c_str(), target.value, target.unit.c_str(),
                target.at_least ? ">=" : "<=", target.bound, target.met() ? "" : "  MISSED");
    good = good && target.met();
    targets.push_back({{"what", target.what},
                       {"value", target.value},
                       {"samples", target.samples},
                       {"bound", target.bound},
                       {"at_least", target.at_least},
                       {"unit", target.unit},
                       {"met", target.met()}});
  }
  absl::Status written =
      WriteJson(json_file, {{"machine", Machine()}, {"cells", cells}, {"targets", targets}});
  if (!plot_file.empty()) {
    std::ofstream plot(plot_file);
    plot << PlotScale(rows);
    plot.close();
    if (!plot)
      written.Update(absl::InvalidArgumentError(absl::StrCat("--plot=", plot_file, " cannot be written")));
  }
  if (!written.ok()) return Fail(written);
  std::printf("%s\n",
              good ? "all cells completed, all targets are met" : "a cell failed or a target was missed");
  return good ? kExitOk : 1;
}

// Takes turns as another program says: it writes a number of steps as a line, and reads the seconds of each
// as a line of JSON.
int TakeTurns(int64_t elements, bool in_place) {
  Contestant contestant = Weir("weir shared memory", R"({"wire": {"transport": "shared_memory"}})");
  contestant.elements = elements;
  contestant.in_place = in_place;
  const auto host = ServerHost::Local();
  if (!host.ok()) return Fail(host.status());
  const auto contest = Contest::Start(contestant, host->get());
  if (!contest.ok()) return Fail(contest.status());
  for (std::string line; std::getline(std::cin, line);) {
    int steps;
    if (!absl::SimpleAtoi(line, &steps) || steps < 1) {
      return Fail(absl::InvalidArgumentError(
          absl::StrCat("standard input: '", line, "' is not a number of steps, at least 1")));
    }
    const auto result = (*contest)->Run(steps);
    if (!result.ok()) return Fail(result.status());
    std::printf("%s\n", json(result->seconds).dump().c_str());
    std::fflush(stdout);
  }
  return kExitOk;
}

int Main(int argc, char** argv) {
  CLI::App app("Measures how fast weights and gradients move.", "weir bench");
  app.footer(kWireExamples);
  app.require_subcommand(1);

  CLI::App* wire = app.add_subcommand("wire",
                                      "A worker's step, push, apply and pull: raw sockets, plain protobuf "
                                      "over gRPC, and Weir on each transport");
  wire->footer(kWireExamples);
  WireTableOptions table;
  table.layouts = {"1x1", "2x2"};
  table.optimizers = {"momentum"};
  table.contestants = {"raw tcp", "protobuf", "weir tcp", "weir unix", "weir shared memory"};
  std::vector<std::string> sizes = {"1KB", "64KB", "1MB", "16MB", "128MB"};
  std::string listen, connect, ps_server, json_file;
  CLI::Option* sizes_option = wire->add_option("--sizes", sizes, "Bytes of weights, 1KB to 64GB")
                                  ->delimiter(',')
                                  ->capture_default_str();
  CLI::Option* layouts_option =
      wire->add_option("--layouts", table.layouts, "SERVERSxWORKERS")->delimiter(',')->capture_default_str();
  bool small = false;
  wire->add_flag("--small", small,
                 "The steps of small models: 40 KB, 400 KB and 4 MB, each with 1 to 16 workers on 2 servers")
      ->excludes(sizes_option)
      ->excludes(layouts_option);
  wire->add_option("--optimizers", table.optimizers, "sgd, momentum, adam")
      ->delimiter(',')
      ->check(CLI::IsMember({"sgd", "momentum", "adam"}))
      ->capture_default_str();
  wire->add_option("--contestants", table.contestants,
                   absl::StrCat(absl::StrJoin(kWireContestants, ", "),
                                "; Weir's may bring settings of the job: 'weir tcp wire.chunk_kib=512'"))
      ->delimiter(',')
      ->capture_default_str();
  wire->add_option("--certificates", table.certificates,
                   "Where `weir certs init` has put those of a cluster of this layout, for \"weir tls\"")
      ->type_name("DIR");
  wire->add_option("--rounds", table.rounds, "Turns of each contestant")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  wire->add_option("--turn_seconds", table.turn_seconds, "How long a turn is, about")
      ->check(CLI::Range(0.001, 60.0))
      ->capture_default_str();
  CLI::Option* listen_option = wire->add_option("--listen", listen,
                                                "Runs the servers of a --connect elsewhere. Whoever reaches "
                                                "this address may use this host for that")
                                   ->type_name("HOST:PORT");
  wire->add_option("--connect", connect, "Where the servers are to run, with --listen")
      ->type_name("HOST:PORT")
      ->excludes(listen_option);
  wire->add_option("--json", json_file, "Also writes the table there")->type_name("FILE");
  wire->add_option("--ps_server", ps_server, "The program ps_server (default: beside this one)")
      ->type_name("FILE");

  CLI::App* targets =
      app.add_subcommand("targets", "What the data plane is held to, for developers: ./dev bench wire");
  TargetOptions target_options;
  targets->group("");  // not in the help
  targets->add_option("--rows", target_options.rows, absl::StrJoin(kTargetRows, ", "))->delimiter(',');
  targets->add_option("--pairs", target_options.pairs, "Interleaved pairs")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  targets->add_flag("--quick", target_options.quick,
                    "Small and short, to see that all works; the numbers mean nothing");
  targets->add_option("--apply_bench", target_options.apply_bench, "The program tests/bench:apply_bench")
      ->type_name("FILE");
  targets
      ->add_option("--certificates", target_options.certificates,
                   "Where `weir certs init` has put those of ps:0 and worker:0, for the row tls")
      ->type_name("DIR");
  targets->add_option("--json", json_file, "Also writes all numbers there")->type_name("FILE");
  targets->add_option("--ps_server", ps_server, "The program ps_server (default: beside this one)")
      ->type_name("FILE");

  CLI::App* scale =
      app.add_subcommand("scale", "How costs grow with workers, for developers: ./dev bench scale");
  ScaleOptions scale_options;
  std::string plot_file;
  std::vector<std::string> models;
  for (const ScaleModel& model : kScaleModels) models.emplace_back(model.name);
  scale->group("");  // not in the help
  scale->add_option("--models", scale_options.models, absl::StrJoin(models, ", "))
      ->delimiter(',')
      ->check(CLI::IsMember(models))
      ->capture_default_str();
  scale->add_option("--modes", scale_options.modes, absl::StrJoin(kScaleModes, ", "))
      ->delimiter(',')
      ->check(CLI::IsMember(std::vector<std::string>(std::begin(kScaleModes), std::end(kScaleModes))))
      ->capture_default_str();
  scale->add_option("--servers", scale_options.servers, "How many, in turn")
      ->delimiter(',')
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  scale->add_option("--workers", scale_options.workers, "How many, in turn")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  scale->add_option("--transport", scale_options.transport, "The config's wire.transport")
      ->check(CLI::IsMember({"auto", "shared_memory", "unix", "tcp"}))
      ->capture_default_str();
  scale
      ->add_option("--pushes", scale_options.pushes,
                   "Pushes of a cell, over all workers; at least 4 per worker")
      ->check(CLI::PositiveNumber);
  scale
      ->add_option("--limit_seconds", scale_options.limit_seconds,
                   "How long a job may take to start, to work, and to end")
      ->check(CLI::Range(1.0, 3600.0))
      ->capture_default_str();
  scale
      ->add_option("--pairs", scale_options.pairs,
                   absl::StrCat("How often ", kFewWorkers, " and ", kManyWorkers,
                                " workers take turns in async, to be compared"))
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  scale->add_option("--json", json_file, "Also writes all numbers there")->type_name("FILE");
  scale->add_option("--plot", plot_file, "Also draws them there, as an SVG")->type_name("FILE");
  scale->add_option("--ps_server", ps_server, "The program ps_server (default: beside this one)")
      ->type_name("FILE");

  CLI::App* turns = app.add_subcommand(
      "turns", "Steps over shared memory, as standard input says, for developers: ./dev bench python");
  int64_t elements = 25'000'000;
  bool in_place = false;
  turns->group("");  // not in the help
  turns->add_option("--elements", elements, "Of the model, float32")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 34))
      ->capture_default_str();
  turns->add_flag("--in_place", in_place, "Gradient and weights are not copied");
  turns->add_option("--ps_server", ps_server, "The program ps_server (default: beside this one)")
      ->type_name("FILE");

  if (const std::optional<int> exit = ReadCommandLine(app, argc, argv)) return *exit;
  ServerProcess::SetProgram(ps_server);
  if (scale->parsed()) return RunScale(scale_options, json_file, plot_file);
  if (turns->parsed()) return TakeTurns(elements, in_place);
  if (targets->parsed()) return RunTargets(target_options, json_file);
  if (!listen.empty()) return Fail(ServeRemotely(listen));
  if (small) {
    sizes = {"40KB", "400KB", "4MB"};
    table.layouts = {"2x1", "2x2", "2x4", "2x8", "2x16"};
  }
  return RunWireTable(table, sizes, connect, json_file);
}

}  // namespace
}  // namespace weir::bench

int main(int argc, char** argv) {
  weir::KeepFreedMemory();
  weir::PrepareGrpc();
  return weir::bench::Main(argc, argv);
}
