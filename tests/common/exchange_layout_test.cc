#include "common/protocol/exchange_layout.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/protocol/limits.h"

namespace weir {
namespace {

constexpr uint64_t kMost = 1 << 20;

TEST_CASE("ChunkSet: chunks come in any order, until all values are there") {
  ChunkSet set(10, 4);
  CHECK(!set.whole());
  CHECK(set.Add(8, 2 * 4, v1::F32, kMost).ok());
  CHECK(set.Add(0, 8 * 4, v1::F32, kMost).ok());
  CHECK(set.whole());

  ChunkSet of_two_bytes(10, 4);
  CHECK(of_two_bytes.Add(0, 10 * 2, v1::BF16, kMost).ok());
  CHECK(of_two_bytes.whole());
}

TEST_CASE("ChunkSet: a quantised chunk has the bytes of its whole blocks and of the short one") {
  ChunkSet sparse(2 * 4096 + 1000, 4096);
  const WireType few(v1::TOPK, 3);
  // 1,000 values have one entry, as have 2,047; with them come 4,096 others.
  CHECK(!sparse.Add(0, EncodedBytes(few, 2047), few, kMost).ok());
  CHECK(!sparse.Add(4096, EncodedBytes(few, 4096 + 1000) + 4, few, kMost).ok());
  CHECK(sparse.Add(4096, EncodedBytes(few, 4096 + 1000), few, kMost).value_or(0) == 4096 + 1000);
  CHECK(sparse.Add(0, EncodedBytes(few, 4096), few, kMost).value_or(0) == 4096);
  CHECK(sparse.whole());
  for (const v1::Dtype dtype : {v1::INT8, v1::INT4, v1::BIT1}) {
    // The last chunk's length follows from its end: 9 values of 1 bit have the bytes of 16.
    ChunkSet set(512 + 256 + 9, 512);
    CHECK(!set.Add(512, EncodedBytes(dtype, 256), dtype, kMost).ok());
    CHECK(!set.Add(512, EncodedBytes(dtype, 256 + 9) + 1, dtype, kMost).ok());
    CHECK(!set.Add(0, EncodedBytes(dtype, 512) - 1, dtype, kMost).ok());
    const absl::StatusOr<uint64_t> last = set.Add(512, EncodedBytes(dtype, 256 + 9), dtype, kMost);
    REQUIRE(last.ok());
    CHECK(*last == 256 + 9);
    CHECK(!set.whole());
    CHECK(set.Add(0, EncodedBytes(dtype, 512), dtype, kMost).value_or(0) == 512);
    CHECK(set.whole());
    // The limit counts what the values need as float32.
    CHECK(!ChunkSet(kMost, 512).Add(0, EncodedBytes(dtype, kMost / 2), dtype, kMost).ok());
  }
}

TEST_CASE("ChunkSet: without values it is whole, and takes nothing") {
  ChunkSet none(0, 4);
  CHECK(none.whole());
  CHECK(!none.Add(0, 4, v1::F32, kMost).ok());
  CHECK(ChunkSet().whole());
}

TEST_CASE("ChunkSet: what is no chunk changes nothing") {
  struct Case {
    uint64_t first, bytes;
  };
  for (const Case& c :
       {Case{0, 0}, Case{1, 16}, Case{0, 4}, Case{0, 18}, Case{8, 4}, Case{8, 16}, Case{12, 16},
        Case{uint64_t{1} << 62, 16}, Case{4, ~uint64_t{15}}, Case{0, kMost + 16}}) {
    ChunkSet set(10, 4);
    const absl::Status status = set.Add(c.first, c.bytes, v1::F32, kMost).status();
    CAPTURE(c.first, c.bytes);
    CHECK(absl::IsInvalidArgument(status));
    CHECK(absl::StrContains(
        status.message(),
        "which does not fit: chunks start and end at multiples of 4 elements or at the end, are in F32"));
    CHECK(set.Add(0, 40, v1::F32, kMost).ok());
  }
  CHECK(!ChunkSet(1 << 20, 4).Add(0, kMost + 16, v1::F32, kMost).ok());
}

TEST_CASE("ChunkSet: a value that came before is refused, with its chunk") {
  ChunkSet set(12, 4);
  CHECK(set.Add(4, 16, v1::F32, kMost).ok());
  const absl::Status status = set.Add(0, 32, v1::F32, kMost).status();
  CHECK(absl::IsInvalidArgument(status));
  CHECK(status.message() == "of which position 4 came before");
  CHECK(!set.Add(4, 16, v1::F32, kMost).ok());
  CHECK(set.Add(0, 16, v1::F32, kMost).ok());
  CHECK(set.Add(8, 16, v1::F32, kMost).ok());
  CHECK(set.whole());
}

using Catch::Matchers::Contains;

RowLayout::Entries Rows(const std::vector<std::pair<uint32_t, uint64_t>>& entries) {
  RowLayout::Entries rows;
  for (const auto& [table, keys] : entries) {
    v1::Rows& added = *rows.Add();
    added.set_table(table);
    added.set_keys(keys);
  }
  return rows;
}

const std::vector<uint32_t> kDims = {4, 1, 16};

TEST_CASE("a request has the push's keys and gradients, then the pull's keys") {
  const auto layout = RowLayout::OfRequest(Rows({{0, 3}, {2, 5}}), v1::F32, Rows({{1, 7}}), kDims);
  REQUIRE(layout.ok());
  REQUIRE(layout->push().size() == 2);
  CHECK(layout->push()[0].keys_at == 0);
  CHECK(layout->push()[0].values_at == 24);
  CHECK(layout->push()[0].end == 24 + 3 * 16);
  CHECK(layout->push()[1].keys_at == 72);
  CHECK(layout->push()[1].values_at == 72 + 40);
  CHECK(layout->push()[1].row_bytes == 64);
  CHECK(layout->push()[1].end == 112 + 5 * 64);
  REQUIRE(layout->pull().size() == 1);
  CHECK(layout->pull()[0].keys_at == 432);
  CHECK(layout->pull()[0].end == 432 + 56);
  CHECK(layout->bytes() == 488);
}

TEST_CASE("a reply has the values alone, in the pull's dtype") {
  const auto layout = RowLayout::OfReply(Rows({{0, 3}, {2, 5}}), v1::BF16, kDims);
  REQUIRE(layout.ok());
  CHECK(layout->pull()[0].values_at == 0);
  CHECK(layout->pull()[1].values_at == 24);
  CHECK(layout->bytes() == 24 + 5 * 32);
}

TEST_CASE("rows that are impossible are refused by field") {
  const auto refusal = [](const RowLayout::Entries& push) {
    return std::string(RowLayout::OfRequest(push, v1::F32, {}, kDims).status().message());
  };
  CHECK_THAT(refusal(Rows({{3, 1}})), Contains("push.rows[0].table: 3; the job has 3 tables"));
  CHECK_THAT(refusal(Rows({{1, 1}, {1, 1}})), Contains("push.rows[1].table: 1 comes after 1"));
  CHECK_THAT(refusal(Rows({{1, 1}, {0, 1}})), Contains("tables must rise"));
  CHECK_THAT(refusal(Rows({{1, 0}})), Contains("push.rows[0].keys: 0"));
  CHECK_THAT(std::string(RowLayout::OfReply(Rows({{9, 1}}), v1::F32, kDims).status().message()),
             Contains("pull.rows[0].table"));
}

TEST_CASE("the bytes of an exchange's rows are bounded, whatever a peer declares") {
  const uint64_t most = kMaxRowBytes / (8 + 4);
  CHECK(RowLayout::OfRequest(Rows({{1, most}}), v1::F32, {}, kDims).ok());
  CHECK_FALSE(RowLayout::OfRequest(Rows({{1, most + 1}}), v1::F32, {}, kDims).ok());
  CHECK_FALSE(RowLayout::OfRequest(Rows({{1, most}}), v1::F32, Rows({{0, 2}}), kDims).ok());
  CHECK_FALSE(RowLayout::OfRequest(Rows({{1, ~uint64_t{0}}}), v1::F32, {}, kDims).ok());
  CHECK_FALSE(RowLayout::OfReply(Rows({{2, uint64_t{1} << 60}}), v1::F32, kDims).ok());
}

}  // namespace
}  // namespace weir
