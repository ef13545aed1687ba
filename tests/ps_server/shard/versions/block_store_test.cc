#include "ps_server/shard/versions/block_store.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/random.h"
#include "common/model/partition.h"
#include "common/optimizer/kernels.h"

namespace weir {
namespace {

const Holder kWorker{1, 0, 0};

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

std::shared_ptr<BlockStore> Make(BlockStore::Options options) {
  auto store = BlockStore::Create(std::move(options));
  REQUIRE(store.ok());
  return *std::move(store);
}

// The newest weights of all shards, in the address space.
std::vector<float> Join(const std::vector<std::shared_ptr<BlockStore>>& stores, const ModelSpec& model) {
  const Partition partition(model.elements(), stores.size());
  std::vector<float> out(model.elements(), -99);
  for (uint32_t s = 0; s < stores.size(); ++s) {
    const auto version = stores[s]->Lend();
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
    std::vector<std::shared_ptr<BlockStore>> stores;
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
        CHECK(stores[s]->Lend()->count == static_cast<uint64_t>(round) + 1);
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
  const auto version = store->Lend();
  for (int i = 0; i < 20; ++i) {
    CHECK(version->weights.get()[i] == 12);      // 10 + (3 * 1 + 1 * 5) / 4
    CHECK(version->weights.get()[20 + i] == 2);  // assigned
  }
}

TEST_CASE("A gradient with a factor gives the same bits whole and chunk by chunk, at every level") {
  ThreadPool threads(2);
  for (const auto kind :
       {v1::OptimizerConfig::KIND_SGD, v1::OptimizerConfig::KIND_MOMENTUM, v1::OptimizerConfig::KIND_ADAM}) {
    for (const v1::Dtype dtype : {v1::F32, v1::BF16}) {
      std::vector<float> first;  // result
      for (const KernelLevel level : AvailableKernelLevels()) {
        for (const bool streamed : {false, true}) {
          BlockStore::Options options = Basics(threads);
          // Beyond what a chunk expands at a time.
          options.model.tensors[3].shape = {5000};
          options.optimizer.set_type(kind);
          options.kernels = *KernelsFor(level);
          const auto store = Make(options);
          const auto n = static_cast<size_t>(store->elements());
          RandomStream random(RandomKey(3, "gradient"), 0);
          for (const double factor : {1.0, 0.5, 1.0 / 3, 1.0 / 7}) {
            std::vector<uint16_t> halves(n);
            std::vector<float> gradient(n);
            for (size_t i = 0; i < n; ++i) {
              gradient[i] = UniformFloat(random.Next()) - 0.5f;
              uint32_t bits;
              std::memcpy(&bits, &gradient[i], sizeof bits);
              halves[i] = static_cast<uint16_t>(bits >> 16);
              if (dtype == v1::BF16) bits = bits >> 16 << 16;
              std::memcpy(&gradient[i], &bits, sizeof bits);
            }
            if (!streamed) {
              const WeightedGradient whole{gradient.data()};
              store->Update(absl::MakeConstSpan(&whole, 1), {factor, {}});
              continue;
            }
            const char* const bytes = dtype == v1::BF16 ? reinterpret_cast<const char*>(halves.data())
                                                        : reinterpret_cast<const char*>(gradient.data());
            const absl::string_view piece(bytes, n * (dtype == v1::BF16 ? 2 : 4));
            const auto builder = store->Build({}, factor);
            REQUIRE(builder != nullptr);
            CHECK_FALSE(builder->Apply(0, static_cast<int64_t>(n), absl::MakeConstSpan(&piece, 1), dtype)
                            .has_value());
            REQUIRE(store->Publish(*builder));
            // The buffer, which begins after the first two tensors, has the gradient as it came.
            CHECK(store->Lend()->weights.get()[100] == gradient[100]);
          }
          const auto last = store->Lend();
          const std::vector<float> weights(last->weights.get(), last->weights.get() + n);
          if (first.empty()) first = weights;
          CHECK(std::memcmp(weights.data(), first.data(), n * sizeof(float)) == 0);
        }
      }
    }
  }
}

TEST_CASE("Without gradients the next version equals this one") {
  ThreadPool threads(1);
  BlockStore::Options options = Basics(threads);
  options.optimizer.set_type(v1::OptimizerConfig::KIND_ADAM);
  auto store = Make(options);
  const auto before = store->Lend();
  store->Update({});
  CHECK(store->count() == 1);
  const auto after = store->Lend();
  CHECK(after->count == 1);
  CHECK(std::equal(before->weights.get(), before->weights.get() + store->elements(), after->weights.get()));
}

TEST_CASE("A held version does not change, and its memory comes back when it is let go") {
  ThreadPool threads(1);
  auto store = Make(Basics(threads));
  const std::vector<float> ones(store->elements(), 1);
  const WeightedGradient gradient{ones.data(), 1};
  const auto held = store->Lend();
  const std::vector<float> copy(held->weights.get(), held->weights.get() + store->elements());
  std::set<const float*> seen;
  for (int i = 0; i < 500; ++i) {
    store->Update(absl::MakeConstSpan(&gradient, 1));
    seen.insert(store->Lend()->weights.get());
  }
  CHECK(std::equal(copy.begin(), copy.end(), held->weights.get()));
  CHECK(seen.size() <= 2);
  CHECK(seen.count(held->weights.get()) == 0);
}

std::vector<float> Copy(const Slab& slab, const BlockStore& store) {
  return {slab.get(), slab.get() + store.elements()};
}

TEST_CASE("What is made beside a frozen version leaves its weights and slots as they were") {
  ThreadPool threads(1);
  using Config = v1::OptimizerConfig;
  for (int kind = Config::Kind_MIN; kind <= Config::Kind_MAX; ++kind) {
    if (!Config::Kind_IsValid(kind) || kind == Config::KIND_UNSPECIFIED) continue;
    for (const bool streamed : {false, true}) {
      CAPTURE(kind, streamed);
      BlockStore::Options options = Basics(threads);
      options.optimizer.set_type(static_cast<Config::Kind>(kind));
      auto store = Make(options);
      const std::vector<float> ones(store->elements(), 1);
      const WeightedGradient gradient{ones.data(), 1};
      const absl::string_view bytes(reinterpret_cast<const char*>(ones.data()), ones.size() * sizeof(float));
      const auto update = [&] {
        if (!streamed) return store->Update(absl::MakeConstSpan(&gradient, 1));
        const auto builder = store->Build();
        REQUIRE(builder != nullptr);
        REQUIRE_FALSE(
            builder->Apply(0, store->elements(), absl::MakeConstSpan(&bytes, 1), v1::F32).has_value());
        REQUIRE(store->Publish(*builder));
      };
      std::set<const float*> weights, slots;
      for (int round = 0; round < 3; ++round) {
        update();
        auto frozen = store->Freeze();
        REQUIRE(frozen != nullptr);
        CHECK(frozen->count == store->count());
        CHECK(frozen->slots.size() == store->slots().size());
        std::vector<std::vector<float>> before = {Copy(frozen->weights, *store)};
        for (const Slab& slot : frozen->slots) before.push_back(Copy(slot, *store));
        // Versions are made beside the frozen one: without gradients, by this kind of update, and by
        // Update().
        store->Update({});
        for (int i = 0; i < 3; ++i) update();
        store->Update(absl::MakeConstSpan(&gradient, 1));
        CHECK(Copy(frozen->weights, *store) == before[0]);
        for (size_t i = 0; i < frozen->slots.size(); ++i)
          CHECK(Copy(frozen->slots[i], *store) == before[i + 1]);
        CHECK(store->Freeze() == nullptr);
        weights.insert(frozen->weights.get());
        for (const Slab& slot : frozen->slots) slots.insert(slot.get());
        frozen = nullptr;
        weights.insert(store->Lend()->weights.get());
      }
      // The frozen version delayed no update: without it the same updates have the same result.
      auto plain = Make(options);
      while (plain->count() < store->count()) {
        const uint64_t at = plain->count() % 6;
        plain->Update(at == 1 ? absl::Span<const WeightedGradient>() : absl::MakeConstSpan(&gradient, 1));
      }
      CHECK(Copy(plain->Lend()->weights, *plain) == Copy(store->Lend()->weights, *store));
      // The frozen version's memory is reused.
      CHECK(weights.size() <= (streamed ? 3 : 2));
      CHECK(slots.size() <= store->slots().size() * (streamed ? 3 : 2));
    }
  }
}

TEST_CASE("A version that is being built when another is frozen is none of it") {
  ThreadPool threads(1);
  BlockStore::Options options = Basics(threads);
  options.optimizer.set_type(v1::OptimizerConfig::KIND_ADAM);
  auto store = Make(options);
  const std::vector<float> ones(store->elements(), 1);
  const absl::string_view bytes(reinterpret_cast<const char*>(ones.data()), ones.size() * sizeof(float));
  auto builder = store->Build();
  const auto frozen = store->Freeze();
  const std::vector<float> slot = Copy(frozen->slots[0], *store);
  REQUIRE_FALSE(builder->Apply(0, store->elements(), absl::MakeConstSpan(&bytes, 1), v1::F32).has_value());
  REQUIRE(store->Publish(*builder));
  const WeightedGradient gradient{ones.data(), 1};
  store->Update(absl::MakeConstSpan(&gradient, 1));
  CHECK(frozen->count == 0);
  CHECK(Copy(frozen->slots[0], *store) == slot);
}

TEST_CASE("A frozen version takes nothing from what readers may hold") {
  ThreadPool threads(1);
  auto store = Make(Basics(threads));
  const std::vector<float> ones(store->elements(), 1);
  const WeightedGradient gradient{ones.data(), 1};
  const auto frozen = store->Freeze();
  std::vector<std::shared_ptr<const LentVersion>> held = {store->Lend(kWorker)};
  for (int i = 0; i < static_cast<int>(ReaderLimits().max_old); ++i) {
    REQUIRE(store->readers().MayPublish());
    store->Update(absl::MakeConstSpan(&gradient, 1));
    held.push_back(store->Lend(kWorker));
  }
  CHECK(store->readers().MayPublish());  // the first of them is the frozen one
  store->Update(absl::MakeConstSpan(&gradient, 1));
  held.push_back(store->Lend(kWorker));
  CHECK_FALSE(store->readers().MayPublish());
}

TEST_CASE("A store that is retired tells nobody of releases, and what is being built from it is in vain") {
  ThreadPool threads(1);
  BlockStore::Options options = Basics(threads);
  int releases = 0;
  options.on_release = [&releases] { ++releases; };
  auto store = Make(options);
  auto held = store->Lend();
  auto frozen = store->Freeze();
  auto builder = store->Build();
  store->Retire();
  const int before = releases;
  store = nullptr;
  CHECK(builder->version() == nullptr);
  const float one = 1;
  const absl::string_view bytes(reinterpret_cast<const char*>(&one), sizeof(one));
  CHECK_FALSE(builder->Apply(0, 1, absl::MakeConstSpan(&bytes, 1), v1::F32).has_value());
  builder = nullptr;
  held = nullptr;
  frozen = nullptr;
  CHECK(releases == before);
}

TEST_CASE("A store goes on from what a restore fills in; its error is the result") {
  ThreadPool threads(1);
  BlockStore::Options options = Basics(threads);
  options.optimizer.set_type(v1::OptimizerConfig::KIND_MOMENTUM);
  const auto store = BlockStore::Create(options, [](const BlockStore& store, ShardVersion& version) {
    REQUIRE(version.slots.size() == store.slots().size());
    std::fill_n(version.weights.get(), store.elements(), 5.0f);
    version.count = 9;
    return absl::OkStatus();
  });
  REQUIRE(store.ok());
  CHECK((*store)->count() == 9);
  CHECK((*store)->Lend()->weights.get()[0] == 5);
  const auto broken = BlockStore::Create(
      options, [](const BlockStore&, ShardVersion&) { return absl::DataLossError("it is damaged"); });
  CHECK(broken.status() == absl::DataLossError("it is damaged"));
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
