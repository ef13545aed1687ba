// Installing the model, and the rate at which an update changes each tensor.
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/model/wire_model.h"
#include "tests/ps_server/shard/shard_fixture.h"

namespace weir {
namespace {

using Catch::Contains;
constexpr auto kSync = v1::ConsistencyConfig::MODE_SYNC;
constexpr auto kAsync = v1::ConsistencyConfig::MODE_ASYNC;

std::string InstallError(ShardFixture& f, const v1::Install& install) {
  v1::ControlMessage message;
  *message.mutable_install() = install;
  f.Control(message);
  const auto reports = f.Reports(v1::ShardReport::kInstalled);
  REQUIRE(reports.size() == 1);
  return reports[0].installed().error();
}

TEST_CASE("What does not fit is not installed, and the report says why") {
  ShardFixture f(kAsync);
  f.Create();
  v1::Install good = f.install;
  *good.mutable_model() = ToProto(f.model);
  good.set_job_config(f.config.SerializeAsString());

  v1::JobConfig other = f.config;
  other.mutable_optimizer()->set_learning_rate(0.5);
  v1::Install install = good;
  install.set_job_config(other.SerializeAsString());
  CHECK_THAT(InstallError(f, install), Contains("optimizer.learning_rate") && Contains("ps:0"));
  install.set_job_config("\xff not a message");
  CHECK_THAT(InstallError(f, install), Contains("job_config"));
  install = good;
  install.mutable_model()->mutable_tensors(0)->set_name("");
  CHECK(InstallError(f, install) != "");
  install.clear_model();
  CHECK(InstallError(f, install) != "");
  install = good;
  install.set_shard(1);
  CHECK(InstallError(f, install) != "");
  install.set_num_shards(0);
  CHECK(InstallError(f, install) != "");
  CHECK(f.shard->elements() == 0);

  CHECK(InstallError(f, good) == "");
  CHECK(f.shard->elements() == 40);
  // A failed Install keeps the old model.
  CHECK(InstallError(f, install) != "");
  CHECK(f.shard->elements() == 40);
}

TEST_CASE("A model for which there is no memory is an error, with the sum, and a smaller one fits after it") {
  ShardFixture f(kAsync);
  f.config.mutable_server()->set_apply(v1::ServerConfig::APPLY_STREAMED);
  SECTION("by what the machine has") {
    f.memory_bytes = uint64_t{1} << 30;
    f.Create();
    v1::Install install = f.install;
    f.model.tensors[0].shape = {int64_t{1} << 33};
    *install.mutable_model() = ToProto(f.model);
    install.set_job_config(f.config.SerializeAsString());
    CHECK_THAT(InstallError(f, install), Contains("8589934592 elements") && Contains("W = 32.0 GiB") &&
                                             Contains("at least 64.0 GiB = 2 W") && Contains("has 1.0 GiB"));
  }
  SECTION("by what the system gives") {
    f.weights_source = [none = std::make_shared<bool>(true)](size_t elements) {
      if (std::exchange(*none, false)) throw std::bad_alloc();
      return AllocateSlab(elements);
    };
    f.Create();
    CHECK_THAT(f.Install(), Contains("no memory") && Contains("40 elements on 1 servers"));
  }
  CHECK(f.shard->elements() == 0);
  f.model.tensors[0].shape = {40};
  CHECK(f.Install() == "");
  CHECK(f.shard->elements() == 40);
}

TEST_CASE("Control that comes before the model is harmless") {
  ShardFixture f(kSync);
  f.Create();
  f.Members(1, {{0}});
  f.Commit(0, {0});
  f.Pin(1, 1);
  f.Control({});
  CHECK(f.Stats().version().count() == 0);
  CHECK(f.Reports(v1::ShardReport::kMembership).empty());
  f.shard->Tick();
  f.Start();
  CHECK(f.Pull(0, 0)->there());
}

TEST_CASE("A shard without any block takes part like the others") {
  ShardFixture f(kSync);
  f.install.set_num_shards(8);
  f.install.set_shard(7);  // 40 elements are 3 blocks
  f.Start();
  CHECK(f.shard->elements() == 0);
  const auto a = f.Push({0, 0, 0});
  f.Push({1, 0, 1});
  CHECK(f.Reports(v1::ShardReport::kStaged).size() == 1);
  f.Commit(0, {0, 1});
  CHECK(a->reply().outcome() == v1::OK);
  CHECK(f.Pull(0, 1)->reply().header.elements() == 0);
}

TEST_CASE("The schedule's argument is the step in sync, else the version over the configured workers") {
  ShardFixture f(GENERATE(kSync, kAsync));
  const bool sync = f.config.consistency().mode() == kSync;
  auto* schedule = f.config.mutable_optimizer()->mutable_schedule();
  schedule->set_type(v1::ScheduleConfig::SCHEDULE_STEP);
  schedule->set_step_size(1);
  schedule->set_gamma(0.5);
  f.Start();  // two workers
  std::vector<float> rates;
  float before = 0;
  for (uint64_t clock = 0; clock < 4; ++clock) {
    f.Push({0, clock, 0});
    if (sync) {
      f.Push({1, clock, 1});
      f.Commit(clock, {0, 1});
    }
    const float now = f.Weights()[0];
    rates.push_back(now - before);
    before = now;
  }
  CHECK(rates == (sync ? std::vector<float>{1, 0.5, 0.25, 0.125} : std::vector<float>{1, 1, 0.5, 0.5}));
}

TEST_CASE("Buffers are assigned, frozen groups stay, others move") {
  ShardFixture f(kAsync);
  f.model.tensors = {
      {"body/weight", {18}, TensorKind::kParameter, {Initializer::Kind::kConstant, 10}},
      {"body/mean", {18}, TensorKind::kBuffer, {Initializer::Kind::kConstant, 10}},
      {"head/weight", {18}, TensorKind::kParameter, {Initializer::Kind::kConstant, 10}},
      {"slow/weight", {18}, TensorKind::kParameter, {Initializer::Kind::kConstant, 10}},
  };
  auto* frozen = f.config.mutable_optimizer()->add_groups();
  frozen->set_match("head/*");
  frozen->set_frozen(true);
  auto* slow = f.config.mutable_optimizer()->add_groups();
  slow->set_match("slow/*");
  slow->set_learning_rate_factor(0.5);
  f.Start();
  TestPush push;
  push.value = 3;
  f.Push(push);
  const std::vector<float> weights = f.Weights();
  for (int i = 0; i < 18; ++i) {
    CHECK(weights[i] == 13);
    CHECK(weights[18 + i] == 3);
    CHECK(weights[36 + i] == 10);
    CHECK(weights[54 + i] == 11.5f);
  }
}

TEST_CASE(
    "Clipped weights: each update ends within the range, in every mode; buffers and frozen tensors stay") {
  const auto mode = GENERATE(v1::ConsistencyConfig::MODE_SYNC, v1::ConsistencyConfig::MODE_BOUNDED, kAsync);
  ShardFixture f(mode);
  f.config.mutable_server()->set_apply(
      GENERATE(v1::ServerConfig::APPLY_STREAMED, v1::ServerConfig::APPLY_STAGED));
  const auto tensor = [&](const char* name, TensorKind kind) {
    f.model.tensors.push_back({name, {10}, kind, {Initializer::Kind::kConstant, 10}});
  };
  f.model.tensors.clear();
  tensor("body/weight", TensorKind::kParameter);
  tensor("body/mean", TensorKind::kBuffer);
  tensor("frozen/weight", TensorKind::kParameter);
  tensor("free/weight", TensorKind::kParameter);
  tensor("tight/weight", TensorKind::kParameter);
  v1::OptimizerConfig& optimizer = *f.config.mutable_optimizer();
  optimizer.set_clip_weights(4);
  const auto group = [&](const char* match) {
    v1::GroupConfig* made = optimizer.add_groups();
    made->set_match(match);
    return made;
  };
  group("frozen/*")->set_frozen(true);
  group("free/*")->set_clip_weights(0);
  group("tight/*")->set_clip_weights(0.5f);
  f.Start();
  const auto expect = [&](const std::vector<float>& values) {
    const std::vector<float> weights = f.Weights();
    REQUIRE(weights.size() == 50);
    for (size_t i = 0; i < weights.size(); ++i) CHECK(weights[i] == values[i / 10]);
  };
  const bool sync = mode == v1::ConsistencyConfig::MODE_SYNC;
  const auto step = [&](uint64_t clock, float value) {
    for (uint32_t part = 0; part < (sync ? 2 : 1); ++part) {
      TestPush push{part, clock, part};
      push.value = value;
      f.Push(push);
    }
    if (sync) f.Commit(clock, {0, 1});
  };
  expect({10, 10, 10, 10, 10});
  step(0, 7);
  expect({4, 7, 10, 17, 0.5f});
  step(1, -5);
  expect({-1, -5, 10, 12, -0.5f});
}

TEST_CASE("Adam's t is the shard's count of updates, whoever pushed") {
  // With a constant gradient, bias correction makes every Adam step equal to the learning rate, if t is
  // right.
  ShardFixture f(kAsync);
  f.config.mutable_optimizer()->set_type(v1::OptimizerConfig::KIND_ADAM);
  f.config.mutable_optimizer()->set_learning_rate(0.25);
  f.Start();
  for (uint64_t clock = 0; clock < 4; ++clock) {
    f.Push({0, clock});
    f.Push({1, clock});
  }
  CHECK(f.Weights()[0] == Approx(-0.25 * 8).epsilon(1e-4));
}

}  // namespace
}  // namespace weir
