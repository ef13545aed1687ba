// The training loop of a model with embeddings: which rows it reads when, what it computes from them, and the
// gradients of rows that it pushes.
#include <cmath>
#include <set>

#include "common/base/random.h"
#include "tests/worker/trainer_job.h"
#include "worker/gradient_computer.h"
#include "worker/model/model.h"

namespace weir {
namespace {

constexpr uint64_t kBatch = 8, kExamples = 40;
constexpr int64_t kDim = 3;

v1::JobConfig RowConfig(const std::vector<std::string>& overrides) {
  auto config = ParseJobConfig(R"({
    "data": {"format": "csv", "train": {"path": "t"}, "test": {"path": "t"}, "batch_size": 8, "columns": [
      {"name": "y", "type": "label"}, {"name": "x"}, {"name": "user", "type": "key"},
      {"name": "tags", "type": "key", "separator": "|"}]},
    "tables": [{"name": "users", "dim": 3}, {"name": "tags", "dim": 3}],
    "model": {"layers": [
      {"type": "embedding", "name": "u", "table": "users", "column": "user"},
      {"type": "embedding", "name": "t", "table": "tags", "column": "tags", "pooling": "mean"},
      {"type": "embedding", "name": "v", "table": "users", "column": "tags"},
      {"type": "concat", "inputs": ["u", "t", "v", "features"]},
      {"type": "dense", "units": 4}, {"type": "tanh"}, {"type": "dense", "units": 1}],
      "loss": "sigmoid_cross_entropy"},
    "cluster": {"workers": 2}})",
                               "test", overrides);
  INFO(config.status());
  REQUIRE(config.ok());
  return *config;
}

Dataset RowData() {
  RandomStream random(3, 0);
  std::vector<float> x, y;
  KeyColumn users{"user", {}, {}}, tags{"tags", {}, {0}};
  for (uint64_t i = 0; i < kExamples; ++i) {
    x.push_back(UniformFloat(random.Next()));
    y.push_back(static_cast<float>(random.NextBelow(2)));
    users.keys.push_back(random.NextBelow(12));
    for (uint32_t n = random.NextBelow(4); n > 0; --n) tags.keys.push_back(random.NextBelow(6));
    tags.offsets.push_back(static_cast<int64_t>(tags.keys.size()));
  }
  Dataset data({1}, std::move(x), 1, std::move(y));
  data.AddKeys({users, tags});
  return data;
}

float RowValue(uint64_t version, uint32_t table, uint64_t key, int64_t column) {
  return 0.01f * (static_cast<float>(
                      (version * 17 + table * 29 + key * 5 + static_cast<uint64_t>(column) * 11) % 37) -
                  18);
}

void WriteRows(const std::vector<RowsToRead>& rows, uint64_t version) {
  for (const RowsToRead& read : rows) {
    for (size_t i = 0; i < read.values.size(); ++i) {
      read.values[i] = RowValue(version, read.table, read.keys[i / kDim], static_cast<int64_t>(i % kDim));
    }
  }
}

std::deque<Work> WorkOf(const std::vector<uint64_t>& firsts) {
  std::deque<Work> work;
  for (size_t i = 0; i < firsts.size(); ++i) {
    work.push_back({i, 0, firsts[i] / kBatch, firsts[i], kBatch, true, firsts.back() + kBatch - firsts[i]});
  }
  return work;
}

struct RowJob {
  RowJob(const std::vector<std::string>& overrides, std::deque<Work> work, size_t replicas = 1)
      : config(RowConfig(overrides)),
        data(RowData()),
        replicas(*Replicas::On(config, data, OnCpu(replicas)())),
        client(this->replicas->model().spec(), std::move(work)) {
    client.on_pull = [](ScriptedClient::PullCall pull) {
      WriteRows(pull.rows, pull.clock);
      Bring(pull, pull.clock);
    };
  }
  absl::Status Run() {
    DatasetGradients gradients(config, data, replicas.get());
    return Trainer(config, &gradients, &client).Run();
  }

  // Each push had the gradients that one replica computes at once from the weights and rows of its clock.
  void CheckPushes(size_t count) const {
    REQUIRE(client.pushes().size() == count);
    for (const ScriptedClient::PushCall& push : client.pushes()) {
      CAPTURE(push.work.clock, push.work.part);
      CHECK_FALSE(push.gated);
      const auto reference = *Replicas::On(config, data, OnCpu(1)());
      Model& model = reference->model();
      for (size_t t = 0; t < model.spec().tensors.size(); ++t) {
        for (int64_t i = 0; i < model.spec().tensors[t].elements(); ++i) {
          model.weights()[static_cast<size_t>(model.spec().offset(t) + i)] =
              Weight(push.work.clock, t, static_cast<size_t>(i));
        }
      }
      std::vector<int32_t> indexes(push.work.examples);
      ExampleOrder(static_cast<int32_t>(data.size()), config.seed())
          .Fill(static_cast<int64_t>(push.work.first_example), absl::MakeSpan(indexes));
      WorkRows rows;
      rows.tables = RowsFor(model.embeddings(), data, indexes);
      WriteRows(ToRead(&rows.tables), push.work.clock);
      REQUIRE(reference
                  ->ComputeGradient(data, indexes, 1, config.seed(), push.work.batch, Traffic(), {},
                                    &rows.tables, &rows.gradients)
                  .ok());
      std::vector<float> gradient(model.gradients().begin(), model.gradients().end());
      std::vector<absl::Span<float>> pieces = {absl::MakeSpan(gradient)};
      for (std::vector<float>& of_table : rows.gradients) pieces.push_back(absl::MakeSpan(of_table));
      ClipToNorm(config.train().clip_norm(), pieces);
      CHECK_THAT(push.gradient, Catch::Matchers::Approx(gradient).margin(1e-7));
      REQUIRE(push.rows.size() == 2);
      for (size_t t = 0; t < 2; ++t) {
        CHECK(push.rows[t].table == t);
        CHECK(push.rows[t].keys == rows.tables[t].keys);
        CHECK_THAT(push.rows[t].values, Catch::Matchers::Approx(rows.gradients[t]).margin(1e-7));
      }
    }
  }

