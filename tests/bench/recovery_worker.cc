// A worker without a model: it waits for the time that a gradient would take, pushes a constant gradient and
// pulls the weights. For recovery_bench, which starts and kills it.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "client/memberships.h"
#include "common/base/status_macros.h"
#include "common/config/cluster_spec.h"
#include "common/config/job_config.h"
#include "common/system/process.h"
#include "common/system/unique_fd.h"
#include "common/telemetry/grpc_process.h"
#include "common/telemetry/logging.h"

namespace weir {
namespace {

struct Flags {
  std::string config, history;
  int64_t elements = 25'000'000;
  double compute_seconds = 0.06;
};

// The tensors that all memberships of this process share.
struct Tensors {
  explicit Tensors(int64_t elements) : weights(elements), gradient(elements, 1e-3f) {}
  std::vector<float> weights;
  const std::vector<float> gradient;
};

// One membership. As in Trainer, while the exchange of a clock is under way, NextWork() may still hand out
// another part of the same step: the part of a worker that died.
class Membership {
 public:
  Membership(const Flags& flags, int history, Tensors* tensors, Client* client)
      : flags_(flags), history_(history), tensors_(*tensors), client_(client) {}

  absl::Status Run() {
    while (true) {
      WEIR_ASSIGN_OR_RETURN(const bool more, Step());
      if (!more) return absl::OkStatus();
    }
  }

 private:
  absl::StatusOr<bool> Step() {
    WEIR_ASSIGN_OR_RETURN(const std::optional<Work> work, client_->NextWork());
    if (!work.has_value()) return false;
    WEIR_ASSIGN_OR_RETURN(const bool loaded, LoadWeights(work->clock));
    if (!loaded) return true;
    std::this_thread::sleep_for(std::chrono::duration<double>(flags_.compute_seconds));
    if (work->last_of_clock && !exchange_.has_value()) {
      exchange_ = client_->PushPull(*work, base_, Gradient(), Weights());
      exchange_clock_ = work->clock + 1;
    } else {
      client_->Push(*work, base_, Gradient());
    }
    return true;
  }

  absl::StatusOr<bool> LoadWeights(uint64_t clock) {
    if (have_ == clock) return true;
    have_.reset();
    if (exchange_.has_value()) {
      const auto result = std::exchange(exchange_, std::nullopt)->Get();
      WEIR_RETURN_IF_ERROR(result.status());
      if (!result->pull.past) {
        const std::vector<uint64_t>& versions = result->pull.versions;
        dprintf(
            history_, "%lld %llu\n",
            static_cast<long long>(std::chrono::steady_clock::now().time_since_epoch().count()),
            static_cast<unsigned long long>(std::accumulate(versions.begin(), versions.end(), uint64_t{0})));
      }
      if (exchange_clock_ != clock || result->pull.past) return LoadWeights(clock);
      base_ = result->pull;
    } else {
      WEIR_ASSIGN_OR_RETURN(base_, client_->Pull(clock, Weights()).Get());
      if (base_.past) return false;
    }
    have_ = clock;
    return true;
  }

  std::vector<MutableTensor> Weights() { return {{"w", absl::MakeSpan(tensors_.weights)}}; }
  std::vector<ConstTensor> Gradient() const { return {{"w", tensors_.gradient}}; }

  const Flags& flags_;
  const int history_;
  Tensors& tensors_;
  Client* const client_;
  PullResult base_;
  std::optional<uint64_t> have_;  // the clock of the weights
  std::optional<Future<PushPullResult>> exchange_;
  uint64_t exchange_clock_ = 0;
};

int Main(const Flags& flags) {
  const auto config = LoadJobConfig(flags.config, {});
  const auto environment = FromEnvironment(std::getenv("TF_CONFIG"), "", "", {});
  if (!config.ok() || !environment.ok() || !environment->has_value()) {
    LogError(config.status().message(), " ", environment.status().message());
    return 1;
  }
  const Task& task = (*environment)->task;
  InitLogging({LogFormat::kText, LogLevel::kInfo, task.ToString()});
  PrepareGrpc();
  const UniqueFd history(open(flags.history.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  ClientOptions options;
  options.job_config = config->SerializeAsString();
  options.task = task.ToString();
  options.rank = (*environment)->cluster.WorkerRank(task).value_or(0);
  options.servers = (*environment)->cluster.ps_addresses();
  options.train_examples = 1000;
  const ModelSpec model{{{"w", {flags.elements}, TensorKind::kParameter, Initializer::Zeros()}}};
  Tensors tensors(flags.elements);
  const absl::Status status = WorkUntilDone(std::move(options), model, [&](Client* client) {
    return Membership(flags, history.get(), &tensors, client).Run();
  });
  if (!status.ok()) LogError(status.message());
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace weir

int main(int argc, char** argv) {
  weir::KeepFreedMemory();
  weir::Flags flags;
  CLI::App app("A worker without a model, for recovery_bench.");
  app.add_option("--config", flags.config, "The job's config")->required();
  app.add_option("--history", flags.history,
                 "Of each exchange a line: when it was answered, in nanoseconds of the steady clock, and the "
                 "sum of the versions that the servers had then")
      ->required();
  app.add_option("--elements", flags.elements, "Of the model");
  app.add_option("--compute_seconds", flags.compute_seconds, "Before each push");
  CLI11_PARSE(app, argc, argv);
  return weir::Main(flags);
}
