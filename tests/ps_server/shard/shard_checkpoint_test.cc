// Checkpoints that a shard writes: their version, their contents, and training meanwhile.
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/model/wire_model.h"
#include "tests/ps_server/shard/shard_fixture.h"

namespace weir {
namespace {

using Catch::Contains;
constexpr auto kSync = v1::ConsistencyConfig::MODE_SYNC;
constexpr auto kAsync = v1::ConsistencyConfig::MODE_ASYNC;

// Loads a checkpoint of one shard.
v1::ShardState Load(ShardFixture& f, const v1::Restore& restore, std::vector<float>* weights) {
  weights->resize(40);
  const auto reader =
      CheckpointReader::Open(*f.files, CheckpointFolder(ShardFixture::kCheckpoints, restore.step()));
  REQUIRE(reader.ok());
  CheckpointReader::Target target;
  target.weights = absl::MakeSpan(*weights);
  const auto state = reader->LoadShard(f.model, 0, 1, target);
  INFO(state.status().ToString());
  REQUIRE(state.ok());
  return *state;
}

void RunBackground(ShardFixture& f) {
  while (!f.background.empty()) {
    f.background.front()();
    f.background.pop_front();
  }
}

std::string CheckpointError(ShardFixture& f) {
  const auto written = f.Reports(v1::ShardReport::kCheckpoint);
  REQUIRE(written.size() == 1);
  return written[0].checkpoint().error();
}

TEST_CASE("A checkpoint is of the moment when it is asked for, whatever happens while it is written") {
  ShardFixture f(kAsync);
  f.Start();
  TestPush push{0, 0};
  push.batch = 7;
  f.Push(push);
  f.Push({1, 0});
  TestPush bad{1, 1};
  bad.bad_element = 3;
  f.Push(bad);
  f.hold_background = true;
  f.TakeCheckpoint(5);
  push.clock = 1;
  push.batch = 8;
  for (uint64_t clock = 1; clock < 5; ++clock) {
    push.clock = clock;
    push.batch = 7 + clock;
    CHECK(f.Push(push)->reply().outcome() == v1::OK);
  }
  CHECK(f.Weights() == All(6));
  CHECK(f.Reports(v1::ShardReport::kCheckpoint).empty());
  RunBackground(f);
  std::vector<float> weights;
  const v1::ShardState state = Load(f, ShardFixture::Complete(5, {&f}), &weights);
  CHECK(weights == All(2));
  CHECK(state.version().count() == 2);
  CHECK(state.version().incarnation() == ShardFixture::kIncarnation);
  CHECK(state.epoch() == 1);
  REQUIRE(state.workers_size() == 2);
  CHECK(state.workers(0).incarnation() == 100);
  CHECK(state.workers(0).task() == "worker:0");
  CHECK(state.workers(0).next_clock() == 1);
  CHECK(state.workers(0).counts());
  REQUIRE(state.workers(0).answers_size() == 1);
  CHECK(state.workers(0).answers(0).reply().outcome() == v1::OK);
  CHECK(state.workers(1).next_clock() == 2);
  REQUIRE(state.workers(1).answers_size() == 2);
  CHECK(state.workers(1).answers(1).reply().outcome() == v1::REFUSED);
  REQUIRE(state.batches_size() == 1);
  CHECK(state.batches(0).begin() == 7);
  CHECK(state.batches(0).end() == 8);
  CHECK(state.pushes_applied() == 2);
  CHECK(state.pushes_refused() == 1);
  CHECK(state.version_staleness().counts(0) == 2);
  CHECK(f.shard->counters().checkpoints_written == 1);
}

TEST_CASE("Checkpoints are written one at a time, and one that fails says why") {
  ShardFixture f(kAsync);
  f.Create();
  f.TakeCheckpoint(0);
  CHECK_THAT(CheckpointError(f), Contains("no model"));
  f.Start();
  f.hold_background = true;
  f.TakeCheckpoint(1);
  f.TakeCheckpoint(2);
  CHECK_THAT(CheckpointError(f), Contains("earlier checkpoint"));
  RunBackground(f);
  f.Written();
  f.files->SetFault([](const FaultyFileSystem::Operation& operation) {
    return operation.kind == FaultyFileSystem::Kind::kSync ? absl::ResourceExhaustedError("the disk is full")
                                                           : absl::OkStatus();
  });
  f.TakeCheckpoint(3);
  RunBackground(f);
  CHECK_THAT(CheckpointError(f), Contains("the disk is full"));
  f.files->SetFault(nullptr);
  f.TakeCheckpoint(4);
  RunBackground(f);
  CHECK(f.Written().step() == 4);
  CHECK(f.Push({0, 0})->reply().outcome() == v1::OK);
}

TEST_CASE("A shard says of which attempt at a checkpoint its report is") {
  ShardFixture f(kAsync);
  f.Start();
  REQUIRE(f.files->MakeFolder(ShardFixture::kCheckpoints).ok());
  REQUIRE(BeginCheckpoint(*f.files, ShardFixture::kCheckpoints, 1).ok());
  f.hold_background = true;
  for (const uint64_t attempt : {4, 5}) {
    v1::ControlMessage take;
    take.mutable_checkpoint()->set_step(1);
    take.mutable_checkpoint()->set_attempt(attempt);
    f.Control(take);
  }
  const auto refused = f.Reports(v1::ShardReport::kCheckpoint);
  REQUIRE(refused.size() == 1);
  CHECK(refused[0].checkpoint().attempt() == 5);
  CHECK_THAT(refused[0].checkpoint().error(), Contains("earlier checkpoint"));
  RunBackground(f);
  const auto written = f.Reports(v1::ShardReport::kCheckpoint);
  REQUIRE(written.size() == 1);
  CHECK(written[0].checkpoint().attempt() == 4);
  CHECK(written[0].checkpoint().error() == "");
}

TEST_CASE("In sync a checkpoint is of its step, also when the commit has to wait for memory") {
  ShardFixture f(kSync);
  f.Start();
  const auto step = [&](uint64_t step) {
    f.Push({0, step, 0});
    f.Push({1, step, 1});
    f.Commit(step, {0, 1});
  };
  step(0);
  f.TakeCheckpoint(0);
  CHECK_THAT(CheckpointError(f), Contains("at step 1, not 0"));
  f.TakeCheckpoint(1);
  f.Written();
  // Readers hold as many old versions as they may.
  std::vector<PullAnswerPtr> held = {f.Pull(0, 1)};
  for (uint64_t at = 1; at <= 2; ++at) {
    step(at);
    held.push_back(f.Pull(0, at + 1));
  }
  step(3);
  f.TakeCheckpoint(4);
  CHECK(f.Stats().version().count() == 3);
  CHECK(f.Reports(v1::ShardReport::kCheckpoint).empty());
  held.clear();
  f.shard->Tick();
  CHECK(f.Stats().version().count() == 4);
  std::vector<float> weights;
  const v1::ShardState state = Load(f, ShardFixture::Complete(4, {&f}), &weights);
  CHECK(weights == All(4));
  CHECK(state.version().count() == 4);
  REQUIRE(state.commits_size() == 4);
  CHECK(state.commits(3).step() == 3);
  CHECK(state.commits(3).parts_size() == 2);
}

TEST_CASE("A version is kept until its checkpoint may be written, and training goes on") {
  ShardFixture f(kSync);
  f.Start();
  const auto step = [&](uint64_t step) {
    f.Push({0, step, 0});
    f.Push({1, step, 1});
    f.Commit(step, {0, 1});
  };
  const auto freeze = [&](uint64_t step, bool release) {
    v1::ControlMessage message;
    message.mutable_freeze()->set_step(step);
    message.mutable_freeze()->set_release(release);
    f.Control(message);
  };
  const auto saved = [&](uint64_t step) {
    std::vector<float> weights;
    const v1::ShardState state = Load(f, ShardFixture::Complete(step, {&f}), &weights);
    CHECK(state.version().count() == step);
    return weights;
  };
  step(0);
  freeze(1, false);
  step(1);
  step(2);
  CHECK(f.Reports(v1::ShardReport::kCheckpoint).empty());
  f.TakeCheckpoint(1);
  CHECK(saved(1) == All(1));

  // Checkpoint 3 is released before it is written. So the next one is of a later version.
  freeze(3, false);
  freeze(3, true);
  step(3);
  f.TakeCheckpoint(3);
  CHECK_THAT(CheckpointError(f), Contains("at step 4, not 3"));
  freeze(4, false);
  step(4);
  freeze(5, false);  // replaces the frozen version
  step(5);
  f.TakeCheckpoint(4);
  CHECK_THAT(CheckpointError(f), Contains("at step 6, not 4"));
  freeze(6, false);
  step(6);
  f.TakeCheckpoint(6);
  CHECK(saved(6) == All(6));

  // A new coordinator does not know of the frozen version.
  freeze(7, false);
  step(7);
  v1::ControlMessage hello;
  hello.mutable_hello()->set_coordinator_incarnation(1);
  f.Control(hello);
  f.Reports(v1::ShardReport::kAttached);
  f.TakeCheckpoint(7);
  CHECK_THAT(CheckpointError(f), Contains("at step 8, not 7"));
}

TEST_CASE("In sync a checkpoint's number may be above its step, as of which it is restored") {
  ShardFixture f(kSync);
  f.Start();
  f.Push({0, 0, 0});
  f.Push({1, 0, 1});
  f.Commit(0, {0, 1});
  v1::ControlMessage freeze;
  freeze.mutable_freeze()->set_step(5);
  f.Control(freeze);
  f.TakeCheckpoint(5);
  const v1::Restore restore = ShardFixture::Complete(5, {&f}, /*committed=*/1);
  REQUIRE(f.Install(&restore) == "");
  CHECK(f.Stats().version().count() == 1);
}

TEST_CASE("In sync a version is kept of its step, also when the commit has to wait for memory") {
  ShardFixture f(kSync);
  f.Start();
  const auto step = [&](uint64_t step) {
    f.Push({0, step, 0});
    f.Push({1, step, 1});
    f.Commit(step, {0, 1});
  };
  step(0);
  // Readers hold as many old versions as they may.
  std::vector<PullAnswerPtr> held = {f.Pull(0, 1)};
  for (uint64_t at = 1; at <= 2; ++at) {
    step(at);
    held.push_back(f.Pull(0, at + 1));
  }
  step(3);
  v1::ControlMessage freeze;
  freeze.mutable_freeze()->set_step(4);
  f.Control(freeze);
  const bool both = GENERATE(true, false);
  if (both) f.TakeCheckpoint(4);
  held.clear();
  f.shard->Tick();
  step(4);
  if (!both) f.TakeCheckpoint(4);
  std::vector<float> weights;
  CHECK(Load(f, ShardFixture::Complete(4, {&f}), &weights).version().count() == 4);
  CHECK(weights == All(4));
}

TEST_CASE("A coordinator that says Hello learns what there is, and nothing of what another one asked for") {
  ShardFixture f(kAsync);
  const auto hello = [&] {
    v1::ControlMessage message;
    message.mutable_hello()->set_coordinator_incarnation(1);
    f.Control(message);
    const auto attached = f.Reports(v1::ShardReport::kAttached);
    REQUIRE(attached.size() == 1);
    return attached[0].attached();
  };
  f.Create();
  CHECK(hello().incarnation() == 0);
  // An Install is under way.
  f.hold_background = true;
  v1::ControlMessage message;
  *message.mutable_install() = f.install;
  *message.mutable_install()->mutable_model() = ToProto(f.model);
  message.mutable_install()->set_job_config(f.config.SerializeAsString());
  f.Control(message);
  CHECK(hello().incarnation() == 0);
  RunBackground(f);
  CHECK(f.Reports(v1::ShardReport::kInstalled).empty());
  CHECK(hello().incarnation() == 0);
  f.hold_background = false;
  f.Start();
  TestPush push{0, 0};
  for (uint64_t batch : {4, 5, 9}) {
    push.batch = batch;
    f.Push(push);
    ++push.clock;
  }
  f.hold_background = true;
  f.TakeCheckpoint(1);
  const v1::Attached attached = hello();
  CHECK(attached.incarnation() == f.incarnation());
  CHECK(attached.version().count() == 3);
  CHECK(attached.epoch() == 1);
  CHECK(attached.model_hash() == f.model.Hash());
  REQUIRE(attached.batches_size() == 2);
  CHECK(attached.batches(0).begin() == 4);
  CHECK(attached.batches(0).end() == 6);
  CHECK(attached.batches(1).begin() == 9);
  RunBackground(f);
  CHECK(f.Reports(v1::ShardReport::kCheckpoint).empty());
  f.TakeCheckpoint(2);
  RunBackground(f);
  f.Written();
}

}  // namespace
}  // namespace weir
