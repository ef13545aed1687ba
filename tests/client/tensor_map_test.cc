#include "client/tensors/tensor_map.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/codec/floats.h"

namespace weir {
namespace {

ModelSpec SmallModel() {
  ModelSpec model;
  model.tensors.push_back({"dense_0/weight", {7, 11}, TensorKind::kParameter, {}});
  model.tensors.push_back({"scale", {}, TensorKind::kParameter, {}});
  model.tensors.push_back({"norm/mean", {300}, TensorKind::kBuffer, {}});
  return model;
}

// A model's tensors, each in one piece of memory, with consecutive numbers as values.
struct Memory {
  explicit Memory(const ModelSpec& model) {
    float next = 0;
    for (const TensorSpec& tensor : model.tensors) {
      values.emplace_back(tensor.elements());
      names.push_back(tensor.name);
      for (float& value : values.back()) value = next++;
    }
  }
  std::vector<ConstTensor> Const() const {
    std::vector<ConstTensor> result;
    for (size_t i = 0; i < values.size(); ++i) result.push_back({names[i], values[i]});
    return result;
  }
  std::vector<MutableTensor> Mutable() {
    std::vector<MutableTensor> result;
    for (size_t i = 0; i < values.size(); ++i) result.push_back({names[i], absl::MakeSpan(values[i])});
    return result;
  }
  std::vector<std::string> names;
  std::vector<std::vector<float>> values;
};

std::string MatchError(const TensorMap& map, const std::vector<ConstTensor>& tensors) {
  const auto result = map.Match(tensors);
  REQUIRE(result.status().code() == absl::StatusCode::kInvalidArgument);
  return std::string(result.status().message());
}

TEST_CASE("tensors are taken in any order") {
  const TensorMap map(SmallModel(), 2);
  Memory memory(map.model());
  std::vector<size_t> order = {0, 1, 2};
  do {
    std::vector<ConstTensor> tensors;
    for (size_t i : order) tensors.push_back(memory.Const()[i]);
    const auto matched = map.Match(tensors);
    REQUIRE(matched.ok());
    for (size_t i = 0; i < 3; ++i) CHECK(matched->begin[i] == memory.values[i].data());
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("another set of tensors is refused by name") {
  const TensorMap map(SmallModel(), 2);
  const Memory memory(map.model());

  std::vector<ConstTensor> tensors = memory.Const();
  tensors[1].name = "scales";
  CHECK(MatchError(map, tensors) == "the model has no tensor 'scales'");

  tensors = memory.Const();
  tensors.pop_back();
  CHECK(MatchError(map, tensors) == "tensor 'norm/mean' is missing; all tensors of the model are needed");

  tensors = memory.Const();
  tensors[2] = tensors[0];
  CHECK(MatchError(map, tensors) == "tensor 'dense_0/weight' is given twice");

  tensors = memory.Const();
  tensors.push_back(tensors[0]);
  CHECK(MatchError(map, tensors) == "tensor 'dense_0/weight' is given twice");
  tensors.back().name = "scales";
  CHECK(MatchError(map, tensors) == "the model has no tensor 'scales'");

  tensors = memory.Const();
  tensors[0].values.remove_suffix(1);
  CHECK(MatchError(map, tensors) ==
        "tensor 'dense_0/weight' is given with 76 values; its shape [7, 11] has 77");
}

TEST_CASE("a gradient is of one type") {
  const TensorMap map(SmallModel(), 2);
  const Memory memory(map.model());
  std::vector<std::vector<uint16_t>> rounded;
  for (const auto& values : memory.values) {
    rounded.emplace_back(values.size());
    ToBfloat16(values.data(), rounded.back().data(), values.size());
  }
  std::vector<ConstTensor> tensors;
  for (size_t i = 0; i < 3; ++i) tensors.push_back({memory.names[i], {}, rounded[i]});
  const auto matched = map.Match(tensors);
  REQUIRE(matched.ok());
  CHECK(matched->dtype == v1::BF16);
  // The bytes of elements [1, 4) of shard 1's first block, which holds elements 16 to 32.
  const auto runs = map.Locate(1, 1, 3, *matched);
  REQUIRE(runs.size() == 1);
  CHECK(runs[0].data() == reinterpret_cast<const char*>(&rounded[0][17]));
  CHECK(runs[0].size() == 6);

  tensors[0].bfloat16.remove_suffix(1);
  CHECK(MatchError(map, tensors) ==
        "tensor 'dense_0/weight' is given with 76 values; its shape [7, 11] has 77");
  tensors[0] = {memory.names[0], memory.values[0], rounded[0]};
  CHECK(MatchError(map, tensors) == "tensor 'dense_0/weight' is given both as float32 and as bfloat16");
  tensors[0].bfloat16 = {};
  CHECK(MatchError(map, tensors) ==
        "tensor 'scale' is given as bfloat16, but 'dense_0/weight' as float32; all tensors of a gradient are "
        "of "
        "one type");
}

TEST_CASE("the first of bfloat16 values that is not finite is named") {
  ModelSpec model;
  model.tensors.push_back({"a", {5}, TensorKind::kParameter, {}});
  model.tensors.push_back({"b", {100000}, TensorKind::kParameter, {}});
  const TensorMap map(model, 1);
  // The largest value, the smallest and negative zero are finite.
  std::vector<uint16_t> a = {0x7f7f, 0xff7f, 0x0001, 0x8000, 0}, b(100000, 0x7f7f);
  const auto matched = map.Match({{"a", {}, a}, {"b", {}, b}});
  REQUIRE(matched.ok());
  CHECK(map.CheckFinite(*matched, v1::BF16).ok());
  const auto message = [&] { return std::string(map.CheckFinite(*matched, v1::BF16).message()); };
  for (const size_t at : {99999, 16384, 16383, 31, 0}) {
    b[at] = 0xff80;
    CHECK(message() == "the gradient of b[" + std::to_string(at) + "] is -Inf");
  }
  a[4] = 0x7f80;
  CHECK(message() == "the gradient of a[4] is Inf");
  a[3] = 0xff81;
  CHECK(message() == "the gradient of a[3] is NaN");
  CHECK(map.CheckFinite(0, 5, 3, *matched, v1::BF16).message() == "the gradient of b[0] is -Inf");
  CHECK(map.CheckFinite(0, 6, 30, *matched, v1::BF16).ok());
}

TEST_CASE("the first value that is not finite is named") {
  const TensorMap map(SmallModel(), 1);
  Memory memory(map.model());
  auto matched = map.Match(memory.Const());
  REQUIRE(matched.ok());
  CHECK(map.CheckFinite(*matched, v1::F32).ok());

  // The largest value, a subnormal one and negative zero are finite.
  memory.values[2][5] = std::numeric_limits<float>::max();
  memory.values[2][6] = std::numeric_limits<float>::denorm_min();
  memory.values[2][7] = -0.0f;
  CHECK(map.CheckFinite(*matched, v1::F32).ok());

  // In the vectorised part of the check, and in its remainder.
  for (const int at : {0, 255, 256, 299}) {
    memory.values[2][at] = -std::numeric_limits<float>::infinity();
    CHECK(map.CheckFinite(*matched, v1::F32).message() ==
          "the new value of norm/mean[" + std::to_string(at) + "] is -Inf");
    memory.values[2][at] = 0;
  }
  memory.values[2][0] = std::numeric_limits<float>::infinity();
  CHECK(map.CheckFinite(*matched, v1::F32).message() == "the new value of norm/mean[0] is Inf");
  memory.values[0][12] = std::numeric_limits<float>::quiet_NaN();
  CHECK(map.CheckFinite(*matched, v1::F32).message() == "the gradient of dense_0/weight[12] is NaN");
  CHECK(map.CheckFinite(*matched, v1::F32).code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("the first of several values that are not finite is named") {
  ModelSpec model;
  model.tensors.push_back({"a", {3000000}, TensorKind::kParameter, {}});
  model.tensors.push_back({"b", {5}, TensorKind::kParameter, {}});
  model.tensors.push_back({"c", {3000000}, TensorKind::kParameter, {}});
  const TensorMap map(model, 1);
  Memory memory(model);
  const auto matched = map.Match(memory.Const());
  CHECK(map.CheckFinite(*matched, v1::F32).ok());
  // At borders of the check's units, of the loop's blocks and of tensors; from the last to the first.
  const std::vector<std::pair<size_t, size_t>> places = {{2, 2999999}, {2, 0},       {1, 4},     {1, 0},
                                                         {0, 2999999}, {0, 1048576}, {0, 16384}, {0, 16383},
                                                         {0, 7},       {0, 0}};
  for (const auto& [tensor, at] : places) {
    memory.values[tensor][at] = std::numeric_limits<float>::quiet_NaN();
    CHECK(map.CheckFinite(*matched, v1::F32).message() ==
          "the gradient of " + memory.names[tensor] + "[" + std::to_string(at) + "] is NaN");
  }
}

TEST_CASE("a shard's part of a gradient is checked alone") {
  const TensorMap map(SmallModel(), 2);
  Memory memory(map.model());
  const auto matched = map.Match(memory.Const());
  REQUIRE(matched.ok());
  // Blocks have 16 elements here, and shard 0 has the even ones; this element is in block 1.
  memory.values[0][16] = std::numeric_limits<float>::quiet_NaN();
  CHECK(map.CheckFinite(0, 0, map.partition().shard_elements(0), *matched, v1::F32).ok());
  CHECK(map.CheckFinite(1, 1, 15, *matched, v1::F32).ok());
  CHECK(map.CheckFinite(1, 0, 1, *matched, v1::F32).message() == "the gradient of dense_0/weight[16] is NaN");
}

TEST_CASE("what bfloat16 rounds to infinity is not finite there") {
  const TensorMap map(SmallModel(), 1);
  Memory memory(map.model());
  const auto matched = map.Match(memory.Const());
  REQUIRE(matched.ok());
  const auto check = [&](uint32_t bits) {
    std::memcpy(&memory.values[0][3], &bits, sizeof bits);
    CHECK(map.CheckFinite(*matched, v1::F32).ok());
    return map.CheckFinite(*matched, v1::BF16);
  };
  CHECK(check(0x7f7f7fff).ok());
  CHECK(check(0xff7f7fff).ok());
  CHECK_FALSE(check(0x7f7f8000).ok());
  CHECK(check(0xff7fffff).message() ==
        "the gradient of dense_0/weight[3] is -3.40282e+38, which bfloat16 rounds to infinity");
}

TEST_CASE("a tensor's part of a shard is found both ways") {
  for (const uint32_t shards : {1u, 2u, 3u, 5u, 30u}) {
    const TensorMap map(SmallModel(), shards);
    for (uint32_t shard = 0; shard < shards; ++shard) {
      const int64_t elements = map.partition().shard_elements(shard);
      std::vector<int64_t> found(map.model().tensors.size());
      for (int64_t i = 0; i < elements; ++i) {
        map.Walk(shard, i, 1, [&](size_t tensor, int64_t, int64_t) {
          const auto [first, end] = map.LocalRange(shard, tensor);
          CHECK((first <= i && i < end));
          ++found[tensor];
        });
      }
      for (size_t tensor = 0; tensor < found.size(); ++tensor) {
        const auto [first, end] = map.LocalRange(shard, tensor);
        CHECK(end - first == found[tensor]);
      }
    }
  }
}

// The bytes as a message brings them: in slices of any length, with floats across borders.
std::vector<absl::string_view> InPieces(const std::vector<char>& bytes) {
  std::vector<absl::string_view> pieces;
  for (size_t at = 0, length = 1; at < bytes.size(); at += length, length = length % 7 + 1) {
    pieces.emplace_back(bytes.data() + at, std::min(length, bytes.size() - at));
  }
  return pieces;
}

TEST_CASE("locating all shards' elements and scattering them again gives the same tensors") {
  for (const uint32_t shards : {1u, 2u, 3u, 5u, 30u}) {
    const TensorMap map(SmallModel(), shards);
    const Memory source(map.model());
    Memory target(map.model());
    for (auto& tensor : target.values) std::fill(tensor.begin(), tensor.end(), -1.0f);
    const auto from = map.Match(source.Const());
    const auto to = map.Match(target.Mutable());
    REQUIRE((from.ok() && to.ok()));
    // In pieces that end anywhere.
    for (const int64_t piece : {1, 13, 64, 1000}) {
      for (uint32_t shard = 0; shard < shards; ++shard) {
        const int64_t elements = map.partition().shard_elements(shard);
        for (int64_t first = 0; first < elements; first += piece) {
          const int64_t count = std::min(piece, elements - first);
          std::vector<char> bytes;
          for (absl::Span<const char> run : map.Locate(shard, first, count, *from)) {
            bytes.insert(bytes.end(), run.begin(), run.end());
          }
          REQUIRE(bytes.size() == count * sizeof(float));
          // Elements have consecutive numbers, so the first value shows its position.
          float value;
          std::memcpy(&value, bytes.data(), sizeof value);
          const int64_t size = map.partition().block_size();
          CHECK(value == static_cast<float>(map.partition().block_start(shard, first / size) + first % size));
          const auto pieces = InPieces(bytes);
          ValueCursor cursor(pieces, v1::F32, count);
          map.Scatter(shard, first, count, &cursor, *to);
        }
      }
      CHECK(target.values == source.values);
    }
  }
}

TEST_CASE("bfloat16 values that straddle pieces are scattered as float32") {
  const TensorMap map(SmallModel(), 1);
  Memory target(map.model());
  const auto to = map.Match(target.Mutable());
  REQUIRE(to.ok());
  const int64_t elements = map.partition().shard_elements(0);
  // 1, -1, 2, -2, 1, ...
  const uint16_t values[] = {0x3f80, 0xbf80, 0x4000, 0xc000};
  std::vector<char> bytes(elements * 2);
  for (int64_t i = 0; i < elements; ++i) std::memcpy(&bytes[2 * i], &values[i % 4], 2);
  const auto pieces = InPieces(bytes);
  ValueCursor cursor(pieces, v1::BF16, elements);
  map.Scatter(0, 0, elements, &cursor, *to);
  const float expected[] = {1, -1, 2, -2};
  int64_t i = 0;
  for (const auto& tensor : target.values) {
    for (float value : tensor) CHECK(value == expected[i++ % 4]);
  }
}

}  // namespace
}  // namespace weir
