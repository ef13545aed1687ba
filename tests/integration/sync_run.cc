#include "tests/integration/sync_run.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "common/config/job_config.h"
#include "common/threads/mutex.h"
#include "local/in_process_cluster.h"
#include "tests/common/forwarding_client.h"
#include "tests/integration/transport.h"
#include "worker/compute/compute_backend.h"
#include "worker/dataset_gradients.h"
#include "worker/evaluation.h"
#include "worker/model/model.h"
#include "worker/replicas.h"
#include "worker/trainer.h"

namespace weir {
namespace {

constexpr std::chrono::seconds kPatience(60);

// What the worker threads of a job share: the job's progress, and which workers have joined. Thread-safe.
class Story {
 public:
  explicit Story(const std::vector<WorkerRun>& runs) : runs_(runs), joined_(runs.size()) {}

  void Joined(size_t run) {
    MutexLock lock(mutex_);
    joined_[run] = true;
    changed_.NotifyAll();
  }
  void Reached(uint64_t clock) {
    MutexLock lock(mutex_);
    clock_ = std::max(clock_, clock);
    changed_.NotifyAll();
  }
  // A worker failed: no other one needs to wait any more.
  void Close() {
    MutexLock lock(mutex_);
    closed_ = true;
    changed_.NotifyAll();
  }
  absl::Status WaitForClock(uint64_t clock) {
    return Wait([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return clock_ >= clock; },
                absl::StrCat("that the job comes to clock ", clock));
  }
  // So that the job is not over before the workers have joined that join at earlier clocks.
  absl::Status WaitForJoins(uint64_t clock) {
    return Wait(
        [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
          for (size_t run = 0; run < runs_.size(); ++run) {
            if (runs_[run].joins_at_clock < clock && !joined_[run]) return false;
          }
          return true;
        },
        absl::StrCat("for those who come before clock ", clock));
  }

 private:
  template <typename Condition>
  absl::Status Wait(const Condition& condition, const std::string& what) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    MutexLock lock(mutex_);
    while (!condition()) {
      if (closed_) return absl::CancelledError("another worker failed");
      if (!changed_.WaitUntil(mutex_, deadline) && std::chrono::steady_clock::now() >= deadline) {
        return absl::DeadlineExceededError(absl::StrCat("waited ", what));
      }
    }
    return absl::OkStatus();
  }

  const std::vector<WorkerRun> runs_;
  Mutex mutex_;
  CondVar changed_;
  uint64_t clock_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<bool> joined_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

// A client that counts the work it passes on and, at the end of its time, passes on no more.
class MortalClient final : public ForwardingClient {
 public:
  MortalClient(Client* real, const WorkerRun& run, Story* story)
      : ForwardingClient(real), run_(run), story_(story), random_(RandomKey(1, "shuffles"), run.rank) {}

  uint64_t given() const { return given_; }
  bool gone() const { return gone_; }

  absl::StatusOr<std::optional<Work>> NextWork() override {
    if (ready_.empty()) WEIR_RETURN_IF_ERROR(Take());
    if (ready_.empty()) return std::nullopt;
    const Work work = ready_.back();
    story_->Reached(work.clock);
    // Workers that leave do not wait: others may wait for their place.
    if (!run_.gone_after.has_value()) WEIR_RETURN_IF_ERROR(story_->WaitForJoins(work.clock));
    if (run_.gone_after == given_) {
      gone_ = true;
      return absl::AbortedError("this run is over");
    }
    ready_.pop_back();
    ++given_;
    return work;
  }

 private:
  absl::Status Take() {
    do {
      WEIR_ASSIGN_OR_RETURN(const std::optional<Work> work, ForwardingClient::NextWork());
      if (!work.has_value()) return absl::OkStatus();
      ready_.push_back(*work);
    } while (run_.shuffles && !ready_.back().last_of_clock);
    if (!run_.shuffles) return absl::OkStatus();
    ready_.back().last_of_clock = false;
    for (uint32_t i = ready_.size(); i > 1; --i) std::swap(ready_[i - 1], ready_[random_.NextBelow(i)]);
    ready_.front().last_of_clock = true;
    return absl::OkStatus();
  }

