#include "ps_server/shard/block_store.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/partition.h"
#include "ps_server/optimizer/kernels.h"

namespace weir {
namespace {

ModelSpec OddModel() {
  ModelSpec model;
  model.tensors = {
      {"a/weight", {7, 13}, TensorKind::kParameter, Initializer::HeNormal(7)},
      {"a/scalar", {}, TensorKind::kParameter, {Initializer::Kind::kConstant, 3}},
      {"stats", {50}, TensorKind::kBuffer, Initializer::Zeros()},
      {"b/weight", {123}, TensorKind::kParameter, Initializer::GlorotUniform(3, 4)},
  };
  return model;
}

BlockStore::Options Basics(ThreadPool& threads) {
  BlockStore::Options options;
  options.model = OddModel();
  options.optimizer.set_type(v1::OptimizerConfig::KIND_SGD);
  options.optimizer.set_learning_rate(-1);
  options.kernels = &BestKernels();
  options.threads = &threads;
  return options;
}

std::unique_ptr<BlockStore> Make(BlockStore::Options options) {
  auto store = BlockStore::Create(std::move(options));
  REQUIRE(store.ok());
  return *std::move(store);
}

// The newest weights of all shards, in the address space.
std::vector<float> Join(const std::vector<std::unique_ptr<BlockStore>>& stores, const ModelSpec& model) {
  const Partition partition(model.elements(), stores.size());
  std::vector<float> out(model.elements(), -99);
  for (uint32_t s = 0; s < stores.size(); ++s) {
    const auto version = stores[s]->Current();
    REQUIRE(stores[s]->elements() == partition.shard_elements(s));
    for (int64_t b = 0; b < partition.shard_blocks(s); ++b) {
      std::copy_n(version->weights.get() + b * partition.block_size(), partition.block_length(s, b),
                  out.begin() + partition.block_start(s, b));
    }
  }
  return out;
}

TEST_CASE("Version 0 and updates do not depend on the number of shards") {
  ThreadPool threads(1);
  std::vector<std::vector<float>> initial, updated;
  for (uint32_t shards : {1, 2, 3, 7, 40}) {
    CAPTURE(shards);
    std::vector<std::unique_ptr<BlockStore>> stores;
    for (uint32_t s = 0; s < shards; ++s) {
      BlockStore::Options options = Basics(threads);
      options.optimizer.set_type(v1::OptimizerConfig::KIND_ADAM);
      options.shard = s;
      options.num_shards = shards;
      stores.push_back(Make(options));
    }
    const ModelSpec model = OddModel();
    initial.push_back(Join(stores, model));
    CHECK(initial.back() == initial.front());
    const Partition partition(model.elements(), shards);
    for (int round = 0; round < 3; ++round) {
      for (uint32_t s = 0; s < shards; ++s) {
        Slab g = stores[s]->TakeSlab(), h = stores[s]->TakeSlab();
        for (int64_t b = 0; b < partition.shard_blocks(s); ++b) {
          for (int64_t i = 0; i < partition.block_length(s, b); ++i) {
            const int64_t at = partition.block_start(s, b) + i;
            g.get()[b * partition.block_size() + i] = 0.01f * static_cast<float>(at % 17) - 0.05f;
            h.get()[b * partition.block_size() + i] = 0.02f * static_cast<float>(at % 5);
          }
        }
        const WeightedGradient both[] = {{g.get(), 8}, {h.get(), 3}};
        stores[s]->Update(both);
        CHECK(stores[s]->Current()->count == static_cast<uint64_t>(round) + 1);
      }
    }
    updated.push_back(Join(stores, model));
    CHECK(updated.back() == updated.front());
    CHECK(updated.back() != initial.back());
  }
}

TEST_CASE("A step is on the mean, weighted by examples; buffers are assigned it") {
  ThreadPool threads(1);
  BlockStore::Options options = Basics(threads);
  options.model.tensors = {{"w", {20}, TensorKind::kParameter, {Initializer::Kind::kConstant, 10}},
                           {"stats", {20}, TensorKind::kBuffer, {Initializer::Kind::kConstant, 10}}};
  auto store = Make(options);
  const std::vector<float> one(40, 1), five(40, 5);
  const WeightedGradient parts[] = {{one.data(), 3}, {five.data(), 1}};
  store->Update(parts);
  const auto version = store->Current();
  for (int i = 0; i < 20; ++i) {
    CHECK(version->weights.get()[i] == 12);      // 10 + (3 * 1 + 1 * 5) / 4
    CHECK(version->weights.get()[20 + i] == 2);  // assigned
  }
}

TEST_CASE("Without gradients the next version equals this one") {
  ThreadPool threads(1);
  BlockStore::Options options = Basics(threads);
  options.optimizer.set_type(v1::OptimizerConfig::KIND_ADAM);
  auto store = Make(options);
  const auto before = store->Current();
  store->Update({});
  CHECK(store->count() == 1);
  const auto after = store->Current();
  CHECK(after->count == 1);
  CHECK(std::equal(before->weights.get(), before->weights.get() + store->elements(), after->weights.get()));
}

TEST_CASE("A held version does not change, and its memory comes back when it is let go") {
  ThreadPool threads(1);
  auto store = Make(Basics(threads));
  const std::vector<float> ones(store->elements(), 1);
  const WeightedGradient gradient{ones.data(), 1};
  const auto held = store->Current();
  const std::vector<float> copy(held->weights.get(), held->weights.get() + store->elements());
  std::set<const float*> seen;
  for (int i = 0; i < 500; ++i) {
    store->Update(absl::MakeConstSpan(&gradient, 1));
    seen.insert(store->Current()->weights.get());
  }
  CHECK(std::equal(copy.begin(), copy.end(), held->weights.get()));
  CHECK(seen.size() <= 2);
  CHECK(seen.count(held->weights.get()) == 0);
}

TEST_CASE("An element is described by its tensor, on whichever shard it lies") {
  ThreadPool threads(1);
  const ModelSpec model = OddModel();
  const Partition partition(model.elements(), 3);
  BlockStore::Options options = Basics(threads);
  options.num_shards = 3;
  for (uint32_t s = 0; s < 3; ++s) {
    options.shard = s;
    auto store = Make(options);
    for (int64_t b = 0; b < partition.shard_blocks(s); ++b) {
      for (int64_t i = 0; i < partition.block_length(s, b); ++i) {
        REQUIRE(store->Describe(b * partition.block_size() + i) ==
                model.Describe(partition.block_start(s, b) + i));
      }
    }
  }
}

TEST_CASE("What the optimizer's config gets wrong is an error, not a crash") {
  ThreadPool threads(1);
  BlockStore::Options options = Basics(threads);
  options.optimizer.add_groups()->set_match("no/such/tensor");
  CHECK(BlockStore::Create(options).status().code() == absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace weir