  const v1::JobConfig config;
  const Dataset data;
  const std::unique_ptr<Replicas> replicas;
  ScriptedClient client;
};

TEST_CASE("Rows come with the weights that they are for, and their gradients leave with the gradient") {
  const size_t replicas = GENERATE(1, 3);
  const std::string micro_batches = GENERATE("train.micro_batches=1", "train.micro_batches=3");
  // One of two workers, which get every other batch; the epoch's end is among them.
  RowJob job({micro_batches}, WorkOf({0, 16, 32, 48}), replicas);
  REQUIRE(job.Run().ok());
  // Before the second batch the distance is not known.
  CHECK(job.client.calls() ==
        Calls{"pull 0", "pushpull 0", "rows 1", "pushpull 1", "pushpull 2", "pushpull 3"});
  job.CheckPushes(4);
}

TEST_CASE("The rows of work that was not expected are read when it comes") {
  RowJob job({"consistency.parts=3"}, {{0, 0, 0, 0, 8, false, 80},
                                       {0, 2, 2, 16, 8, true, 64},
                                       {0, 1, 1, 8, 8, true, 72},  // of a worker that died
                                       {1, 0, 3, 24, 8, true, 56}});
  REQUIRE(job.Run().ok());
  CHECK(job.client.calls() ==
        Calls{"pull 0", "push 0", "rows 0", "pushpull 0", "rows 0", "push 0", "rows 1", "pushpull 1"});
  job.CheckPushes(4);
}

TEST_CASE("With prefetch the rows of the next batch are under way while one is computed") {
  RowJob job({"consistency.mode=bounded", "consistency.staleness=1", "consistency.prefetch=true"},
             WorkOf({0, 8, 16}));
  std::vector<std::set<uint64_t>> asked;
  job.client.on_pull = [&](ScriptedClient::PullCall pull) {
    std::set<uint64_t> keys;
    for (const RowsToRead& read : pull.rows) keys.insert(read.keys.begin(), read.keys.end());
    asked.push_back(keys);
    WriteRows(pull.rows, pull.clock);
    Bring(pull, pull.clock);
  };
  REQUIRE(job.Run().ok());
  CHECK(job.client.calls() == Calls{"pull 0", "pull 1", "push 0", "pull 2", "push 1", "pull 3", "push 2"});
  job.CheckPushes(3);
  REQUIRE(asked.size() == 4);
  CHECK_FALSE(asked[2].empty());
  CHECK(asked[3].empty());  // the job is at its end
}

TEST_CASE("The norm of a gradient is that of tensors and rows together") {
  RowJob job({"train.clip_norm=0.01"}, WorkOf({0, 8}));
  REQUIRE(job.Run().ok());
  job.CheckPushes(2);
  for (const auto& push : job.client.pushes()) {
    double squares = 0;
    for (const float value : push.gradient) squares += double{value} * value;
    for (const auto& rows : push.rows) {
      for (const float value : rows.values) squares += double{value} * value;
    }
    CHECK(std::sqrt(squares) == Approx(0.01));
  }
}

TEST_CASE("A worker whose step is past when it asks for rows goes on with the next") {
  RowJob job({}, WorkOf({0, 16, 24}));
  job.client.on_pull = [](ScriptedClient::PullCall pull) {
    if (pull.tensors.empty() && pull.clock == 1) {
      PullResult past;
      past.past = true;
      return pull.end(past);
    }
    WriteRows(pull.rows, pull.clock);
    Bring(pull, pull.clock);
  };
  REQUIRE(job.Run().ok());
  CHECK(job.client.calls() == Calls{"pull 0", "pushpull 0", "rows 1", "pull 2", "pushpull 2"});
  job.CheckPushes(2);
}

TEST_CASE("An error of a read of rows ends the worker") {
  RowJob job({}, WorkOf({0, 16}));
  job.client.on_pull = [](ScriptedClient::PullCall pull) {
    if (pull.tensors.empty()) return pull.end(absl::AbortedError("fenced"));
    WriteRows(pull.rows, pull.clock);
    Bring(pull, pull.clock);
  };
  CHECK(job.Run() == absl::AbortedError("fenced"));
}

}  // namespace
}  // namespace weir
