// How much of the exchange with a server a worker hides behind compute. Trains the MLP inputs-width-width-10
// on random numbers with one server in this process, and compares a step's time with the times of its parts
// alone. Prints a line of JSON for each:
//   forward, backward, compute   of one gradient, with the copies to and from the device; no server
//   push, pull                   of a sync step, one after the other; nothing is computed
//   exchange                     push and pull of a bounded step as one; nothing is computed
//   sync                         a step of the training loop
//   bounded                      the same, in bounded(1) with prefetch
// The last two have "hidden_ms", the time that they would take if everything that can be hidden were hidden:
// max(backward, push) + max(forward, pull), and max(compute, exchange); and "ratio", their time divided by
// it.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "client/client.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "common/config/job_config.h"
#include "common/model/model_spec.h"
#include "common/program/exit_codes.h"
#include "common/system/process.h"
#include "local/in_process_cluster.h"
#include "tests/worker/bench/mlp_flags.h"
#include "worker/dataset_gradients.h"
#include "worker/replicas.h"
#include "worker/trainer.h"

namespace weir {
namespace {

constexpr int32_t kClasses = 10;
constexpr uint64_t kFewSteps = 5;

struct Flags : MlpFlags {
  std::string precision = "float32", wire_dtype = "f32";
};

absl::StatusOr<v1::JobConfig> Config(const Flags& flags, const char* consistency, uint64_t steps) {
  return ParseJobConfig(
      absl::Substitute(R"({
        "name": "exchange_bench",
        "model": {"layers": [{"type": "dense", "units": $0}, {"type": "relu"}, {"type": "dense", "units": $0},
                             {"type": "relu"}, {"type": "dense", "units": $1}]},
        "data": {"format": "digits", "batch_size": $2},
        "train": {"examples": $3},
        "optimizer": {"type": "sgd", "learning_rate": 0.0001},
        "compute": {"precision": "$4"},
        "wire": {"dtype": "$6"},
        "cluster": {"workers": 1},
        "consistency": $5})",
                       flags.width, kClasses, flags.batch, steps * static_cast<uint64_t>(flags.batch),
                       flags.precision, consistency, flags.wire_dtype),
      "exchange_bench");
}
constexpr char kSync[] = R"({"mode": "sync"})";
constexpr char kBounded[] = R"({"mode": "bounded", "staleness": 1, "prefetch": true})";

Dataset RandomExamples(const Flags& flags) {
  const int64_t n = 4 * flags.batch;
  RandomStream random(RandomKey(1, "exchange_bench"), 0);
  std::vector<uint8_t> values(static_cast<size_t>(n * flags.inputs));
  for (uint8_t& value : values) value = static_cast<uint8_t>(random.NextBelow(256));
  std::vector<int32_t> labels(static_cast<size_t>(n));
  for (int32_t& label : labels) label = static_cast<int32_t>(random.NextBelow(kClasses));
  return Dataset({flags.inputs}, std::move(values), 1.0f / 255, std::move(labels), kClasses);
}

using Clock = std::chrono::steady_clock;
double Since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// A job with one server and one worker. Its config says digits, but the worker brings its own data.
struct Job {
  std::unique_ptr<InProcessCluster> cluster;
  std::unique_ptr<Client> client;
};
absl::StatusOr<Job> Start(const v1::JobConfig& config, const Dataset& train, const ModelSpec& model) {
  Job job;
  InProcessCluster::Options cluster;
  cluster.config = config;
  WEIR_ASSIGN_OR_RETURN(job.cluster, InProcessCluster::Start(std::move(cluster)));
  ClientOptions options;
  options.servers = job.cluster->addresses();
  options.job_config = config.SerializeAsString();
  options.train_examples = static_cast<uint64_t>(train.size());
  WEIR_ASSIGN_OR_RETURN(job.client, Client::Join(options, model));
  return job;
}

class Bench {
 public:
  Bench(const Flags& flags, const Dataset& train, Replicas* replicas)
      : flags_(flags), train_(train), replicas_(replicas), spec_(replicas->model().spec()) {}

  absl::Status Run() {
    WEIR_ASSIGN_OR_RETURN(const double forward, Compute(/*whole=*/false));
    WEIR_ASSIGN_OR_RETURN(const double compute, Compute(/*whole=*/true));
    const double backward = std::max(0.0, compute - forward);
    Print("forward", forward);
    Print("backward", backward);
    Print("compute", compute);
    steps_ = std::max<uint64_t>(kFewSteps, static_cast<uint64_t>(flags_.seconds / compute));
    WEIR_RETURN_IF_ERROR(Exchange(kSync));
    WEIR_RETURN_IF_ERROR(Exchange(kBounded));
    Print("push", push_);
    Print("pull", pull_);
    Print("exchange", exchange_);
    WEIR_ASSIGN_OR_RETURN(const double sync, Step(kSync));
    Print("sync", sync, std::max(backward, push_) + std::max(forward, pull_));
    WEIR_ASSIGN_OR_RETURN(const double bounded, Step(kBounded));
    Print("bounded", bounded, std::max(compute, exchange_));
    return absl::OkStatus();
  }

 private:
  void Print(const char* way, double seconds, double hidden = 0) const {
    const std::string bound =
        hidden == 0 ? ""
                    : absl::StrCat(", \"hidden_ms\": ", 1000 * hidden, ", \"ratio\": ", seconds / hidden);
    std::printf(R"({"program": "weir", "way": "%s", "precision": "%s", "device": "%s", "ms": %.4f%s})"
                "\n",
                way, flags_.precision.c_str(), flags_.device.c_str(), 1000 * seconds, bound.c_str());
    std::fflush(stdout);
  }

