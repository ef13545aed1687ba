// The memory of a server that rows may take beside its tables: the rows of a step's parts, and former rows.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/protocol/limits.h"
#include "tests/ps_server/shard/shard_fixture.h"

namespace weir {
namespace {

using Catch::Contains;
using Mode = v1::ConsistencyConfig;

constexpr uint64_t kMiB = 1 << 20;
constexpr size_t kDim = 4096;  // 16 KiB

// One table of long rows: SGD at rate 1 and initial values of 0.
struct LongRows : ShardFixture {
  explicit LongRows(Mode::Mode mode) : ShardFixture(mode) {
    config.mutable_server()->set_apply(v1::ServerConfig::APPLY_STAGED);
    v1::TableConfig& table = *config.add_tables();
    table.set_name("long");
    table.set_dim(kDim);
    table.mutable_init()->set_type(v1::TableInit::KIND_CONSTANT);
    table.mutable_init()->set_value(0);
    table.mutable_optimizer()->set_type(v1::TableOptimizer::KIND_SGD);
    table.mutable_optimizer()->set_learning_rate(1);
  }
  v1::PushRequest HeaderOf(const TestPush& push, uint64_t rows) {
    v1::PushRequest header = Header(push);
    header.add_rows()->set_keys(rows);
    return header;
  }
  // A gradient of ones for the keys [0, rows).
  PushReplyPtr PushLong(const TestPush& push, uint64_t rows) {
    TestRows of;
    for (uint64_t key = 0; key < rows; ++key) of.keys.push_back(key);
    of.values.assign(rows * kDim, 1);
    return PushRows(push, {of});
  }
  Table::Stats Stats() {
    shard->Tick();
    Settle();
    return shard->table_stats()[0];
  }
  // The first value of key 0, under a pin.
  absl::StatusOr<float> ReadUnder(uint64_t pin) {
    v1::PullRequest request;
    *request.mutable_caller() = CallerOf(0);
    request.set_header_only(true);
    request.set_pin(pin);
    const PullAnswerPtr answer = PullRows(request, {{0, {0}, {}}});
    if (!answer->status().ok()) return answer->status();
    return answer->reply().rows->values.get()[0];
  }
  void Freeze(uint64_t step) {
    v1::ControlMessage message;
    message.mutable_freeze()->set_step(step);
    Control(message);
  }
  // Runs the background work that was held, and the work that follows from it.
  void RunBackground() {
    Settle();
    while (!background.empty()) {
      const auto work = std::move(background.front());
      background.pop_front();
      work();
      Settle();
    }
  }
  std::string Wait() {
    const v1::ShardStats stats = ShardFixture::Stats();
    return stats.waits().empty() ? "" : stats.waits(0).reason();
  }
};

// ---- the parts of a step

// No key is admitted, so the table stays small: 16 MiB of rows fit into a step, but 32 do not.
struct Parts : LongRows {
  Parts() : LongRows(Mode::MODE_SYNC) {
    config.mutable_tables(0)->set_admit_after(1000000);
    memory_bytes = 32 * kMiB;
  }
};

TEST_CASE("sync: the rows of a step's parts together have a limit") {
  Parts f;
  f.Start();
  const auto first = f.PushLong({0, 0, 0}, 1000);
  CHECK_FALSE(first->there());
  const absl::Status refused = f.TryBegin(f.HeaderOf({1, 0, 1}, 1000))->status();
  CHECK(absl::IsResourceExhausted(refused));
  CHECK(LimitOf(refused) == Limit::kRowBytes);
  CHECK_THAT(std::string(refused.message()),
             Contains("the rows of step 0 take 31.3 MiB with those of part 1. ") &&
                 Contains(" are left for them: its machine has 32.0 MiB, of which the model takes "));
  // A part that fits completes the step, whose rows then make room for the rows of the next step.
  const auto second = f.PushLong({1, 0, 1}, 100);
  f.Commit(0, {0, 1});
  CHECK(first->reply().outcome() == v1::OK);
  CHECK(second->reply().outcome() == v1::OK);
  f.PushLong({0, 1, 0}, 1000);
  const auto third = f.PushLong({1, 1, 1}, 100);
  f.Commit(1, {0, 1});
  CHECK(third->reply().version().count() == 2);
}

TEST_CASE("sync: rows that are arriving count, each part's once, until they come no more") {
  Parts f;
  f.Start();
  std::unique_ptr<PushArrival> arriving = f.ArrivalOf(f.TryBegin(f.HeaderOf({0, 0, 0}, 1000)));
  CHECK(absl::IsResourceExhausted(f.TryBegin(f.HeaderOf({1, 0, 1}, 1000))->status()));
  f.ArrivalOf(f.TryBegin(f.HeaderOf({1, 0, 0}, 1000)));
  arriving = nullptr;
  f.ArrivalOf(f.TryBegin(f.HeaderOf({1, 0, 1}, 1000)));
}

TEST_CASE("sync: the limit of rows is the config's, and without one there is none") {
  Parts f;
  f.memory_bytes = 0;
  const bool limited = GENERATE(true, false);
  if (limited) f.config.mutable_server()->set_memory_limit_mib(32);
  f.Start();
  f.PushLong({0, 0, 0}, 1000);
  const absl::Status status = f.TryBegin(f.HeaderOf({1, 0, 1}, 1000))->status();
  CHECK(absl::IsResourceExhausted(status) == limited);
  if (limited) CHECK_THAT(std::string(status.message()), Contains("server.memory_limit_mib allows 32.0 MiB"));
}

// ---- former rows

constexpr uint64_t kRows = 500;

// The memory of the table with kRows rows, and of these rows as former rows.
Table::Stats Measure() {
  LongRows f(Mode::MODE_ASYNC);
  f.Start();
  f.PushLong({0, 0}, kRows);
  f.Pin(1, 60);
  f.PushLong({0, 1}, kRows);
  return f.Stats();
}

// A limit that leaves, beside the table, half of the memory that kRows former rows need.
uint64_t TooLittle() {
  const Table::Stats stats = Measure();
  REQUIRE(stats.former_bytes > kRows * kDim * sizeof(float));
  return stats.bytes + stats.former_bytes / 2;
}

TEST_CASE("Former rows that readers' pins keep end the pins, the oldest first, when they take too much") {
  LongRows f(Mode::MODE_ASYNC);
  f.memory_bytes = TooLittle();
  f.Start();
  f.PushLong({0, 0}, kRows);
  f.Stats();
  f.Pin(1, 60);
  CHECK(f.PushLong({0, 1}, kRows)->reply().version().count() == 2);
  f.Pin(2, 60);
  CHECK(*f.ReadUnder(1) == -1);
  // The memory is full, but no update waits for a reader.
  CHECK(f.PushLong({0, 2}, 1)->reply().version().count() == 3);
  CHECK(absl::IsFailedPrecondition(f.ReadUnder(1).status()));
  CHECK(*f.ReadUnder(2) == -2);
}

TEST_CASE("Former rows that a checkpoint keeps make updates wait for it when they take too much") {
  const bool sync = GENERATE(false, true);
  CAPTURE(sync);
  LongRows f(sync ? Mode::MODE_SYNC : Mode::MODE_ASYNC);
  f.memory_bytes = TooLittle() + (sync ? kRows * kDim * sizeof(float) : 0);
  f.install.set_parts(1);
  f.Start();
  const auto push = [&](uint64_t clock, uint64_t rows) {
    const auto answer = f.PushLong({0, clock}, rows);
    if (sync) f.Commit(clock, {0});
    f.Stats();
    return answer;
  };
  push(0, kRows);
  f.hold_background = true;
  f.TakeCheckpoint(1);
  CHECK(push(1, kRows)->reply().outcome() == v1::OK);
  const auto waits = push(2, sync ? kRows : 1);
  CHECK_FALSE(waits->there());
  CHECK(f.shard->counters().version == 2);
  CHECK_THAT(f.Wait(), Contains("memory of rows: ") &&
                           Contains(" of former rows are kept for a checkpoint that is being written. "));
  f.hold_background = false;
  REQUIRE(f.background.size() == 1);
  f.background.front()();
  f.Settle();
  f.Written();
  CHECK(waits->reply().outcome() == v1::OK);
  CHECK(f.shard->counters().version == 3);
}

TEST_CASE("No reader's pin ends where a checkpoint keeps the former rows anyway") {
  LongRows f(Mode::MODE_ASYNC);
  f.memory_bytes = TooLittle();
  f.Start();
  f.PushLong({0, 0}, kRows);
  f.Stats();
  f.Pin(1, 60);
  f.PushLong({0, 1}, 1);
  f.hold_background = true;
  f.TakeCheckpoint(2);
  f.Pin(2, 60);
  CHECK(f.PushLong({0, 2}, kRows)->reply().outcome() == v1::OK);
  f.Pin(3, 60);
  const auto waits = f.PushLong({0, 3}, 1);
  CHECK_FALSE(waits->there());
  // The first pin kept rows for itself.
  CHECK(absl::IsFailedPrecondition(f.ReadUnder(1).status()));
  CHECK(*f.ReadUnder(2) == -2);
  CHECK(*f.ReadUnder(3) == -3);
  f.hold_background = false;
  f.RunBackground();
  f.Written();
  CHECK(waits->reply().outcome() == v1::OK);
  CHECK(absl::IsFailedPrecondition(f.ReadUnder(2).status()));
  CHECK(*f.ReadUnder(3) == -3);
}

TEST_CASE(
    "Former rows that a checkpoint keeps make no push wait that is in the log, for which it would wait") {
  LongRows f(Mode::MODE_ASYNC);
  f.config.mutable_server()->set_durability(v1::ServerConfig::DURABILITY_LOG);
  f.memory_bytes = TooLittle();
  REQUIRE(f.files->MakeFolder(ShardFixture::kCheckpoints).ok());
  f.Start();
  f.PushLong({0, 0}, kRows);
  f.Stats();
  f.Reports(v1::ShardReport::kMembership);
  f.hold_background = true;
  f.Freeze(1);
  const auto fits = f.PushLong({0, 1}, kRows);
  // Both pushes are on their way to the disk before the former rows of the first are known.
  const auto decided = f.PushLong({1, 0}, 1);
  f.RunBackground();
  CHECK(fits->reply().outcome() == v1::OK);
  CHECK(decided->reply().outcome() == v1::OK);
  f.Stats();
  const auto waits = f.PushLong({0, 2}, 1);
  f.RunBackground();
  CHECK_FALSE(waits->there());
  CHECK_THAT(f.Wait(), Contains("memory of rows: ") &&
                           Contains(" of former rows are kept for a checkpoint that is being written. "));
  // Other messages of the coordinator do not wait, either.
  f.Members(2, {{0}, {1}});
  f.RunBackground();
  CHECK(f.Reports(v1::ShardReport::kMembership).size() == 1);
  f.TakeCheckpoint(1);
  f.RunBackground();
  f.Written();
  CHECK(waits->reply().version().count() == 4);
  // The next checkpoint is given up before it is written.
  f.Freeze(4);
  f.PushLong({0, 3}, kRows);
  f.RunBackground();
  f.Stats();
  const auto last = f.PushLong({0, 4}, 1);
  CHECK_FALSE(last->there());
  v1::ControlMessage release;
  release.mutable_freeze()->set_release(true);
  f.Control(release);
  f.shard->Tick();
  f.RunBackground();
  CHECK(last->reply().version().count() == 6);
}

}  // namespace
}  // namespace weir
