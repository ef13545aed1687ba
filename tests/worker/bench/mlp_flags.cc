#include "tests/worker/bench/mlp_flags.h"

#include <CLI/CLI.hpp>
#include <cstdio>

#include "common/program/exit_codes.h"

namespace weir {

void MlpFlags::AddTo(CLI::App* app) {
  app->add_option("--device", device, "cpu or cuda:N")->capture_default_str();
  app->add_option("--inputs", inputs, "Features of an example")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app->add_option("--width", width, "Units of each hidden layer")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app->add_option("--batch", batch, "Examples")->check(CLI::Range(1, 65536))->capture_default_str();
  app->add_option("--seconds", seconds, "Rough length of each measurement")
      ->check(CLI::Range(0.0, 600.0))
      ->capture_default_str();
}

int ReportEnd(const absl::Status& status) {
  if (status.ok()) return kExitOk;
  std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
  const bool permanent = absl::IsFailedPrecondition(status) || absl::IsInvalidArgument(status);
  return permanent ? kExitConfig : kExitInternal;
}

}  // namespace weir
