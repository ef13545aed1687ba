#include "client/tensors/encoded_gradient.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/codec/value_codec.h"

namespace weir {
namespace {

// The border of its tensors lies inside a block of values.
ModelSpec Model(int64_t elements) {
  ModelSpec model;
  model.tensors = {{"a", {1003}, TensorKind::kParameter, Initializer::Zeros()},
                   {"b", {elements - 1003}, TensorKind::kParameter, Initializer::Zeros()}};
  return model;
}

std::vector<float> GradientAt(uint64_t clock, int64_t elements) {
  std::vector<float> values;
  for (int64_t i = 0; i < elements; ++i) {
    values.push_back(static_cast<float>((i * 7919 + static_cast<int64_t>(clock) * 31) % 1009) / 500 - 1);
  }
  return values;
}

WireOptions Wire(v1::Dtype dtype) {
  WireOptions wire;
  wire.push_dtype = dtype;
  if (dtype == v1::TOPK) wire.push_kept = 410;
  return wire;
}

struct Worker {
  explicit Worker(uint32_t shards, bool sync = true, v1::Dtype dtype = v1::INT4, int64_t size = 4500)
      : map(Model(size), shards), wire(Wire(dtype)) {
    std::vector<int64_t> elements;
    for (uint32_t s = 0; s < shards; ++s) elements.push_back(map.partition().shard_elements(s));
    residuals = std::make_shared<Residuals>(elements, sync);
  }

  std::unique_ptr<EncodedGradient> Begin(uint64_t clock, uint32_t part = 0, uint64_t incarnation = 1) {
    gradients[clock] = GradientAt(clock, map.partition().elements());
    GradientTensors tensors;
    tensors.begin = {gradients[clock].data(), gradients[clock].data() + 1003};
    return std::make_unique<EncodedGradient>(
        map, tensors, wire,
        EncodedGradient::Feedback{residuals, part, clock,
                                  std::vector<uint64_t>(map.partition().shards(), incarnation)});
  }
  // What the servers get, in the model's order.
  std::vector<float> Sent(EncodedGradient& push) const {
    std::vector<float> all(static_cast<size_t>(map.partition().elements()));
    const Partition& partition = map.partition();
    for (uint32_t s = 0; s < partition.shards(); ++s) {
      REQUIRE(push.Encode(s, 0));
      const absl::Span<const char> bytes = push.Chunk(s, 0);
      const int64_t n = partition.shard_elements(s);
      std::vector<float> local(static_cast<size_t>(n));
      const absl::string_view piece(bytes.data(), bytes.size());
      ValueCursor(absl::MakeConstSpan(&piece, 1), wire.push_type(), n).Read(local.data(), n);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t size = partition.block_size();
        all[static_cast<size_t>(partition.block_start(s, i / size) + i % size)] =
            local[static_cast<size_t>(i)];
      }
    }
    return all;
  }
  void Answer(EncodedGradient& push, bool took_effect) const {
    for (uint32_t s = 0; s < map.partition().shards(); ++s) push.Answered(s, took_effect);
  }
  std::vector<float> Push(uint64_t clock, bool took_effect = true, uint32_t part = 0,
                          uint64_t incarnation = 1) {
    const auto push = Begin(clock, part, incarnation);
    std::vector<float> sent = Sent(*push);
    Answer(*push, took_effect);
    return sent;
  }

