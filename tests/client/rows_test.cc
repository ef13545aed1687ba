// Rows of embedding tables in the client's calls: what the shards get, what the caller gets, and what happens
// when something goes wrong on the way.
#include <atomic>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "client/client.h"
#include "common/base/random.h"
#include "common/codec/floats.h"
#include "common/model/key_bucket.h"
#include "common/protocol/exchange_layout.h"
#include "tests/client/client_fixture.h"
#include "tests/client/gate.h"

namespace weir {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using Messages = std::vector<v1::ExchangeReply>;
using RowMap = std::map<std::pair<uint32_t, uint64_t>, std::vector<float>>;

const std::vector<uint32_t> kDims = {3, 8};

std::string Message(const absl::Status& status) { return std::string(status.message()); }

FakeCluster::Options WithTables(FakeCluster::Options options, uint32_t shards = 2) {
  options.dims = kDims;
  options.shards = shards;
  return options;
}

// The batch of one step: keys of both tables, many of them twice or more.
struct Batch {
  explicit Batch(size_t keys, uint64_t seed = 1) {
    RandomStream random(RandomKey(seed, "rows_test"), 0);
    for (size_t table = 0; table < kDims.size(); ++table) {
      for (size_t i = 0; i < keys; ++i) {
        all_keys[table].push_back(random.NextBelow(static_cast<uint32_t>(keys)) *
                                  uint64_t{0x9e3779b97f4a7c15});
      }
      gradients[table].resize(keys * kDims[table]);
      for (float& value : gradients[table]) value = UniformFloat(random.Next());
      read[table].assign(keys * kDims[table], -1);
    }
  }
  std::vector<RowGradients> Gradients() const {
    return {{0, all_keys[0], gradients[0]}, {1, all_keys[1], gradients[1]}};
  }
  std::vector<RowsToRead> ToRead() {
    return {{0, all_keys[0], absl::MakeSpan(read[0])}, {1, all_keys[1], absl::MakeSpan(read[1])}};
  }
  RowMap Sums() const {
    RowMap sums;
    for (uint32_t table = 0; table < kDims.size(); ++table) {
      const size_t dim = kDims[table];
      for (size_t i = 0; i < all_keys[table].size(); ++i) {
        std::vector<float>& sum = sums[{table, all_keys[table][i]}];
        sum.resize(dim);
        for (size_t column = 0; column < dim; ++column) sum[column] += gradients[table][i * dim + column];
      }
    }
    return sums;
  }
  // Whether all rows that were read are those of this version.
  bool RowsAre(uint64_t version, bool rounded = false) const {
    for (uint32_t table = 0; table < kDims.size(); ++table) {
      for (size_t i = 0; i < read[table].size(); ++i) {
        float expected =
            FakeCluster::Row(version, table, all_keys[table][i / kDims[table]], i % kDims[table]);
        if (rounded) {
          char half[2];
          ToBfloat16(&expected, half, 1);
          FromBfloat16(half, &expected, 1);
        }
        if (read[table][i] != expected) return false;
      }
    }
    return true;
  }

