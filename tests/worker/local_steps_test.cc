// A worker's own steps between a pull and a push, against a serial loop.
#include "worker/local_steps.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "client/compute_time.h"
#include "tests/worker/trainer_job.h"

namespace weir {
namespace {

using Catch::Contains;

// Of two tensors of three elements. The gradient of a batch is slope * weight + batch + 1; its loss is its
// examples.
class FakeGradients final : public GradientComputer {
 public:
  struct Seen {
    Work work;
    bool awaits = false, last = false;
  };
  explicit FakeGradients(std::vector<Seen>* seen) : seen_(seen) {
    spec_.tensors.resize(2);
    spec_.tensors[0].name = "a";
    spec_.tensors[1].name = "b";
    for (TensorSpec& tensor : spec_.tensors) tensor.shape = {3};
  }

  const ModelSpec& spec() const override { return spec_; }
  uint64_t train_examples() const override { return 1000; }
  absl::StatusOr<std::shared_ptr<float>> TakeMemory() override {
    return std::shared_ptr<float>(new float[6], std::default_delete<float[]>());
  }
  bool on_host() const override { return true; }
  absl::StatusOr<double> Compute(const Work& work, float* weights, float* gradient, WorkRows*,
                                 const Traffic& traffic) override {
    CHECK(traffic.new_weights);
    CHECK_FALSE(traffic.gradient_ready);
    if (!failure.ok()) return failure;
    seen_->push_back(
        {work, static_cast<bool>(traffic.await_weights), static_cast<bool>(traffic.next_weights)});
    if (traffic.await_weights) {
      CHECK(traffic.await_weights(0, 2).ok());
    }
    if (traffic.forward_done) {
      CHECK(traffic.forward_done().ok());
    }
    for (size_t i = 0; i < 6; ++i) gradient[i] = slope * weights[i] + static_cast<float>(work.batch + 1);
    if (work.batch == poisoned) gradient[4] = std::numeric_limits<float>::infinity();
    return static_cast<double>(work.examples);
  }
  std::vector<ConstTensor> Gradient() override { return {}; }

  float slope = 0;
  uint64_t poisoned = ~uint64_t{0};
  absl::Status failure;

 private:
  std::vector<Seen>* const seen_;
  ModelSpec spec_;
};

v1::JobConfig LocalConfigOf(uint32_t steps, const std::string& inner,
                            const std::vector<std::string>& more = {}) {
  std::vector<std::string> sets = {"local={\"steps\": " + std::to_string(steps) + ", \"inner\": " + inner +
                                   "}"};
  sets.insert(sets.end(), more.begin(), more.end());
  return Config(sets);
}
const std::string kKeeps = "local.keep_state=true";

struct Local {
  Local(v1::JobConfig of, const JobSteps& steps = {}) : config(std::move(of)) {
    auto computer = std::make_unique<FakeGradients>(&seen);
    gradients = computer.get();
    auto created = LocalSteps::Create(config, steps, std::move(computer), &time);
    INFO(created.status());
    REQUIRE(created.ok());
    local = *std::move(created);
  }
  absl::StatusOr<double> Compute(const Work& work, const Traffic& traffic = Traffic()) {
    return local->Compute(work, base.data(), push.data(), nullptr, traffic);
  }
  // Of a whole piece of work, whose batch follows from clock and part as in steps of two parts.
  std::vector<float> Push(uint64_t clock, uint32_t part) {
    const uint64_t batch = 2 * clock + part, examples = 8 * config.local().steps();
    REQUIRE(Compute({clock, part, batch, batch * examples, examples, true, 10000}).ok());
    return push;
  }

