// Checkpoints of a shard with embedding tables: the version of their rows, training meanwhile, and jobs that
// start from them.
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/model/key_bucket.h"
#include "tests/ps_server/shard/shard_fixture.h"

namespace weir {
namespace {

using Catch::Contains;
using Mode = v1::ConsistencyConfig;
using Operation = FaultyFileSystem::Operation;

constexpr uint64_t kKeys = 50;

// One table, "users": one column, momentum 0.5 at rate 1 and initial values of 0. The shard's background work
// runs when the test says so, on the test's thread.
struct Job : ShardFixture {
  explicit Job(Mode::Mode mode) : ShardFixture(mode) {
    v1::TableConfig& users = *config.add_tables();
    users.set_name("users");
    users.set_dim(1);
    users.mutable_init()->set_type(v1::TableInit::KIND_CONSTANT);
    users.mutable_init()->set_value(0);
    users.mutable_optimizer()->set_type(v1::TableOptimizer::KIND_MOMENTUM);
    users.mutable_optimizer()->set_momentum(0.5);
    users.mutable_optimizer()->set_learning_rate(1);
  }
  bool Mine(uint64_t key) const { return ShardOfKey(key, install.num_shards()) == install.shard(); }
  // Pushes this gradient for the keys [first, kKeys) of the shard.
  void PushUsers(uint32_t worker, uint64_t clock, float value, uint64_t first = 0, uint32_t part = 0) {
    TestRows rows;
    for (uint64_t key = first; key < kKeys; ++key) {
      if (Mine(key)) rows.keys.push_back(key);
    }
    rows.values.assign(rows.keys.size(), value);
    PushRows({worker, clock, part},
             rows.keys.empty() ? std::vector<TestRows>{} : std::vector<TestRows>{rows});
  }
  // The values of all keys of the shard, each after its key.
  std::vector<float> Users() {
    TestRows keys;
    for (uint64_t key = 0; key < kKeys; ++key) {
      if (Mine(key)) keys.keys.push_back(key);
    }
    v1::PullRequest request;
    *request.mutable_caller() = CallerOf(0);
    request.set_header_only(true);
    request.set_pin(++last_pin);
    Pin(last_pin, 1);
    const PullAnswerPtr answer = PullRows(request, {keys});
    v1::ControlMessage unpin;
    unpin.mutable_unpin()->set_pin(last_pin);
    Control(unpin);
    REQUIRE(answer->reply().rows != nullptr);
    std::vector<float> users;
    for (size_t i = 0; i < keys.keys.size(); ++i) {
      users.push_back(static_cast<float>(keys.keys[i]));
      users.push_back(answer->reply().rows->values.get()[i]);
    }
    return users;
  }
  size_t FormerBytes() {
    shard->Tick();
    Settle();
    return shard->table_stats()[0].former_bytes;
  }
  void Freeze(uint64_t step, bool release = false) {
    v1::ControlMessage message;
    message.mutable_freeze()->set_step(step);
    message.mutable_freeze()->set_release(release);
    Control(message);
  }
  // Asks for a checkpoint, whose files are then written by RunBackground().
  void Take(uint64_t step, bool begin = true) {
    hold_background = true;
    TakeCheckpoint(step, begin);
    hold_background = false;
  }
  void RunBackground() {
    while (!background.empty()) {
      background.front()();
      background.pop_front();
    }
    Settle();
  }
  std::vector<std::string> FilesOf(uint64_t step) {
    const auto names = files->List(CheckpointFolder(kCheckpoints, step));
    REQUIRE(names.ok());
    return *names;
  }
  std::string CheckpointError() {
    const auto written = Reports(v1::ShardReport::kCheckpoint);
    REQUIRE(written.size() == 1);
    return written[0].checkpoint().error();
  }
  uint64_t last_pin = 5000;
};

// A shard of another job's checkpoint.
std::unique_ptr<Job> Restored(Job& from, const v1::Restore& restore, uint32_t shard = 0,
                              uint32_t shards = 1) {
  auto job = std::make_unique<Job>(from.config.consistency().mode());
  job->config = from.config;
  job->files = from.files;
  job->install.set_shard(shard);
  job->install.set_num_shards(shards);
  job->Create();
  REQUIRE(job->Install(&restore) == "");
  job->Members(1, {{0}, {1}});
  return job;
}

TEST_CASE(
    "A checkpoint has the rows of the moment when it is asked for, whatever comes while it is written") {
  Job f(Mode::MODE_ASYNC);
  f.Start();
  f.PushUsers(0, 0, 1);
  f.PushUsers(1, 0, 2, 25);
  const std::vector<float> users = f.Users();
  f.Take(5);
  f.PushUsers(0, 1, 4);
  // A push comes with each append to a file.
  uint64_t clock = 1;
  f.files->SetFault([&](const Operation& operation) {
    if (operation.kind == FaultyFileSystem::Kind::kAppend) f.PushUsers(1, clock++, 8);
    return absl::OkStatus();
  });
  f.RunBackground();
  f.files->SetFault(nullptr);
  CHECK(clock > 6);
  CHECK(f.FormerBytes() == 0);
  const std::vector<float> later = f.Users();
  CHECK(later != users);
  const v1::Restore restore = ShardFixture::Complete(5, {&f});
  const std::unique_ptr<Job> same = Restored(f, restore);
  CHECK(same->Users() == users);
  CHECK(same->Weights() == All(2));
  // The momentum is restored, too: both shards continue from there.
  const std::unique_ptr<Job> again = Restored(f, restore);
  for (Job* job : {same.get(), again.get()}) job->PushUsers(0, 1, 4);
  CHECK(same->Users() == again->Users());
  CHECK(same->Users()[1] == -(1 + 0.5f + 4));
  // The checkpoint is loaded into two shards.
  std::vector<float> both(users.size());
  for (uint32_t shard : {0, 1}) {
    const std::unique_ptr<Job> half = Restored(f, restore, shard, 2);
    const std::vector<float> own = half->Users();
    CHECK(own.size() > 20);
    for (size_t i = 0; i < own.size(); i += 2) {
      const auto at = 2 * static_cast<size_t>(own[i]);
      both[at] = own[i];
      both[at + 1] = own[i + 1];
    }
  }
  CHECK(both == users);
}

TEST_CASE("Two shards' tables become those of one, and weights alone begin a new job") {
  Job zero(Mode::MODE_ASYNC), one(Mode::MODE_ASYNC);
  one.files = zero.files;
  std::vector<float> all(2 * kKeys);
  for (Job* job : {&zero, &one}) {
    job->install.set_num_shards(2);
    job->install.set_shard(job == &one ? 1 : 0);
    job->Start();
    job->PushUsers(0, 0, 1);
    job->PushUsers(0, 1, 1, 30);
    const std::vector<float> own = job->Users();
    for (size_t i = 0; i < own.size(); i += 2) {
      all[2 * static_cast<size_t>(own[i])] = own[i];
      all[2 * static_cast<size_t>(own[i]) + 1] = own[i + 1];
    }
    job->Take(3, /*begin=*/job == &zero);
    job->RunBackground();
  }
  v1::Restore restore = ShardFixture::Complete(3, {&zero, &one});
  CHECK(Restored(zero, restore)->Users() == all);
  zero.config.mutable_checkpoint()->set_init_from(std::string(ShardFixture::kCheckpoints) + "/step-00000003");
  restore.set_init_from(true);
  restore.set_weights_only(true);
  const std::unique_ptr<Job> begun = Restored(zero, restore);
  CHECK(begun->Users() == all);
  CHECK(begun->shard->counters().version == 0);
  begun->PushUsers(0, 0, 4);
  CHECK(begun->Users()[1] == all[1] - 4);  // without momentum
}

TEST_CASE("In sync a checkpoint has the rows of its step") {
  Job f(Mode::MODE_SYNC);
  f.Start();
  const auto step = [&](uint64_t step) {
    f.PushUsers(0, step, 2, 0, 0);
    f.PushUsers(1, step, 4, 0, 1);
    f.Commit(step, {0, 1});
  };
  step(0);
  const std::vector<float> users = f.Users();
  f.Freeze(1);
  step(1);
  step(2);
  f.Take(1);
  f.RunBackground();
  const std::unique_ptr<Job> restored = Restored(f, ShardFixture::Complete(1, {&f}));
  CHECK(restored->Users() == users);
  CHECK(restored->Weights() == All(1));
}

TEST_CASE("Rows are kept for a checkpoint no longer than it may be written, whatever becomes of it") {
  Job f(Mode::MODE_ASYNC);
  f.Start();
  f.PushUsers(0, 0, 1);
  uint64_t clock = 1;
  const auto push = [&] { f.PushUsers(0, clock++, 1); };
  f.Freeze(1);
  push();
  CHECK(f.FormerBytes() > 0);
  SECTION("released") { f.Freeze(1, /*release=*/true); }
  SECTION("replaced by another that is released") {
    f.Freeze(2);
    f.Freeze(2, true);
  }
  SECTION("another coordinator came") {
    v1::ControlMessage hello;
    hello.mutable_hello()->set_coordinator_incarnation(1);
    f.Control(hello);
  }
  SECTION("the disk is full") {
    f.Take(1);
    f.files->SetFault([](const Operation& operation) {
      return absl::StrContains(operation.path, "table-000") ? absl::ResourceExhaustedError("the disk is full")
                                                            : absl::OkStatus();
    });
    push();
    f.RunBackground();
    f.files->SetFault(nullptr);
    CHECK_THAT(f.CheckpointError(), Contains("the disk is full"));
    for (const std::string& name : f.FilesOf(1)) CHECK(name[0] != '.');
    // The next checkpoint is written.
    f.Take(2);
    f.RunBackground();
    CHECK(f.Written().tables_size() == 1);
  }
  SECTION("the job is over while it is written") {
    f.Take(1);
    f.files->SetFault([&](const Operation& operation) {
      if (absl::StrContains(operation.path, "table-000")) f.Shutdown("enough");
      return absl::OkStatus();
    });
    f.RunBackground();
    f.files->SetFault(nullptr);
    CHECK(f.Reports(v1::ShardReport::kCheckpoint).empty());
  }
  CHECK(f.FormerBytes() == 0);
}

TEST_CASE("A shard that begins anew gives up the files of the one before") {
  Job f(Mode::MODE_ASYNC);
  f.Start();
  f.PushUsers(0, 0, 1);
  f.Take(1);
  REQUIRE(f.Install() == "");
  f.RunBackground();
  CHECK(f.Reports(v1::ShardReport::kCheckpoint).empty());
  for (const std::string& name : f.FilesOf(1)) {
    CHECK(!absl::StrContains(name, "table-"));
  }
  CHECK(f.FormerBytes() == 0);
}

TEST_CASE("A shard refuses a checkpoint of other tables, and says which") {
  Job f(Mode::MODE_ASYNC);
  f.Start();
  f.Take(1);
  f.RunBackground();
  const v1::Restore restore = ShardFixture::Complete(1, {&f});
  Job other(Mode::MODE_ASYNC);
  other.files = f.files;
  other.config.mutable_tables(0)->set_dim(2);
  other.Create();
  CHECK_THAT(other.Install(&restore), Contains("table 'users', dim: expected 2, got 1"));
}

}  // namespace
}  // namespace weir
