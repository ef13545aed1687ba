// The effect of a gradient that is not finite on a job of real processes: consistency.on_nonfinite.
#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "client/client.h"
#include "common/config/job_config.h"
#include "common/program/exit_codes.h"
#include "tests/integration/processes.h"
#include "tests/integration/transport.h"
#include "worker/compute/compute_backend.h"
#include "worker/model/model.h"

namespace weir {
namespace {

using Catch::Contains;

constexpr uint64_t kExamples = 400, kEpochs = 3, kBatch = 8;

// Two classes, told apart by the first value; line `poisoned`, if there is one, holds values whose products
// with any weights are not finite.
std::string Csv(int lines, int poisoned) {
  std::string text;
  for (int i = 0; i < lines; ++i) {
    const int label = i % 2;
    if (i == poisoned) {
      text += "3e38,-3e38,3e38,0\n";
      continue;
    }
    text += std::to_string(label + 0.25 * (i % 3)) + "," + std::to_string(0.1 * (i % 7)) + "," +
            std::to_string(1 - label) + "," + std::to_string(label) + "\n";
  }
  return text;
}

struct Files {
  explicit Files(int poisoned = -1) {
    folder.Write("train.csv", Csv(kExamples, poisoned));
    folder.Write("test.csv", Csv(50, -1));
    config = folder.Write("job.json", R"({
      "model": {"layers": [{"type": "dense", "name": "hidden", "units": 16}, {"type": "relu"},
                           {"type": "dense", "name": "out", "units": 2}]},
      "data": {"format": "csv", "train": {"path": "train.csv"}, "test": {"path": "test.csv"}, "batch_size": 8},
      "train": {"epochs": 3},
      "optimizer": {"learning_rate": 0.1}
    })");
  }
  TestFolder folder;
  std::string config;
};

std::vector<std::string> Settings(const std::string& mode, const std::string& on_nonfinite) {
  return {"consistency.mode=" + mode, "consistency.on_nonfinite=" + on_nonfinite};
}

void CheckReject(const std::string& mode) {
  // One batch an epoch has the poisoned line.
  const Files files(123);
  TestJob job({.config = files.config, .set = Settings(mode, "reject")});
  job.StartAll();
  job.ExpectAllExit(0);
  const auto summary = job.Summary();
  CHECK(summary["pushes_refused"] == kEpochs);
  CHECK(summary["pushes"] == kExamples * kEpochs / kBatch - kEpochs);
  CHECK(summary["test_accuracy"] > 0.9);
  CHECK(summary["train_loss"].is_number());
  std::string logs;
  for (const char* task : {"worker:0", "worker:1"}) logs += job[task].log();
  CHECK_THAT(logs, Contains("a push is refused, and done without an update: worker ") &&
                       Contains("the gradient of hidden/weight[") && Contains("at clock "));
  if (mode == "sync") CHECK_THAT(job["ps:0"].log(), Contains("is committed without part(s) "));
}

TEST_CASE("on_nonfinite reject: the job goes on without what is not finite: sync") { CheckReject("sync"); }
TEST_CASE("on_nonfinite reject: the job goes on without what is not finite: async") { CheckReject("async"); }

void CheckStop(const std::vector<std::string>& set) {
  // Each update makes the weights a million times larger.
  TestJob job(
      {.evaluator = true,
       .set = With({"optimizer.type=sgd", "optimizer.learning_rate=1e6", "optimizer.weight_decay=1"}, set)});
  job.StartAll();
  for (const std::string& task : job.tasks()) {
    INFO(task);
    job.ExpectExit(task, kExitInternal, kEndLimit);
    CHECK_THAT(job[task].log(), Contains("training diverged: worker ") && Contains("the gradient of ") &&
                                    Contains(" try a lower optimizer.learning_rate"));
  }
}

TEST_CASE("training that diverges ends every task with 70 and the reason: sync") {
  CheckStop({"consistency.mode=sync"});
}
TEST_CASE("training that diverges ends every task with 70 and the reason: bounded") {
  CheckStop({"consistency.mode=bounded", "consistency.staleness=2"});
}
TEST_CASE("training that diverges ends every task with 70 and the reason: async, with checkpoints") {
  const TestFolder folder;
  CheckStop({"consistency.mode=async", "checkpoint.directory=\"" + folder.path("runs") + "\""});
}

// In sync each update makes the weights a tenth larger, and they stay finite for a thousand updates. Stale
// updates make them larger sooner: then the loss of a busy machine's workers is soon not finite.
void CheckDivergence(const std::string& mode, const std::string& on_nonfinite) {
  const Files files;
  const std::vector<std::string> staleness(mode == "bounded" ? 1 : 0, "consistency.staleness=2");
  TestJob job({.config = files.config,
               .set = With({"optimizer.type=sgd", "optimizer.learning_rate=2.1", "optimizer.weight_decay=1",
                            "train.divergence=10", "train.epochs=20", "debug.worker_delay=0.1"},
                           With(Settings(mode, on_nonfinite), staleness))});
  job.StartAll();
  for (const std::string& task : job.tasks()) {
    INFO(task);
    job.ExpectExit(task, kExitInternal, kEndLimit);
    CHECK_THAT(job[task].log(), Contains("training diverged: worker ") &&
                                    (Contains(": the mean loss of the last 5") ||
                                     Contains(": the losses of the last 50 batches are not finite")) &&
                                    Contains(" (train.divergence = 10) at clock ") &&
                                    Contains(" try a lower optimizer.learning_rate"));
  }
}

TEST_CASE("a loss that grows while all is finite ends every task with 70 and the reason: sync") {
  CheckDivergence("sync", "stop");
}
TEST_CASE("a loss that grows while all is finite ends every task with 70 and the reason: async, reject") {
  CheckDivergence("async", "reject");
}
TEST_CASE(
    "a loss that grows while all is finite ends every task with 70 and the reason: bounded, skip_worker") {
  CheckDivergence("bounded", "skip_worker");
}

// worker:1 is this program, whose second gradient has an infinity; worker:0 a process.
void CheckSkip(const std::string& mode) {
  const Files files;
  // Long enough that the process does not do all of it before this program has its work.
  constexpr uint64_t kLongEpochs = 100;
  const std::vector<std::string> set =
      With(Settings(mode, "skip_worker"), {absl::StrCat("train.epochs=", kLongEpochs)});
  // A single server could find the value by itself, which would spoil the test: the server would consider the
  // batch done.
  const uint32_t servers = GENERATE(1, 2);
  TestJob job({.ps = servers, .config = files.config, .set = set});
  std::vector<std::string> others = job.tasks();
  others.pop_back();
  for (const std::string& task : others) job.Start(task);

  const v1::JobConfig config = *LoadJobConfig(files.config, With(CommonOverrides(), set));
  ClientOptions options;
  options.servers = job.ps_addresses();
  options.task = "worker:1";
  options.rank = 1;
  options.job_config = config.SerializeAsString();
  options.train_examples = kExamples;
  const auto backend = MakeComputeBackend({"cpu"});
  const ModelSpec model = (*Model::Create(config.model(), {3}, 2, kBatch, backend->get()))->spec();
  const auto client = Client::Join(options, model);
  INFO(client.status());
  REQUIRE(client.ok());
  std::vector<float> weights(model.elements());
  const std::shared_ptr<float> gradient = (*client)->NewGradient();
  std::fill_n(gradient.get(), model.elements(), 0.0f);
  std::vector<MutableTensor> into;
  std::vector<ConstTensor> from;
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    const size_t n = model.tensors[i].elements(), at = model.offset(i);
    into.push_back({model.tensors[i].name, absl::MakeSpan(weights).subspan(at, n)});
    from.push_back({model.tensors[i].name, absl::MakeConstSpan(gradient.get() + at, n)});
  }
  for (int step = 0; step < 2; ++step) {
    const auto work = (*client)->NextWork();
    INFO(work.status());
    REQUIRE(work.ok());
    REQUIRE(work->has_value());
    const auto base = (*client)->Pull((*work)->clock, into).Get();
    INFO(base.status());
    REQUIRE(base.ok());
    if (step == 1) gradient.get()[5] = std::numeric_limits<float>::infinity();
    const auto push = (*client)->Push(**work, *base, from).Get();
    if (step == 0) {
      INFO(push.status());
      CHECK(push.ok());
    } else {
      CHECK(push.status().code() == absl::StatusCode::kInternal);
      CHECK_THAT(
          std::string(push.status().message()),
          Contains(
              "training diverged: worker 1 (worker:1): the gradient of hidden/weight[5] is Inf at clock "));
    }
  }
  CHECK_FALSE((*client)->NextWork().ok());
  CHECK((*client)->Leave(absl::InternalError("as the error says")).ok());

