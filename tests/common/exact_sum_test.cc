#include "common/base/exact_sum.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "catch2/catch.hpp"

namespace weir {
namespace {

ExactSum SumOf(const std::vector<double>& terms) {
  ExactSum sum;
  for (double term : terms) sum.Add(term);
  return sum;
}

std::vector<double> RandomTerms(std::mt19937_64& random, int lowest, int highest) {
  std::vector<double> terms(1 + random() % 60);
  for (double& term : terms) {
    const int exponent = lowest + static_cast<int>(random() % static_cast<uint64_t>(highest - lowest));
    term = random() % 5 == 0 ? 0 : std::ldexp(static_cast<double>(random() >> 11), exponent - 53);
  }
  return terms;
}

TEST_CASE("A sum does not depend on the order of its terms, nor on how they are divided") {
  std::mt19937_64 random(5);
  for (int round = 0; round < 500; ++round) {
    std::vector<double> terms = RandomTerms(random, -1080, 1000);
    const ExactSum sum = SumOf(terms);
    std::shuffle(terms.begin(), terms.end(), random);
    std::vector<ExactSum> parts(1 + random() % 4);
    for (double term : terms) parts[random() % parts.size()].Add(term);
    ExactSum together;
    for (const ExactSum& part : parts) {
      const auto parsed = ExactSum::Parse(part.Serialize());
      REQUIRE(parsed.ok());
      together.Add(*parsed);
    }
    CHECK(together.Serialize() == sum.Serialize());
    CHECK(together.value() == sum.value());
  }
}

TEST_CASE("A sum is rounded to the nearest double, once") {
  std::mt19937_64 random(6);
  for (int round = 0; round < 500; ++round) {
    // 113 bits hold these sums.
    const std::vector<double> terms = RandomTerms(random, -20, 20);
    __extension__ __float128 exact = 0;
    for (double term : terms) exact += term;
    CHECK(SumOf(terms).value() == static_cast<double>(exact));
  }
  // Between two doubles, to the even one; the smallest bit beyond decides otherwise.
  CHECK(SumOf({1, 0x1p-53}).value() == 1);
  CHECK(SumOf({1, 0x1p-53, 0x1p-1074}).value() == 1 + 0x1p-52);
  CHECK(SumOf({1 + 0x1p-52, 0x1p-53}).value() == 1 + 0x1p-51);
}

TEST_CASE("Extreme values are summed exactly") {
  const double tiny = std::numeric_limits<double>::denorm_min();
  CHECK(ExactSum().value() == 0);
  CHECK(SumOf({0, 0}).value() == 0);
  for (double term : {tiny, 3 * tiny, DBL_MIN, DBL_MIN - tiny, 1.0, 0x1p31, 0x1p32, 0x1p-1042, DBL_MAX}) {
    CHECK(SumOf({term}).value() == term);
    CHECK(SumOf({term, 0}).value() == term);
  }
  CHECK(SumOf({DBL_MAX, tiny}).value() == DBL_MAX);
  CHECK(SumOf({DBL_MAX, DBL_MAX}).value() == INFINITY);
  CHECK(SumOf(std::vector<double>(1000, 0.1)).value() == 100);  // a loop of double gives 99.9999999999986
  CHECK(SumOf(std::vector<double>(1 << 20, tiny)).value() == 0x1p20 * tiny);
}

TEST_CASE("A sum with an infinity or a NaN is not finite, and says so to those it is added to") {
  for (double term : {static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
    const ExactSum sum = SumOf({1, term, 2});
    CHECK(sum.value() == INFINITY);
    ExactSum other = SumOf({1});
    other.Add(*ExactSum::Parse(sum.Serialize()));
    CHECK(other.value() == INFINITY);
  }
}

TEST_CASE("A sum is written in few bytes") {
  CHECK(ExactSum().Serialize().empty());
  CHECK(SumOf({INFINITY}).Serialize().size() == 1);
  CHECK(SumOf({1}).Serialize().size() == 5);
  std::mt19937_64 random(7);
  CHECK(SumOf(RandomTerms(random, -40, 20)).Serialize().size() < 30);
}

TEST_CASE("Bytes that are no sum are refused") {
  const std::string one = SumOf({1}).Serialize();
  const std::string zeros(4, '\0'), digit = {1, 0, 0, 0};
  for (const std::string& bytes : {
           std::string("\x05"),
           one + "x",
           one.substr(0, 4),  // no digit, a part of one
           "\x05" + zeros,
           one + zeros,
           "\x05" + zeros + digit,  // zeros at an end
           "\x44" + digit,
           "\x43" + digit + digit,  // beyond the last digit
           std::string("\xff") + digit,
           std::string("\x00", 1) + std::string(4 * 69, '\x01'),
       }) {
    CAPTURE(bytes.size());
    CHECK_FALSE(ExactSum::Parse(bytes).ok());
  }
  REQUIRE(ExactSum::Parse("\x43" + digit).ok());
  // The most that bytes can say, twice: beyond all doubles.
  const std::string most = std::string("\x00", 1) + std::string(4 * 68, '\xff');
  ExactSum sum = *ExactSum::Parse(most);
  sum.Add(*ExactSum::Parse(most));
  CHECK(sum.value() == INFINITY);
  CHECK(sum.Serialize().size() == 1);
}

}  // namespace
}  // namespace weir
