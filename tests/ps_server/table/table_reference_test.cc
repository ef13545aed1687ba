// Tables under random updates, pins and reads, against a plain serial loop: the same bits for any number of
// shards, of threads, and for every level of the kernels.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/random.h"
#include "common/model/key_bucket.h"
#include "common/optimizer/kernels.h"
#include "common/threads/thread.h"
#include "ps_server/table/table.h"
#include "tests/ps_server/table/reference_table.h"

namespace weir {
namespace {

using Config = v1::TableOptimizer;

// More than one task of the pool, and several keys for a bucket: 255 buckets, in all partitions and shards.
std::vector<uint64_t> MakeUniverse() {
  std::vector<uint64_t> keys = {0, UINT64_MAX};
  RandomStream random(RandomKey(3, "table_reference_test"), 0);
  while (keys.size() < 6000) {
    const uint64_t key = uint64_t{random.Next()} << (random.Next() % 33) | random.Next();
    if (BucketOfHash(HashKey(key)) % 257 == 7) keys.push_back(key);
  }
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

const std::vector<uint64_t>& Universe() {
  static const std::vector<uint64_t> keys = MakeUniverse();
  return keys;
}

struct Push {
  std::vector<uint64_t> keys;
  std::vector<float> gradients;
  double weight;
};

Push MakePush(RandomStream& random, size_t dim) {
  Push push;
  push.weight = 0.75 * static_cast<double>(1 + random.NextBelow(50));
  // Few keys in most, and some keys much more often than others.
  const uint32_t one_in = random.NextBelow(4) == 0 ? 2 : 20;
  for (size_t i = 0; i < Universe().size(); ++i) {
    if (random.NextBelow(one_in * (i % 3 == 0 ? 1 : 4)) == 0) push.keys.push_back(Universe()[i]);
  }
  for (size_t i = 0; i < push.keys.size() * dim; ++i) {
    push.gradients.push_back(2 * UniformFloat(random.Next()) - 1);
  }
  return push;
}

bool SameBits(absl::Span<const float> a, absl::Span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The tables of all shards.
class Shards {
 public:
  Shards(Table::Options options, uint32_t shards, ThreadPool* threads, const Kernels* kernels)
      : dim_(options.dim),
        name_(std::to_string(shards) + " shards, " + std::to_string(threads->threads()) + " threads, " +
              kernels->name) {
    options.num_shards = shards;
    options.threads = threads;
    options.kernels = kernels;
    for (options.shard = 0; options.shard < shards; ++options.shard) {
      tables_.push_back(std::make_unique<Table>(options));
    }
  }

  const std::string& name() const { return name_; }

  // Each shard gets its own rows of each push.
  void Update(const std::vector<Push>& pushes, double learning_rate) {
    for (uint32_t shard = 0; shard < tables_.size(); ++shard) {
      std::vector<Push> own(pushes.size());
      std::vector<Table::Part> parts;
      for (size_t p = 0; p < pushes.size(); ++p) {
        for (size_t i = 0; i < pushes[p].keys.size(); ++i) {
          if (ShardOf(pushes[p].keys[i]) != shard) continue;
          own[p].keys.push_back(pushes[p].keys[i]);
          const auto row = pushes[p].gradients.begin() + static_cast<ptrdiff_t>(i * dim_);
          own[p].gradients.insert(own[p].gradients.end(), row, row + static_cast<ptrdiff_t>(dim_));
        }
        parts.push_back({own[p].keys, own[p].gradients.data(), pushes[p].weight});
      }
      REQUIRE(tables_[shard]->Update(parts, learning_rate).ok());
    }
  }
  void Pin() {
    for (auto& table : tables_) table->Pin();
  }
  void Unpin(uint64_t version) {
    for (auto& table : tables_) REQUIRE(table->Unpin(version).ok());
  }

  // The same state, moved to new tables of as many shards as `to` has, which are empty.
  void MoveTo(Shards& to, uint64_t version) const {
    std::vector<Table::Row> rows;
    std::vector<Table::Counter> counters;
    for (auto& table : to.tables_) REQUIRE(table->RestoreVersion(version).ok());
    for (uint32_t bucket = 0; bucket < kKeyBuckets; ++bucket) {
      const Table& from = *tables_[ShardOfBucket(bucket, Count())];
      Table& table = *to.tables_[ShardOfBucket(bucket, to.Count())];
      REQUIRE(from.RowsAt(version, bucket, rows).ok());
      REQUIRE(from.CountersAt(version, bucket, counters).ok());
      REQUIRE(table.RestoreRows(rows).ok());
      REQUIRE(table.RestoreCounters(counters).ok());
    }
  }

  // The keys that read other values than the reference at a version. Some keys are read twice.
  size_t WrongReads(const ReferenceTable& reference, const ReferenceTable::State& state, uint64_t version) {
    size_t wrong = 0;
    for (uint32_t shard = 0; shard < tables_.size(); ++shard) {
      std::vector<uint64_t> keys;
      for (const uint64_t key : Universe()) {
        if (ShardOf(key) == shard) keys.insert(keys.end(), 1 + key % 2, key);
      }
      std::reverse(keys.begin(), keys.end());
      std::vector<float> values(keys.size() * dim_);
      REQUIRE(tables_[shard]->ReadAt(version, keys, values.data()).ok());
      for (size_t i = 0; i < keys.size(); ++i) {
        wrong += !SameBits(absl::MakeSpan(values).subspan(i * dim_, dim_), reference.Read(state, keys[i]));
      }
    }
    return wrong;
  }

  // The rows and counters at a version that differ from the reference, slots and ages included.
  size_t WrongState(const ReferenceTable& reference, const ReferenceTable::State& state, uint64_t version) {
    size_t wrong = 0, rows = 0, counters = 0;
    std::vector<Table::Row> found;
    std::vector<Table::Counter> counted;
    for (uint32_t bucket = 7; bucket < kKeyBuckets; bucket += 257) {
      const Table& table = *tables_[ShardOfBucket(bucket, Count())];
      REQUIRE(table.RowsAt(version, bucket, found).ok());
      REQUIRE(table.CountersAt(version, bucket, counted).ok());
      rows += found.size();
      counters += counted.size();
      for (const auto& row : found) {
        const auto expected = state.rows.find(row.key);
        wrong += expected == state.rows.end() || expected->second.updated != row.updated ||
                 !SameBits(row.words, reference.Words(expected->second));
      }
      for (const auto& counter : counted) {
        const auto expected = state.counters.find(counter.key);
        wrong += expected == state.counters.end() || expected->second.updated != counter.updated ||
                 expected->second.pushes != counter.pushes;
      }
      wrong += !std::is_sorted(found.begin(), found.end(),
                               [](const auto& a, const auto& b) { return a.key < b.key; });
    }
    return wrong + (rows != InBuckets(state.rows)) + (counters != InBuckets(state.counters));
  }

  Table::Stats stats() const {
    Table::Stats sum;
    for (const auto& table : tables_) {
      const Table::Stats one = table->stats();
      sum.rows += one.rows;
      sum.counters += one.counters;
      sum.expired += one.expired;
      sum.evicted += one.evicted;
      sum.former_bytes += one.former_bytes;
    }
    return sum;
  }

 private:
  uint32_t Count() const { return static_cast<uint32_t>(tables_.size()); }
  uint32_t ShardOf(uint64_t key) const { return ShardOfKey(key, Count()); }
  // 0 and the last key lie in other buckets.
  template <typename Map>
  static size_t InBuckets(const Map& map) {
    return static_cast<size_t>(std::count_if(map.begin(), map.end(), [](const auto& entry) {
      return BucketOfHash(HashKey(entry.first)) % 257 == 7;
    }));
  }

  const size_t dim_;
  const std::string name_;
  std::vector<std::unique_ptr<Table>> tables_;
};

// Random updates of 1 to 3 parts, some without any, with at most 3 versions pinned at a time.
void Compare(const Table::Options& options, uint64_t seed, int updates) {
  ThreadPool one(1), two(2);
  std::vector<std::unique_ptr<Shards>> all;
  for (uint32_t shards : {1, 2, 3}) {
    for (ThreadPool* threads : {&one, &two}) {
      all.push_back(std::make_unique<Shards>(options, shards, threads, &BestKernels()));
    }
  }
  for (KernelLevel level : AvailableKernelLevels()) {
    all.push_back(std::make_unique<Shards>(options, 1, &two, *KernelsFor(level)));
  }
  ReferenceTable reference(options);
  std::map<uint64_t, ReferenceTable::State> pins;
  RandomStream random(RandomKey(seed, "table_reference_test"), 1);
  for (int update = 0; update < updates; ++update) {
    std::vector<Push> pushes;
    for (uint32_t p = 0, n = random.NextBelow(4); p < n; ++p) pushes.push_back(MakePush(random, options.dim));
    const double rate = 0.01 * (1 + random.NextBelow(10));
    std::vector<Table::Part> parts;
    for (const Push& push : pushes) parts.push_back({push.keys, push.gradients.data(), push.weight});
    reference.Update(parts, rate);
    for (auto& shards : all) shards->Update(pushes, rate);

    if (pins.size() < 3 && random.NextBelow(3) == 0) {
      pins[reference.version()] = reference.state();
      for (auto& shards : all) shards->Pin();
    } else if (!pins.empty() && random.NextBelow(4) == 0) {
      const auto pin = std::next(pins.begin(), random.NextBelow(static_cast<uint32_t>(pins.size())));
      for (auto& shards : all) shards->Unpin(pin->first);
      pins.erase(pin);
    }
    if (update % 5 != 0 && update + 1 != updates) continue;
    for (auto& shards : all) {
      INFO(shards->name() << ", after update " << update);
      CHECK(shards->WrongReads(reference, reference.state(), reference.version()) == 0);
      CHECK(shards->WrongState(reference, reference.state(), reference.version()) == 0);
      for (const auto& [version, state] : pins) {
        INFO("pinned: " << version);
        CHECK(shards->WrongReads(reference, state, version) == 0);
        CHECK(shards->WrongState(reference, state, version) == 0);
      }
      const Table::Stats stats = shards->stats();
      CHECK(stats.rows == reference.state().rows.size());
      CHECK(stats.counters == reference.state().counters.size());
      CHECK(stats.expired == reference.expired());
      CHECK(stats.evicted == reference.evicted());
    }
  }
  // So that the test has tested what it is for.
  CHECK(reference.state().rows.size() > 100);
  if (options.expire_after_steps > 0) CHECK(reference.expired() > 100);
  if (options.max_rows > 0) CHECK(reference.evicted() > 100);
  if (options.admit_after > 0) CHECK(reference.state().counters.size() > 100);
  for (const auto& [version, state] : pins) {
    for (auto& shards : all) shards->Unpin(version);
  }
  for (auto& shards : all) CHECK(shards->stats().former_bytes == 0);
}

// Random updates; every few of them all tables are saved, from a pinned version with later updates behind it,
// and others of another number of shards go on from there.
void CompareRestored(const Table::Options& options, uint64_t seed, int updates) {
  ThreadPool two(2);
  ReferenceTable reference(options);
  RandomStream random(RandomKey(seed, "table_reference_test"), 2);
  const auto draw = [&] {
    std::vector<Push> pushes;
    for (uint32_t p = 0, n = random.NextBelow(4); p < n; ++p) pushes.push_back(MakePush(random, options.dim));
    return pushes;
  };
  auto shards = std::make_unique<Shards>(options, 1, &two, &BestKernels());
  uint64_t expired = 0, evicted = 0;
  for (int update = 0; update < updates; ++update) {
    const std::vector<Push> pushes = draw();
    std::vector<Table::Part> parts;
    for (const Push& push : pushes) parts.push_back({push.keys, push.gradients.data(), push.weight});
    reference.Update(parts, 0.05);
    shards->Update(pushes, 0.05);
    if (update % 4 != 3) continue;
    INFO(shards->name() << ", after update " << update);
    REQUIRE(shards->WrongState(reference, reference.state(), reference.version()) == 0);
    expired += shards->stats().expired;
    evicted += shards->stats().evicted;
    shards->Pin();
    shards->Update(draw(), 0.05);
    const uint32_t others[] = {3, 1, 2, 2, 1};
    auto next = std::make_unique<Shards>(options, others[update / 4 % 5], &two, &BestKernels());
    shards->MoveTo(*next, reference.version());
    shards = std::move(next);
    CHECK(shards->WrongReads(reference, reference.state(), reference.version()) == 0);
    CHECK(shards->WrongState(reference, reference.state(), reference.version()) == 0);
  }
  expired += shards->stats().expired;
  evicted += shards->stats().evicted;
  CHECK(expired == reference.expired());
  CHECK(evicted == reference.evicted());
  CHECK(reference.expired() > 100);
  CHECK(reference.evicted() > 100);
  CHECK(reference.state().counters.size() > 100);
}

Table::Options MakeOptions(Config::Kind kind) {
  Table::Options options;
  options.name = "clicks";
  options.dim = 19;  // vectors of every level, and a rest
  options.seed = 5;
  options.init = {Initializer::Kind::kUniform, 0.5f};
  options.optimizer.set_type(kind);
  options.optimizer.set_momentum(0.8f);
  options.optimizer.set_epsilon(0.03f);
  options.optimizer.set_l1(0.3f);
  options.optimizer.set_l2(0.1f);
  if (kind != Config::KIND_FTRL) options.optimizer.set_weight_decay(0.1f);
  return options;
}

TEST_CASE("A table has the bits of a serial loop: every optimizer") {
  for (Config::Kind kind : {Config::KIND_SGD, Config::KIND_MOMENTUM, Config::KIND_ADAGRAD,
                            Config::KIND_ROWWISE_ADAGRAD, Config::KIND_ADAM, Config::KIND_FTRL}) {
    INFO("optimizer " << static_cast<int>(kind));
    Compare(MakeOptions(kind), 10 + static_cast<uint64_t>(kind), 12);
  }
}

TEST_CASE("A table has the bits of a serial loop: admission") {
  Table::Options options = MakeOptions(Config::KIND_ROWWISE_ADAGRAD);
  options.admit_after = 3;
  Compare(options, 20, 40);
}

TEST_CASE("A table has the bits of a serial loop: expiry, of counts too") {
  Table::Options options = MakeOptions(Config::KIND_ROWWISE_ADAGRAD);
  options.expire_after_steps = 7;
  options.admit_after = 1;
  Compare(options, 30, 40);
}

TEST_CASE("A table has the bits of a serial loop: quotas") {
  Table::Options options = MakeOptions(Config::KIND_ADAM);
  options.max_rows = 9 * kKeyBuckets + 30000;
  Compare(options, 40, 40);
}

TEST_CASE("A table has the bits of a serial loop: admission, expiry and quotas") {
  Table::Options options = MakeOptions(Config::KIND_MOMENTUM);
  options.init = {Initializer::Kind::kNormal, 0.5f};
  options.admit_after = 1;
  options.expire_after_steps = 9;
  options.max_rows = 5 * kKeyBuckets + 1;
  options.dim = 3;  // less than a vector of any level
  Compare(options, 50, 50);
}

TEST_CASE(
    "A table that was saved and restored, on any number of shards, goes on as if nothing had happened") {
  Table::Options options = MakeOptions(Config::KIND_ADAM);
  options.admit_after = 2;
  options.expire_after_steps = 9;
  options.max_rows = 5 * kKeyBuckets + 1;
  options.dim = 5;
  CompareRestored(options, 60, 60);
}

}  // namespace
}  // namespace weir
