// The worker of a job without any exchange. Computes the gradients of batch after batch, as `worker` does,
// with weights that stay as they are. Prints a line of JSON with the number of steps and their seconds.
// `./dev bench peers` runs it.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "client/types.h"
#include "common/base/status_macros.h"
#include "common/config/job_config.h"
#include "common/model/model_spec.h"
#include "common/program/exit_codes.h"
#include "common/system/process.h"
#include "tests/worker/bench/mlp_flags.h"
#include "worker/data/load_data.h"
#include "worker/dataset_gradients.h"
#include "worker/replicas.h"

namespace weir {
namespace {

struct Flags {
  std::string config;
  std::vector<std::string> set;
  uint64_t steps = 1000, warmup = 100;
};

absl::Status Run(const Flags& flags) {
  WEIR_ASSIGN_OR_RETURN(const v1::JobConfig config, LoadJobConfig(flags.config, flags.set));
  WEIR_ASSIGN_OR_RETURN(const Datasets data, LoadData(config.data(), ".", config.model().loss()));
  WEIR_ASSIGN_OR_RETURN(const auto replicas, Replicas::Create(config, data.train, {"cpu"}));
  DatasetGradients gradients(config, data.train, replicas.get());
  WEIR_ASSIGN_OR_RETURN(const auto weights, gradients.TakeMemory());
  WEIR_ASSIGN_OR_RETURN(const auto gradient, gradients.TakeMemory());
  const ModelSpec& spec = gradients.spec();
  const auto all = absl::MakeSpan(weights.get(), static_cast<size_t>(spec.elements()));
  for (size_t i = 0; i < spec.tensors.size(); ++i) {
    FillInitialValues(
        config.seed(), spec.tensors[i], 0,
        all.subspan(static_cast<size_t>(spec.offset(i)), static_cast<size_t>(spec.tensors[i].elements())));
  }
  Work work;
  work.examples = config.data().batch_size();
  auto start = std::chrono::steady_clock::now();
  for (uint64_t step = 0; step < flags.warmup + flags.steps; ++step) {
    if (step == flags.warmup) start = std::chrono::steady_clock::now();
    WEIR_RETURN_IF_ERROR(gradients.Compute(work, weights.get(), gradient.get(), nullptr, Traffic()).status());
    ++work.batch;
    work.first_example += work.examples;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::printf(R"({"steps": %llu, "seconds": %.6f})"
              "\n",
              static_cast<unsigned long long>(flags.steps), seconds.count());
  return absl::OkStatus();
}

}  // namespace
}  // namespace weir

int main(int argc, char** argv) {
  weir::KeepFreedMemory();
  weir::Flags flags;
  CLI::App app("Measures a job's worker without any exchange with servers.");
  app.add_option("--config", flags.config, "The job's config (JSON)")->required();
  app.add_option("--set", flags.set, "Overrides a field of the config: a.b.c=value")->allow_extra_args(false);
  app.add_option("--steps", flags.steps, "Steps to measure")->capture_default_str();
  app.add_option("--warmup", flags.warmup, "Steps before that")->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? weir::kExitOk : weir::kExitUsage;
  }
  return weir::ReportEnd(weir::Run(flags));
}
