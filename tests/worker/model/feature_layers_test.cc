// Layers of sparse features, and graphs of layers: gradients of tensors and rows against finite differences
// of a model that is written down once more, in float64 and example by example.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/base/random.h"
#include "common/base/statistics.h"
#include "google/protobuf/text_format.h"
#include "tests/worker/compute/queued_backend.h"
#include "worker/model/model.h"

namespace weir {
namespace {

using v1::LayerConfig;
using Doubles = std::vector<double>;

// Three numbers and three columns of keys an example; the columns "user" and "item" may share a table.
constexpr int64_t kNumbers = 3, kExamples = 6;

ModelInputs Inputs() {
  ModelInputs inputs({kNumbers});
  inputs.columns = {"user", "item", "tags"};
  for (const auto& [name, dim] : {std::pair("wide", 4), std::pair("narrow", 3)}) {
    v1::TableConfig& table = inputs.tables.emplace_back();
    table.set_name(name);
    table.set_dim(static_cast<uint32_t>(dim));
  }
  return inputs;
}

// Keys that repeat within a batch, an example, and between columns; the last column has several or no keys.
Dataset Examples(bool binary) {
  RandomStream random(9, 0);
  std::vector<float> numbers, targets;
  for (int64_t i = 0; i < kExamples * kNumbers; ++i) numbers.push_back(2 * UniformFloat(random.Next()) - 1);
  for (int64_t i = 0; i < kExamples; ++i) {
    targets.push_back(binary ? static_cast<float>(i % 2) : 2 * UniformFloat(random.Next()) - 1);
  }
  Dataset data({kNumbers}, std::move(numbers), 1, std::move(targets));
  data.AddKeys({{"user", {7, 8, 7, 9, 8, 7}, {}},
                {"item", {8, 8, 1, 2, 3, 1}, {}},
                {"tags", {5, 6, 5, 5, 1, 6, 4}, {0, 2, 2, 4, 5, 6, 7}}});
  return data;
}

Batch Gather(const Dataset& data, int64_t first, int64_t n) {
  std::vector<int32_t> indexes;
  for (int64_t i = first; i < first + n; ++i) indexes.push_back(static_cast<int32_t>(i));
  Batch batch;
  data.Gather(indexes, &batch);
  return batch;
}

// One example's loss; weights are the model's tensors end to end, rows those of each table by key.
class Reference {
 public:
  using Rows = std::vector<std::map<uint64_t, Doubles>>;
  Reference(const v1::ModelConfig& config, const ModelInputs& inputs) : config_(config), inputs_(inputs) {}

  double Loss(const Batch& batch, const Doubles& weights, const Rows& rows) const {
    double total = 0;
    for (size_t i = 0; i < static_cast<size_t>(batch.n); ++i)
      total += Example(batch, i, weights.data(), rows);
    return total;
  }

 private:
  static void AddProduct(const Doubles& x, const double* w, Doubles* y) {
    for (size_t u = 0; u < y->size(); ++u) {
      (*y)[u] += w[x.size() * y->size() + u];
      for (size_t j = 0; j < x.size(); ++j) (*y)[u] += x[j] * w[j * y->size() + u];
    }
  }

