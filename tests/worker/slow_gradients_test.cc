// debug.batch_seconds and its factors, with a clock of the test's own.
#include "worker/slow_gradients.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/worker/trainer_job.h"

namespace weir {
namespace {

// Computes nothing: it only asks for weights, computes forward for a while, and says that forward is done.
class Computer final : public GradientComputer {
 public:
  explicit Computer(std::function<void()> forward) : forward_(std::move(forward)) {}
  const ModelSpec& spec() const override { return spec_; }
  uint64_t train_examples() const override { return 1; }
  absl::StatusOr<std::shared_ptr<float>> TakeMemory() override { return std::shared_ptr<float>(); }
  bool on_host() const override { return true; }
  absl::StatusOr<double> Compute(const Work&, float*, float*, WorkRows*, const Traffic& traffic) override {
    for (size_t layer = 0; layer < 2; ++layer) {
      if (traffic.await_weights && !traffic.await_weights(layer, layer + 1).ok())
        return absl::CancelledError();
      forward_();
    }
    const absl::Status done = traffic.forward_done();
    if (!done.ok()) return done;
    return 1.0;
  }
  std::vector<ConstTensor> Gradient() override { return {}; }

 private:
  const ModelSpec spec_;
  const std::function<void()> forward_;
};

struct Slowed {
  explicit Slowed(const std::vector<std::string>& overrides, double forward = 0)
      : config(Config(overrides)), forward(forward) {}

  absl::Status Compute(uint64_t worker, uint64_t batch, const Traffic& traffic = {}) {
    auto computer = std::make_unique<Computer>([this] { now += forward / 2; });
    SlowGradients slow(config, worker, std::move(computer),
                       {[this] { return now; },
                        [this](double seconds) {
                          now += seconds;
                          sleeps.push_back(seconds);
                        }});
    Work work;
    work.batch = batch;
    return slow.Compute(work, nullptr, nullptr, nullptr, traffic).status();
  }

  const v1::JobConfig config;
  // Seconds of a forward pass.
  const double forward;
  double now = 100;
  std::vector<double> sleeps;
};

TEST_CASE("A worker sleeps for what its computation leaves of batch_seconds") {
  Slowed slowed({"debug.batch_seconds=2"}, 0.5);
  REQUIRE(slowed.Compute(0, 0).ok());
  CHECK(slowed.sleeps == std::vector<double>{1.5});
  Slowed slower({"debug.batch_seconds=2"}, 3);
  REQUIRE(slower.Compute(0, 0).ok());
  CHECK(slower.sleeps.empty());
}

TEST_CASE("The wait for the first weights does not count, and the push begins after the sleep") {
  Slowed slowed({"debug.batch_seconds=2"}, 0.5);
  Traffic traffic;
  traffic.await_weights = [&](size_t first, size_t) {
    if (first == 0) slowed.now += 10;
    return absl::OkStatus();
  };
  traffic.forward_done = [&] {
    CHECK(slowed.now == 112);
    return absl::UnavailableError("the push");
  };
  CHECK(slowed.Compute(0, 0, traffic).message() == "the push");
  CHECK(slowed.sleeps == std::vector<double>{1.5});
}

TEST_CASE("delayed_worker alone is slow_factor times slower") {
  const v1::JobConfig config =
      Config({"debug.batch_seconds=0.5", "debug.slow_factor=4", "debug.delayed_worker=1"});
  for (uint64_t batch = 0; batch < 100; ++batch) {
    CHECK(SlowGradients::Least(config, 0, batch) == 0.5);
    CHECK(SlowGradients::Least(config, 1, batch) == 2);
  }
}

TEST_CASE("slow_share of all workers' batches are slow, others for another worker and seed") {
  const std::vector<std::string> overrides = {"debug.batch_seconds=1", "debug.slow_factor=4",
                                              "debug.slow_share=0.1"};
  const auto slow = [&](uint64_t worker, const std::string& seed) {
    v1::JobConfig config = Config(overrides);
    config.set_seed(std::stoull(seed));
    std::vector<uint64_t> batches;
    for (uint64_t batch = 0; batch < 10000; ++batch) {
      const double seconds = SlowGradients::Least(config, worker, batch);
      CHECK((seconds == 1 || seconds == 4));
      if (seconds == 4) batches.push_back(batch);
    }
    return batches;
  };
  const auto one = slow(0, "1");
  CHECK(one.size() == Approx(1000).margin(100));  // 3.3 standard deviations
  CHECK(slow(0, "1") == one);
  CHECK(slow(1, "1") != one);
  CHECK(slow(0, "2") != one);
}

TEST_CASE("Jitter is log-normal") {
  const v1::JobConfig config = Config({"debug.batch_seconds=2", "debug.jitter=0.1"});
  double sum = 0, squares = 0;
  constexpr int kBatches = 10000;
  for (int batch = 0; batch < kBatches; ++batch) {
    const double n = std::log(SlowGradients::Least(config, 3, static_cast<uint64_t>(batch)) / 2);
    sum += n;
    squares += n * n;
  }
  CHECK(sum / kBatches == Approx(0).margin(0.004));
  CHECK(std::sqrt(squares / kBatches) == Approx(0.1).epsilon(0.03));
}

TEST_CASE("worker_delay comes on top, for delayed_worker alone if there is one") {
  Slowed slowed({"debug.worker_delay=0.5", "debug.delayed_worker=1", "debug.batch_seconds=2"}, 3);
  REQUIRE(slowed.Compute(0, 7).ok());
  CHECK(slowed.sleeps.empty());
  REQUIRE(slowed.Compute(1, 7).ok());
  CHECK(slowed.sleeps == std::vector<double>{SlowGradients::Delay(slowed.config, 1, 7)});
  double least = 1, most = 0;
  for (uint64_t batch = 0; batch < 1000; ++batch) {
    const double seconds = SlowGradients::Delay(slowed.config, 1, batch);
    least = std::min(least, seconds);
    most = std::max(most, seconds);
  }
  CHECK(least >= 0);
  CHECK(least < 0.01);
  CHECK(most < 0.5);
  CHECK(most > 0.49);
}

TEST_CASE("A job without these fields is not slowed down") {
  CHECK_FALSE(SlowGradients::Slow(Config({}).debug()));
  CHECK(SlowGradients::Slow(Config({"debug.worker_delay=0.1"}).debug()));
  CHECK(SlowGradients::Slow(Config({"debug.batch_seconds=0.1"}).debug()));
}

}  // namespace
}  // namespace weir