  std::vector<uint64_t> all_keys[2];
  std::vector<float> gradients[2], read[2];
};

struct RowsFixture : ClientFixture {
  explicit RowsFixture(const FakeCluster::Options& options) : ClientFixture(options) {
    for (size_t table = 0; table < kDims.size(); ++table) {
      v1::TableConfig& config_of = *config.add_tables();
      config_of.set_name(table == 0 ? "users" : "items");
      config_of.set_dim(kDims[table]);
    }
  }
};

// The rows of all shards' pushes.
RowMap RowsOf(const std::vector<FakeCluster::Push>& pushes, v1::Dtype dtype = v1::F32) {
  RowMap rows;
  bool twice = false;
  for (const FakeCluster::Push& push : pushes) {
    CHECK(push.header.dtype() == dtype);
    const auto layout = RowLayout::OfRequest(
        push.header.rows(), dtype, push.pull.has_value() ? push.pull->rows() : RowLayout::Entries(), kDims);
    REQUIRE(layout.ok());
    REQUIRE(push.rows.size() == layout->bytes());
    for (const RowLayout::Entry& entry : layout->push()) {
      for (uint64_t i = 0; i < entry.keys; ++i) {
        uint64_t key;
        std::memcpy(&key, push.rows.data() + entry.keys_at + i * sizeof(key), sizeof(key));
        std::vector<float>& row = rows[{entry.table, key}];
        twice = twice || !row.empty();
        row.resize(kDims[entry.table]);
        const char* const at = push.rows.data() + entry.values_at + i * entry.row_bytes;
        if (dtype == v1::BF16) {
          FromBfloat16(at, row.data(), row.size());
        } else {
          std::memcpy(row.data(), at, entry.row_bytes);
        }
      }
    }
  }
  CHECK_FALSE(twice);
  return rows;
}

RowMap Rounded(RowMap rows) {
  for (auto& [key, row] : rows) {
    std::string halves(row.size() * 2, '\0');
    ToBfloat16(row.data(), &halves[0], row.size());
    FromBfloat16(halves.data(), row.data(), row.size());
  }
  return rows;
}

TEST_CASE("rows: a push brings each shard its sums, and the next pull the rows in the caller's order") {
  const auto shards = GENERATE(as<uint32_t>(), 1, 2, 3);
  const std::string types = GENERATE("f32", "push bf16", "pull bf16");
  // In the second case the rows take several messages both ways.
  const auto keys = GENERATE(as<size_t>(), 50, 60000);
  RowsFixture f(WithTables(ClientFixture::Small(), shards));
  if (types == "push bf16") f.config.mutable_wire()->set_push_dtype(v1::WireConfig::TYPE_BF16);
  if (types == "pull bf16") f.config.mutable_wire()->set_pull_dtype(v1::WireConfig::TYPE_BF16);
  Batch batch(keys), next(keys, 2);
  auto client = f.Join();
  REQUIRE(client->tables().size() == 2);
  CHECK(client->tables()[1].name == "items");
  CHECK(client->tables()[1].dim == 8);
  const Work work = f.NextWork(*client);
  const auto base = client->Pull(0, f.Weights(), nullptr, batch.ToRead()).Get();
  INFO(base.status());
  REQUIRE(base.ok());
  CHECK(f.WeightsAre(0));
  CHECK(batch.RowsAre(0, types == "pull bf16"));
  const auto both = client
                        ->PushPull(work, *base, f.Gradient(), f.Weights(), nullptr, nullptr,
                                   batch.Gradients(), next.ToRead())
                        .Get();
  INFO(both.status());
  REQUIRE(both.ok());
  CHECK(both->push.applied);
  CHECK(next.RowsAre(1, types == "pull bf16"));
  const std::vector<FakeCluster::Push> pushes = f.cluster.pushes();
  REQUIRE(pushes.size() == shards);
  if (types == "push bf16") {
    CHECK((RowsOf(pushes, v1::BF16) == Rounded(batch.Sums())));
  } else {
    CHECK((RowsOf(pushes) == batch.Sums()));
  }
  for (const FakeCluster::Push& push : pushes) {
    CHECK(push.row_messages == (push.rows.size() + (1 << 20) - 1) / (1 << 20));
    if (types != "push bf16") CHECK((push.gradient == f.GradientOf(push.shard)));
  }
}

TEST_CASE("rows: a shard that has none of the keys gets a push without rows, and is asked for none") {
  RowsFixture f(WithTables(ClientFixture::Small(), 3));
  auto client = f.Join();
  const std::vector<uint64_t> keys = {12, 12};
  const uint32_t owner = ShardOfKey(12, 3);
  const std::vector<float> gradient = {1, 2, 3, 10, 20, 30};
  std::vector<float> read(6);
  const Work work = f.NextWork(*client);
  const PullResult base = f.Pull(*client, 0);
  REQUIRE(client->Push(work, base, f.Gradient(), nullptr, {{0, keys, gradient}}).Get().ok());
  REQUIRE(f.cluster.pushes().size() == 3);
  for (const FakeCluster::Push& push : f.cluster.pushes()) {
    CHECK(push.header.rows_size() == (push.shard == owner));
  }
  CHECK((RowsOf(f.cluster.pushes()) == RowMap{{{0, 12}, {11, 22, 33}}}));
  const auto pull = client->PullRows(1, {{0, keys, absl::MakeSpan(read)}}).Get();
  REQUIRE(pull.ok());
  CHECK(pull->versions == std::vector<uint64_t>{1, 1, 1});
  for (uint32_t shard = 0; shard < 3; ++shard) {
    const v1::PullRequest request = f.cluster.pulls(shard).back();
    CHECK(request.header_only());
    CHECK(request.rows_size() == (shard == owner));
  }
  for (size_t i = 0; i < 6; ++i) CHECK(read[i] == FakeCluster::Row(1, 0, 12, i % 3));
}

TEST_CASE("rows: the next steps' rows may be asked for early, in several calls at once") {
  RowsFixture f(WithTables(ClientFixture::Small()));
  auto client = f.Join();
  const Work work = f.NextWork(*client);
  const PullResult base = f.Pull(*client, 0);
  Batch first(40, 1), second(5000, 2), later(300, 3), batch(100, 4);
  const Future<PullResult> one = client->PullRows(1, first.ToRead());
  const Future<PullResult> two = client->PullRows(1, second.ToRead());
  const Future<PullResult> after = client->PullRows(2, later.ToRead());
  // The servers have the keys before the step is made.
  f.cluster.AwaitPulls(0, 4);
  f.cluster.AwaitPulls(1, 4);
  CHECK_FALSE(one.ready());
  REQUIRE(client->Push(work, base, f.Gradient(), nullptr, batch.Gradients()).Get().ok());
  REQUIRE(one.Get().ok());
  REQUIRE(two.Get().ok());
  CHECK(first.RowsAre(1));
  CHECK(second.RowsAre(1));
  CHECK_FALSE(after.ready());
  const Work next = f.NextWork(*client);
  CHECK(next.clock == 1);
  REQUIRE(client->Push(next, *one.Get(), f.Gradient()).Get().ok());
  REQUIRE(after.Get().ok());
  CHECK(later.RowsAre(2));
  CHECK(f.cluster.streams(0) == 1);
}

TEST_CASE("rows: a pull of a step that is past brings none") {
  RowsFixture f(WithTables(ClientFixture::Small()));
  auto client = f.Join();
  f.cluster.OpenStep(3);
  Batch batch(10);
  const auto pull = client->PullRows(1, batch.ToRead()).Get();
  REQUIRE(pull.ok());
  CHECK(pull->past);
  CHECK(batch.read[0][0] == -1);
  CHECK(f.NextWork(*client).clock == 3);
}

TEST_CASE("rows: a pull in place reads them into the caller's memory") {
  RowsFixture f(WithTables(ClientFixture::Small()));
  auto client = f.Join();
  Batch batch(500);
  ExchangeOrder::Pull pull;
  pull.in_place = true;
  pull.rows = batch.ToRead();
  const auto result = client->Exchange({std::nullopt, pull}).Take();
  REQUIRE(result.ok());
  CHECK(result->weights.tensors() == 2);
  CHECK(batch.RowsAre(0));
}

TEST_CASE("rows: a reader reads them at its pin") {
  RowsFixture f(WithTables(ClientFixture::Small()));
  f.options.reader = true;
  f.options.train_examples = 0;
  auto client = f.Join();
  Batch with(30), alone(30, 2);
  f.cluster.OpenStep(5);
  auto both = client->PullSnapshot(f.Weights(), with.ToRead()).Get();
  REQUIRE(both.ok());
  CHECK(f.WeightsAre(5));
  CHECK(with.RowsAre(5));
  REQUIRE(client->PullSnapshot({}, alone.ToRead()).Get().ok());
  CHECK(alone.RowsAre(5));
  CHECK(f.cluster.pulls(1)[0].pin() != 0);
  CHECK_FALSE(f.cluster.pulls(1)[0].header_only());
  CHECK(f.cluster.pulls(1)[1].header_only());
  CHECK(f.cluster.pins().empty());
  const auto wrong = client->PullSnapshot({}, {{7, {}, {}}}).Get();
  CHECK(Message(wrong.status()) == "rows to read of table 7: the job's config has 2 tables");
}

TEST_CASE("rows: they leave before the gradient is computed") {
  RowsFixture f(WithTables(ClientFixture::Large()));
  Gate rows[2];
  f.cluster.on_rows = [&](uint32_t shard, size_t) {
    rows[shard].Open();
    return std::nullopt;
  };
  auto client = f.Join();
  const Work work = f.NextWork(*client);
  const PullResult base = f.Pull(*client, 0);
  Batch batch(100);
  const auto gate = std::make_shared<GradientGate>();
  const Future<PushResult> push = client->Push(work, base, f.Gradient(), gate, batch.Gradients());
  rows[0].Wait();
  rows[1].Wait();
  CHECK(f.cluster.chunks(0).empty());
  CHECK(f.cluster.chunks(1).empty());
  gate->Ready(1);
  gate->Ready(0);
  REQUIRE(push.Get().ok());
  CHECK((RowsOf(f.cluster.pushes()) == batch.Sums()));
  for (const FakeCluster::Push& sent : f.cluster.pushes()) CHECK((sent.gradient == f.GradientOf(sent.shard)));
}

// ---- again and again

TEST_CASE("rows: what was on a stream that breaks is sent again, from the first key") {
  const bool in_request = GENERATE(true, false);
  FakeCluster::Options options = WithTables(Async(ClientFixture::Small()));
  options.end_streams = true;
  RowsFixture f(options);
  std::atomic<int> breaks{2};
  const auto break_off = [&](uint32_t shard, size_t) -> std::optional<grpc::Status> {
    if (shard == 1 && --breaks >= 0) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "scripted");
    return std::nullopt;
  };
  auto client = f.Join();
  f.cluster.AddRange(1, 0, 5);
  const Work work = f.NextWork(*client);
  const PullResult base = f.Pull(*client, 0);
  Batch batch(100000), next(100000, 2);
  if (in_request) {
    f.cluster.on_rows = break_off;
  } else {
    f.cluster.on_rows_middle = break_off;
  }
  const auto both = client
                        ->PushPull(work, base, f.Gradient(), f.Weights(), nullptr, nullptr, batch.Gradients(),
                                   next.ToRead())
                        .Get();
  INFO(both.status());
  REQUIRE(both.ok());
  CHECK(breaks < 0);
  CHECK(next.RowsAre(1));
  // In the second case the push was answered before the break, and only the pull was sent again.
  CHECK((RowsOf(f.cluster.pushes()) == batch.Sums()));
  CHECK(f.cluster.pushes().size() == 2);
  CHECK(f.cluster.pulled_keys(1).size() == (in_request ? 0 : 2));
  for (const std::string& keys : f.cluster.pulled_keys(1)) {
    const std::vector<FakeCluster::Push> pushes = f.cluster.pushes();
    const FakeCluster::Push& push = pushes[pushes[0].shard == 1 ? 0 : 1];
    CHECK(keys == push.rows.substr(push.rows.size() - keys.size()));
  }
  CHECK(f.cluster.streams(1) == 3);
}

