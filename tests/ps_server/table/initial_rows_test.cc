#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/random.h"
#include "ps_server/table/table_partition.h"

namespace weir {
namespace {

std::vector<float> Fill(const InitialRows& rows, uint64_t key, size_t dim) {
  std::vector<float> values(dim);
  rows.Fill(key, values.data(), dim);
  return values;
}

uint32_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

constexpr Initializer kNormal{Initializer::Kind::kNormal, 0.5f}, kUniform{Initializer::Kind::kUniform, 0.5f};

TEST_CASE("Initial rows: a constant") {
  CHECK(Fill({1, "t", {Initializer::Kind::kConstant, 0.25f}}, 7, 3) ==
        std::vector<float>{0.25f, 0.25f, 0.25f});
}

TEST_CASE("Initial rows: each column depends on seed, table, key and column alone") {
  for (const Initializer& init : {kNormal, kUniform}) {
    const InitialRows rows(1, "t", init);
    const std::vector<float> row = Fill(rows, 7, 11);
    CHECK(row == Fill(InitialRows(1, "t", init), 7, 11));
    CHECK(row != Fill(InitialRows(2, "t", init), 7, 11));
    CHECK(row != Fill(InitialRows(1, "u", init), 7, 11));
    CHECK(row != Fill(rows, 8, 11));
    CHECK(row != Fill(rows, 7 + (uint64_t{1} << 32), 11));
    // A shorter row is the beginning of a longer one, and nothing is written behind it.
    for (size_t dim = 1; dim <= row.size(); ++dim) {
      std::vector<float> out(row.size(), 9);
      rows.Fill(7, out.data(), dim);
      std::vector<float> expected(row.begin(), row.begin() + static_cast<ptrdiff_t>(dim));
      expected.resize(row.size(), 9);
      CHECK(out == expected);
    }
    std::vector<float> sorted = row;
    std::sort(sorted.begin(), sorted.end());
    CHECK(std::unique(sorted.begin(), sorted.end()) == sorted.end());
  }
}

TEST_CASE("Initial rows: the same bits for ever") {
  // Values that this code gave when it was written. A change would change every job's model.
  const std::vector<float> normal = Fill({1, "t", kNormal}, 7, 4), uniform = Fill({1, "t", kUniform}, 7, 4);
  std::vector<uint32_t> bits;
  for (const auto& row : {uniform, normal}) {
    for (float value : row) bits.push_back(Bits(value));
  }
  CHECK(bits == std::vector<uint32_t>{0xbefeed80, 0x3e9f80b0, 0x3e253ad8, 0xbee03384,  // uniform
                                      0x3f298326, 0xbfd0344a, 0x3ed74b0e, 0x3e311c3b});
}

TEST_CASE("Initial rows: uniform is what its formula says") {
  const std::vector<float> row = Fill({1, "t", kUniform}, 7, 6);
  for (size_t column = 0; column < row.size(); ++column) {
    const uint32_t word = Philox(RandomKey(1, "table t"), 7, column / 4)[column % 4];
    CHECK(row[column] == (2 * UniformFloat(word) - 1) * 0.5f);
  }
}

TEST_CASE("Initial rows: normal is Box and Muller's, to the last bits of a double") {
  for (uint64_t key = 0; key < 500; ++key) {
    const std::vector<float> row = Fill({1, "t", {Initializer::Kind::kNormal, 1.0f}}, key, 8);
    for (size_t column = 0; column < row.size(); ++column) {
      const auto words = Philox(RandomKey(1, "table t"), key, column / 4);
      const size_t pair = column % 4 / 2 * 2;
      const double u1 = (static_cast<double>(words[pair]) + 1) * 0x1p-32;
      const double angle = 6.283185307179586 * (static_cast<double>(words[pair + 1]) * 0x1p-32);
      const double expected =
          std::sqrt(-2 * std::log(u1)) * (column % 2 == 0 ? std::cos(angle) : std::sin(angle));
      // Half a unit in the last place of a float, and a little for the double.
      CHECK(std::abs(row[column] - expected) <= std::abs(expected) * 0x1.00001p-24 + 1e-15);
    }
  }
}

TEST_CASE("Initial rows: mean, deviation and range") {
  for (const Initializer& init : {kNormal, kUniform}) {
    const InitialRows rows(3, "t", init);
    double sum = 0, squares = 0, largest = 0;
    constexpr int kKeys = 20000;
    for (uint64_t key = 0; key < kKeys; ++key) {
      for (const float value : Fill(rows, key, 8)) {
        sum += value;
        squares += static_cast<double>(value) * value;
        largest = std::max(largest, std::abs(static_cast<double>(value)));
      }
    }
    const double n = 8.0 * kKeys;
    const bool normal = init.kind == Initializer::Kind::kNormal;
    CHECK(std::abs(sum / n) < 0.005);
    CHECK(std::abs(std::sqrt(squares / n) - (normal ? 0.5 : 0.5 / std::sqrt(3.0))) < 0.005);
    CHECK(largest > (normal ? 1.9 : 0.499));
    CHECK(largest <= (normal ? 4.0 : 0.5));
  }
}

}  // namespace
}  // namespace weir