  double Example(const Batch& batch, size_t i, const double* w, const Rows& rows) const {
    std::map<std::string, Doubles> values;
    std::map<std::string, std::string> crossed;  // of a cross layer: x_0
    const auto numbers = batch.features.begin() + static_cast<std::ptrdiff_t>(i) * kNumbers;
    values["features"] = Doubles(numbers, numbers + kNumbers);
    std::string before = "features";
    for (const LayerConfig& layer : config_.layers()) {
      std::vector<std::string> from(layer.inputs().begin(), layer.inputs().end());
      if (from.empty()) from = {before};
      const Doubles x = values.at(from[0]);
      Doubles y;
      if (layer.type() == LayerConfig::LAYER_EMBEDDING) {
        const size_t c =
            static_cast<size_t>(std::find(inputs_.columns.begin(), inputs_.columns.end(), layer.column()) -
                                inputs_.columns.begin());
        const size_t t = layer.table() == "wide" ? 0 : 1;
        y.resize(inputs_.tables[t].dim());
        const size_t begin = batch.keys[c].begin(i), end = batch.keys[c].end(i);
        for (size_t k = begin; k < end; ++k) {
          for (size_t d = 0; d < y.size(); ++d) {
            const double part = rows[t].at(batch.keys[c].keys[k])[d];
            y[d] +=
                layer.pooling() == LayerConfig::POOLING_MEAN ? part / static_cast<double>(end - begin) : part;
          }
        }
      } else if (layer.type() == LayerConfig::LAYER_CONCAT) {
        for (const std::string& name : from)
          y.insert(y.end(), values.at(name).begin(), values.at(name).end());
      } else if (layer.type() == LayerConfig::LAYER_CROSS) {
        const std::string first = crossed.count(from[0]) > 0 ? crossed[from[0]] : from[0];
        crossed[layer.name()] = first;
        y.resize(x.size());
        AddProduct(x, w, &y);
        w += x.size() * (x.size() + 1);
        for (size_t j = 0; j < x.size(); ++j) y[j] = values.at(first)[j] * y[j] + x[j];
      } else if (layer.type() == LayerConfig::LAYER_FACTORIZATION_MACHINE) {
        y = {*w++};
        for (size_t a = 0; a < from.size(); ++a) {
          y[0] += values.at(from[a])[0];
          for (size_t b = a + 1; b < from.size(); ++b) {
            for (size_t d = 1; d < x.size(); ++d) y[0] += values.at(from[a])[d] * values.at(from[b])[d];
          }
        }
      } else if (layer.type() == LayerConfig::LAYER_DENSE) {
        y.resize(layer.units());
        AddProduct(x, w, &y);
        w += (x.size() + 1) * y.size();
      } else if (layer.type() == LayerConfig::LAYER_TANH) {
        for (const double v : x) y.push_back(std::tanh(v));
      } else {
        y = x;  // flatten
      }
      before = layer.name();
      values[before] = y;
    }
    const double z = values[before][0], target = batch.targets[i];
    if (config_.loss() == v1::ModelConfig::LOSS_MEAN_SQUARED_ERROR) return (z - target) * (z - target);
    return std::log1p(std::exp(target == 1 ? -z : z));
  }

