// The rows of an exchange on their ways: what each shard gets, and where its answer lands.
#include "client/tables/row_routes.h"

#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "client/tables/key_cuts.h"
#include "common/base/random.h"
#include "common/codec/floats.h"
#include "common/codec/value_codec.h"
#include "common/model/key_bucket.h"

namespace weir {
namespace {

using Catch::Contains;

constexpr float kUntouched = -7;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

const std::vector<TableSpec>& Tables() {
  static const std::vector<TableSpec> tables = {{"users", 3}, {"items/deep", 8}, {"days", 1}};
  return tables;
}

// Of keys that come for the first time.
absl::StatusOr<std::shared_ptr<const RowRoutes>> Create(const std::vector<TableSpec>& tables, uint32_t shards,
                                                        absl::Span<const RowGradients> push,
                                                        absl::Span<const RowsToRead> pull,
                                                        const RowRoutes::Types& types) {
  KeyCuts cuts(tables.size(), shards);
  return RowRoutes::Create(tables, cuts, push, pull, types);
}

std::vector<uint32_t> Dims() {
  std::vector<uint32_t> dims;
  for (const TableSpec& table : Tables()) dims.push_back(table.dim);
  return dims;
}

std::vector<uint64_t> KeysAt(const char* at, uint64_t n) {
  std::vector<uint64_t> keys(n);
  std::memcpy(keys.data(), at, n * sizeof(uint64_t));
  return keys;
}

std::vector<float> ValuesAt(const char* at, uint64_t n, v1::Dtype dtype) {
  std::vector<float> values(n);
  if (dtype == v1::BF16) {
    FromBfloat16(at, values.data(), n);
  } else {
    std::memcpy(values.data(), at, n * sizeof(float));
  }
  return values;
}

std::string BytesOf(const std::vector<float>& values, v1::Dtype dtype) {
  std::string bytes(values.size() * static_cast<size_t>(BytesPerValue(dtype)), '\0');
  if (dtype == v1::BF16) {
    ToBfloat16(values.data(), &bytes[0], values.size());
  } else {
    std::memcpy(&bytes[0], values.data(), bytes.size());
  }
  return bytes;
}

std::vector<float> Rounded(const std::vector<float>& values, v1::Dtype dtype) {
  return ValuesAt(BytesOf(values, dtype).data(), values.size(), dtype);
}

// A batch of one table.
struct Batch {
  uint32_t table;
  std::vector<uint64_t> keys;
  std::vector<float> values;
};

Batch RandomBatch(uint32_t table, size_t keys, uint32_t below, RandomStream& random) {
  Batch batch{table, std::vector<uint64_t>(keys), std::vector<float>(keys * Tables()[table].dim)};
  for (uint64_t& key : batch.keys) key = uint64_t{random.NextBelow(below)} * 0x2545f4914f6cdd1d;
  for (float& value : batch.values) value = 2 * UniformFloat(random.Next()) - 1;
  return batch;
}

// By table and key, the sums of the batches' gradients.
std::map<std::pair<uint32_t, uint64_t>, std::vector<float>> Sums(const std::vector<Batch>& batches) {
  std::map<std::pair<uint32_t, uint64_t>, std::vector<float>> sums;
  for (const Batch& batch : batches) {
    const size_t dim = Tables()[batch.table].dim;
    for (size_t i = 0; i < batch.keys.size(); ++i) {
      std::vector<float>& sum = sums[{batch.table, batch.keys[i]}];
      sum.resize(dim);
      for (size_t column = 0; column < dim; ++column) sum[column] += batch.values[i * dim + column];
    }
  }
  return sums;
}

std::vector<RowGradients> Gradients(const std::vector<Batch>& batches) {
  std::vector<RowGradients> rows;
  for (const Batch& batch : batches) rows.push_back({batch.table, batch.keys, batch.values});
  return rows;
}
std::vector<RowsToRead> ToRead(std::vector<Batch>& batches) {
  std::vector<RowsToRead> rows;
  for (Batch& batch : batches) rows.push_back({batch.table, batch.keys, absl::MakeSpan(batch.values)});
  return rows;
}

TEST_CASE("each shard gets the sums of its own keys, in the same bits for any number of shards") {
  const auto shards = GENERATE(as<uint32_t>(), 1, 2, 3);
  const v1::Dtype dtype = GENERATE(v1::F32, v1::BF16);
  const auto n = GENERATE(as<size_t>(), 1, 700, 6000);
  RandomStream random(RandomKey(2, "row_routes_test"), 0);
  // Not in the order of the tables.
  std::vector<Batch> pushed = {RandomBatch(2, n, 500, random), RandomBatch(0, n, 3000, random)};
  std::vector<Batch> pulled = {RandomBatch(1, n, 800, random), RandomBatch(0, 40, 10, random)};
  const auto routes = Create(Tables(), shards, Gradients(pushed), ToRead(pulled), {dtype, v1::F32});
  REQUIRE(routes.ok());
  REQUIRE((*routes)->finite().ok());
  std::map<std::pair<uint32_t, uint64_t>, std::vector<float>> got;
  std::map<std::pair<uint32_t, uint64_t>, bool> asked;
  for (uint32_t shard = 0; shard < shards; ++shard) {
    const auto layout = RowLayout::OfRequest((*routes)->push(shard), dtype, (*routes)->pull(shard), Dims());
    REQUIRE(layout.ok());
    const absl::Span<const char> request = (*routes)->request(shard);
    REQUIRE(request.size() == layout->bytes());
    CHECK((*routes)->pull_at(shard) == (layout->push().empty() ? 0 : layout->push().back().end));
    for (const auto* entries : {&layout->push(), &layout->pull()}) {
      for (const RowLayout::Entry& entry : *entries) {
        const std::vector<uint64_t> keys = KeysAt(request.data() + entry.keys_at, entry.keys);
        for (size_t i = 0; i < keys.size(); ++i) {
          CHECK(ShardOfKey(keys[i], shards) == shard);
          CHECK((i == 0 || keys[i - 1] < keys[i]));
          if (entries == &layout->pull()) {
            CHECK_FALSE(std::exchange(asked[{entry.table, keys[i]}], true));
            continue;
          }
          std::vector<float>& row = got[{entry.table, keys[i]}];
          CHECK(row.empty());
          row = ValuesAt(request.data() + entry.values_at + i * entry.row_bytes, Tables()[entry.table].dim,
                         dtype);
        }
      }
    }
  }
  auto expected = Sums(pushed);
  for (auto& [key, row] : expected) row = Rounded(row, dtype);
  CHECK((got == expected));
  CHECK(asked.size() == Sums(pulled).size());
}

TEST_CASE("the rows of an answer land wherever their keys were asked for") {
  const auto shards = GENERATE(as<uint32_t>(), 1, 2, 3);
  const v1::Dtype dtype = GENERATE(v1::F32, v1::BF16);
  RandomStream random(RandomKey(3, "row_routes_test"), 0);
  std::vector<Batch> batches = {RandomBatch(2, 300, 50, random), RandomBatch(1, 2000, 900, random),
                                RandomBatch(0, 1, 5, random)};
  for (Batch& batch : batches) std::fill(batch.values.begin(), batch.values.end(), kUntouched);
  const auto routes = Create(Tables(), shards, {}, ToRead(batches), {v1::F32, dtype});
  REQUIRE(routes.ok());
  const auto value = [](uint32_t table, uint64_t key, size_t column) {
    return static_cast<float>(table * 1000 + key % 509) + static_cast<float>(column) / 8;
  };
  for (uint32_t shard = 0; shard < shards; ++shard) {
    const auto asked = RowLayout::OfRequest({}, v1::F32, (*routes)->pull(shard), Dims());
    REQUIRE(asked.ok());
    const auto layout = RowLayout::OfReply((*routes)->pull(shard), dtype, Dims());
    REQUIRE(layout.ok());
    REQUIRE((*routes)->reply_bytes(shard) == layout->bytes());
    std::string answer;
    // Where its rows end.
    std::vector<uint64_t> ends;
    for (const RowLayout::Entry& entry : asked->pull()) {
      for (uint64_t key : KeysAt((*routes)->request(shard).data() + entry.keys_at, entry.keys)) {
        std::vector<float> row;
        for (size_t i = 0; i < Tables()[entry.table].dim; ++i) row.push_back(value(entry.table, key, i));
        answer += BytesOf(row, dtype);
        ends.push_back(answer.size());
      }
    }
    REQUIRE(answer.size() == layout->bytes());
    for (uint64_t byte = 1, row = 0; byte <= answer.size(); ++byte) {
      const bool is_end = byte == ends[row];
      if ((*routes)->RowEndsAt(shard, byte) != is_end) FAIL("byte " << byte);
      row += is_end;
    }
    // In pieces of some rows each, which arrive in slices that cut through values.
    for (size_t row = 0, first = 0; row < ends.size();) {
      row = std::min(ends.size(), row + 1 + random.NextBelow(200));
      const absl::string_view piece = absl::string_view(answer).substr(first, ends[row - 1] - first);
      std::vector<absl::string_view> slices;
      for (size_t at = 0; at < piece.size(); at += slices.back().size()) {
        slices.push_back(piece.substr(at, 1 + random.NextBelow(50)));
      }
      (*routes)->Place(shard, first, piece.size(), slices);
      first = ends[row - 1];
    }
  }
  for (const Batch& batch : batches) {
    const size_t dim = Tables()[batch.table].dim;
    std::vector<float> expected;
    for (uint64_t key : batch.keys) {
      for (size_t column = 0; column < dim; ++column) expected.push_back(value(batch.table, key, column));
    }
    CHECK((batch.values == Rounded(expected, dtype)));
  }
}

TEST_CASE("a shard that has none of the keys gets no entry") {
  const std::vector<uint64_t> keys(4, 12);
  const std::vector<float> values(4, 1);
  std::vector<float> read(4);
  const auto routes = Create(Tables(), 3, std::vector<RowGradients>{{2, keys, values}},
                             std::vector<RowsToRead>{{2, keys, absl::MakeSpan(read)}, {0, {}, {}}}, {});
  REQUIRE(routes.ok());
  for (uint32_t shard = 0; shard < 3; ++shard) {
    const int entries = ShardOfKey(12, 3) == shard;
    CHECK((*routes)->push(shard).size() == entries);
    CHECK((*routes)->pull(shard).size() == entries);
    CHECK((*routes)->request(shard).size() == (entries == 1 ? 8u + 4u + 8u : 0u));
    CHECK((*routes)->reply_bytes(shard) == (entries == 1 ? 4u : 0u));
  }
}

TEST_CASE("a sum that is not finite is found, and named by the lowest key, for any number of shards") {
  const auto shards = GENERATE(as<uint32_t>(), 1, 2, 3);
  const v1::Dtype dtype = GENERATE(v1::F32, v1::BF16);
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kMax = std::numeric_limits<float>::max();
  RandomStream random(RandomKey(4, "row_routes_test"), 0);
  Batch users{0, {}, {}};
  for (uint64_t key = 0; key < 3000; ++key) users.keys.push_back(3000 - key);
  users.values.assign(users.keys.size() * 3, 0.5f);
  std::string expected;
  SECTION("NaN, and an infinity behind it") {
    users.values[(3000 - 2000) * 3 + 1] = kInf;
    users.values[(3000 - 1234) * 3 + 2] = std::numeric_limits<float>::quiet_NaN();
    expected = "the gradient of table 'users', key 1234, column 2 is NaN";
  }
  SECTION("an infinity") {
    users.values[(3000 - 77) * 3] = -kInf;
    expected = "the gradient of table 'users', key 77, column 0 is -Inf";
  }
  SECTION("finite gradients whose sum is not") {
    users.keys[10] = users.keys[11] = 2500;
    users.values[10 * 3 + 1] = users.values[11 * 3 + 1] = kMax;
    expected = "the gradient of table 'users', key 2500, column 1 is Inf";
  }
  SECTION("a sum that only float32 can hold") {
    users.values[(3000 - 5) * 3 + 2] = kMax;
    if (dtype == v1::BF16) {
      expected =
          "the gradient of table 'users', key 5, column 2 is 3.40282e+38, which bfloat16 rounds to infinity";
    }
  }
  const auto routes = Create(Tables(), shards, Gradients({users}), {}, {dtype, v1::F32});
  REQUIRE(routes.ok());
  CHECK(Message((*routes)->finite()) == expected);
}

TEST_CASE("rows that do not fit the job are refused, by name") {
  const std::vector<uint64_t> keys = {1, 2};
  const std::vector<float> values(6);
  std::vector<float> read(6);
  const auto push = [&](const std::vector<RowGradients>& rows) {
    const auto routes = Create(Tables(), 2, rows, {}, {});
    CHECK(routes.status().code() == absl::StatusCode::kInvalidArgument);
    return Message(routes.status());
  };
  const auto pull = [&](const std::vector<RowsToRead>& rows) {
    const auto routes = Create(Tables(), 2, {}, rows, {});
    CHECK(routes.status().code() == absl::StatusCode::kInvalidArgument);
    return Message(routes.status());
  };
  CHECK(push({{3, keys, values}}) == "gradients of table 3: the job's config has 3 tables");
  CHECK(pull({{9, keys, absl::MakeSpan(read)}}) == "rows to read of table 9: the job's config has 3 tables");
  CHECK(push({{1, keys, values}}) == "gradients of table 'items/deep': 6 values; 2 keys of dim 8 have 16");
  CHECK(pull({{0, keys, absl::MakeSpan(read).subspan(1)}}) ==
        "rows to read of table 'users': 5 values; 2 keys of dim 3 have 6");
  CHECK(push({{0, keys, values}, {2, {}, {}}, {0, keys, values}}) ==
        "gradients of table 'users' come in two entries; give them in one");
  CHECK(pull({{0, keys, absl::MakeSpan(read)}, {0, {}, {}}}) ==
        "rows to read of table 'users' come in two entries; give them in one");
  const auto none = Create({}, 1, std::vector<RowGradients>{{0, keys, values}}, {}, {});
  CHECK(Message(none.status()) == "gradients of table 0: the job's config has 0 tables");
}

TEST_CASE("more rows than an exchange may have are refused before memory is taken for them") {
  // One key of a table of the largest rows, so often that the batch is long; then distinct keys.
  const std::vector<TableSpec> wide = {{"wide", 16384}};
  constexpr size_t kKeys = (512 << 20) / (16384 * 4) + 1;
  std::vector<uint64_t> keys(kKeys);
  for (size_t i = 0; i < kKeys; ++i) keys[i] = i;
  // Never touched: nothing is written before an answer comes.
  const std::unique_ptr<float[]> memory(new float[kKeys * 16384]);
  const absl::Span<float> values(memory.get(), kKeys * 16384);
  const auto one = Create(wide, 1, {}, std::vector<RowsToRead>{{0, keys, values}}, {});
  CHECK(one.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(Message(one.status()), Contains("at most 536870912 bytes"));
  CHECK(Create(wide, 2, {}, std::vector<RowsToRead>{{0, keys, values}}, {}).ok());
}

}  // namespace
}  // namespace weir
