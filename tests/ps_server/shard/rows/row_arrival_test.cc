// How the rows of an exchange are put together from pieces.
#include "ps_server/shard/rows/row_arrival.h"

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/codec/floats.h"

namespace weir {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct RowsOfTable {
  uint32_t table;
  std::vector<uint64_t> keys;
  std::vector<float> values;  // of a push
};

template <typename T>
void Append(std::string* to, const std::vector<T>& values) {
  to->append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

// Two tables, "users" of 2 columns and "items" of 3.
struct Exchange {
  explicit Exchange(const std::vector<RowsOfTable>& push, const std::vector<RowsOfTable>& pull,
                    v1::Dtype dtype = v1::F32) {
    tables.Add()->set_name("users");
    tables.Add()->set_name("items");
    tables.Mutable(0)->set_dim(2);
    tables.Mutable(1)->set_dim(3);
    RowLayout::Entries pushes, pulls;
    for (const RowsOfTable& rows : push) {
      pushes.Add()->set_table(rows.table);
      pushes.rbegin()->set_keys(rows.keys.size());
      Append(&bytes, rows.keys);
      if (dtype == v1::BF16) {
        std::string values(2 * rows.values.size(), '\0');
        ToBfloat16(rows.values.data(), values.data(), rows.values.size());
        bytes += values;
      } else {
        Append(&bytes, rows.values);
      }
    }
    pull_begin = bytes.size();
    for (const RowsOfTable& rows : pull) {
      pulls.Add()->set_table(rows.table);
      pulls.rbegin()->set_keys(rows.keys.size());
      Append(&bytes, rows.keys);
    }
    absl::StatusOr<RowLayout> layout = RowLayout::OfRequest(pushes, dtype, pulls, {2, 3});
    REQUIRE(layout.ok());
    REQUIRE(layout->bytes() == bytes.size());
    arrival = std::make_unique<RowArrival>(tables, *std::move(layout), dtype);
  }

  absl::Status Take(uint64_t first, uint64_t count) {
    const absl::string_view piece = absl::string_view(bytes).substr(first, count);
    return arrival->Take(first, absl::MakeConstSpan(&piece, 1), piece.size());
  }

  RowArrival::Tables tables;
  std::string bytes;
  uint64_t pull_begin = 0;
  std::unique_ptr<RowArrival> arrival;
};

std::vector<uint64_t> KeysOf(const TableKeys& keys) { return {keys.span().begin(), keys.span().end()}; }

const std::vector<RowsOfTable> kPush = {{0, {3, 7, 9}, {1, 2, 3, 4, 5, 6}},
                                        {1, {1, 8}, {7, 8, 9, 10, 11, 12}}};
const std::vector<RowsOfTable> kPull = {{0, {7, 9}, {}}, {1, {0, 5, 1000}, {}}};

void CheckTaken(Exchange& exchange) {
  REQUIRE(exchange.arrival->whole());
  const PushedRows push = exchange.arrival->TakePush();
  CHECK_FALSE(push.non_finite.has_value());
  REQUIRE(push.tables.size() == 2);
  for (size_t i = 0; i < 2; ++i) {
    CHECK(push.tables[i].keys.table == i);
    CHECK(KeysOf(push.tables[i].keys) == kPush[i].keys);
    const float* const values = push.tables[i].gradients.get();
    CHECK(std::vector<float>(values, values + kPush[i].values.size()) == kPush[i].values);
  }
  const RowKeys pull = exchange.arrival->TakePull();
  REQUIRE(pull.size() == 2);
  for (size_t i = 0; i < 2; ++i) CHECK((pull[i].table == i && KeysOf(pull[i]) == kPull[i].keys));
}

TEST_CASE("Rows arrive in pieces that are cut anywhere, in either type of values") {
  const auto dtype = GENERATE(v1::F32, v1::BF16);
  const uint64_t length = GENERATE(1, 3, 7, 8, 64, 1000);
  Exchange exchange(kPush, kPull, dtype);
  for (uint64_t at = 0; at < exchange.bytes.size(); at += length) {
    CHECK_FALSE(exchange.arrival->whole());
    CHECK(exchange.arrival->received() == at);
    REQUIRE(exchange.Take(at, length).ok());
  }
  CheckTaken(exchange);
}

TEST_CASE("One piece of rows may lie in several places") {
  Exchange exchange(kPush, kPull, v1::BF16);
  std::vector<absl::string_view> places;
  for (uint64_t at = 0, length = 1; at < exchange.bytes.size(); at += length++) {
    places.push_back(absl::string_view(exchange.bytes).substr(at, length));
  }
  REQUIRE(exchange.arrival->Take(0, places, exchange.bytes.size()).ok());
  CheckTaken(exchange);
}

TEST_CASE("Pieces of rows come in order, each byte once, and no more than were declared") {
  Exchange exchange(kPush, kPull);
  CHECK(exchange.Take(8, 8).message() == "rows: a piece of 8 bytes at byte 8; the next byte is 0 of 128");
  REQUIRE(exchange.Take(0, 8).ok());
  CHECK(absl::IsInvalidArgument(exchange.Take(0, 8)));
  CHECK(absl::IsInvalidArgument(exchange.Take(16, 8)));
  CHECK(absl::IsInvalidArgument(exchange.Take(8, 0)));
  const std::string more(200, '\0');
  const absl::string_view piece = more;
  CHECK(absl::IsInvalidArgument(exchange.arrival->Take(8, absl::MakeConstSpan(&piece, 1), piece.size())));
}

TEST_CASE("Keys of a push and of a pull must rise") {
  const bool push = GENERATE(true, false);
  const uint64_t length = GENERATE(5, 1000);
  for (const std::vector<uint64_t>& keys : {std::vector<uint64_t>{3, 3}, {4, 3}, {1, 5, 2}}) {
    const RowsOfTable rows{1, keys, std::vector<float>(3 * keys.size(), 1.0f)};
    Exchange exchange(push ? std::vector{rows} : std::vector<RowsOfTable>(),
                      push ? std::vector<RowsOfTable>() : std::vector{rows});
    absl::Status status;
    for (uint64_t at = 0; status.ok() && at < exchange.bytes.size(); at += length) {
      status = exchange.Take(at, length);
    }
    CHECK(absl::IsInvalidArgument(status));
    CHECK_THAT(std::string(status.message()),
               Catch::Contains("table 'items': key ") && Catch::Contains("; keys must rise, each once"));
  }
}

TEST_CASE("The first value of a push's rows that is not finite is named") {
  const auto dtype = GENERATE(v1::F32, v1::BF16);
  const uint64_t length = GENERATE(1, 6, 1000);
  const float bad = GENERATE(true, false) ? kNaN : std::numeric_limits<float>::infinity();
  std::vector<RowsOfTable> push = kPush;
  INFO("dtype " << dtype << ", pieces of " << length << " bytes, " << bad);
  push[1].values = {7, 8, 9, 10, bad, bad};
  Exchange exchange(push, kPull, dtype);
  for (uint64_t at = 0; at < exchange.bytes.size(); at += length) REQUIRE(exchange.Take(at, length).ok());
  const PushedRows rows = exchange.arrival->TakePush();
  REQUIRE(rows.non_finite.has_value());
  CHECK(rows.non_finite->what == "the gradient of table 'items', key 8, column 1");
  CHECK_FALSE(std::isfinite(rows.non_finite->value));
}

TEST_CASE("Of a push that is over the rest of its rows is dropped, whether it comes or not") {
  const uint64_t before = GENERATE(0, 8, 30);
  const bool comes = GENERATE(true, false);
  std::vector<RowsOfTable> push = kPush;
  push[1].keys = {8, 8};  // no longer matters
  Exchange exchange(push, kPull);
  if (before > 0) REQUIRE(exchange.Take(0, before).ok());
  exchange.arrival->DropPush();
  if (comes) REQUIRE(exchange.Take(before, exchange.pull_begin - before).ok());
  REQUIRE(exchange.Take(exchange.pull_begin, 1000).ok());
  REQUIRE(exchange.arrival->whole());
  CHECK(exchange.arrival->TakePush().tables.empty());
  const RowKeys pull = exchange.arrival->TakePull();
  REQUIRE(pull.size() == 2);
  for (size_t i = 0; i < 2; ++i) CHECK(KeysOf(pull[i]) == kPull[i].keys);
}

}  // namespace
}  // namespace weir
