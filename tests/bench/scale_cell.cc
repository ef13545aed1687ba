#include "tests/bench/scale_cell.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/process.h"
#include "bench/server_process.h"
#include "client/client.h"
#include "common/base/status_macros.h"
#include "common/config/job_config.h"
#include "common/threads/mutex.h"

namespace weir::bench {
namespace {

using nlohmann::json;
using SteadyClock = std::chrono::steady_clock;

double Now() {
  // The clock is the same for all processes of a host.
  return std::chrono::duration<double>(SteadyClock::now().time_since_epoch()).count();
}

std::string JobJson(const ScaleCell& cell) {
  json job = json::parse(R"({
    "name": "scale",
    "model": {"layers": [{"type": "flatten"}, {"type": "dense", "units": 10}]},
    "data": {"format": "digits", "batch_size": 1},
    "optimizer": {"type": "momentum", "learning_rate": 1e-6}
  })");
  const int64_t each = (cell.pushes + cell.workers - 1) / cell.workers;
  job["train"]["examples"] = each * cell.workers;
  job["consistency"]["mode"] = cell.mode;
  if (cell.mode == "bounded") job["consistency"]["staleness"] = 3;
  job["cluster"] = {{"workers", cell.workers}, {"start_seconds", cell.limit_seconds}};
  job["wire"]["transport"] = cell.transport;
  // In each cell every server holds a part of the model, and serves all workers of this host.
  job["server"] = {
      {"min_shard_kib", 0},
      {"clients",
       {{"connections_of_host", 2048}, {"connections_per_second", 2500}, {"joins_per_second", 2000}}}};
  return job.dump(2);
}

// One worker, on a thread of its own.
struct Worker {
  std::unique_ptr<Client> client;
  std::vector<float> weights;
  std::vector<MutableTensor> weight_tensors;
  std::vector<ConstTensor> gradient;
  PullResult base;
  std::optional<uint64_t> have;  // the clock of the weights
  std::vector<double> seconds;   // of each push
  double last_answer = 0;

  absl::Status Join(const json& plan, const std::string& job_config, uint32_t rank,
                    const std::vector<float>& shared_gradient) {
    const int64_t elements = plan["elements"];
    weights.resize(static_cast<size_t>(elements));
    weight_tensors = {{"w", absl::MakeSpan(weights)}};
    gradient = {{"w", shared_gradient}};
    const ModelSpec model{{{"w", {elements}, TensorKind::kParameter, Initializer::Zeros()}}};
    ClientOptions options;
    options.servers = plan["servers"].get<std::vector<std::string>>();
    options.task = absl::StrCat("worker:", rank);
    options.rank = rank;
    options.job_config = job_config;
    options.train_examples = 1000;
    WEIR_ASSIGN_OR_RETURN(client, Client::Join(options, model));
    WEIR_ASSIGN_OR_RETURN(base, client->Pull(0, weight_tensors).Get());
    have = 0;
    return absl::OkStatus();
  }

