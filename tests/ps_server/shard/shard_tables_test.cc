// A shard with embedding tables: what pushes and commits do to rows, and what pulls and pins read.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/random.h"
#include "common/config/optimizer_slots.h"
#include "common/model/key_bucket.h"
#include "common/model/table_digest.h"
#include "common/optimizer/kernels.h"
#include "tests/ps_server/shard/shard_fixture.h"
#include "tests/ps_server/table/reference_table.h"

namespace weir {
namespace {

using Mode = v1::ConsistencyConfig;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Two tables: "users" has 2 columns, SGD at rate 1 and initial values of 5; "items" has 3, row-wise Adagrad.
struct TablesFixture : ShardFixture {
  explicit TablesFixture(Mode::Mode mode, uint32_t staleness = 0) : ShardFixture(mode, staleness) {
    AddUsers();
    v1::TableConfig& items = *config.add_tables();
    items.set_name("items");
    items.set_dim(3);
  }
  // A row of "users" at the newest version, read through a worker's pull or a pin.
  std::vector<float> User(uint64_t key, uint64_t pin = 0) {
    v1::PullRequest request;
    *request.mutable_caller() = CallerOf(0);
    request.set_header_only(true);
    request.set_pin(pin == 0 ? ++last_pin : pin);
    if (pin == 0) Pin(last_pin, 1);
    const PullAnswerPtr answer = PullRows(request, {{0, {key}, {}}});
    if (pin == 0) Unpin(last_pin);
    REQUIRE(answer->reply().rows != nullptr);
    CHECK(answer->reply().version == nullptr);  // header_only
    const float* const values = answer->reply().rows->values.get();
    return {values, values + 2};
  }
  void Unpin(uint64_t pin) {
    v1::ControlMessage message;
    message.mutable_unpin()->set_pin(pin);
    Control(message);
  }
  Table::Stats Users() {
    shard->Tick();
    shard->Quiesce();
    const std::vector<Table::Stats> stats = shard->table_stats();
    REQUIRE(stats.size() == 2);
    return stats[0];
  }
  uint64_t last_pin = 5000;
};

const std::vector<float> kInitial = {5, 5};

TEST_CASE("A push on arrival changes its rows and the dense weights in one version") {
  const v1::ServerConfig::Apply apply =
      GENERATE(v1::ServerConfig::APPLY_STREAMED, v1::ServerConfig::APPLY_STAGED);
  TablesFixture f(Mode::MODE_ASYNC);
  f.config.mutable_server()->set_apply(apply);
  f.Start();
  CHECK(f.User(7) == kInitial);
  CHECK(f.Users().rows == 0);
  const auto reply = f.PushRows({0, 0}, {{0, {7, 9}, {1, 2, 3, 4}}, {1, {1}, {1, 1, 1}}});
  CHECK(reply->reply().outcome() == v1::OK);
  CHECK(reply->reply().version().count() == 1);
  CHECK(f.Weights() == All(1));
  CHECK(f.User(7) == std::vector<float>{4, 3});
  CHECK(f.User(9) == std::vector<float>{2, 1});
  CHECK(f.User(8) == kInitial);
  CHECK(f.Users().rows == 2);
  CHECK(f.shard->counters().bytes_pushed == 40 * 4 + 2 * (8 + 2 * 4) + 8 + 3 * 4);

  SECTION("and a repeat changes nothing") {
    CHECK(f.PushRows({0, 0}, {{0, {7, 9}, {1, 2, 3, 4}}})->reply().outcome() == v1::OK);
    CHECK(f.shard->counters().pushes_repeated == 1);
    CHECK(f.User(7) == std::vector<float>{4, 3});
  }
}

TEST_CASE("A worker's pull reads rows of the version of its weights, once the mode lets it") {
  TablesFixture f(Mode::MODE_BOUNDED, 0);
  f.Start();
  REQUIRE(f.PushRows({0, 0}, {{0, {7}, {1, 1}}})->reply().outcome() == v1::OK);
  v1::PullRequest request;
  *request.mutable_caller() = f.CallerOf(0);
  request.set_clock(1);
  const PullAnswerPtr answer = f.PullRows(request, {{0, {7, 8}, {}}, {1, {3}, {}}});
  CHECK_FALSE(answer->there());
  REQUIRE(f.PushRows({1, 0}, {{0, {7}, {10, 10}}})->reply().outcome() == v1::OK);
  REQUIRE(answer->there());
  CHECK(answer->reply().header.version().count() == 2);
  REQUIRE(answer->reply().version != nullptr);
  CHECK(answer->reply().version->weights.get()[0] == 2);
  const float* const rows = answer->reply().rows->values.get();
  CHECK(std::vector<float>(rows, rows + 4) == std::vector<float>{-6, -6, 5, 5});
  CHECK(f.shard->counters().bytes_pulled == (40 + 2 * 2 + 3) * 4);
}

TEST_CASE("A row with a NaN refuses the whole push, by table, key and column") {
  TablesFixture f(Mode::MODE_ASYNC);
  f.Start();
  const bool in_row = GENERATE(true, false);
  TestPush push{0, 0};
  if (!in_row) push.bad_element = 3;
  const auto reply = f.PushRows(push, {{0, {6, 7}, {1, 1, 1, in_row ? kNaN : 1}}});
  CHECK(reply->reply().outcome() == v1::REFUSED);
  CHECK_THAT(reply->reply().reason(),
             Catch::Contains(in_row ? "the gradient of table 0, key 7, column 1 is NaN"
                                    : "the gradient of w[3] is NaN"));
  CHECK(f.Weights() == All(0));
  CHECK(f.User(6) == kInitial);
  CHECK(f.Users().rows == 0);
  CHECK(f.PushRows({0, 1}, {{0, {6}, {1, 1}}})->reply().version().count() == 1);
  CHECK(f.User(6) == std::vector<float>{4, 4});
}

TEST_CASE("A push whose keys are of another shard is malformed and leaves no trace") {
  TablesFixture f(Mode::MODE_ASYNC);
  f.install.set_num_shards(2);
  f.Start();
  uint64_t mine = 1, other = 1;
  while (BucketOfHash(HashKey(mine)) % 2 != 0) ++mine;
  while (BucketOfHash(HashKey(other)) % 2 != 1) ++other;
  for (const auto& [key, status] :
       {std::pair(mine, absl::StatusCode::kOk), std::pair(other, absl::StatusCode::kInvalidArgument)}) {
    std::unique_ptr<PushArrival> arrival = f.Begin({0, 0});
    CHECK(arrival->SetRows(RowsOf({{0, {key}, {1, 1}}})).code() == status);
  }
  v1::PullRequest request;
  *request.mutable_caller() = f.CallerOf(0);
  CHECK(absl::IsInvalidArgument(f.PullRows(request, {{0, {other}, {}}})->status()));
  CHECK(f.Users().rows == 0);
  CHECK(f.shard->counters().version == 0);
}

TEST_CASE("Of an overtaken push neither the dense values nor the rows count") {
  TablesFixture f(Mode::MODE_ASYNC);
  f.Start();
  std::unique_ptr<PushArrival> slow = f.Begin({0, 0});
  REQUIRE(slow->streamed());
  REQUIRE(f.PushRows({1, 0}, {{0, {7}, {1, 1}}})->reply().outcome() == v1::OK);
  REQUIRE(slow->SetRows(RowsOf({{0, {7}, {1, 1}}})).ok());
  CHECK(f.Finish(std::move(slow))->reply().reply.outcome() == v1::SEND_AGAIN);
  CHECK(f.User(7) == std::vector<float>{4, 4});
  CHECK(f.PushRows({0, 0}, {{0, {7}, {1, 1}}})->reply().outcome() == v1::OK);
  CHECK(f.User(7) == std::vector<float>{3, 3});
}

TEST_CASE("A push without rows counts a version in every table") {
  TablesFixture f(Mode::MODE_ASYNC);
  f.config.mutable_tables(0)->set_expire_after_steps(2);
  f.Start();
  REQUIRE(f.PushRows({0, 0}, {{0, {7}, {1, 1}}})->reply().outcome() == v1::OK);
  CHECK(f.Users().rows == 1);
  for (uint64_t clock = 1; clock < 5; ++clock) {
    REQUIRE(f.Push({0, clock})->reply().outcome() == v1::OK);
    f.shard->Quiesce();
  }
  CHECK(f.Users().rows == 0);
  CHECK(f.Users().expired == 1);
}

TEST_CASE("A pin reads rows as they were, until it is released, its lease ends or a reinstall drops it") {
  TablesFixture f(Mode::MODE_ASYNC);
  f.Start();
  REQUIRE(f.PushRows({0, 0}, {{0, {7}, {1, 1}}})->reply().outcome() == v1::OK);
  f.Pin(1, 10);
  REQUIRE(f.PushRows({0, 1}, {{0, {7, 8}, {1, 1, 1, 1}}})->reply().outcome() == v1::OK);
  CHECK(f.User(7, 1) == std::vector<float>{4, 4});
  CHECK(f.User(8, 1) == kInitial);
  CHECK(f.User(7) == std::vector<float>{3, 3});
  CHECK(f.Users().former_bytes > 0);
  SECTION("released") { f.Unpin(1); }
  SECTION("its lease ends") { f.clock.Advance(absl::Seconds(11)); }
  SECTION("reinstalled") { REQUIRE(f.Install() == ""); }
  CHECK(f.Users().former_bytes == 0);
  v1::PullRequest request;
  *request.mutable_caller() = f.CallerOf(0);
  request.set_pin(1);
  CHECK(absl::IsFailedPrecondition(f.PullRows(request, {{0, {7}, {}}})->status()));
}

// The digests that the shard sends after a ping that asks for them.
std::vector<std::string> Digests(TablesFixture& f, uint64_t ping) {
  v1::ControlMessage message;
  message.mutable_ping()->set_sequence(ping);
  message.mutable_ping()->set_with_table_digests(true);
  f.Control(message);
  // Each table takes some 16 turns, and each of these calls waits for at least one turn.
  for (int turn = 0; turn < 100; ++turn) f.shard->Quiesce();
  const std::vector<v1::ShardReport> reports = f.Reports(v1::ShardReport::kStats);
  REQUIRE(reports.size() == 2);
  CHECK(reports[0].stats().table_digests().empty());
  const v1::ShardStats& stats = reports[1].stats();
  CHECK(stats.sequence() == ping);
  return {stats.table_digests().begin(), stats.table_digests().end()};
}

TEST_CASE("A ping at the job's end is answered with the digests of the tables' newest version") {
  TablesFixture f(Mode::MODE_ASYNC);
  f.Start();
  TableDigest none;
  CHECK(Digests(f, 1) == std::vector<std::string>(2, none.Finish()));
  REQUIRE(f.PushRows({0, 0}, {{0, {7, 9}, {1, 2, 3, 4}}})->reply().outcome() == v1::OK);
  // Digests of an earlier version do not count.
  CHECK(f.Stats().table_digests().empty());
  TableDigest users;
  users.AddRow(7, {4, 3});
  users.AddRow(9, {2, 1});
  const std::vector<std::string> digests = Digests(f, 6);
  CHECK(digests == std::vector<std::string>{users.Finish(), none.Finish()});
  CHECK(f.Stats().table_digests_size() == 2);
  REQUIRE(f.PushRows({0, 1}, {{0, {7}, {1, 1}}, {1, {1}, {1, 1, 1}}})->reply().outcome() == v1::OK);
  const std::vector<std::string> later = Digests(f, 7);
  REQUIRE(later.size() == 2);
  CHECK(later[0] != digests[0]);
  CHECK(later[1] != digests[1]);
  REQUIRE(f.Install() == "");
  CHECK(f.Stats().table_digests().empty());
}

TEST_CASE("When readers hold too many old versions, the rows of the one that is written off go, too") {
  TablesFixture f(Mode::MODE_ASYNC);
  f.Start();
  for (uint64_t pin = 1; pin <= 4; ++pin) {
    f.Pin(pin, 100);
    REQUIRE(f.PushRows({0, pin - 1}, {{0, {7}, {1, 1}}})->reply().outcome() == v1::OK);
  }
  f.Users();  // ticks
  v1::PullRequest request;
  *request.mutable_caller() = f.CallerOf(0);
  request.set_pin(1);
  CHECK(absl::IsFailedPrecondition(f.PullRows(request, {{0, {7}, {}}})->status()));
  CHECK(f.User(7, 4) == std::vector<float>{2, 2});
}

bool SameBits(const float* a, const std::vector<float>& b) {
  return std::memcmp(a, b.data(), b.size() * sizeof(float)) == 0;
}

TEST_CASE("sync: a step is one update with its parts in their order, as in a serial loop, bit for bit") {
  constexpr uint32_t kParts = 3;
  constexpr uint64_t kSteps = 6;
  TablesFixture f(Mode::MODE_SYNC);
  f.install.set_parts(kParts);
  f.install.set_total_batches(kParts * kSteps);
  f.install.set_total_examples(kParts * kSteps * 8 - 5);  // the last part has fewer
  v1::TableOptimizer& adam = *f.config.mutable_tables(0)->mutable_optimizer();
  adam.set_type(v1::TableOptimizer::KIND_ADAMW);
  adam.set_learning_rate(0.25);
  adam.set_weight_decay(0.125);
  adam.mutable_schedule()->set_type(v1::ScheduleConfig::SCHEDULE_STEP);
  adam.mutable_schedule()->set_step_size(2);
  adam.mutable_schedule()->set_gamma(0.5);
  f.config.mutable_tables(0)->mutable_init()->set_type(v1::TableInit::KIND_NORMAL);
  f.config.mutable_tables(1)->set_admit_after(1);
  f.Start();

  std::vector<ReferenceTable> references;
  for (int t = 0; t < 2; ++t) {
    Table::Options options;
    options.name = f.config.tables(t).name();
    options.dim = f.config.tables(t).dim();
    options.init = {Initializer::Kind::kNormal, t == 0 ? 5 : 0.01f};
    options.optimizer = f.config.tables(t).optimizer();
    if (t == 0) options.optimizer.set_type(v1::TableOptimizer::KIND_ADAM);  // of which AdamW is another name
    options.admit_after = t == 0 ? 0 : 1;
    references.emplace_back(options);
  }

  RandomStream random(RandomKey(1, "shard_tables_test"), 0);
  for (uint64_t step = 0; step < kSteps; ++step) {
    std::vector<std::vector<TestRows>> parts;
    for (uint32_t part = 0; part < kParts; ++part) {
      std::vector<TestRows>& rows = parts.emplace_back();
      for (uint32_t t = 0; t < 2; ++t) {
        TestRows of{t, {}, {}};
        for (uint64_t key = 0; key < 20; ++key) {
          if (random.NextBelow(3) == 0) of.keys.push_back(key * 0x123456789);
        }
        for (size_t i = 0; i < of.keys.size() * f.config.tables(static_cast<int>(t)).dim(); ++i) {
          of.values.push_back(2 * UniformFloat(random.Next()) - 1);
        }
        if (!of.keys.empty() && random.NextBelow(4) > 0) rows.push_back(std::move(of));
      }
    }
    // A part that is refused is in no shard's commit.
    const bool refused = step == 3;
    if (refused) parts[1] = {{0, {4, 9}, {1, 1, kNaN, 1}}};
    for (const uint32_t part : {2u, 0u, 1u}) f.PushRows({part % 2, step, part}, parts[part]);
    const auto staged = f.Reports(v1::ShardReport::kStaged);
    REQUIRE(staged.size() == 1);
    CHECK(staged[0].staged().refused_parts_size() == (refused ? 1 : 0));
    std::vector<uint32_t> committed = {0, 1, 2};
    if (refused) committed = {0, 2};
    f.Commit(step, committed);

    for (uint32_t t = 0; t < 2; ++t) {
      std::vector<Table::Part> update;
      for (const uint32_t part : committed) {
        const bool last = step == kSteps - 1 && part == kParts - 1;
        Table::Part& of = update.emplace_back(Table::Part{{}, nullptr, last ? 3.0 : 8.0});
        for (const TestRows& rows : parts[part]) {
          if (rows.table != t) continue;
          of.keys = rows.keys;
          of.gradients = rows.values.data();
        }
      }
      references[t].Update(update, t == 0 ? 0.25 * std::pow(0.5, step / 2) : 0.01f);
    }
    CHECK(f.Weights()[0] == static_cast<float>(step + 1));
    std::vector<uint64_t> keys;
    for (uint64_t key = 0; key < 20; ++key) keys.push_back(key * 0x123456789);
    v1::PullRequest request;
    *request.mutable_caller() = f.CallerOf(1);
    request.set_clock(step + 1);
    const PullAnswerPtr answer = f.PullRows(request, {{0, keys, {}}, {1, keys, {}}});
    const float* values = answer->reply().rows->values.get();
    for (const ReferenceTable& reference : references) {
      for (const uint64_t key : keys) {
        INFO("step " << step << ", key " << key);
        const std::vector<float> row = reference.Read(reference.state(), key);
        CHECK(SameBits(values, row));
        values += row.size();
      }
    }
  }
}

TEST_CASE("sync: what a commit leaves out is not applied, and a commit of nothing counts") {
  TablesFixture f(Mode::MODE_SYNC);
  f.Start();
  f.PushRows({0, 0, 0}, {{0, {7}, {kNaN, 1}}});
  f.PushRows({1, 0, 1}, {{0, {7}, {1, kNaN}}});
  f.Commit(0, {});
  CHECK(f.User(7) == kInitial);
  f.PushRows({0, 1, 0}, {{0, {7}, {2, 4}}});
  f.PushRows({1, 1, 1}, {});
  CHECK(f.User(7) == kInitial);  // staged
  f.Commit(1, {0, 1});
  CHECK(f.User(7) == std::vector<float>{4, 3});  // the mean over both parts
}

TEST_CASE("Rows whose optimizer refuses the learning rate fail the shard, not the process") {
  struct {
    v1::ConsistencyConfig::Mode mode;
    bool early;
  } const cases[] = {{v1::ConsistencyConfig::MODE_SYNC, false},
                     {v1::ConsistencyConfig::MODE_SYNC, true},
                     {v1::ConsistencyConfig::MODE_ASYNC, false}};
  for (const auto& of : cases) {
    CAPTURE(of.mode, of.early);
    ShardFixture f(of.mode);
    f.AddUsers();
    if (of.early) f.config.mutable_consistency()->set_tables(v1::ConsistencyConfig::TABLES_ASYNC);
    v1::TableOptimizer& optimizer = *f.config.mutable_tables(0)->mutable_optimizer();
    optimizer.set_type(v1::TableOptimizer::KIND_FTRL);
    // In float32 the first rate is 0, by which ftrl would divide.
    optimizer.set_learning_rate(1e-37f);
    optimizer.mutable_schedule()->set_warmup_steps(1'000'000'000'000);
    f.Start();
    const bool sync = of.mode == v1::ConsistencyConfig::MODE_SYNC;
    const auto push = f.PushRows({0}, {{0, {3}, {1, 1}}});
    if (sync && !of.early) {
      f.PushRows({1, 0, 1}, {{0, {4}, {1, 1}}});
      f.Commit(0, {0, 1});
      f.Settle();
    }
    const auto failed = f.Reports(v1::ShardReport::kFailed);
    REQUIRE(failed.size() == 1);
    CHECK_THAT(failed[0].failed().error(), Catch::Contains("table 'users': the learning rate is 0"));
    CHECK(failed[0].failed().kind() == v1::FAILURE_CONFIG);
    REQUIRE(push->there());
    CHECK(push->reply().outcome() == v1::JOB_OVER);
    CHECK(push->reply().failure_kind() == v1::FAILURE_CONFIG);
  }
}

TEST_CASE("An upload of initial values has no rows") {
  TablesFixture f(Mode::MODE_ASYNC);
  f.Start();
  v1::PushRequest header = f.Header({0, 0});
  header.set_initial_values(true);
  header.add_rows()->set_keys(1);
  const auto begin = f.TryBegin(header);
  CHECK(begin->status().message() == "rows: not with initial values; those of rows are the servers' own");
}

TEST_CASE("The values of a row are those that its optimizer has") {
  for (int type = v1::TableOptimizer::Kind_MIN + 1; type <= v1::TableOptimizer::Kind_MAX; ++type) {
    TablesFixture f(Mode::MODE_ASYNC);
    f.config.mutable_tables(0)->mutable_optimizer()->set_type(static_cast<v1::TableOptimizer::Kind>(type));
    ShardTables::Options options;
    options.tables = f.config.tables();
    options.kernels = &BestKernels();
    options.threads = &f.threads;
    const auto tables = *ShardTables::Create(options);
    const PushedRows rows = RowsOf({{0, {7}, {1, 1}}});
    const WeightedRows part{&rows, 1};
    REQUIRE(tables->Update(absl::MakeConstSpan(&part, 1)).ok());
    const uint32_t bucket = BucketOfHash(HashKey(7));
    std::vector<Table::Row> found;
    REQUIRE(tables->table(0).RowsAt(1, bucket, found).ok());
    REQUIRE(found.size() == 1);
    INFO("type " << type);
    CHECK(found[0].words.size() == TableRowValues(f.config.tables(0)));
  }
}

TEST_CASE("Tools are told what a shard has of a key, and how its tables are") {
  TablesFixture f(Mode::MODE_ASYNC);
  f.install.set_num_shards(2);
  f.config.mutable_tables(0)->set_admit_after(1);
  std::vector<uint64_t> mine, others;
  for (uint64_t key = 1; mine.size() < 3 || others.empty(); ++key) {
    (ShardOfKey(key, 2) == 0 ? mine : others).push_back(key);
  }
  v1::ReadRowsRequest request;
  request.set_table("users");
  for (int i = 0; i < 3; ++i) request.add_keys(mine[static_cast<size_t>(i)]);
  const auto ask = [&] {
    absl::StatusOr<v1::ReadRowsReply> reply;
    f.shard->ShowRows(request, [&](absl::StatusOr<v1::ReadRowsReply> answer) { reply = std::move(answer); });
    f.shard->Quiesce();
    return reply;
  };
  f.Create();
  CHECK(absl::IsUnavailable(ask().status()));
  f.Start();
  REQUIRE(f.PushRows({0, 0}, {{0, {mine[0], mine[1]}, {1, 2, 3, 4}}})->reply().outcome() == v1::OK);
  REQUIRE(f.PushRows({0, 1}, {{0, {mine[0]}, {1, 2}}, {1, {mine[0]}, {1, 1, 1}}})->reply().outcome() ==
          v1::OK);
  auto reply = ask();
  REQUIRE(reply.ok());
  REQUIRE(reply->rows_size() == 3);
  CHECK(reply->rows(0).ShortDebugString() ==
        "key: " + std::to_string(mine[0]) + " exists: true version: 2 updated: 2 values: 4 values: 3");
  CHECK(reply->rows(1).ShortDebugString() ==
        "key: " + std::to_string(mine[1]) + " version: 2 updated: 1 pushes_counted: 1 values: 5 values: 5");
  CHECK(reply->rows(2).ShortDebugString() ==
        "key: " + std::to_string(mine[2]) + " version: 2 values: 5 values: 5");

  request.set_table("items");
  request.set_slots(true);
  reply = ask();
  REQUIRE(reply.ok());
  REQUIRE(reply->rows(0).slots_size() == 1);
  CHECK(reply->rows(0).slots(0).ShortDebugString() == "name: \"accumulator\" values: 1");
  CHECK(reply->rows(1).slots_size() == 0);

  const v1::ShardStats stats = f.Stats();
  REQUIRE(stats.tables_size() == 2);
  CHECK(stats.tables(0).rows() == 1);
  CHECK(stats.tables(0).keys_counted() == 1);
  CHECK(stats.tables(0).admitted() == 1);
  CHECK(stats.tables(0).bytes() > 0);
  CHECK(stats.tables(1).rows() == 1);

  request.add_keys(others[0]);
  CHECK(absl::IsInvalidArgument(ask().status()));
  request.clear_keys();
  for (int i = 0; i < 1001; ++i) request.add_keys(mine[0]);
  CHECK_THAT(std::string(ask().status().message()),
             Catch::Contains("keys: got 1001; of table 'items' at most 1000"));
  request.set_table("user");
  CHECK(absl::IsNotFound(ask().status()));
  CHECK_THAT(std::string(ask().status().message()), Catch::Contains("has no 'user'; it has users, items"));
}

}  // namespace
}  // namespace weir