  const v1::JobConfig config;
  ComputeTime time;
  std::vector<FakeGradients::Seen> seen;
  FakeGradients* gradients;
  std::unique_ptr<LocalSteps> local;
  std::vector<float> base = std::vector<float>(6, 1.0f), push = std::vector<float>(6);
};

TEST_CASE("A push is what the steps take away from the weights, which stay as they are") {
  Local job(LocalConfigOf(3, R"({"type": "sgd", "learning_rate": 0.25})"));
  job.gradients->slope = 0.5f;
  // Batches 6, 7 and 8 of the inner rule.
  const Work work{5, 0, 2, 48, 24, true, 100};
  const auto loss = job.Compute(work);
  REQUIRE(loss.ok());
  CHECK(*loss == 24);
  float w = 1;
  for (const float batch : {6, 7, 8}) w -= 0.25f * (0.5f * w + batch + 1);
  for (const float value : job.push) CHECK(value == 1 - w);
  CHECK(job.base == std::vector<float>(6, 1.0f));
  REQUIRE(job.seen.size() == 3);
  for (uint64_t step = 0; step < 3; ++step) {
    const Work& seen = job.seen[step].work;
    CHECK(seen.clock == 5);
    CHECK(seen.batch == 6 + step);
    CHECK(seen.first_example == 48 + 8 * step);
    CHECK(seen.examples == 8);
    CHECK(seen.examples_left == 100 - 8 * step);
  }
  const std::vector<ConstTensor> tensors = job.local->Gradient();
  REQUIRE(tensors.size() == 2);
  CHECK(tensors[1].name == "b");
  CHECK(tensors[1].values.data() == job.push.data() + 3);
}

TEST_CASE("The job's last batch may have fewer steps, and a short one") {
  Local job(LocalConfigOf(5, R"({"type": "sgd", "learning_rate": 0.5})"));
  const auto loss = job.Compute({0, 0, 1, 40, 19, true, 19});
  REQUIRE(loss.ok());
  CHECK(*loss == 19);
  REQUIRE(job.seen.size() == 3);
  CHECK(job.seen[2].work.batch == 7);
  CHECK(job.seen[2].work.examples == 3);
  CHECK(job.push[0] == 0.5f * (6 + 7 + 8));
}

TEST_CASE(
    "Weights are awaited in the first step, the next ones come in the last, and the gradient after it") {
  const uint64_t steps = GENERATE(1, 2, 4);
  Local job(LocalConfigOf(4, R"({"type": "sgd", "learning_rate": 0.5})"));
  Calls calls;
  Traffic traffic;
  traffic.new_weights = false;  // another part, from weights that a step before has left
  traffic.await_weights = [&](size_t, size_t) {
    calls.push_back("await");
    return absl::OkStatus();
  };
  traffic.forward_done = [&] {
    calls.push_back("forward");
    return absl::OkStatus();
  };
  traffic.next_weights = [] { return nullptr; };
  traffic.gradient_ready = [&](size_t tensor) {
    CHECK(job.push[0] != 0);
    calls.push_back("ready " + std::to_string(tensor));
  };
  REQUIRE(job.Compute({0, 0, 0, 0, 8 * steps, true, 100}, traffic).ok());
  CHECK(calls == Calls{"await", "forward", "ready 1", "ready 0"});
  REQUIRE(job.seen.size() == steps);
  for (size_t i = 0; i < steps; ++i) {
    CHECK(job.seen[i].awaits == (i == 0));
    CHECK(job.seen[i].last == (i + 1 == steps));
  }
}

TEST_CASE("The inner rule's state begins anew with each push") {
  const char* const inner = GENERATE(R"({"type": "adam"})", R"({"type": "momentum", "learning_rate": 0.1})");
  Local job(LocalConfigOf(3, inner));
  const Work work{0, 0, 7, 0, 24, true, 100};
  REQUIRE(job.Compute(work).ok());
  const std::vector<float> push = job.push;
  REQUIRE(job.Compute({1, 0, 8, 24, 24, true, 76}).ok());
  CHECK(job.push != push);
  REQUIRE(job.Compute(work).ok());
  CHECK(job.push == push);
}

TEST_CASE("A kept state goes on from push to push, as if these were one") {
  const char* const inner = GENERATE(R"({"type": "adam"})", R"({"type": "momentum", "learning_rate": 0.1})",
                                     R"({"type": "adam", "amsgrad": true})");
  Local kept(LocalConfigOf(3, inner, {kKeeps, "consistency.mode=async"})), whole(LocalConfigOf(9, inner));
  // The gradients do not depend on the weights, so it does not matter that each push begins at the same ones.
  std::vector<float> sum(6);
  for (const uint64_t batch : {0, 1, 2}) {
    // Outside sync clocks may leap, since a worker does not do all batches.
    REQUIRE(kept.Compute({5 * batch, 0, batch, 24 * batch, 24, true, 100}).ok());
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += kept.push[i];
  }
  REQUIRE(whole.Compute({0, 0, 0, 0, 72, true, 100}).ok());
  for (size_t i = 0; i < sum.size(); ++i) CHECK(sum[i] == Approx(whole.push[i]).epsilon(1e-5));
}

TEST_CASE("In sync each part has a kept state of its own, on the worker that did the part the step before") {
  const v1::JobConfig config = LocalConfigOf(3, R"({"type": "adamw"})", {kKeeps});
  Local both(config), first(config), second(config);
  for (const uint64_t clock : {0, 1, 2}) {
    CHECK(both.Push(clock, 0) == first.Push(clock, 0));
    CHECK(both.Push(clock, 1) == second.Push(clock, 1));
  }
  // Another worker does part 1 of step 3.
  CHECK(both.Push(3, 0) == first.Push(3, 0));
  CHECK(both.Push(4, 0) == first.Push(4, 0));
  const std::vector<float> kept = second.Push(4, 1), begun = Local(config).Push(4, 1);
  CHECK(kept == begun);
  CHECK(both.Push(4, 1) == begun);
  CHECK(both.Push(5, 1) != Local(config).Push(5, 1));
}

TEST_CASE("A kept state begins anew after a gradient that is not finite, and is as it was after an error") {
  const v1::JobConfig config = LocalConfigOf(3, R"({"type": "adam"})", {kKeeps});
  Local job(config), smooth(config);
  CHECK(job.Push(0, 0) == smooth.Push(0, 0));
  // The weights' version was gone before the first gradient.
  job.gradients->failure = absl::DataLossError("gone");
  CHECK(job.Compute({1, 0, 2, 48, 24, true, 100}).status() == job.gradients->failure);
  job.gradients->failure = absl::OkStatus();
  CHECK(job.Push(1, 0) == smooth.Push(1, 0));

  job.gradients->poisoned = 3 * 4 + 1;
  job.Push(2, 0);
  CHECK(std::isinf(job.push[4]));
  CHECK(job.Push(3, 0) == Local(config).Push(3, 0));
}

TEST_CASE("The inner schedule counts the steps that each worker has taken") {
  // A job of 5 steps of 3 batches: 20 inner steps of each worker.
  Local job(LocalConfigOf(4, R"({"learning_rate": 1, "schedule": {"type": "linear"}})"), {3, 5});
  for (const uint64_t batch : {0, 2, 3, 14}) {
    REQUIRE(job.Compute({0, 0, batch, 0, 32, true, 1000}).ok());
    float w = 1;
    for (uint64_t h = 0; h < 4; ++h) {
      const double t = static_cast<double>(batch / 3 * 4 + h);
      w -= static_cast<float>(1 - t / 20) * static_cast<float>(batch * 4 + h + 1);
    }
    CHECK(job.push[0] == Approx(1 - w).epsilon(1e-5));
  }
}

TEST_CASE("Groups act on the inner steps, and one that fits no tensor is named") {
  Local job(LocalConfigOf(
      2,
      R"({"learning_rate": 1, "groups": [{"match": "a", "frozen": true}, {"match": "b", "learning_rate_factor": 2}]})"));
  REQUIRE(job.Compute({0, 0, 0, 0, 16, true, 100}).ok());
  CHECK(job.push == std::vector<float>{0, 0, 0, 6, 6, 6});

  const v1::JobConfig wrong = LocalConfigOf(2, R"({"groups": [{"match": "c"}]})");
  const absl::Status status = LocalSteps::Check(wrong, job.local->spec());
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(status.message()), Contains("local.inner.groups[0].match: \"c\" fits no tensor"));
}

TEST_CASE("A gradient that is not finite ends the steps, and is what is pushed") {
  Local job(LocalConfigOf(4, R"({"type": "momentum"})"));
  job.gradients->poisoned = 1;
  const auto loss = job.Compute({0, 0, 0, 0, 32, true, 100});
  REQUIRE(loss.ok());
  CHECK(std::isnan(*loss));
  CHECK(job.seen.size() == 2);
  CHECK(std::isinf(job.push[4]));
  CHECK(job.push[3] == 2);
  // It leaves nothing behind.
  REQUIRE(job.Compute({0, 0, 9, 0, 32, true, 100}).ok());
  CHECK(std::all_of(job.push.begin(), job.push.end(), [](float value) { return std::isfinite(value); }));
}

TEST_CASE("The training loop pushes the result of the steps, whole, with any number of replicas") {
  const size_t replicas = GENERATE(1, 3);
  Job job({R"(local={"steps": 3, "inner": {"type": "adamw", "learning_rate": 0.01, "weight_decay": 0.1,
                "groups": [{"match": "*/bias", "weight_decay": 0, "learning_rate_factor": 2}]}})",
           "train.clip_norm=0.5", "train.micro_batches=2", "compute.threads=2"},
          Clocks(3, 20), OnCpu(replicas));
  job.client.on_pull = [&](const ScriptedClient::PullCall& pull) {
    BringInTurns(&job.client, pull, pull.clock);
  };
  REQUIRE(job.Run().ok());
  CHECK(job.client.calls() == Calls{"pull 0", "pushpull 0", "pushpull 1", "pushpull 2"});
  for (const auto& push : job.client.pushes()) CHECK_FALSE(push.gated);
  CHECK(job.client.progress().batches == 3);
  CHECK(job.client.progress().examples == 60);
  CHECK(job.replicas->compute_time().Seconds() > 0);
}