  // The median time of a gradient, or of its forward pass.
  absl::StatusOr<double> Compute(bool whole) {
    for (size_t i = 0; i < spec_.tensors.size(); ++i) {
      FillInitialValues(
          1, spec_.tensors[i], 0,
          replicas_->model().weights().subspan(static_cast<size_t>(spec_.offset(i)),
                                               static_cast<size_t>(spec_.tensors[i].elements())));
    }
    std::vector<int32_t> examples(static_cast<size_t>(flags_.batch));
    std::iota(examples.begin(), examples.end(), 0);
    Traffic traffic;
    if (!whole) traffic.forward_done = [] { return absl::CancelledError("forward is all"); };
    std::vector<double> times;
    // The first pass takes memory and loads kernels.
    for (const auto begin = Clock::now(); times.size() <= kFewSteps || Since(begin) < flags_.seconds;) {
      const auto start = Clock::now();
      const auto loss = replicas_->ComputeGradient(train_, examples, 1, 1, 1, traffic, examples);
      times.push_back(Since(start));
      if (!loss.ok() && !absl::IsCancelled(loss.status())) return loss.status();
    }
    times.erase(times.begin());
    return Median(std::move(times));
  }

  // Sets push_ and pull_ (sync), or exchange_.
  absl::Status Exchange(const char* consistency) {
    WEIR_ASSIGN_OR_RETURN(const v1::JobConfig config, Config(flags_, consistency, steps_));
    WEIR_ASSIGN_OR_RETURN(const Job job, Start(config, train_, spec_));
    WEIR_ASSIGN_OR_RETURN(const auto weights, replicas_->buffers().Take());
    WEIR_ASSIGN_OR_RETURN(const auto gradient, replicas_->buffers().Take());
    const auto elements = static_cast<size_t>(spec_.elements());
    std::fill_n(gradient.get(), elements, 1e-6f);
    const auto to = TensorsOf(spec_, absl::MakeSpan(weights.get(), elements));
    const auto from = replicas_->model().rounds_gradients()
                          ? TensorsOf(spec_, absl::MakeConstSpan(
                                                 reinterpret_cast<const uint16_t*>(gradient.get()), elements))
                          : TensorsOf(spec_, absl::MakeConstSpan(gradient.get(), elements));
    const absl::StatusOr<PullResult> first = job.client->Pull(0, to).Get();
    WEIR_RETURN_IF_ERROR(first.status());
    PullResult base = *first;
    std::vector<double> pushes, pulls, exchanges;
    while (true) {
      WEIR_ASSIGN_OR_RETURN(const std::optional<Work> work, job.client->NextWork());
      if (!work.has_value()) break;
      const auto start = Clock::now();
      if (consistency == kSync) {
        WEIR_RETURN_IF_ERROR(job.client->Push(*work, base, from).Get().status());
        pushes.push_back(Since(start));
        const auto pushed = Clock::now();
        const auto pulled = job.client->Pull(work->clock + 1, to).Get();
        WEIR_RETURN_IF_ERROR(pulled.status());
        pulls.push_back(Since(pushed));
        base = *pulled;
      } else {
        const auto both = job.client->PushPull(*work, base, from, to).Get();
        WEIR_RETURN_IF_ERROR(both.status());
        exchanges.push_back(Since(start));
        base = both->pull;
      }
    }
    if (consistency == kSync) {
      push_ = Median(std::move(pushes));
      pull_ = Median(std::move(pulls));
    } else {
      exchange_ = Median(std::move(exchanges));
    }
    return job.client->Leave();
  }

  // The time of a step in the training loop: the time that more steps add, so that beginning and end do not
  // count.
  absl::StatusOr<double> Step(const char* consistency) {
    WEIR_ASSIGN_OR_RETURN(const double few, Train(consistency, kFewSteps));
    WEIR_ASSIGN_OR_RETURN(const double many, Train(consistency, kFewSteps + steps_));
    return std::max(0.0, many - few) / static_cast<double>(steps_);
  }
  absl::StatusOr<double> Train(const char* consistency, uint64_t steps) {
    WEIR_ASSIGN_OR_RETURN(const v1::JobConfig config, Config(flags_, consistency, steps));
    WEIR_ASSIGN_OR_RETURN(const Job job, Start(config, train_, spec_));
    const auto start = Clock::now();
    DatasetGradients gradients(config, train_, replicas_);
    WEIR_RETURN_IF_ERROR(Trainer(config, &gradients, job.client.get()).Run());
    const double seconds = Since(start);
    WEIR_RETURN_IF_ERROR(job.client->Leave());
    return seconds;
  }

  const Flags& flags_;
  const Dataset& train_;
  Replicas* const replicas_;
  const ModelSpec& spec_;
  uint64_t steps_ = 0;
  double push_ = 0, pull_ = 0, exchange_ = 0;
};

absl::Status Run(const Flags& flags) {
  const Dataset train = RandomExamples(flags);
  // The second set of weights on the device is of no use in sync, and does no harm.
  WEIR_ASSIGN_OR_RETURN(const v1::JobConfig config, Config(flags, kBounded, 1));
  WEIR_ASSIGN_OR_RETURN(const auto replicas, Replicas::Create(config, train, {flags.device}));
  return Bench(flags, train, replicas.get()).Run();
}

}  // namespace
}  // namespace weir

int main(int argc, char** argv) {
  weir::KeepFreedMemory();
  weir::Flags flags;
  CLI::App app("Measures how much of a step's exchange with a server hides behind compute, for an MLP.");
  flags.AddTo(&app);
  app.add_option("--precision", flags.precision, "float32, tf32 or bf16")->capture_default_str();
  app.add_option("--wire_dtype", flags.wire_dtype, "Type of gradients and weights between worker and server")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? weir::kExitOk : weir::kExitUsage;
  }
  return weir::ReportEnd(weir::Run(flags));
}
