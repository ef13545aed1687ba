// consistency.tables "async": rows that take effect before the step of their part is committed, once each,
// although calls are repeated and shards are restarted and restored.
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/model/key_bucket.h"
#include "ps_server/shard/staged_parts.h"
#include "tests/ps_server/shard/push_whole.h"
#include "tests/ps_server/shard/shard_fixture.h"

namespace weir {
namespace {

using Mode = v1::ConsistencyConfig;

constexpr uint64_t kKeys = 40;

// ---- EarlyRows

// The shard's share of all keys, each with a gradient that names the key.
PushedRows RowsOfShard(uint32_t shard, uint32_t shards) {
  TestRows rows;
  for (uint64_t key = 0; key < kKeys; ++key) {
    if (ShardOfKey(key, shards) != shard) continue;
    rows.keys.push_back(key);
    rows.values.insert(rows.values.end(), {static_cast<float>(key), 0.5f});
  }
  return RowsOf({rows});
}

std::vector<uint64_t> Taken(EarlyRows& early, uint32_t part, uint32_t shard, uint32_t shards) {
  PushedRows rows = RowsOfShard(shard, shards);
  if (!early.Take(part, rows)) return {};
  const PushedRows::OfTable& of = rows.tables[0];
  for (size_t i = 0; i < of.keys.count; ++i) {
    CHECK(of.gradients[2 * i] == static_cast<float>(of.keys.keys[i]));
    CHECK(of.gradients[2 * i + 1] == 0.5f);
  }
  return {of.keys.keys.get(), of.keys.keys.get() + of.keys.count};
}

TEST_CASE("EarlyRows: a part that comes again has no rows left, until its step is committed") {
  EarlyRows early;
  early.Begin(0, 1, {});
  CHECK(Taken(early, 1, 0, 1).size() == kKeys);
  PushedRows again = RowsOfShard(0, 1);
  CHECK_FALSE(early.Take(1, again));
  CHECK(Taken(early, 0, 0, 1).size() == kKeys);
  CHECK(early.taken() == 2);
  early.Commit();
  CHECK(early.taken() == 0);
  CHECK(Taken(early, 1, 0, 1).size() == kKeys);
}

TEST_CASE("EarlyRows: what shards of any numbers had of a part is known to those after them") {
  // Shard 0 of 2 has had part 3, then shard 2 of 3; the checkpoints are of the same step.
  v1::ShardState state;
  EarlyRows first;
  first.Begin(0, 2, {});
  Taken(first, 3, 0, 2);
  first.Save(state);
  EarlyRows second;
  second.Begin(2, 3, state);
  CHECK(second.taken() == 0);
  for (const uint64_t key : Taken(second, 3, 2, 3)) CHECK(ShardOfKey(key, 2) == 1);
  state.Clear();
  second.Save(state);
  EarlyRows third;
  third.Begin(0, 1, state);
  std::vector<uint64_t> expected;
  for (uint64_t key = 0; key < kKeys; ++key) {
    if (ShardOfKey(key, 2) == 1 && ShardOfKey(key, 3) != 2) expected.push_back(key);
  }
  REQUIRE(!expected.empty());
  CHECK(Taken(third, 3, 0, 1) == expected);
  CHECK(Taken(third, 2, 0, 1).size() == kKeys);
}

// ---- shards

// One table, "counts", of one column: SGD at rate 1 from 0. A push of -1 adds one, so a row counts pushes.
// Pushes of different values show which of them a row has.
struct Job : ShardFixture {
  explicit Job(Mode::Mode mode = Mode::MODE_SYNC, uint32_t staleness = 0) : ShardFixture(mode, staleness) {
    config.mutable_consistency()->set_tables(Mode::TABLES_ASYNC);
    v1::TableConfig& counts = *config.add_tables();
    counts.set_name("counts");
    counts.set_dim(1);
    counts.mutable_init()->set_type(v1::TableInit::KIND_CONSTANT);
    counts.mutable_init()->set_value(0);
    counts.mutable_optimizer()->set_type(v1::TableOptimizer::KIND_SGD);
    counts.mutable_optimizer()->set_learning_rate(1);
  }
  TestRows Keys() const {
    TestRows rows;
    for (uint64_t key = 0; key < kKeys; ++key) {
      if (ShardOfKey(key, install.num_shards()) == install.shard()) rows.keys.push_back(key);
    }
    return rows;
  }
  // Adds `value` to all rows of the shard.
  PushReplyPtr Add(float value, const TestPush& push) {
    TestRows rows = Keys();
    rows.values.assign(rows.keys.size(), -value);
    return PushRows(push, {rows});
  }
  // The push of Add(), whole, before the shard gets it.
  std::unique_ptr<PushArrival> Arriving(float value, const TestPush& push) {
    TestRows rows = Keys();
    rows.values.assign(rows.keys.size(), -value);
    v1::PushRequest header = Header(push);
    header.add_rows()->set_keys(rows.keys.size());
    std::unique_ptr<PushArrival> arrival = ArrivalOf(TryBegin(header));
    const std::vector<float> gradient(static_cast<size_t>(shard->elements()), 1.0f);
    REQUIRE(TakeAll(*arrival, gradient).ok());
    REQUIRE(arrival->SetRows(RowsOf({rows})).ok());
    return arrival;
  }
  // A pull of rows alone.
  PullAnswerPtr Alone(uint64_t clock, const std::vector<TestRows>& rows, uint64_t pin = 0) {
    v1::PullRequest request;
    *request.mutable_caller() = CallerOf(1);
    request.set_header_only(true);
    request.set_rows_alone(true);
    request.set_clock(clock);
    request.set_pin(pin);
    return PullRows(request, rows);
  }
  float Row(uint64_t clock = 0, uint64_t pin = 0) {
    const PullAnswerPtr answer = Alone(clock, {{0, {Keys().keys[0]}, {}}}, pin);
    REQUIRE(answer->there());
    REQUIRE(answer->reply().header.outcome() == v1::OK);
    return answer->reply().rows->values.get()[0];
  }
  std::map<uint64_t, float> All() {
    const TestRows keys = Keys();
    const PullAnswerPtr answer = Alone(0, {keys});
    std::map<uint64_t, float> all;
    for (size_t i = 0; i < keys.keys.size(); ++i) {
      all[keys.keys[i]] = answer->reply().rows->values.get()[i];
    }
    return all;
  }
  uint64_t TableVersion(uint64_t pin = 0) {
    return Alone(0, {{0, {Keys().keys[0]}, {}}}, pin)->reply().header.table_version();
  }
};

TEST_CASE("sync: a part's rows take effect as it arrives, once, and its dense values with the step") {
  Job f;
  f.Start();
  // Rows alone wait for no step, also if the shard has none of them.
  CHECK(f.Row(3) == 0);
  CHECK(f.Alone(3, {})->reply().header.outcome() == v1::OK);
  const auto first = f.Add(1, {0, 0, 0});
  CHECK(f.Row() == 1);
  CHECK_FALSE(first->there());
  CHECK(f.Weights() == All(0));
  f.Pin(1, 60);

  // A pull with weights waits, and has the newest rows then.
  v1::PullRequest request;
  *request.mutable_caller() = f.CallerOf(1);
  request.set_clock(1);
  const PullAnswerPtr step = f.PullRows(request, {{0, {f.Keys().keys[0]}, {}}});
  CHECK_FALSE(step->there());

  // Repeats wait for the commit, too: a repeat of the first worker, and one of its next incarnation.
  CHECK_FALSE(f.TryBegin(f.Header({0, 0, 0}))->there());
  f.Members(2, {{0, 200}, {1}});
  CHECK_FALSE(f.TryBegin(f.Header({0, 0, 0, 200, 2}))->there());
  CHECK(f.Row() == 1);
  // Both workers compute part 1.
  auto arriving = f.Arriving(100, {1, 0, 1}), again = f.Arriving(1000, {0, 0, 1, 200, 2});
  f.Finish(std::move(arriving));
  f.Finish(std::move(again));
  CHECK(f.Row() == 101);
  f.Commit(0, {0, 1});
  CHECK(f.Row() == 101);
  CHECK(f.Weights() == All(1));
  REQUIRE(step->there());
  CHECK(step->reply().header.version().count() == 1);
  CHECK(step->reply().header.table_version() == 2);
  CHECK(step->reply().rows->values.get()[0] == 101);

  // A repeat of a part of a past step, and a pull of rows alone at that step.
  f.Add(1, {1, 0, 1});
  CHECK(f.Row(0) == 101);
  // A pin has the rows of the moment when it was made.
  CHECK(f.Row(0, 1) == 1);
  CHECK(f.TableVersion(1) == 1);
}

TEST_CASE("sync: early rows of a part that is refused, or that comes late, do not count here") {
  Job f;
  f.config.mutable_consistency()->set_backup_workers(1);
  f.config.mutable_tables(0)->mutable_optimizer()->mutable_schedule()->set_type(
      v1::ScheduleConfig::SCHEDULE_STEP);
  f.config.mutable_tables(0)->mutable_optimizer()->mutable_schedule()->set_step_size(3);
  f.config.mutable_tables(0)->mutable_optimizer()->mutable_schedule()->set_gamma(0.5);
  f.Start();
  // A value of a row is not finite, then a dense value.
  f.Add(std::numeric_limits<float>::quiet_NaN(), {0, 0, 0});
  CHECK(f.Row() == 0);
  f.Add(1, {1, 0, 1});
  f.Commit(0, {1});
  CHECK(f.Row() == 1);
  TestPush bad{0, 1, 0};
  bad.bad_element = 3;
  f.Add(1, bad);
  CHECK(f.Row() == 1);
  f.Add(1, {1, 1, 1});
  f.Commit(1, {1});
  CHECK(f.Row() == 2);
  // The part comes late.
  f.Add(1, {1, 2, 1});
  f.Commit(2, {1});
  CHECK(f.Add(1, {0, 2, 0})->reply().outcome() == v1::REFUSED);
  CHECK(f.Row() == 3);
  // The part comes in time and is left out anyway: its rows stay. By then there have been three steps, in
  // which the tables count each part. So from now on the rate is half.
  CHECK(f.TableVersion() == 6);
  f.Add(1, {0, 3, 0});
  f.Add(1, {1, 3, 1});
  f.Commit(3, {1});
  CHECK(f.Row() == 4);
  CHECK(f.TableVersion() == 8);
}

TEST_CASE("bounded: the bound holds for weights, and rows alone wait for nobody") {
  Job f(Mode::MODE_BOUNDED);
  f.Start();
  REQUIRE(f.Add(1, {0, 0})->reply().outcome() == v1::OK);
  CHECK_FALSE(f.Pull(0, 1)->there());
  CHECK(f.Row(1) == 1);
  CHECK(f.TableVersion() == 1);
}

TEST_CASE("sync: a part waits while a checkpoint keeps as many former rows as there is memory for") {
  constexpr size_t kDim = 4096;
  const auto make = [] {
    auto f = std::make_unique<Job>();
    f->config.mutable_tables(0)->set_dim(kDim);
    return f;
  };
  const auto push = [](Job& f, const TestPush& of) {
    TestRows rows;
    for (uint64_t key = 0; key < 500; ++key) rows.keys.push_back(key);
    rows.values.assign(500 * kDim, -1);
    return f.PushRows(of, {rows});
  };
  const auto step0 = [&](Job& f) {
    f.Start();
    push(f, {0, 0, 0});
    push(f, {1, 0, 1});
    f.Commit(0, {0, 1});
    f.shard->Tick();
    f.Settle();
    f.hold_background = true;
    f.TakeCheckpoint(1);
    push(f, {0, 1, 0});
  };
  const auto measured = make();
  step0(*measured);
  measured->shard->Tick();
  measured->Settle();
  const Table::Stats stats = measured->shard->table_stats()[0];
  measured->background.front()();
  REQUIRE(stats.former_bytes > 0);

  const auto f = make();
  f->memory_bytes = stats.bytes + stats.former_bytes / 2;
  step0(*f);
  CHECK(f->Row() == 3);
  push(*f, {1, 1, 1});
  CHECK(f->Row() == 3);
  CHECK(f->Reports(v1::ShardReport::kStaged).size() == 1);  // the report of step 0
  const v1::ShardStats waits = f->Stats();
  REQUIRE(waits.waits_size() == 2);
  CHECK_THAT(waits.waits(0).reason() + waits.waits(1).reason(), Catch::Contains("memory of rows: "));
  f->hold_background = false;
  f->background.front()();
  f->Settle();
  f->Written();
  CHECK(f->Row() == 4);
  f->Commit(1, {0, 1});
  CHECK(f->shard->counters().version == 2);
}

// ---- restores

using Jobs = std::vector<std::unique_ptr<Job>>;

std::vector<ShardFixture*> AsShards(const Jobs& jobs) {
  std::vector<ShardFixture*> shards;
  for (const auto& job : jobs) shards.push_back(job.get());
  return shards;
}

// Shards of a job, which begin, or continue from the checkpoint of `from`.
Jobs Begin(uint32_t shards, const v1::Restore* restore, const Jobs* from) {
  Jobs jobs;
  for (uint32_t shard = 0; shard < shards; ++shard) {
    jobs.push_back(std::make_unique<Job>());
    Job& job = *jobs.back();
    job.files = from != nullptr ? (*from)[0]->files : jobs[0]->files;
    job.install.set_shard(shard);
    job.install.set_num_shards(shards);
    job.Create();
    REQUIRE(job.Install(restore) == "");
    job.Members(1, {{0}, {1}});
  }
  return jobs;
}

// Each shard writes the checkpoint that it has frozen.
v1::Restore Save(const Jobs& jobs, uint64_t step, const std::function<void()>& meanwhile) {
  for (const auto& job : jobs) {
    v1::ControlMessage message;
    message.mutable_freeze()->set_step(step);
    job->Control(message);
  }
  meanwhile();
  for (const auto& job : jobs) {
    // Files of tables are written beside the shard's own thread.
    job->hold_background = true;
    job->TakeCheckpoint(step, /*begin=*/job == jobs[0]);
    job->hold_background = false;
    for (; !job->background.empty(); job->background.pop_front()) job->background.front()();
    job->Settle();
  }
  return ShardFixture::Complete(step, AsShards(jobs));
}

void CheckAll(const Jobs& jobs, float expected) {
  size_t keys = 0;
  for (const auto& job : jobs) {
    for (const auto& [key, count] : job->All()) {
      INFO("key " << key);
      CHECK(count == expected);
      ++keys;
    }
  }
  CHECK(keys == kKeys);
}

TEST_CASE("sync: the rows of a part that is in a checkpoint before its step is do not count again") {
  const uint32_t then = GENERATE(1, 2, 3);
  CAPTURE(then);
  const Jobs jobs = Begin(2, nullptr, nullptr);
  for (const auto& job : jobs) {
    for (uint32_t part : {0, 1}) job->Add(1, {part, 0, part});
    job->Commit(0, {0, 1});
  }
  // In step 1 one shard has part 0, and the other part 1.
  jobs[0]->Add(10, {0, 1, 0});
  jobs[1]->Add(100, {1, 1, 1});
  const v1::Restore restore = Save(jobs, 1, [&] {
    // These parts are not in the checkpoint. Their values differ, since a part is computed again from
    // different rows.
    jobs[0]->Add(1000, {1, 1, 1});
    jobs[1]->Add(1000, {0, 1, 0});
  });

  const Jobs second = Begin(then, &restore, &jobs);
  for (const auto& job : second) {
    CHECK(job->shard->counters().version == 1);
    for (uint32_t part : {0, 1}) job->Add(part == 0 ? 10.0f : 100.0f, {part, 1, part});
    job->Commit(1, {0, 1});
  }
  CheckAll(second, 1 + 1 + 10 + 100);

  // Once more, from all of these shards to three.
  for (const auto& job : second) job->Add(1, {0, 2, 0});
  const v1::Restore again = Save(second, 2, [] {});
  const Jobs third = Begin(3, &again, &second);
  CheckAll(third, 1 + 1 + 10 + 100 + 1);
  for (const auto& job : third) {
    for (uint32_t part : {0, 1}) job->Add(1, {part, 2, part});
    job->Commit(2, {0, 1});
    CHECK(job->shard->counters().version == 3);
  }
  CheckAll(third, 1 + 1 + 10 + 100 + 1 + 1);
  if (then != 2) return;
  // On as many shards the tables count as if nothing had happened.
  for (const auto& job : second) CHECK(job->TableVersion() == 5);
}

TEST_CASE("bounded: after a restore from the log each push counts once in rows and weights") {
  Job f(Mode::MODE_BOUNDED, 5);
  f.config.mutable_server()->set_durability(v1::ServerConfig::DURABILITY_LOG);
  REQUIRE(f.files->MakeFolder(ShardFixture::kCheckpoints).ok());
  REQUIRE(f.files->SyncFolder("/").ok());
  f.Start();
  f.Add(1, {0, 0});
  f.Add(10, {1, 0});
  CHECK(f.Row() == 11);
  Job next(Mode::MODE_BOUNDED, 5);
  next.config = f.config;
  next.files = f.files;
  next.Start();
  CHECK(next.Row() == 11);
  CHECK(next.Weights() == All(2));
  CHECK(next.TableVersion() == 2);
  next.Add(1, {0, 0});
  CHECK(next.Row() == 11);
  next.Add(100, {0, 1});
  CHECK(next.Row() == 111);
}

}  // namespace
}  // namespace weir