  TensorMap map;
  WireOptions wire;
  std::shared_ptr<Residuals> residuals;
  std::map<uint64_t, std::vector<float>> gradients;
};

TEST_CASE("the values that shards get do not depend on their number") {
  for (const v1::Dtype dtype : {v1::INT8, v1::INT4, v1::BIT1}) {
    Worker one(1, true, dtype), two(2, true, dtype);
    REQUIRE(two.map.partition().block_size() == 256);
    for (uint64_t clock = 0; clock < 3; ++clock) REQUIRE(one.Push(clock) == two.Push(clock));
  }
  Worker one(1, true, v1::TOPK, 66000), two(2, true, v1::TOPK, 66000);
  REQUIRE(two.map.partition().block_size() == 4096);
  for (uint64_t clock = 0; clock < 3; ++clock) REQUIRE(one.Push(clock) == two.Push(clock));
}

TEST_CASE("top-k: of each block the share travels, and the rest is in the residual") {
  Worker worker(1, true, v1::TOPK, 9000);
  std::vector<double> missing(9000);
  std::vector<bool> has_travelled(9000);
  for (uint64_t clock = 0; clock < 40; ++clock) {
    const std::vector<float> sent = worker.Push(clock);
    for (size_t i = 0; i < sent.size(); ++i) {
      missing[i] += static_cast<double>(worker.gradients[clock][i]) - sent[i];
      if (sent[i] != 0) has_travelled[i] = true;
    }
    const auto zeros = std::count(sent.begin(), sent.end(), 0.0f);
    CHECK(zeros == 9000 - static_cast<int64_t>(EncodedBytes(worker.wire.push_type(), 9000) / kBytesOfKept));
  }
  const std::shared_ptr<float> left = worker.residuals->Take({0, 0, 40, 1});
  REQUIRE(left != nullptr);
  for (size_t i = 0; i < missing.size(); ++i) REQUIRE(std::abs(missing[i] - left.get()[i]) < 1e-4);
  // Small gradients add up until they travel.
  CHECK(std::count(has_travelled.begin(), has_travelled.end(), true) > 8500);
}

TEST_CASE("a push carries what the pushes before it have rounded away") {
  Worker worker(2, true, v1::BIT1);
  std::vector<double> given(4500), sent(4500);
  for (uint64_t clock = 0; clock < 50; ++clock) {
    const std::vector<float> now = worker.Push(clock);
    for (size_t i = 0; i < sent.size(); ++i) {
      given[i] += worker.gradients[clock][i];
      sent[i] += now[i];
    }
  }
  // Without feedback the difference would grow with the number of pushes.
  for (size_t i = 0; i < sent.size(); ++i) REQUIRE(std::abs(given[i] - sent[i]) < 8);
}

TEST_CASE("a push without effect leaves its residual as it was") {
  Worker worker(1), other(1);
  worker.Push(0);
  other.Push(0);
  // Refused, or dropped as a duplicate.
  worker.Push(1, false);
  other.residuals->Put({0, 0, 1, 1}, other.residuals->Take({0, 0, 1, 1}));
  CHECK(worker.Push(2) == other.Push(2));
  // A call that failed is made again with the same gradient: the bits are the same.
  auto failed = worker.Begin(3);
  const std::vector<float> first = worker.Sent(*failed);
  CHECK(worker.Sent(*failed) == first);
  failed = nullptr;
  CHECK(worker.Push(3) == first);
}

TEST_CASE("a shard's residual is its own: one of them applied the push") {
  Worker worker(2), both(2), neither(2);
  for (Worker* w : {&worker, &both, &neither}) w->Push(0);
  const auto push = worker.Begin(1);
  worker.Sent(*push);
  push->Answered(0, true);
  push->Answered(1, false);
  both.Push(1);
  neither.Push(1, false);
  const std::vector<float> sent = worker.Push(2), of_both = both.Push(2), of_neither = neither.Push(2);
  for (size_t i = 0; i < sent.size(); ++i) {
    REQUIRE(sent[i] == (i / 256 % 2 == 0 ? of_both[i] : of_neither[i]));
  }
  CHECK(of_both != of_neither);
}

TEST_CASE("a residual is dropped after a rollback, and when the part was another worker's meanwhile") {
  Worker fresh(1);
  const std::vector<float> without = fresh.Push(4);
  Worker rolled_back(1);
  rolled_back.Push(3);
  CHECK(rolled_back.Push(4, true, 0, /*incarnation=*/2) == without);
  Worker away(1);
  away.Push(2);
  CHECK(away.Push(4) == without);
  Worker stays(1);
  stays.Push(3);
  CHECK(stays.Push(4) != without);
  // Another part has a residual of its own.
  Worker parts(1);
  parts.Push(3, true, /*part=*/1);
  CHECK(parts.Push(4, true, /*part=*/2) == without);
  // Outside sync a worker's clocks may have gaps.
  Worker async(1, /*sync=*/false);
  async.Push(2);
  CHECK(async.Push(4) != without);
}

TEST_CASE("a push that begins beside another starts from zero, and what is left of both adds up") {
  Worker worker(1, /*sync=*/false), fresh(1, /*sync=*/false);
  const auto first = worker.Begin(0), second = worker.Begin(1);
  const std::vector<float> sent_first = worker.Sent(*first), sent_second = worker.Sent(*second);
  CHECK(sent_second == fresh.Push(1));
  worker.Answer(*second, true);
  worker.Answer(*first, true);
  const std::shared_ptr<float> left = worker.residuals->Take({0, 0, 2, 1});
  REQUIRE(left != nullptr);
  for (size_t i = 0; i < sent_first.size(); ++i) {
    const float of_second = worker.gradients[1][i] - sent_second[i];
    REQUIRE(left.get()[i] == of_second + (worker.gradients[0][i] - sent_first[i]));
  }
}

TEST_CASE("if a shard answers before it has the whole push, it is not known what is left") {
  Worker worker(1), fresh(1);
  worker.Push(0);
  const auto push = worker.Begin(1);
  push->Answered(0, true);
  CHECK(push->Encode(0, 0));
  CHECK(worker.Push(2) == fresh.Push(2));
}

}  // namespace
}  // namespace weir
