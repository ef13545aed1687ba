// The coordinator is killed and comes back, or resumes a job that ended long ago.
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "catch2/catch.hpp"
#include "common/protocol/job_failure.h"
#include "tests/ps_server/coordinator/coordinator_fixture.h"

namespace weir {
namespace {

using Catch::Contains;
constexpr auto kSync = v1::ConsistencyConfig::MODE_SYNC;
constexpr auto kAsync = v1::ConsistencyConfig::MODE_ASYNC;

Intervals Batches(const std::vector<std::pair<uint64_t, uint64_t>>& intervals) {
  Intervals out;
  for (const auto& [begin, end] : intervals) {
    v1::Interval* interval = out.Add();
    interval->set_begin(begin);
    interval->set_end(end);
  }
  return out;
}

struct Restarted : CoordinatorFixture {
  explicit Restarted(v1::ConsistencyConfig::Mode mode, uint32_t workers = 2, uint32_t shards = 2)
      : CoordinatorFixture(mode, workers, shards) {
    disk = std::make_shared<FakeDisk>();
  }
};

TEST_CASE("Epochs, incarnations and coordinator incarnations are never used again, over three restarts") {
  const auto mode = GENERATE(kSync, kAsync);
  Restarted f(mode);
  f.train_examples = 8000;
  std::set<uint64_t> epochs, incarnations, coordinators;
  f.Start();
  for (int restarts = 0; restarts < 4; ++restarts) {
    if (restarts > 0) f.Restart();
    for (int i = 0; i < 60; ++i) {
      for (uint32_t rank = 0; rank < 2; ++rank) {
        const auto join = f.Join(rank, 10000 * (restarts + 1) + 100 * rank + i);
        if (!join->there()) continue;  // the first worker waits for the other
        CHECK(incarnations.insert(join->reply().incarnation()).second);
        f.Leave(join->reply(), false, "crashed");
        if (f.ends > 0) break;
      }
      if (f.ends > 0) break;
    }
    coordinators.insert(
        f.shards[1]->Sent(v1::ControlMessage::kHello).back().hello().coordinator_incarnation());
    for (const auto& message : f.shards[1]->Sent(v1::ControlMessage::kMembership)) {
      CHECK(epochs.insert(message.membership().membership().epoch()).second);
      // An epoch is durable before use.
      CHECK(message.membership().membership().epoch() <= f.disk->limits.epoch);
    }
    CHECK(*incarnations.rbegin() <= f.disk->limits.incarnation);
    f.shards[1]->sent.clear();
  }
  CHECK(coordinators == std::set<uint64_t>{1, 2, 3, 4});
  CHECK(epochs.size() > 12);
}

TEST_CASE("Numbers are reserved in blocks, ahead; a disk that is full for a while stops nothing") {
  Restarted f(kAsync, 1);
  f.config.mutable_cluster()->set_min_workers(1);
  f.train_examples = 8000;
  f.StartJob();
  f.Run(absl::Seconds(1), f.members);
  const int reservations = f.disk->reservations;
  CHECK(reservations >= 1);  // the disk's block is smaller than the reserve
  f.Run(absl::Seconds(5), f.members);
  CHECK(f.disk->reservations == reservations);
  f.disk->reserve_status = absl::ResourceExhaustedError("no space left");
  v1::JoinReply member = f.members[0];
  for (uint64_t i = 0; i < 100; ++i) {
    f.shards[0]->Kill();
    f.Run(absl::Seconds(0.5), {member});
  }
  CHECK(f.ends == 0);
  for (uint64_t i = 0; i < 3000 && f.ends == 0; ++i) {
    f.shards[0]->Kill();
    f.Run(absl::Seconds(0.5), {member});
  }
  // No epoch above the durable ones is used.
  CHECK_THAT(f.failure, Contains("epochs") && Contains("no space left") &&
                            Contains("within checkpoint.save_wait_seconds = 60"));
  CHECK(f.failure_kind == v1::FAILURE_RESOURCE);
  CHECK(f.Status().membership().epoch() == f.disk->limits.epoch);
}

TEST_CASE("Who needs numbers for which the disk has no room waits for it, and goes on when it is there") {
  Restarted f(kSync);
  f.StartJob();
  f.disk->reserve_status = absl::ResourceExhaustedError("no space left");
  AnswerPtr<v1::JoinReply> joined;
  for (uint64_t reader = 0; reader < 2000; ++reader) {
    joined = f.JoinReader(9000 + reader);
    if (!joined->there()) break;
    f.Leave(joined->reply());
  }
  REQUIRE_FALSE(joined->there());
  f.Run(absl::Seconds(30), f.members);
  CHECK_FALSE(joined->there());
  CHECK(f.ends == 0);
  f.disk->reserve_status = absl::OkStatus();
  f.Run(absl::Seconds(2), f.members);
  CHECK(joined->there());
}

TEST_CASE("A disk that hangs while numbers are set aside holds up who needs them, and nobody else") {
  Restarted f(kSync);
  f.StartJob();
  f.disk->holds = true;
  for (uint64_t reader = 0; reader < 2000; ++reader) {
    const auto joined = f.JoinReader(9000 + reader);
    if (joined->there()) {
      f.Leave(joined->reply());
      continue;
    }
    f.HeartbeatAll();
    CHECK_THAT(absl::StrJoin(f.Status().waiting_for(), ", "), Contains("epochs to be reserved"));
    f.disk->holds = false;
    f.disk->Answer();
    CHECK(joined->there());
    CHECK_THAT(absl::StrJoin(f.Status().waiting_for(), ", "), !Contains("epochs to be reserved"));
    return;
  }
  FAIL("all numbers were set aside on a disk that hangs");
}

TEST_CASE("sync: a coordinator that comes back brings everybody back to the newest checkpoint") {
  Restarted f(kSync);
  f.train_examples = 8 * 2 * 10;
  f.StartJob();
  f.Steps(4);
  f.Checkpoint()->reply();
  f.Steps(2);
  f.Restart();
  CHECK(f.Status().state() == v1::STARTING);
  // The new coordinator knows no worker, and says that at once.
  const auto beat = f.Heartbeat(f.members[0]);
  CHECK(beat->reply().fenced());
  CHECK_THAT(beat->reply().failure(), Contains("ps:0 was started again"));
  CHECK(f.StartLeave(f.members[0])->status().code() == absl::StatusCode::kAborted);
  const auto join = f.Join(1, 7001);  // one worker is enough
  for (const auto& shard : f.shards) {
    CHECK(shard->LastInstall().restore().step() == 4);
  }
  CHECK(join->reply().total_steps() == 10);
  CHECK(f.Status().state() == v1::RUNNING);
  CHECK(f.Status().step() == 4);
  CHECK(f.Status().checkpoint() == "/runs/7/step-4");
  CHECK(join->reply().membership().epoch() > f.members[0].membership().epoch());
  f.open_step = 4;
  f.Steps(1);
  CHECK(f.Status().step() == 5);
}

TEST_CASE(
    "async: a worker that asks a coordinator that came back for work, before anybody has joined, is fenced") {
  Restarted f(kAsync);
  f.train_examples = 8000;
  f.StartJob();
  f.Restart();
  REQUIRE(f.Status().state() == v1::STARTING);
  CHECK(f.NextRange(f.members[0])->reply().fenced());
}

TEST_CASE("async: shards that lived on keep what they hold; what all hold is not done again") {
  Restarted f(kAsync, 2, 3);
  f.train_examples = 8 * 20;
  f.StartJob();
  f.Checkpoint()->reply();
  *f.shards[0]->holds.mutable_batches() = Batches({{0, 9}});
  *f.shards[1]->holds.mutable_batches() = Batches({{0, 12}, {15, 16}});
  *f.shards[2]->holds.mutable_batches() = Batches({{0, 10}, {11, 20}});
  f.shards[0]->restored_batches = Batches({{0, 5}, {6, 8}, {15, 16}});
  f.Restart();
  const auto join = f.Join(0, 7000);
  CHECK(f.shards[0]->LastInstall().restore().step() == 0);
  CHECK(f.shards[1]->Sent(v1::ControlMessage::kInstall).size() == 1);
  CHECK(f.shards[2]->Sent(v1::ControlMessage::kInstall).size() == 1);
  CHECK(f.Status().state() == v1::RUNNING);
  for (const auto& shard : f.shards) CHECK(shard->Membership().members_size() == 1);
  std::vector<uint64_t> again;
  std::vector<uint64_t> completed;
  for (auto next = f.NextRange(join->reply()); next->reply().has_range();
       next = f.NextRange(join->reply(), completed)) {
    again.push_back(next->reply().range().first_batch());
    CHECK(next->reply().range().batches() == 1);
    completed = {next->reply().range().id()};
  }
  CHECK(again == std::vector<uint64_t>{5, 8, 9, 10, 11, 12, 13, 14, 16, 17, 18, 19});
}

TEST_CASE(
    "async: a shard of another model, of another number of shards, or of an unknown job is installed anew") {
  Restarted f(kAsync, 1, 5);
  f.StartJob();
  f.shards[1]->holds.set_model_hash(1);
  f.shards[2]->holds.set_epoch(1'000'000);
  f.shards[3]->holds.set_num_shards(4);
  f.shards[4]->holds.set_num_shards(5);
  f.Restart();
  f.Join(0, 7000);
  for (const size_t shard : {1, 2, 3}) CHECK(f.shards[shard]->Sent(v1::ControlMessage::kInstall).size() == 2);
  CHECK(f.shards[4]->Sent(v1::ControlMessage::kInstall).size() == 1);
}

TEST_CASE("async: a shard that is lost while a coordinator starts, and one it has kept that is lost later") {
  Restarted f(kAsync, 1, 3);
  f.StartJob();
  f.Restart();
  f.shards[1]->Kill();
  f.Run(absl::Seconds(1));
  f.Join(0, 7000);
  CHECK(f.shards[1]->Sent(v1::ControlMessage::kInstall).size() == 2);
  CHECK(f.shards[2]->Sent(v1::ControlMessage::kInstall).size() == 1);
  f.shards[2]->Break();
  f.Run(absl::Seconds(1));
  CHECK(f.shards[2]->Sent(v1::ControlMessage::kInstall).size() == 1);
  CHECK(f.shards[2]->Membership().epoch() == f.shards[1]->Membership().epoch());
}

TEST_CASE("A job that is taken up after its end has nothing to do, and ends when all have heard it") {
  const auto mode = GENERATE(kSync, kAsync);
  Restarted f(mode);
  f.train_examples = 8 * 2;
  f.StartJob();
  if (mode == kSync) {
    f.Steps(1);
  } else {
    const auto a = f.NextRange(f.members[0]), b = f.NextRange(f.members[1]);
    f.NextRange(f.members[0], {a->reply().range().id()});
    f.NextRange(f.members[1], {b->reply().range().id()});
  }
  f.Leave(f.members[0]);
  f.Leave(f.members[1]);
  REQUIRE(f.ends == 1);
  CHECK(IsEndOf(f.config, *f.disk->newest));
  v1::JobConfig longer = f.config;
  longer.mutable_train()->set_epochs(2);
  CHECK_FALSE(IsEndOf(longer, *f.disk->newest));
  longer.mutable_train()->clear_epochs();
  for (const uint64_t steps : {1, 2}) {
    longer.mutable_train()->set_steps(steps);
    CHECK(IsEndOf(longer, *f.disk->newest) == (steps == 1));
  }
  const int commits = f.disk->commits;
  for (auto& shard : f.shards) {
    shard->holds.Clear();
    if (mode == kAsync) shard->restored_batches = Batches({{0, 2}});
  }
  f.Restart();
  CHECK(f.Join(0, 7000)->status().code() == absl::StatusCode::kOutOfRange);
  CHECK(f.Status().state() == v1::DRAINING);
  f.Run(absl::Seconds(5));
  CHECK(f.ends == 0);
  SECTION("all have come") { CHECK(f.Join(1, 7001)->status().code() == absl::StatusCode::kOutOfRange); }
  SECTION("one never comes") { f.Run(absl::Seconds(6)); }
  f.Run(absl::Seconds(0.25));
  CHECK(f.ends == 1);
  CHECK(f.failure == "");
  CHECK(f.disk->commits == commits);  // the end is saved already
}

TEST_CASE(
    "async: a checkpoint with all batches that does not say so is followed by one that does, before anybody "
    "goes") {
  Restarted f(kAsync);
  f.train_examples = 8 * 2;
  f.StartJob();
  f.Checkpoint()->reply();  // all pushes are applied; no range has been reported
  REQUIRE_FALSE(IsEndOf(f.config, *f.disk->newest));
  for (auto& shard : f.shards) {
    shard->holds.Clear();
    shard->restored_batches = Batches({{0, 2}});
  }
  f.Restart();
  const auto evaluates = f.Join(0, 7000);
  REQUIRE(evaluates->status().ok());
  CHECK(IsEndOf(f.config, *f.disk->newest));
  f.Leave(evaluates->reply());
  CHECK(f.ends == 0);
  for (auto& shard : f.shards) shard->holds.Clear();
  f.Restart();  // no worker comes any more
  CHECK(f.Status().state() == v1::DRAINING);
  f.Run(absl::Seconds(12));
  CHECK(f.ends == 1);
  CHECK(f.failure == "");
}

TEST_CASE("A job that cannot mean the same by its positions does not go on from a checkpoint") {
  Restarted f(kSync);
  f.train_examples = 8 * 2 * 10;
  f.StartJob();
  f.Steps(2);
  f.Checkpoint()->reply();
  const v1::CheckpointManifest from = *f.disk->newest;
  CHECK(CanGoOn(f.config, from).ok());
  const auto refusal = [&](const std::function<void(v1::JobConfig*)>& change) {
    v1::JobConfig config = f.config;
    change(&config);
    return std::string(CanGoOn(config, from).message());
  };
  CHECK_THAT(refusal([](auto* c) { c->set_seed(9); }), Contains("seed is 9, the checkpoint's is 1"));
  CHECK_THAT(refusal([](auto* c) { c->mutable_data()->set_batch_size(16); }),
             Contains("data.batch_size is 16"));
  CHECK_THAT(refusal([](auto* c) { c->mutable_consistency()->set_mode(kAsync); }),
             Contains("consistency.mode"));
  CHECK_THAT(refusal([](auto* c) { c->mutable_consistency()->set_parts(3); }),
             Contains("consistency.parts is 3, the checkpoint's is 2"));
  CHECK(refusal([](auto* c) { c->mutable_train()->set_epochs(50); }) == "");
  v1::CheckpointManifest with_table = from;
  with_table.mutable_job()->mutable_config()->add_tables();
  v1::JobConfig rows_early = with_table.job().config();
  CHECK(CanGoOn(rows_early, with_table).ok());
  rows_early.mutable_consistency()->set_tables(v1::ConsistencyConfig::TABLES_ASYNC);
  CHECK_THAT(std::string(CanGoOn(rows_early, with_table).message()),
             Contains("consistency.tables is async, the checkpoint's is not"));

  // A restart with this config fails, and would again.
  f.config.mutable_data()->set_batch_size(16);
  f.Restart();
  CHECK_THAT(f.failure, Contains("data.batch_size is 16"));
  CHECK(f.failure_kind == v1::FAILURE_CONFIG);
  f.config.mutable_data()->set_batch_size(8);

  // The number of workers differs, but the parts are the same.
  f.workers = 3;
  f.Restart();
  f.model.tensors[0].shape = {41};
  CHECK_THAT(std::string(f.Join(0, 7000)->status().message()), Contains("w"));
  f.model.tensors[0].shape = {40};
  f.train_examples += 1;
  CHECK_THAT(std::string(f.Join(0, 7000)->status().message()), Contains("training set"));
  f.train_examples -= 1;
  const auto join = f.Join(2, 7002);
  CHECK(join->reply().parts() == 2);
  CHECK(join->reply().total_steps() == 10);

  f.config.set_seed(9);
  f.Restart();
  CHECK_THAT(f.failure, Contains("seed is 9"));
}

TEST_CASE("A job that was done says of how many servers those are who come for it now") {
  Restarted f(kSync, 1);
  f.train_examples = 8;
  f.StartJob();
  f.Steps(1);
  f.Leave(f.members[0]);
  REQUIRE(f.disk->newest.has_value());
  // Each server's spec holds only its own address, as with `weir up`.
  f.known_addresses = std::vector<std::string>{f.addresses[0]};
  f.Restart();
  v1::JoinRequest join = f.JoinRequest(0, 7000);
  join.add_ps_addresses("127.0.0.1:7003");
  CHECK(f.Join(join)->status().code() == absl::StatusCode::kOutOfRange);
  CHECK(f.Status().num_shards() == 3);
}

TEST_CASE("After a restart the status knows at once how far the job is, and rates are of what came since") {
  const auto mode = GENERATE(kSync, kAsync);
  Restarted f(mode);
  f.train_examples = 8 * 2 * 1000;
  f.StartJob();
  if (mode == kSync) {
    f.Steps(10);
  } else {
    f.shards[0]->stats.set_pushes_applied(20);
  }
  f.Run(absl::Seconds(10), f.members);
  CHECK(f.Status().step() == 10);
  CHECK(f.Status().examples() == 160);
  REQUIRE(f.Checkpoint()->reply().step() >= 10);
  f.shards[0]->stats.Clear();  // the shard reports nothing until it is asked
  f.shards[0]->answers_pings = false;
  if (mode == kAsync) f.shards[0]->restored_batches = Batches({{0, 20}});
  f.Restart();
  CHECK(f.Status().step() == 10);
  CHECK(f.Status().examples() == 160);
  f.Join(0, 7000);
  f.Join(1, 7001);
  CHECK(f.Status().state() == v1::RUNNING);
  CHECK(f.Status().step() == 10);
  CHECK(f.Status().examples() == 160);
  CHECK(f.Status().examples_per_second() == 0);
  CHECK(f.Status().seconds() == 0);
  f.clock.Advance(absl::Seconds(2));
  if (mode == kSync) {
    f.open_step = 10;
    f.Steps(1);
    CHECK(f.Status().examples() == 176);
    CHECK(f.Status().examples_per_second() == Approx(8));
  }
}

TEST_CASE("The speed is of what a shard has done, at the time at which it says so") {
  CoordinatorFixture f(v1::ConsistencyConfig::MODE_ASYNC);
  f.train_examples = 8 * 2 * 1000;
  f.StartJob();
  f.shards[0]->stats.set_pushes_applied(1);
  f.Run(absl::Milliseconds(500), f.members);
  f.shards[0]->stats.set_pushes_applied(11);
  f.Run(absl::Milliseconds(500), f.members);
  // From the counts of the last ping alone the speed would be 8.
  CHECK(f.Status().examples_per_second() > 60);
}

}  // namespace
}  // namespace weir