  const v1::ModelConfig& config_;
  const ModelInputs& inputs_;
};

v1::ModelConfig Parse(const std::string& text) {
  v1::ModelConfig config;
  REQUIRE(google::protobuf::TextFormat::ParseFromString(text, &config));
  return config;
}

void CheckGradients(const std::string& text) {
  INFO(text);
  const v1::ModelConfig config = Parse(text);
  const Dataset data = Examples(config.loss() == v1::ModelConfig::LOSS_SIGMOID_CROSS_ENTROPY);
  const ModelInputs inputs = Inputs();
  const auto backend = *MakeComputeBackend({"cpu"});
  auto made = Model::Create(config, inputs, 1, kExamples, backend.get());
  REQUIRE(made.ok());
  Model& model = **made;
  RandomStream random(4, 0);
  const auto value = [&] { return UniformFloat(random.Next()) - 0.5f; };
  std::generate(model.weights().begin(), model.weights().end(), value);
  std::vector<TableRows> rows = RowsForAll(model.embeddings(), data);
  RowGradientValues gradients;
  Reference::Rows reference_rows(2);
  for (TableRows& table : rows) {
    std::generate(table.values.begin(), table.values.end(), value);
    gradients.emplace_back(table.values.size());
    for (size_t i = 0; i < table.keys.size(); ++i) {
      const float* const row = table.values.data() + i * static_cast<size_t>(table.dim);
      reference_rows[table.table][table.keys[i]] = Doubles(row, row + table.dim);
    }
  }
  model.BindRows(&rows, &gradients);
  // Two micro-batches, whose gradients add up.
  const Batch all = Gather(data, 0, kExamples), first = Gather(data, 0, 4), second = Gather(data, 4, 2);
  double loss = 0;
  for (const Batch* batch : {&first, &second}) loss += *model.ForwardBackward(*batch, 7, {});

  Doubles weights(model.weights().begin(), model.weights().end());
  const Reference reference(config, inputs);
  CHECK(loss == Approx(reference.Loss(all, weights, reference_rows)).epsilon(1e-5));
  const auto slope = [&](double* at) {
    constexpr double kStep = 1e-6;
    const double middle = *at;
    *at = middle + kStep;
    const double above = reference.Loss(all, weights, reference_rows);
    *at = middle - kStep;
    const double below = reference.Loss(all, weights, reference_rows);
    *at = middle;
    return (above - below) / (2 * kStep) / 7;
  };
  for (size_t i = 0; i < weights.size(); ++i) {
    CAPTURE(model.spec().Describe(static_cast<int64_t>(i)));
    CHECK(model.gradients()[i] == Approx(slope(&weights[i])).margin(1e-5));
  }
  for (size_t t = 0; t < rows.size(); ++t) {
    for (size_t i = 0; i < gradients[t].size(); ++i) {
      const size_t dim = static_cast<size_t>(rows[t].dim);
      const uint64_t key = rows[t].keys[i / dim];
      CAPTURE(rows[t].table, key, i % dim);
      CHECK(gradients[t][i] == Approx(slope(&reference_rows[rows[t].table][key][i % dim])).margin(1e-5));
    }
  }
}

std::string Embedding(const std::string& name, const std::string& table, const std::string& column,
                      const std::string& pooling = "SUM") {
  return absl::StrCat("layers { type: LAYER_EMBEDDING name: '", name, "' table: '", table, "' column: '",
                      column, "' pooling: POOLING_", pooling, " } ");
}

std::string Layer(const std::string& type, const std::string& name, const std::vector<std::string>& inputs,
                  const std::string& more = "") {
  std::string text = absl::StrCat("layers { type: LAYER_", type, " name: '", name, "' ", more);
  for (const std::string& input : inputs) absl::StrAppend(&text, " inputs: '", input, "'");
  return text + " } ";
}

const std::string kSquared = "loss: LOSS_MEAN_SQUARED_ERROR", kSigmoid = "loss: LOSS_SIGMOID_CROSS_ENTROPY";
const std::string kTwoEmbeddings = Embedding("u", "wide", "user") + Embedding("t", "narrow", "tags", "MEAN");
const std::string kOut = Layer("DENSE", "out", {}, "units: 1");

TEST_CASE("Gradients of sparse features agree with finite differences in float64") {
  const std::string loss = GENERATE_COPY(kSquared, kSigmoid);
  // Sums and means of rows, keys that repeat, and numbers beside them.
  CheckGradients(kTwoEmbeddings + Layer("CONCAT", "c", {"t", "features", "u"}) + kOut + loss);
  // One table for two columns.
  CheckGradients(Embedding("u", "wide", "user") + Embedding("i", "wide", "item") +
                 Embedding("t", "narrow", "tags") + Layer("CONCAT", "c", {"u", "i", "t"}) + kOut + loss);
  // A factorization machine alone, with one column twice.
  CheckGradients(Embedding("u", "wide", "user") + Embedding("i", "wide", "item") +
                 Embedding("t", "wide", "tags", "MEAN") + Embedding("n", "narrow", "tags") +
                 Layer("FACTORIZATION_MACHINE", "fm", {"u", "i", "t", "u"}) +
                 Layer("CONCAT", "c", {"fm", "n"}) + kOut + loss);
  // Cross layers one after the other, beside a deep part over the same input.
  CheckGradients(kTwoEmbeddings + Layer("CONCAT", "x0", {"u", "t", "features"}) +
                 Layer("CROSS", "x1", {"x0"}) + Layer("CROSS", "x2", {"x1"}) + Layer("CROSS", "x3", {"x2"}) +
                 Layer("DENSE", "d1", {"x0"}, "units: 5") + Layer("TANH", "a1", {}) +
                 Layer("CONCAT", "both", {"x3", "a1"}) + kOut + loss);
  // Cross layers on the numbers themselves, which need no gradient.
  CheckGradients(kTwoEmbeddings + Layer("CROSS", "x1", {"features"}) + Layer("CROSS", "x2", {}) +
                 Layer("CONCAT", "c", {"x2", "u", "t"}) + kOut + loss);
}

TEST_CASE("The gradient of an output that several layers take is the sum of what they give") {
  const std::string rest = Layer("CONCAT", "all", {"end", "u", "t"}) + kOut + kSquared;
  CheckGradients(kTwoEmbeddings + Layer("DENSE", "a", {"features"}, "units: 4") + Layer("TANH", "b", {}) +
                 Layer("FLATTEN", "f", {"b"}) + Layer("DENSE", "d", {"f"}, "units: 4") +
                 Layer("CONCAT", "end", {"a", "b", "a", "f", "d", "a", "features"}) + rest);
}

TEST_CASE("Layers that do not fit together are refused") {
  const std::string emb = Embedding("u", "wide", "user"), narrow = Embedding("t", "narrow", "tags");
  const struct {
    std::string text, message;
  } cases[] = {
      {Embedding("u", "broad", "user") + kOut,
       "model.layers[0].table is \"broad\", which is no table of tables; there are wide, narrow"},
      {Embedding("u", "wide", "usr") + kOut,
       "model.layers[0].column is \"usr\", which is no column of data.columns of type categorical or key; "
       "there "
       "are user, item, tags"},
      {emb + Layer("CONCAT", "c", {"u"}) + kOut,
       "model.layers[1].inputs: a layer of type concat takes two or more inputs, the names of layers or "
       "\"features\", got 1"},
      {emb + Layer("TANH", "a", {"u", "features"}),
       "model.layers[1].inputs: a layer of type tanh takes one input; put a layer of type concat between, "
       "got 2"},
      {Layer("EMBEDDING", "u", {"features"}, "table: 'wide' column: 'user'"),
       "model.layers[0].inputs: a layer of type embedding takes no inputs, but the keys of its column, got "
       "1"},
      {emb + Layer("CONCAT", "c", {"u", "x"}),
       "model.layers[1].inputs[1] is \"x\", which is no layer before this one; there are features, u"},
      {Layer("DENSE", "features", {}, "units: 1"),
       "model.layers[0].name is \"features\", which stands for the numbers of an example; use another name"},
      {emb + narrow + Layer("DENSE", "out", {"features"}, "units: 1"),
       "model.layers[0] (\"u\"): no layer takes its output; name it in the inputs of a later layer, or take "
       "it "
       "out"},
      {emb + kOut, "tables[1] (\"narrow\"): no layer of type embedding takes its rows; take it out"},
      {emb + narrow + Layer("FACTORIZATION_MACHINE", "fm", {"u", "t"}),
       "model.layers[2] (factorization_machine) takes embeddings of one size, but its inputs have the shapes "
       "[4] "
       "and [3]; use tables of the same dim"},
  };
  const auto backend = *MakeComputeBackend({"cpu"});
  for (const auto& c : cases) {
    CHECK(Model::Create(Parse(c.text + kSquared), Inputs(), 1, 4, backend.get()).status().message() ==
          c.message);
  }
  ModelInputs none = Inputs();
  none.features = {0};
  const v1::ModelConfig wide =
      Parse(kTwoEmbeddings + Layer("CONCAT", "c", {"u", "t", "features"}) + kOut + kSquared);
  CHECK(Model::Create(wide, none, 1, 4, backend.get()).status().message() ==
        "model.layers[2] takes the features, but the data has none: no column of data.columns has the type "
        "number; name other inputs");
  CHECK(Model::Create(wide, Inputs(), 1, 4, MakeQueuedBackend().get()).status().message() ==
        "model.layers[0] (embedding) is for the CPU only, and this worker computes on queued; start it with "
        "--device=cpu");
  CHECK(Model::NeedsCpu(wide));
  CHECK_FALSE(Model::NeedsCpu(Parse(kOut)));
}

TEST_CASE("The AUC counts pairs, and equal values half") {
  const auto auc = [](const std::vector<float>& negative, const std::vector<float>& positive) {
    std::vector<Score> scores;
    for (const float value : positive) scores.push_back({value, true});
    for (const float value : negative) scores.push_back({value, false});
    return AreaUnderCurve(scores);
  };
  CHECK(auc({1, 2}, {3, 4}) == 1.0);
  CHECK(auc({3, 4}, {1, 2}) == 0.0);
  CHECK(auc({5, 5}, {5, 5, 5}) == 0.5);
  CHECK(auc({1, 3, 3}, {3, 2}) == (1 + 0.5 + 0.5 + 1) / 6);
  CHECK(auc({}, {1}) == std::nullopt);
  CHECK(auc({1}, {}) == std::nullopt);
  CHECK(auc({1}, {NAN}) == std::nullopt);
  std::vector<float> values[2];
  RandomStream random(2, 0);
  for (int i = 0; i < 300; ++i) values[i % 2].push_back(static_cast<float>(random.NextBelow(40)));
  double pairs = 0;
  for (const float n : values[0]) {
    for (const float p : values[1]) pairs += p > n ? 1 : p == n ? 0.5 : 0;
  }
  CHECK(auc(values[0], values[1]) == pairs / (150.0 * 150));
}

TEST_CASE("An evaluation of a binary classifier has loss, accuracy and AUC") {
  const bool queued = GENERATE(false, true);
  const auto backend = queued ? MakeQueuedBackend() : *MakeComputeBackend({"cpu"});
  // logit = x.
  const auto model = *Model::Create(Parse(kOut + kSigmoid), {1}, 1, 2, backend.get());
  model->weights()[0] = 1;
  model->weights()[1] = 0;
  const Dataset data({1}, std::vector<float>{-2, 1, 3, 3, -1}, 1, std::vector<float>{0, 0, 1, 0, 1});
  const auto result = model->Evaluate(data);
  REQUIRE(result.ok());
  const auto soft = [](double z) { return std::log1p(std::exp(z)); };
  CHECK(result->loss == Approx((soft(-2) + soft(1) + soft(-3) + soft(3) + soft(1)) / 5));
  CHECK(result->accuracy == 0.4);
  CHECK(result->auc == (2.5 + 1) / 6);
}

}  // namespace
}  // namespace weir
