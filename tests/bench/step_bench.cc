// One step as a worker sees it, without its arithmetic: push a gradient, let the servers apply it, pull the
// new weights. Servers in this process, gRPC over loopback, one worker.
//
//   ./dev bench step [--elements=25000000] [--servers=1] [--steps=15] [--optimizer=momentum] [--mode=async]
//
// Prints the median over the steps, and memcpy of as many bytes for comparison (measured between the steps,
// so that both see the same machine).
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "common/config/job_config.h"
#include "common/process.h"
#include "local/in_process_cluster.h"

namespace weir {
namespace {

struct Flags {
  int64_t elements = 25'000'000;
  uint32_t servers = 1;
  int steps = 15;
  std::string optimizer = "momentum", mode = "async";
};

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

absl::Status Run(const Flags& flags) {
  // The model and the data are the client's business; the config needs some to be whole.
  const absl::StatusOr<v1::JobConfig> config = ParseJobConfig(
      absl::StrCat(
          R"({"model": {"layers": [{"type": "flatten"}, {"type": "dense", "units": 10}]}, "data": {"format": "digits"},
                       "train": {"examples": 1000000000}, "consistency": {"mode": ")",
          flags.mode, R"("}, "optimizer": {"type": ")", flags.optimizer, R"(", "learning_rate": 1e-3}})"),
      "step_bench");
  if (!config.ok()) return config.status();
  InProcessCluster::Options cluster;
  cluster.config = *config;
  cluster.servers = flags.servers;
  const auto servers = InProcessCluster::Start(std::move(cluster));
  if (!servers.ok()) return servers.status();

  const ModelSpec model{{{"w", {flags.elements}, TensorKind::kParameter, Initializer::Zeros()}}};
  ClientOptions options;
  options.servers = (*servers)->addresses();
  options.job_config = config->SerializeAsString();
  options.train_examples = 1000;
  const auto client = Client::Join(options, model);
  if (!client.ok()) return client.status();

  std::vector<float> weights(flags.elements), gradient(flags.elements, 1e-3f), copy(flags.elements);
  const std::vector<MutableTensor> into = {{"w", absl::MakeSpan(weights)}};
  const std::vector<ConstTensor> from = {{"w", absl::MakeConstSpan(gradient)}};
  PullResult base;
  std::vector<double> step_seconds, copy_seconds;
  for (int step = -3; step < flags.steps; ++step) {
    const auto work = (*client)->NextWork();
    if (!work.ok()) return work.status();
    if (base.versions.empty()) {
      const auto pull = (*client)->Pull((*work)->clock, into);
      if (!pull.Get().ok()) return pull.Get().status();
      base = *pull.Get();
    }
    auto start = std::chrono::steady_clock::now();
    const auto exchange = (*client)->PushPull(**work, base, from, into);
    if (!exchange.Get().ok()) return exchange.Get().status();
    const double seconds = Seconds(start);
    base = exchange.Get()->pull;
    start = std::chrono::steady_clock::now();
    std::memcpy(copy.data(), weights.data(), weights.size() * sizeof(float));
    if (step < 0) continue;  // warm-up
    step_seconds.push_back(seconds);
    copy_seconds.push_back(Seconds(start));
  }
  const double step = Median(step_seconds),
               megabytes = static_cast<double>(flags.elements) * sizeof(float) / 1e6;
  std::printf(
      "%s, %s, %.1f MB each way, %u server(s): median step %.2f ms (%.2f GB/s both ways), memcpy %.2f ms\n",
      flags.mode.c_str(), flags.optimizer.c_str(), megabytes, flags.servers, step * 1e3,
      2 * megabytes / 1e3 / step, Median(copy_seconds) * 1e3);
  return absl::OkStatus();
}

}  // namespace
}  // namespace weir

int main(int argc, char** argv) {
  if (std::getenv("NOTUNE") == nullptr) weir::KeepFreedMemory();
  weir::Flags flags;
  CLI::App app("Push, apply, pull: the time of a step without its arithmetic.");
  app.add_option("--elements", flags.elements, "Floats of the model")->check(CLI::PositiveNumber);
  app.add_option("--servers", flags.servers, "Servers")->check(CLI::Range(1, 64));
  app.add_option("--steps", flags.steps, "Steps to count, after 3 to warm up")->check(CLI::PositiveNumber);
  app.add_option("--optimizer", flags.optimizer, "As optimizer.type of a job's config");
  app.add_option("--mode", flags.mode, "sync or async")->check(CLI::IsMember({"sync", "async"}));
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = weir::Run(flags);
  if (!status.ok()) std::fprintf(stderr, "step_bench: %s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