  absl::Status Work() {
    while (true) {
      WEIR_ASSIGN_OR_RETURN(const std::optional<weir::Work> work, client->NextWork());
      if (!work.has_value()) return absl::OkStatus();
      if (have != work->clock) {
        WEIR_ASSIGN_OR_RETURN(base, client->Pull(work->clock, weight_tensors).Get());
        if (base.past) continue;
        have = work->clock;
      }
      const double begin = Now();
      if (!work->last_of_clock) {
        client->Push(*work, base, gradient);
        continue;
      }
      WEIR_ASSIGN_OR_RETURN(const PushPullResult result,
                            client->PushPull(*work, base, gradient, weight_tensors).Get());
      if (!result.push.applied) return absl::InternalError("a push was not applied: " + result.push.reason);
      last_answer = Now();
      seconds.push_back(last_answer - begin);
      base = result.pull;
      have.reset();
      if (!base.past) have = work->clock + 1;
    }
  }
};

// Runs `what` for all workers at once. On an error, returns without waiting for the other workers, which may
// wait for the one that failed. Their threads then still run, so the process must end.
absl::Status ForAll(std::vector<Worker>& workers, const std::function<absl::Status(Worker&, size_t)>& what) {
  struct Outcome {
    Mutex mutex;
    CondVar changed;
    size_t open ABSL_GUARDED_BY(mutex);
    absl::Status status ABSL_GUARDED_BY(mutex);
  };
  const auto outcome = std::make_shared<Outcome>();
  MutexLock lock(outcome->mutex);
  outcome->open = workers.size();
  for (size_t i = 0; i < workers.size(); ++i) {
    std::thread([outcome, what, i, worker = &workers[i]] {
      const absl::Status status = what(*worker, i);
      MutexLock lock(outcome->mutex);
      outcome->status.Update(status);
      --outcome->open;
      outcome->changed.NotifyAll();
    }).detach();
  }
  while (outcome->open > 0 && outcome->status.ok()) outcome->changed.Wait(outcome->mutex);
  return outcome->status;
}

absl::Status Drive(Control& control) {
  WEIR_ASSIGN_OR_RETURN(const json plan, control.Receive());
  WEIR_ASSIGN_OR_RETURN(const v1::JobConfig config,
                        ParseJobConfig(plan["job"].get<std::string>(), "the benchmark's job"));
  const std::string job_config = config.SerializeAsString();
  const std::vector<float> gradient(plan["elements"].get<size_t>(), 1e-3f);
  const uint32_t first = plan["first"];
  // Never destroyed, because if a worker fails, the threads of others may still run.
  auto& workers = *new std::vector<Worker>(plan["workers"].get<size_t>());
  WEIR_RETURN_IF_ERROR(ForAll(workers, [&](Worker& worker, size_t i) {
    return worker.Join(plan, job_config, first + static_cast<uint32_t>(i), gradient);
  }));
  WEIR_RETURN_IF_ERROR(control.Call({{"ready", Now()}}).status());
  const double begin = Now();
  WEIR_RETURN_IF_ERROR(ForAll(workers, [](Worker& worker, size_t) { return worker.Work(); }));
  json done = {{"begin", begin}, {"end", begin}, {"pushes", json::array()}, {"seconds", json::array()}};
  for (const Worker& worker : workers) {
    done["end"] = std::max(done["end"].get<double>(), worker.last_answer);
    done["pushes"].push_back(worker.seconds.size());
    for (double seconds : worker.seconds) done["seconds"].push_back(seconds);
  }
  WEIR_RETURN_IF_ERROR(control.Call(done).status());
  WEIR_RETURN_IF_ERROR(ForAll(workers, [](Worker& worker, size_t) { return worker.client->Leave(); }));
  return control.Send({{"left", true}});
}

double Quantile(std::vector<double>& values, double q) {
  if (values.empty()) return 0;
  const auto at = values.begin() + static_cast<int64_t>(q * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

// The processes of a cell.
class Run {
 public:
  explicit Run(const ScaleCell& cell) : cell_(cell) {}

  absl::StatusOr<ScaleResult> Measure() {
    // Drivers are forked while this process has one thread.
    const int drivers = std::min(cell_.workers, kScaleDrivers);
    for (int i = 0; i < drivers; ++i) {
      WEIR_ASSIGN_OR_RETURN(drivers_.emplace_back(), Child::Fork(Drive));
    }
    std::vector<std::string> addresses;
    for (int i = 0; i < cell_.servers; ++i) {
      WEIR_ASSIGN_OR_RETURN(servers_.emplace_back(), ServerProcess::Start(JobJson(cell_), i, "127.0.0.1"));
      addresses.push_back(servers_.back()->address());
    }
    WEIR_ASSIGN_OR_RETURN(const std::vector<Usage> empty, Usages());
    const double begin = Now();
    for (int i = 0; i < drivers; ++i) {
      const int first = cell_.workers * i / drivers, end = cell_.workers * (i + 1) / drivers;
      WEIR_RETURN_IF_ERROR(drivers_[i]->control().Send({{"job", JobJson(cell_)},
                                                        {"servers", addresses},
                                                        {"elements", cell_.elements},
                                                        {"first", first},
                                                        {"workers", end - first}}));
    }
    WEIR_ASSIGN_OR_RETURN(std::vector<json> ready, ReceiveAll("started"));
    for (const json& one : ready) {
      result_.start_seconds = std::max(result_.start_seconds, one["ready"].get<double>() - begin);
    }
    WEIR_ASSIGN_OR_RETURN(const std::vector<Usage> idle, Usages());
    WEIR_RETURN_IF_ERROR(SendAll({{"go", true}}));
    WEIR_ASSIGN_OR_RETURN(std::vector<json> done, ReceiveAll("done its work"));
    WEIR_ASSIGN_OR_RETURN(const std::vector<Usage> busy, Usages());
    WEIR_RETURN_IF_ERROR(SendAll({{"leave", true}}));
    WEIR_RETURN_IF_ERROR(ReceiveAll("left").status());
    const double last_answer = AddPushes(done);
    WEIR_RETURN_IF_ERROR(AwaitServers());
    result_.end_seconds = Now() - last_answer;
    AddUsage(empty, idle, busy);
    return result_;
  }

 private:
  absl::StatusOr<std::vector<Usage>> Usages() const {
    std::vector<Usage> usages;
    for (const auto& server : servers_) {
      WEIR_ASSIGN_OR_RETURN(usages.emplace_back(), UsageOf(server->pid()));
    }
    return usages;
  }

  absl::Status SendAll(const json& message) {
    for (const auto& driver : drivers_) WEIR_RETURN_IF_ERROR(driver->control().Send(message));
    return absl::OkStatus();
  }

  // Receives one message from each driver, within the limit.
  absl::StatusOr<std::vector<json>> ReceiveAll(const std::string& what) {
    const auto deadline = SteadyClock::now() + std::chrono::duration<double>(cell_.limit_seconds);
    std::vector<json> messages;
    for (size_t i = 0; i < drivers_.size(); ++i) {
      absl::StatusOr<json> message =
          drivers_[i]->control().Receive(std::chrono::time_point_cast<SteadyClock::duration>(deadline));
      if (!message.ok()) {
        return absl::Status(message.status().code(),
                            absl::StrCat("driver ", i, " has not ", what, ": ", message.status().message()));
      }
      messages.push_back(*std::move(message));
    }
    return messages;
  }

  absl::Status AwaitServers() {
    const auto deadline = SteadyClock::now() + std::chrono::duration<double>(cell_.limit_seconds);
    for (size_t i = 0; i < servers_.size(); ++i) {
      const auto exit = servers_[i]->Wait(std::chrono::time_point_cast<SteadyClock::duration>(deadline));
      if (exit.has_value() && exit->ok()) continue;
      return absl::InternalError(absl::StrCat(
          "ps:", i, exit.has_value() ? absl::StrCat(" ended with ", exit->ToString()) : " did not end",
          "; it said:\n", servers_[i]->Log()));
    }
    return absl::OkStatus();
  }

  // Returns the time of the last push's answer.
  double AddPushes(const std::vector<json>& done) {
    double begin = done[0]["begin"], end = done[0]["end"];
    std::vector<double> seconds;
    int64_t fewest = -1;
    for (const json& one : done) {
      begin = std::min(begin, one["begin"].get<double>());
      end = std::max(end, one["end"].get<double>());
      for (const json& pushes : one["pushes"]) {
        result_.pushes += pushes.get<int64_t>();
        fewest = fewest < 0 ? pushes.get<int64_t>() : std::min(fewest, pushes.get<int64_t>());
      }
      for (const json& value : one["seconds"]) seconds.push_back(value);
    }
    result_.pushes_per_second = static_cast<double>(result_.pushes) / (end - begin);
    result_.fairness = static_cast<double>(fewest) * cell_.workers / static_cast<double>(result_.pushes);
    result_.p50_seconds = Quantile(seconds, 0.5);
    result_.p99_seconds = Quantile(seconds, 0.99);
    return end;
  }

  void AddUsage(const std::vector<Usage>& empty, const std::vector<Usage>& idle,
                const std::vector<Usage>& busy) {
    const double workers = cell_.workers, pushes = static_cast<double>(result_.pushes);
    double others = 0;
    for (size_t i = 0; i < servers_.size(); ++i) {
      const auto grew = [&](int64_t to) {
        return static_cast<double>(to - empty[i].resident_bytes) / workers;
      };
      result_.idle_bytes_per_worker = std::max(result_.idle_bytes_per_worker, grew(idle[i].resident_bytes));
      result_.peak_bytes_per_worker =
          std::max(result_.peak_bytes_per_worker, grew(busy[i].peak_resident_bytes));
      const double us = (busy[i].cpu_seconds - idle[i].cpu_seconds) * 1e6 / pushes;
      if (i == 0) result_.ps0_cpu_us_per_push = us;
      if (i > 0) others += us;
    }
    if (servers_.size() > 1) {
      result_.other_cpu_us_per_push = others / static_cast<double>(servers_.size() - 1);
    }
  }

  const ScaleCell& cell_;
  ScaleResult result_;
  // Drivers are destroyed first.
  std::vector<std::unique_ptr<ServerProcess>> servers_;
  std::vector<std::unique_ptr<Child>> drivers_;
};

}  // namespace

absl::StatusOr<ScaleResult> MeasureScale(const ScaleCell& cell) { return Run(cell).Measure(); }

}  // namespace weir::bench
