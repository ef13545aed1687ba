// The C++ client in `./dev bench python`. For each turn that program writes a line with a number of steps,
// and reads a line of JSON with the seconds of each step.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "bench/contest.h"
#include "bench/contestant.h"
#include "bench/server_process.h"
#include "common/base/status_macros.h"
#include "common/system/process.h"
#include "common/telemetry/grpc_process.h"

namespace weir::bench {
namespace {

absl::Status TakeTurns(const Contestant& contestant) {
  WEIR_ASSIGN_OR_RETURN(const auto host, ServerHost::Local());
  WEIR_ASSIGN_OR_RETURN(const auto contest, Contest::Start(contestant, host.get()));
  for (std::string line; std::getline(std::cin, line);) {
    int steps;
    if (!absl::SimpleAtoi(line, &steps) || steps < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("standard input: '", line, "' is not a number of steps, at least 1"));
    }
    WEIR_ASSIGN_OR_RETURN(const Contest::Result result, contest->Run(steps));
    std::printf("%s\n", nlohmann::json(result.seconds).dump().c_str());
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace weir::bench

int main(int argc, char** argv) {
  weir::KeepFreedMemory();
  weir::PrepareGrpc();
  weir::bench::Contestant contestant =
      weir::bench::Weir("weir shared memory", R"({"wire": {"transport": "shared_memory"}})");
  std::string ps_server;
  CLI::App app("Steps over shared memory, as standard input says");
  app.add_option("--elements", contestant.elements, "Of the model, float32")->required();
  app.add_flag("--in_place", contestant.in_place, "Gradient and weights are not copied");
  app.add_option("--ps_server", ps_server, "The program ps_server")->required();
  CLI11_PARSE(app, argc, argv);
  weir::bench::ServerProcess::SetProgram(ps_server);
  const absl::Status status = weir::bench::TakeTurns(contestant);
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
