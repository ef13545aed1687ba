#include "tests/integration/table_job.h"

#include "common/base/random.h"

namespace weir {

namespace {

std::string Tables(uint32_t users_dim, uint32_t items_dim) {
  return R"([{"name": "users", "dim": )" + std::to_string(users_dim) +
         R"(, "optimizer": {"type": "rowwise_adagrad", "learning_rate": 0.125}},
             {"name": "items/deep", "dim": )" +
         std::to_string(items_dim) + R"(, "optimizer": {"type": "adam", "learning_rate": 0.0625}}])";
}

}  // namespace

std::string TableJob() {
  // The layers and data are not used: the programs declare the model.
  return R"({
    "name": "tables",
    "model": {"layers": [{"type": "flatten"}, {"type": "dense", "units": 10}]},
    "data": {"format": "digits", "batch_size": 2},
    "train": {"examples": 96},
    "consistency": {"mode": "sync", "parts": 4},
    "optimizer": {"type": "sgd", "learning_rate": 0.1},
    "cluster": {"lease_seconds": 20, "start_seconds": 60},
    "tables": )" +
         Tables(4, 16) + "}";
}

std::string LongRows() { return "tables=" + Tables(2000, 8192); }

std::string CountingTables() {
  const std::string counts = R"("init": {"type": "constant", "value": 0},
                                "optimizer": {"type": "sgd", "learning_rate": 1})";
  return R"(tables=[{"name": "users", "dim": 4, )" + counts + R"(}, {"name": "items/deep", "dim": 16, )" +
         counts + "}]";
}

ModelSpec TableJobModel() {
  ModelSpec model;
  model.tensors = {{"w", {300, 7}, TensorKind::kParameter, Initializer::Zeros()},
                   {"b", {7}, TensorKind::kParameter, Initializer::Zeros()}};
  return model;
}

const std::vector<uint64_t>& AllTableKeys() {
  static const std::vector<uint64_t> keys = [] {
    std::vector<uint64_t> all = {0, 1, UINT64_MAX};
    for (uint64_t i = 2; i < 200; ++i) all.push_back(i * (i % 3 == 0 ? 1 : 0x9e3779b97f4a7c15));
    return all;
  }();
  return keys;
}

std::vector<uint64_t> TableKeysOf(uint64_t batch, uint32_t table, bool few) {
  RandomStream random(RandomKey(batch, "keys"), table);
  std::vector<uint64_t> keys(few && batch >= kTableParts ? 4 : 40);
  for (uint64_t& key : keys) key = AllTableKeys()[random.NextBelow(150)];
  return keys;
}

std::vector<float> TableGradientOf(uint64_t batch, uint32_t table, const std::vector<float>& rows) {
  RandomStream random(RandomKey(batch, "gradients"), table);
  std::vector<float> gradient(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const float size = static_cast<float>(1 << random.NextBelow(6));
    gradient[i] = size * (UniformFloat(random.Next()) - 0.5f) + 0.25f * rows[i];
  }
  return gradient;
}

}  // namespace weir