  const WorkerRun run_;
  Story* const story_;
  RandomStream random_;
  std::vector<Work> ready_;  // the next one last
  uint64_t given_ = 0;
  bool gone_ = false;
};

// Returns the number of pieces of work that the worker got.
absl::StatusOr<uint64_t> RunWorker(const v1::JobConfig& config, const std::vector<std::string>& servers,
                                   const WorkerRun& run, size_t index, Story* story) {
  WEIR_RETURN_IF_ERROR(story->WaitForClock(run.joins_at_clock));
  const Dataset& train = Digits().train;
  WEIR_ASSIGN_OR_RETURN(const auto replicas, Replicas::Create(config, train, {"cpu"}));
  Model* const model = &replicas->model();
  ClientOptions options;
  options.servers = servers;
  options.rank = run.rank;
  options.task = absl::StrCat("worker:", run.rank);
  options.job_config = config.SerializeAsString();
  options.train_examples = static_cast<uint64_t>(train.size());
  WEIR_ASSIGN_OR_RETURN(const auto real, Client::Join(options, model->spec()));
  MortalClient client(real.get(), run, story);
  story->Joined(index);
  WEIR_ASSIGN_OR_RETURN(const auto gradients, MakeGradients(config, train, replicas.get(), client));
  Trainer trainer(config, gradients.get(), &client);
  if (const absl::Status status = trainer.Run(); !status.ok()) {
    if (!client.gone()) return status;
    client.Leave(absl::CancelledError("killed by the test")).IgnoreError();
    return client.given();
  }
  if (client.leading()) {
    WEIR_RETURN_IF_ERROR(EvaluateEnd(config, HeldOut(), model, &client));
  }
  WEIR_RETURN_IF_ERROR(client.Leave(absl::OkStatus()));
  return client.given();
}

absl::StatusOr<SerialRun> Train(const v1::JobConfig& config) {
  if (!QuantisesPushes(config.wire())) return TrainSerially(config, Digits().train);
  WEIR_ASSIGN_OR_RETURN(const SyncRun run, RunInProcess(config, 1, 1));
  return SerialRun{{}, run.weights_sha256, run.steps};
}

}  // namespace

std::string DigitsJobText() {
  // 1,500 training examples: 1,613 are 50 steps of 32, and 13 in two parts of 8 and 5.
  return R"({
    "name": "exact",
    "model": {"layers": [
      {"type": "flatten"},
      {"type": "dense", "units": 24, "name": "hidden"},
      {"type": "tanh"},
      {"type": "dropout", "rate": 0.2},
      {"type": "dense", "units": 10, "name": "out"}
    ]},
    "data": {"format": "digits", "batch_size": 8},
    "train": {"examples": 1613, "clip_norm": 0.9, "micro_batches": 3},
    "consistency": {"mode": "sync", "parts": 4},
    "optimizer": {"type": "adam", "learning_rate": 0.003},
    "cluster": {"start_seconds": 60, "wait_seconds": 60}
  })";
}

v1::JobConfig DigitsJob(const std::vector<std::string>& overrides) {
  std::vector<std::string> all = CommonOverrides();
  all.insert(all.end(), overrides.begin(), overrides.end());
  auto config = ParseJobConfig(DigitsJobText(), "the test's job", all);
  if (!config.ok()) {
    fprintf(stderr, "%s\n", std::string(config.status().message()).c_str());
    std::abort();
  }
  return *config;
}

const SerialRun& SerialDigits(const std::vector<std::string>& overrides) {
  static auto* const runs = new std::map<std::vector<std::string>, SerialRun>;
  const auto [run, first] = runs->try_emplace(overrides);
  if (first) {
    auto trained = Train(DigitsJob(overrides));
    if (!trained.ok()) {
      fprintf(stderr, "%s\n", std::string(trained.status().message()).c_str());
      std::abort();
    }
    run->second = *std::move(trained);
  }
  return run->second;
}

absl::StatusOr<SyncRun> RunInProcess(const v1::JobConfig& config, uint32_t servers,
                                     const std::vector<WorkerRun>& runs) {
  // protobuf creates a string's default at its first use, under a lock inside a library that ThreadSanitizer
  // does not see; this call creates it before there are threads.
  v1::JobConfig::default_instance().name();
  InProcessCluster::Options options;
  options.config = config;
  options.servers = servers;
  options.summary_path = TemporaryPath("summary.json");
  uint32_t first_ranks = 0;
  for (const WorkerRun& run : runs) {
    options.workers = std::max(options.workers, run.rank + 1);
    if (run.joins_at_clock == 0) first_ranks = std::max(first_ranks, run.rank + 1);
  }
  options.config.mutable_cluster()->set_min_workers(first_ranks);
  WEIR_ASSIGN_OR_RETURN(const auto cluster, InProcessCluster::Start(options));

  Digits();
  Story story(runs);
  std::vector<absl::StatusOr<uint64_t>> ends(runs.size(), absl::UnknownError("still runs"));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < runs.size(); ++i) {
    threads.emplace_back([&, i] {
      ends[i] = RunWorker(options.config, cluster->addresses(), runs[i], i, &story);
      if (ends[i].ok()) return;
      story.Close();
      cluster->server(0)->Stop(std::string(ends[i].status().message()));
    });
  }
  for (std::thread& thread : threads) thread.join();

  SyncRun run;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (!ends[i].ok()) {
      return absl::Status(ends[i].status().code(), absl::StrCat("run ", i, " of worker ", runs[i].rank, ": ",
                                                                ends[i].status().message()));
    }
    run.work.push_back(*ends[i]);
  }
  WEIR_RETURN_IF_ERROR(cluster->Wait());
  WEIR_ASSIGN_OR_RETURN(const Summary summary, ReadSummary(options.summary_path));
  run.weights_sha256 = summary.weights_sha256;
  run.steps = summary.steps;
  return run;
}

absl::StatusOr<SyncRun> RunInProcess(const v1::JobConfig& config, uint32_t servers, uint32_t workers) {
  std::vector<WorkerRun> runs(workers);
  for (uint32_t rank = 0; rank < workers; ++rank) runs[rank].rank = rank;
  return RunInProcess(config, servers, runs);
}

absl::StatusOr<Summary> ReadSummary(const std::string& path) {
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("weights_sha256") || !json.contains("steps")) {
    return absl::NotFoundError(absl::StrCat("there is no summary in ", path));
  }
  return Summary{json["weights_sha256"].get<std::string>(), json["steps"].get<uint64_t>()};
}

std::string TemporaryPath(const std::string& name) {
  static std::atomic<int> count{0};
  const char* folder = std::getenv("TEST_TMPDIR");
  return absl::StrCat(folder != nullptr ? folder : "/tmp", "/", count++, "_", name);
}

}  // namespace weir