TEST_CASE("rows: a push that was overtaken is sent again with its rows") {
  RowsFixture f(WithTables(Async(ClientFixture::Small())));
  std::atomic<int> answers{0};
  f.cluster.edit_push = [&](uint32_t shard, v1::PushReply* reply) {
    if (shard == 1 && ++answers <= 2) reply->set_outcome(v1::SEND_AGAIN);
  };
  auto client = f.Join();
  f.cluster.AddRange(1, 0, 5);
  const Work work = f.NextWork(*client);
  const PullResult base = f.Pull(*client, 0);
  Batch batch(300), next(300, 2);
  REQUIRE(client
              ->PushPull(work, base, f.Gradient(), f.Weights(), nullptr, nullptr, batch.Gradients(),
                         next.ToRead())
              .Get()
              .ok());
  CHECK(next.RowsAre(1));
  const std::vector<FakeCluster::Push> tries = f.PushesOf(1);
  REQUIRE(tries.size() == 3);
  CHECK(tries[0].rows == tries[1].rows);
  CHECK(tries[0].rows == tries[2].rows);
}

TEST_CASE("rows: when a push comes too late the pull is sent separately, with its keys alone") {
  RowsFixture f(WithTables(ClientFixture::Small()));
  f.cluster.edit_push = [](uint32_t shard, v1::PushReply* reply) {
    if (shard == 0) reply->set_outcome(v1::STEP_PAST);
  };
  auto client = f.Join();
  const Work work = f.NextWork(*client);
  const PullResult base = f.Pull(*client, 0);
  Batch batch(300), next(300, 2);
  const auto both = client
                        ->PushPull(work, base, f.Gradient(), f.Weights(), nullptr, nullptr, batch.Gradients(),
                                   next.ToRead())
                        .Get();
  INFO(both.status());
  REQUIRE(both.ok());
  CHECK_FALSE(both->push.applied);
  CHECK(next.RowsAre(1));
  REQUIRE(f.cluster.pulled_keys(0).size() == 1);
  CHECK(f.cluster.pulled_keys(1).empty());
}

