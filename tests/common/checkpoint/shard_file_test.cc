#include "common/checkpoint/shard_file.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "google/protobuf/util/message_differencer.h"
#include "tests/common/checkpoint/checkpoint_fixture.h"

namespace weir {
namespace {

using Interval = std::pair<uint64_t, uint64_t>;

std::vector<Interval> ToVector(const google::protobuf::RepeatedPtrField<v1::Interval>& intervals) {
  std::vector<Interval> out;
  for (const v1::Interval& i : intervals) out.emplace_back(i.begin(), i.end());
  return out;
}

struct Worker {
  uint32_t worker;
  uint64_t incarnation;
  uint64_t next_clock;
  std::vector<Interval> lost = {};
};

v1::ShardState State(uint64_t count, const std::vector<Worker>& workers,
                     const std::vector<Interval>& batches) {
  v1::ShardState state;
  state.set_num_shards(2);
  state.mutable_version()->set_count(count);
  for (const Worker& w : workers) {
    v1::WorkerState* worker = state.add_workers();
    worker->set_worker(w.worker);
    worker->set_incarnation(w.incarnation);
    worker->set_next_clock(w.next_clock);
    worker->add_answers()->set_clock(w.next_clock - 1);
    for (const Interval& lost : w.lost) {
      worker->add_lost()->set_begin(lost.first);
      worker->mutable_lost()->rbegin()->set_end(lost.second);
    }
  }
  for (const Interval& batch : batches) {
    state.add_batches()->set_begin(batch.first);
    state.mutable_batches()->rbegin()->set_end(batch.second);
  }
  return state;
}

TEST_CASE("Merged states: what any shard has counts, what not all have is declared lost") {
  const v1::ShardState a =
      State(100, {{0, 5, 20, {{3, 4}, {18, 19}}}, {1, 6, 7}, {4, 9, 3}}, {{0, 10}, {20, 30}});
  v1::ShardState b = State(98, {{0, 5, 17, {{3, 5}}}, {1, 2, 50}, {7, 8, 1}}, {{5, 12}, {29, 31}, {40, 41}});
  b.set_shard(1);
  b.set_epoch(44);
  for (const auto& old : {std::vector<v1::ShardState>{a, b}, std::vector<v1::ShardState>{b, a}}) {
    const v1::ShardState merged = MergeShardStates(old, 2, 3);
    CHECK(CheckShardState(merged).ok());
    CHECK(merged.shard() == 2);
    CHECK(merged.num_shards() == 3);
    CHECK(merged.version().count() == 100);
    CHECK(merged.epoch() == 44);
    CHECK(ToVector(merged.batches()) == std::vector<Interval>{{0, 12}, {20, 31}, {40, 41}});
    REQUIRE(merged.workers_size() == 4);
    CHECK(merged.workers(0).next_clock() == 20);
    CHECK(ToVector(merged.workers(0).lost()) == std::vector<Interval>{{3, 5}, {17, 20}});
    // The newer incarnation counts, whatever the older one had reached.
    CHECK(merged.workers(1).incarnation() == 6);
    CHECK(merged.workers(1).next_clock() == 7);
    CHECK(ToVector(merged.workers(1).lost()) == std::vector<Interval>{{0, 7}});
    // Only one shard knows this worker.
    CHECK(merged.workers(2).worker() == 4);
    CHECK(ToVector(merged.workers(2).lost()) == std::vector<Interval>{{0, 3}});
    CHECK(merged.workers(3).worker() == 7);
    for (const v1::WorkerState& worker : merged.workers()) CHECK(worker.answers().empty());
  }
}

TEST_CASE("A state survives its text, and text that is none is refused") {
  const v1::ShardState state = StoredJob{TestModel(8), {}, 3}.State(1, 4);
  const absl::StatusOr<v1::ShardState> back = ParseShardState(EncodeShardState(state), "x");
  REQUIRE(back.status() == absl::OkStatus());
  CHECK(google::protobuf::util::MessageDifferencer::Equals(*back, state));

  for (const std::string text :
       {"", "[]", "{}", R"({"shard": 1, "num_shards": 1})", R"({"shards": 1})",
        R"({"num_shards": 1, "batches": [{"begin": 2, "end": 2}]})",
        R"({"num_shards": 1, "batches": [{"end": 2}, {"begin": 2, "end": 3}]})",
        R"({"num_shards": 1, "workers": [{"worker": 1}, {"worker": 1}]})",
        R"({"num_shards": 1, "workers": [{"lost": [{}]}]})", R"({"num_shards": 1, "epoch": -1})"}) {
    INFO(text);
    const absl::Status status = ParseShardState(text, "file x").status();
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK(absl::StrContains(status.message(), "file x"));
  }
}

}  // namespace
}  // namespace weir