  // The other worker does all that is left.
  for (const std::string& task : others) job.ExpectExit(task, 0);
  CHECK_THAT(job["ps:0"].log(), Contains("is taken out: training diverged: worker 1 (worker:1): "));
  const auto summary = job.Summary();
  CHECK(summary["examples"] == kExamples * kLongEpochs);
  // The range of the worker that left is done again, with the batch that was already in.
  CHECK(summary["pushes_refused"] == (mode == "sync" ? 0 : 1));
  CHECK(summary["test_accuracy"] > 0.9);
}

TEST_CASE("on_nonfinite skip_worker: the others do the work of the one that leaves: sync") {
  CheckSkip("sync");
}
TEST_CASE("on_nonfinite skip_worker: the others do the work of the one that leaves: async") {
  CheckSkip("async");
}

TEST_CASE("on_nonfinite skip_worker: when no worker is left every task exits 70 with the reason") {
  const std::string mode = GENERATE("sync", "async");
  const Files files(123);
  TestJob job({.config = files.config, .set = Settings(mode, "skip_worker")});
  job.StartAll();
  // The values lie in the data, so one worker after the other gets them.
  for (const std::string& task : job.tasks()) {
    INFO(task);
    job.ExpectExit(task, kExitInternal, kEndLimit);
    CHECK_THAT(job[task].log(), Contains("training diverged: worker "));
  }
  CHECK_THAT(job["ps:0"].log(), Contains("; that was the last worker"));
}

}  // namespace
}  // namespace weir
