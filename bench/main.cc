// The command line of `weir_bench`, which `weir bench` and `./dev bench` start.
#include <sys/utsname.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "bench/contest.h"
#include "bench/server_process.h"
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

int Main(int argc, char** argv) {
  CLI::App app("Measure how fast weights and gradients move.", "weir bench");
  app.footer(kWireExamples);
  app.require_subcommand(1);

  CLI::App* wire =
      app.add_subcommand("wire",
                         "Measure a worker's step (push, apply, pull) with raw sockets, and with Weir "
                         "on each transport");
  wire->footer(kWireExamples);
  WireTableOptions table;
  table.layouts = {"1x1", "2x2"};
  table.optimizers = {"momentum"};
  table.contestants = {"raw tcp", "weir tcp", "weir unix", "weir shared memory"};
  std::vector<std::string> sizes = {"1KB", "64KB", "1MB", "16MB", "128MB"};
  std::string listen, connect, ps_server, json_file;
  CLI::Option* sizes_option = wire->add_option("--sizes", sizes, "Bytes of weights, 1KB to 64GB")
                                  ->delimiter(',')
                                  ->capture_default_str();
  CLI::Option* layouts_option =
      wire->add_option("--layouts", table.layouts, "SERVERSxWORKERS")->delimiter(',')->capture_default_str();
  bool small = false;
  wire->add_flag(
          "--small", small,
          "Measure steps of small models: 40 KB, 400 KB and 4 MB, each with 1 to 16 workers on 2 servers")
      ->excludes(sizes_option)
      ->excludes(layouts_option);
  wire->add_option("--optimizers", table.optimizers, "sgd, momentum, adam")
      ->delimiter(',')
      ->check(CLI::IsMember({"sgd", "momentum", "adam"}))
      ->capture_default_str();
  wire->add_option("--contestants", table.contestants,
                   absl::StrCat(absl::StrJoin(kWireContestants, ", "),
                                "; Weir's take settings: 'weir tcp wire.chunk_kib=512'"))
      ->delimiter(',')
      ->capture_default_str();
  wire->add_option("--certificates", table.certificates,
                   "Folder of `weir certs init` for a cluster of this layout, for \"weir tls\"")
      ->type_name("DIR");
  wire->add_option("--rounds", table.rounds, "Turns of each contestant")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  wire->add_option("--turn_seconds", table.turn_seconds, "Length of a turn, about")
      ->check(CLI::Range(0.001, 60.0))
      ->capture_default_str();
  CLI::Option* listen_option =
      wire->add_option("--listen", listen,
                       "Run the servers for a --connect elsewhere. Everyone who can reach "
                       "this address may use this host for that")
          ->type_name("HOST:PORT");
  wire->add_option("--connect", connect, "Run the servers on this host, which runs --listen")
      ->type_name("HOST:PORT")
      ->excludes(listen_option);
  wire->add_option("--json", json_file, "Also write the table there")->type_name("FILE");
  wire->add_option("--ps_server", ps_server, "The program ps_server (default: beside this one)")
      ->type_name("FILE");

  if (const std::optional<int> exit = ReadCommandLine(app, argc, argv)) return *exit;
  ServerProcess::SetProgram(ps_server);
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