TEST_CASE("The bits are those of a serial loop") {
  const size_t replicas = GENERATE(1, 3);
  const std::string inner = GENERATE(R"({"learning_rate": 0.1})", R"({"type": "nesterov", "l2": 0.01})",
                                     R"({"type": "adam", "clip_weights": 0.15})");
  std::deque<Work> work = Clocks(3, 24);
  // Another part of step 1, after the steps of the first part.
  work.insert(work.begin() + 2, {1, 1, 5, 120, 24, true});
  work.push_back({3, 0, 6, 144, 13, true});
  Job job({R"(local={"steps": 3, "inner": )" + inner + "}", "train.micro_batches=2"}, std::move(work),
          OnCpu(replicas));
  job.client.on_pull = [&](const ScriptedClient::PullCall& pull) {
    BringInTurns(&job.client, pull, pull.clock);
  };
  REQUIRE(job.Run().ok());
  job.CheckPushes(5);
}

TEST_CASE("One step of plain SGD with rate 1 pushes the gradient itself, as it becomes ready") {
  const std::string inner = R"({"type": "sgd", "learning_rate": 1})";
  CHECK_FALSE(TakesLocalSteps(LocalConfigOf(1, inner)));
  CHECK(TakesLocalSteps(LocalConfigOf(2, inner)));
  CHECK_FALSE(TakesLocalSteps(Config({})));
  for (const char* other :
       {R"({"type": "sgd", "learning_rate": 0.5})", R"({"type": "adam", "learning_rate": 1})",
        R"({"learning_rate": 1, "weight_decay": 0.1})", R"({"learning_rate": 1, "l2": 0.1})",
        R"({"learning_rate": 1, "clip_weights": 1})", R"({"learning_rate": 1, "groups": [{"match": "*"}]})",
        R"({"learning_rate": 1, "schedule": {"warmup_steps": 5}})",
        R"({"learning_rate": 1, "schedule": {"type": "cosine"}})"}) {
    INFO(other);
    CHECK(TakesLocalSteps(LocalConfigOf(1, other)));
  }
  Job job({R"(local={"inner": )" + inner + "}"}, Clocks(3)), plain({}, Clocks(3));
  REQUIRE(job.Run().ok());
  REQUIRE(plain.Run().ok());
  const auto pushes = job.client.pushes(), expected = plain.client.pushes();
  REQUIRE(pushes.size() == expected.size());
  for (size_t i = 0; i < pushes.size(); ++i) {
    CHECK(pushes[i].gated);
    CHECK(pushes[i].gradient == expected[i].gradient);
  }
}

}  // namespace
}  // namespace weir
