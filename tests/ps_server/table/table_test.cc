#include "ps_server/table/table.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/model/key_bucket.h"
#include "common/optimizer/kernels.h"
#include "common/threads/thread.h"

namespace weir {
namespace {

ThreadPool& Pool() {
  static ThreadPool pool(2);
  return pool;
}

// SGD on rows of two, from -1: an update with gradient g and rate 1 leaves -1 - g.
Table::Options MakeOptions() {
  Table::Options options;
  options.name = "clicks";
  options.dim = 2;
  options.init = {Initializer::Kind::kConstant, -1};
  options.optimizer.set_type(v1::TableOptimizer::KIND_SGD);
  options.kernels = &BestKernels();
  options.threads = &Pool();
  return options;
}

std::unique_ptr<Table> Make(Table::Options options) { return std::make_unique<Table>(std::move(options)); }

// Pushes gradient g for both columns of each key.
absl::Status Push(Table& table, std::vector<uint64_t> keys, float g = 1) {
  std::sort(keys.begin(), keys.end());
  const std::vector<float> gradients(keys.size() * table.dim(), g);
  return table.Update({{keys, gradients.data(), 1}}, 1);
}

float First(const Table& table, uint64_t key, uint64_t version) {
  std::vector<float> row(table.dim());
  REQUIRE(table.ReadAt(version, {key}, row.data()).ok());
  CHECK(row[0] == row[1]);
  return row[0];
}
float First(const Table& table, uint64_t key) { return First(table, key, table.version()); }

bool HasRow(const Table& table, uint64_t key) {
  std::vector<Table::Row> rows;
  REQUIRE(table.RowsAt(table.version(), BucketOfHash(HashKey(key)), rows).ok());
  return std::any_of(rows.begin(), rows.end(), [&](const auto& row) { return row.key == key; });
}

// The first keys from `from` on that lie in the bucket of key 0.
std::vector<uint64_t> KeysOfOneBucket(size_t count) {
  std::vector<uint64_t> keys;
  for (uint64_t key = 0; keys.size() < count; ++key) {
    if (BucketOfHash(HashKey(key)) == BucketOfHash(HashKey(0))) keys.push_back(key);
  }
  return keys;
}

std::string Message(const absl::Status& status) {
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST_CASE("Table: a read creates nothing, and an absent key reads its initial values") {
  const auto table = Make(MakeOptions());
  CHECK(First(*table, 5) == -1);
  CHECK(table->stats().rows == 0);
  REQUIRE(Push(*table, {5}).ok());
  CHECK(First(*table, 5) == -2);
  CHECK(First(*table, 6) == -1);
  CHECK(table->stats().rows == 1);
  CHECK(table->version() == 1);
}

TEST_CASE("Table: what it has of a key") {
  Table::Options options = MakeOptions();
  options.admit_after = 1;
  const auto table = Make(options);
  CHECK_FALSE(table->FindRow(5).has_value());
  CHECK_FALSE(table->FindCounter(5).has_value());
  REQUIRE(Push(*table, {5}).ok());
  CHECK_FALSE(table->FindRow(5).has_value());
  REQUIRE(table->FindCounter(5).has_value());
  CHECK(table->FindCounter(5)->pushes == 1);
  CHECK(table->FindCounter(5)->updated == 1);
  REQUIRE(Push(*table, {6}).ok());
  REQUIRE(Push(*table, {5}).ok());
  CHECK_FALSE(table->FindCounter(5).has_value());
  REQUIRE(table->FindRow(5).has_value());
  CHECK(table->FindRow(5)->updated == 3);
  CHECK(table->FindRow(5)->words.size() == table->row_words());
  CHECK(table->FindRow(5)->words[0] == -2);
  CHECK(table->stats().admitted == 1);
  REQUIRE(Push(*table, {5}).ok());
  CHECK(table->stats().admitted == 1);
  for (int push = 4; push < 32; ++push) REQUIRE(Push(*table, {5}).ok());
  REQUIRE(table->hot_keys().Hottest(2).size() == 2);
  CHECK(table->hot_keys().Hottest(1)[0].key == 5);
}

TEST_CASE("Table: a read takes keys in any order, and some several times") {
  const auto table = Make(MakeOptions());
  REQUIRE(Push(*table, {3}, 10).ok());
  REQUIRE(Push(*table, {9}, 20).ok());
  const std::vector<uint64_t> keys = {9, 3, 3, UINT64_MAX, 9};
  std::vector<float> values(2 * keys.size());
  REQUIRE(table->Read(keys, values.data()).ok());
  CHECK(values == std::vector<float>{-21, -21, -11, -11, -11, -11, -1, -1, -21, -21});
  REQUIRE(table->Read({}, nullptr).ok());
}

TEST_CASE("Table: an update that is refused changes nothing") {
  Table::Options options = MakeOptions();
  options.admit_after = 1;
  const auto table = Make(options);
  REQUIRE(Push(*table, {1, 2, 3}).ok());
  REQUIRE(Push(*table, {1, 2}).ok());
  const std::vector<uint64_t> keys = {1, 2, 4};
  const std::vector<float> gradients(6, 1);
  CHECK(Message(table->Update({{keys, gradients.data(), 1}}, NAN)) ==
        "table 'clicks': the learning rate is nan; it must be finite and at least 0");

  CHECK(table->version() == 2);
  CHECK(First(*table, 1) == -2);
  CHECK(First(*table, 2) == -2);
  CHECK(table->stats().rows == 2);
  CHECK(table->stats().counters == 1);
  // 4 was never seen, 3 once.
  REQUIRE(Push(*table, {3, 4}).ok());
  CHECK(First(*table, 3) == -2);
  CHECK(First(*table, 4) == -1);
}

TEST_CASE("Table: keys of another shard are refused") {
  Table::Options options = MakeOptions();
  options.num_shards = 2;
  options.shard = 1;
  const auto table = Make(options);
  uint64_t own = 0, foreign = 0;
  while (BucketOfHash(HashKey(own)) % 2 != 1) ++own;
  while (BucketOfHash(HashKey(foreign)) % 2 != 0) ++foreign;
  const std::string expected = "table 'clicks': key " + std::to_string(foreign) + " is in bucket " +
                               std::to_string(BucketOfHash(HashKey(foreign))) +
                               ", which is of shard 0 of 2, not 1";
  std::vector<float> out(4);
  CHECK(Message(table->CheckKeys({own, foreign})) == expected);
  CHECK(table->CheckKeys({own}).ok());
  CHECK(Message(table->Read({own, foreign}, out.data())) == expected);
  const uint64_t pinned = table->Pin();
  REQUIRE(Push(*table, {own}).ok());
  CHECK(Message(table->ReadAt(pinned, {foreign}, out.data())) == expected);
}

TEST_CASE("Table: the parts of a step are one update with their mean, by weight") {
  const auto table = Make(MakeOptions());
  const std::vector<uint64_t> a = {1, 2}, b = {2, 3};
  const std::vector<float> ga = {4, 4, 8, 8}, gb = {16, 16, 40, 40};
  REQUIRE(table->Update({{a, ga.data(), 3}, {b, gb.data(), 1}}, 1).ok());
  CHECK(table->version() == 1);
  CHECK(First(*table, 1) == -1 - 3);
  CHECK(First(*table, 2) == -1 - (6 + 4));
  CHECK(First(*table, 3) == -1 - 10);
  // A version without rows.
  REQUIRE(table->Update({}, 1).ok());
  REQUIRE(table->Update({{{}, nullptr, 5}}, 1).ok());
  CHECK(table->version() == 3);
  CHECK(First(*table, 3) == -11);
}

TEST_CASE("Table: a key is admitted after exactly so many pushes, parts counted one by one") {
  Table::Options options = MakeOptions();
  options.admit_after = 3;
  const auto table = Make(options);
  for (int push = 0; push < 3; ++push) {
    REQUIRE(Push(*table, {8}).ok());
    CHECK(First(*table, 8) == -1);
    CHECK(table->stats().counters == 1);
  }
  REQUIRE(Push(*table, {8}).ok());
  CHECK(First(*table, 8) == -2);
  CHECK(table->stats().counters == 0);

  // Four parts: three are counted, and the fourth has its share in the mean.
  const std::vector<uint64_t> keys = {9};
  const std::vector<float> g = {4, 4};
  const Table::Part part{keys, g.data(), 1};
  REQUIRE(table->Update({part, part, part, part}, 1).ok());
  CHECK(First(*table, 9) == -2);
  CHECK(HasRow(*table, 9));
}

TEST_CASE("Table: a row expires at the first sweep of its bucket that it is old enough for") {
  Table::Options options = MakeOptions();
  options.expire_after_steps = 4;
  options.admit_after = 1;
  const auto table = Make(options);
  const uint64_t phase = BucketOfHash(HashKey(5)) % 4;
  REQUIRE(Push(*table, {5}).ok());
  REQUIRE(Push(*table, {5}).ok());
  const uint64_t updated = table->version();
  while (HasRow(*table, 5)) {
    CHECK(table->version() < updated + 8);
    REQUIRE(Push(*table, {6}).ok());
  }
  CHECK(table->version() >= updated + 4);
  CHECK(table->version() % 4 == phase);
  CHECK(First(*table, 5) == -1);
  CHECK(HasRow(*table, 6));
  CHECK(table->stats().expired == 1);
  // It is admitted anew, and a count expires like a row.
  REQUIRE(Push(*table, {5}).ok());
  CHECK_FALSE(HasRow(*table, 5));
  CHECK(table->stats().counters == 1);
  for (int i = 0; i < 8; ++i) REQUIRE(table->Update({}, 1).ok());
  CHECK(table->stats().counters == 0);
  CHECK(table->stats().expired == 2);  // 6 too; counts are no rows
}

TEST_CASE("Table: a bucket beyond its quota loses the rows that were updated longest ago") {
  Table::Options options = MakeOptions();
  options.max_rows = 40 * uint64_t{kKeyBuckets};
  const auto table = Make(options);
  const std::vector<uint64_t> keys = KeysOfOneBucket(200);
  for (size_t i = 0; i < 40; ++i) REQUIRE(Push(*table, {keys[i]}).ok());
  CHECK(table->stats().rows == 40);
  // Key 0 becomes the youngest, and so do all rows that a search for the oldest ones finds beforehand.
  for (size_t i = 40; i < 160; ++i) {
    REQUIRE(Push(*table, {keys[0], keys[i]}).ok());
    CHECK(HasRow(*table, keys[0]));
    CHECK(HasRow(*table, keys[i]));
    CHECK_FALSE(HasRow(*table, keys[i - 39]));
    CHECK(HasRow(*table, keys[i - 38]));
  }
  CHECK(table->stats().evicted == 120);
  CHECK(First(*table, keys[1]) == -1);
  // Rows of one version, more than the quota: those of the lowest keys go.
  REQUIRE(Push(*table, keys).ok());
  for (size_t i = 0; i < 200; ++i) CHECK(HasRow(*table, keys[i]) == (i >= 160));
}

TEST_CASE(
    "Table: a bucket that was restored with more rows than its quota loses them with the next version") {
  Table::Options options = MakeOptions();
  options.max_rows = kKeyBuckets;
  const auto table = Make(options);
  const std::vector<uint64_t> keys = KeysOfOneBucket(3);
  const std::vector<float> words(table->row_words(), 4);
  REQUIRE(table->RestoreVersion(9).ok());
  REQUIRE(table->RestoreRows({{keys[0], 7, words}, {keys[1], 8, words}}).ok());
  REQUIRE(table->RestoreRows({{keys[2], 6, words}}).ok());
  // As saved until then.
  CHECK(table->rows() == 3);
  REQUIRE(table->Update({}, 1).ok());
  CHECK(table->rows() == 1);
  CHECK(HasRow(*table, keys[1]));
  CHECK(table->stats().evicted == 2);
}

TEST_CASE("Table: a pinned version stays until its last Unpin, and its bytes are counted") {
  const auto table = Make(MakeOptions());
  REQUIRE(Push(*table, {1, 2}).ok());
  CHECK(table->stats().former_bytes == 0);
  const uint64_t pinned = table->Pin();
  CHECK(pinned == 1);
  CHECK(table->Pin() == 1);
  const size_t empty = table->stats().former_bytes;
  REQUIRE(Push(*table, {2, 3}).ok());
  CHECK(table->stats().former_bytes > empty);
  CHECK(First(*table, 2) == -3);
  CHECK(First(*table, 2, pinned) == -2);
  CHECK(First(*table, 3, pinned) == -1);
  std::vector<Table::Row> rows;
  std::vector<Table::Counter> counters;
  REQUIRE(table->RowsAt(pinned, BucketOfHash(HashKey(3)), rows).ok());
  CHECK(std::none_of(rows.begin(), rows.end(), [](const auto& row) { return row.key == 3; }));

  REQUIRE(table->Unpin(pinned).ok());
  REQUIRE(Push(*table, {1}).ok());
  CHECK(First(*table, 1, pinned) == -2);
  REQUIRE(table->Unpin(pinned).ok());
  CHECK(table->stats().former_bytes == 0);

  float out[2];
  for (const absl::Status& status : {table->ReadAt(pinned, {1}, out), table->RowsAt(pinned, 0, rows),
                                     table->CountersAt(pinned, 0, counters)}) {
    CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
    CHECK(status.message() ==
          "table 'clicks': version 1 cannot be read, since it is not pinned; the newest is 3");
  }
  CHECK(table->Unpin(pinned).message() == "table 'clicks': version 1 is not pinned");
  CHECK(table->RowsAt(3, kKeyBuckets, rows).code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("Table: a version may be pinned again while an older one is pinned") {
  const auto table = Make(MakeOptions());
  REQUIRE(Push(*table, {1}).ok());
  const uint64_t older = table->Pin();
  REQUIRE(Push(*table, {1}).ok());
  const uint64_t newer = table->Pin();
  REQUIRE(table->Unpin(newer).ok());
  CHECK(table->Pin() == newer);
  REQUIRE(Push(*table, {1}).ok());
  CHECK(First(*table, 1, older) == -2);
  CHECK(First(*table, 1, newer) == -3);
  CHECK(First(*table, 1) == -4);
  REQUIRE(table->Unpin(older).ok());
  CHECK(First(*table, 1, newer) == -3);
  REQUIRE(table->Unpin(newer).ok());
}

// HashKey() backwards.
uint64_t KeyOfHash(uint64_t hash) {
  const auto inverse = [](uint64_t odd) {
    uint64_t x = odd;  // three bits are right, and each step doubles them
    for (int i = 0; i < 5; ++i) x *= 2 - odd * x;
    return x;
  };
  const auto unshift = [](uint64_t x, int by) {
    uint64_t y = x;
    for (int done = by; done < 64; done += by) y = x ^ y >> by;
    return y;
  };
  uint64_t x = unshift(hash, 31) * inverse(0x94d049bb133111eb);
  x = unshift(x, 27) * inverse(0xbf58476d1ce4e5b9);
  return unshift(x, 30) - 0x9e3779b97f4a7c15;
}

TEST_CASE("Table: a read of many keys, at any version, has each key's own row") {
  Table::Options options = MakeOptions();
  options.max_rows = 40 * uint64_t{kKeyBuckets};
  const auto table = Make(options);
  // More than the quota of one bucket, at one place of its index. Then more keys than one task reads.
  std::vector<uint64_t> keys;
  for (uint64_t i = 0; i < 60; ++i) {
    keys.push_back(KeyOfHash(uint64_t{7} << 48 | i << 32 | 5));
    REQUIRE(BucketOfHash(HashKey(keys.back())) == 7);
  }
  for (uint64_t key = 0; key < 20000; ++key) keys.push_back(key);
  std::vector<std::vector<float>> values(1, std::vector<float>(keys.size(), -1));  // by version
  const auto push = [&](size_t first, size_t step) {
    std::vector<float> next = values.back();
    std::vector<uint64_t> pushed;
    for (size_t i = first; i < keys.size(); i += step) {
      pushed.push_back(keys[i]);
      next[i] -= 1;
    }
    REQUIRE(Push(*table, pushed).ok());
    for (size_t i = 0; i < 60; ++i) {
      if (!HasRow(*table, keys[i])) next[i] = -1;
    }
    values.push_back(std::move(next));
    table->Pin();
  };
  push(0, 3);
  push(1, 3);
  push(0, 2);
  push(2, 3);  // beyond the quota
  push(0, 1);
  CHECK(table->stats().evicted > 20);
  std::vector<float> read(keys.size() * 2);
  for (uint64_t version = 1; version <= table->version(); ++version) {
    REQUIRE(table->ReadAt(version, keys, read.data()).ok());
    size_t wrong = 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      wrong += read[2 * i] != values[version][i] || read[2 * i + 1] != values[version][i];
    }
    INFO("version " << version);
    CHECK(wrong == 0);
  }
}

TEST_CASE("Table: its bytes follow its rows") {
  Table::Options options = MakeOptions();
  options.dim = 16;
  const auto table = Make(options);
  const size_t empty = table->stats().bytes;
  std::vector<uint64_t> keys;
  for (uint64_t key = 0; key < 200000; ++key) keys.push_back(key);
  REQUIRE(Push(*table, keys).ok());
  const size_t rows = 200000 * (16 * sizeof(float) + 16);
  CHECK(table->stats().bytes - empty > rows);
  // Indexes, at most a started piece for each partition.
  CHECK(table->stats().bytes - empty < rows + 200000 * 22 + (64 << 18));
  CHECK(table->stats().former_bytes == 0);
}

}  // namespace
}  // namespace weir