// ---- what is refused

TEST_CASE("rows: what does not fit the job's tables is an error before anything is sent") {
  RowsFixture f(WithTables(ClientFixture::Small()));
  auto client = f.Join();
  const Work work = f.NextWork(*client);
  const PullResult base = f.Pull(*client, 0);
  Batch batch(4);
  std::vector<RowGradients> short_rows = batch.Gradients();
  short_rows[1].values.remove_suffix(1);
  const auto push = client->Push(work, base, f.Gradient(), nullptr, short_rows).Get();
  CHECK(push.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(Message(push.status()) == "gradients of table 'items': 31 values; 4 keys of dim 8 have 32");
  const auto pull = client->PullRows(0, {{2, {}, {}}}).Get();
  CHECK(Message(pull.status()) == "rows to read of table 2: the job's config has 2 tables");
  ExchangeOrder::Pull alone;
  alone.rows = batch.ToRead();
  alone.on_weights = [](size_t) {};
  const auto reported = client->Exchange({std::nullopt, alone}).Get();
  CHECK(reported.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(Message(reported.status()), Contains("takes no on_weights"));
  CHECK(f.cluster.pushes().empty());
  // The same work may be pushed again.
  CHECK(client->Push(work, base, f.Gradient(), nullptr, batch.Gradients()).Get().ok());
}

TEST_CASE("rows: what waited for nobody is no base of a push, or the job's mode would not hold for it") {
  const bool sync = GENERATE(true, false), snapshot = GENERATE(false, true);
  RowsFixture f(WithTables(sync ? ClientFixture::Small() : Async(ClientFixture::Small())));
  v1::ConsistencyConfig& consistency = *f.config.mutable_consistency();
  if (!sync) consistency.set_mode(v1::ConsistencyConfig::MODE_BOUNDED);
  consistency.set_tables(v1::ConsistencyConfig::TABLES_ASYNC);
  if (!sync) f.cluster.AddRange(1, 0, 1);
  auto client = f.Join();
  const Work work = f.NextWork(*client);
  Batch batch(4);
  const auto base =
      snapshot ? client->PullSnapshot(f.Weights()).Get() : client->PullRows(work.clock, batch.ToRead()).Get();
  REQUIRE(base.status() == absl::OkStatus());
  const auto push = client->Push(work, *base, f.Gradient(), nullptr, batch.Gradients()).Get();
  CHECK(push.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(Message(push.status()), Contains("`base` waited for nobody"));
  CHECK(f.cluster.pushes().empty());
  // The same work may be pushed again.
  const PullResult weights = f.Pull(*client, work.clock);
  CHECK(client->Push(work, weights, f.Gradient(), nullptr, batch.Gradients()).Get().ok());
}

TEST_CASE(
    "rows: where rows go with the weights, a pull of rows alone waits as the mode has it, and is a base") {
  RowsFixture f(WithTables(ClientFixture::Small()));
  auto client = f.Join();
  const Work work = f.NextWork(*client);
  Batch batch(4);
  const auto base = client->PullRows(work.clock, batch.ToRead()).Get();
  REQUIRE(base.status() == absl::OkStatus());
  CHECK(client->Push(work, *base, f.Gradient(), nullptr, batch.Gradients()).Get().ok());
}

TEST_CASE("rows: a sum that is not finite is refused by all shards, or ends the client, by name") {
  RowsFixture f(WithTables(GENERATE(ClientFixture::Small(), ClientFixture::Large())));
  const bool reject = GENERATE(true, false), with_pull = GENERATE(false, true), gated = GENERATE(false, true);
  if (reject) f.config.mutable_consistency()->set_on_nonfinite(v1::ConsistencyConfig::ON_NONFINITE_REJECT);
  auto client = f.Join();
  const Work work = f.NextWork(*client);
  const PullResult base = f.Pull(*client, 0);
  Batch batch(200), next(200, 2);
  batch.all_keys[1][120] = 77;
  batch.gradients[1][120 * 8 + 5] = std::numeric_limits<float>::quiet_NaN();
  const std::string found =
      "worker 0 (worker:0): the gradient of table 'items', key 77, column 5 is NaN at clock 0";
  ExchangeOrder order;
  order.push = {work, base, f.Gradient(), gated ? std::make_shared<GradientGate>() : nullptr,
                batch.Gradients()};
  if (with_pull) order.pull = {1, false, f.Weights(), nullptr, next.ToRead()};
  const auto result = client->Exchange(std::move(order)).Take();
  CHECK(f.cluster.chunks(0).empty());
  CHECK(f.cluster.chunks(1).empty());
  if (!reject) {
    CHECK(result.status().code() == absl::StatusCode::kInternal);
    CHECK_THAT(Message(result.status()), StartsWith("training diverged: " + found));
    CHECK(Message(client->NextWork().status()) == Message(result.status()));
    CHECK(f.cluster.pushes().empty());
    return;
  }
  INFO(result.status());
  REQUIRE(result.ok());
  CHECK_FALSE(result->push.applied);
  CHECK_THAT(result->push.reason, Contains(found));
  REQUIRE(f.cluster.pushes().size() == 2);
  for (const FakeCluster::Push& push : f.cluster.pushes()) {
    CHECK(push.header.refused() == found + ", batch 0 (examples 0 to 9 in the job's order)");
    CHECK(push.header.rows().empty());
    // The keys of the pull go along anyway.
    CHECK(push.rows.empty() != with_pull);
  }
}

TEST_CASE("rows: the rows of an answer that do not fit are a broken shard's") {
  struct Case {
    const char* message;
    void (*edit)(Messages*);
  };
  const auto c = GENERATE(values<Case>({
      {"which does not fit", [](Messages* m) { m->front().set_first(12); }},
      {"which does not fit", [](Messages* m) { m->front().mutable_weights()->pop_back(); }},
      {"which does not fit", [](Messages* m) { m->front().mutable_weights()->append(12, 'x'); }},
      {"which does not fit", [](Messages* m) { m->front().mutable_weights()->resize(10); }},
      {"which does not fit", [](Messages* m) { m->front().clear_weights(); }},
      {"which does not fit", [](Messages* m) { m->push_back(m->front()), m->back().clear_pull(); }},
      {"sent rows before it said what they are of", [](Messages* m) { m->front().clear_pull(); }},
      {"sent rows with the outcome JOB_OVER",
       [](Messages* m) { m->front().mutable_pull()->set_outcome(v1::JOB_OVER); }},
      {"sent weights that were not asked for", [](Messages* m) { m->front().clear_rows(); }},
  }));
  RowsFixture f(WithTables(ClientFixture::Small()));
  std::atomic<bool> done{false};
  auto client = f.Join();
  f.Pull(*client, 0);
  f.cluster.edit_messages = [&](uint32_t shard, Messages* messages) {
    if (shard == 1 && messages->front().rows() && !done.exchange(true)) {
      // Two messages' worth: the rest of the rows must not make up for what is wrong.
      v1::ExchangeReply second = messages->front();
      const size_t half = 3 * sizeof(float);
      second.clear_pull();
      second.set_first(half);
      second.mutable_weights()->erase(0, half);
      messages->front().mutable_weights()->resize(half);
      messages->push_back(second);
      Messages edited = {messages->front()};
      c.edit(&edited);
      edited.push_back(second);
      *messages = edited;
    }
  };
  Batch batch(100);
  const auto pull = client->PullRows(0, batch.ToRead()).Get();
  INFO(c.message);
  CHECK(pull.status().code() == absl::StatusCode::kInternal);
  CHECK_THAT(Message(pull.status()),
             StartsWith("ps:1 at " + f.cluster.addresses()[1] + ": ") && Contains(c.message));
  // The client goes on.
  REQUIRE(client->PullRows(0, batch.ToRead()).Get().ok());
  CHECK(batch.RowsAre(0));
}

TEST_CASE("rows: a shard that sends rows nobody asked for is broken") {
  RowsFixture f(WithTables(ClientFixture::Small()));
  auto client = f.Join();
  f.cluster.edit_messages = [](uint32_t shard, Messages* messages) {
    if (shard == 1) messages->front().set_rows(true);
  };
  const auto pull = client->Pull(0, f.Weights()).Get();
  CHECK(pull.status().code() == absl::StatusCode::kInternal);
  CHECK_THAT(Message(pull.status()), Contains("sent rows that were not asked for"));
}

}  // namespace
}  // namespace weir
