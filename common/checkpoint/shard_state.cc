#include "common/checkpoint/shard_state.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/config/json_document.h"
#include "common/config/proto_json.h"
#include "common/protocol/interval_set.h"

namespace weir {
namespace {

absl::Status CheckIntervals(absl::string_view field, const Intervals& intervals) {
  for (int i = 0; i < intervals.size(); ++i) {
    if (intervals[i].begin() >= intervals[i].end() ||
        (i > 0 && intervals[i].begin() <= intervals[i - 1].end())) {
      return absl::InvalidArgumentError(absl::StrCat(field, "[", i, "]: [", intervals[i].begin(), ", ",
                                                     intervals[i].end(),
                                                     ") is empty or does not come after the one before it"));
    }
  }
  return absl::OkStatus();
}

v1::WorkerState MergeWorker(const std::vector<v1::ShardState>& old, uint32_t worker) {
  std::vector<const v1::WorkerState*> known;  // by shard; nullptr: the shard does not know it
  for (const v1::ShardState& state : old) {
    const auto found = std::find_if(state.workers().begin(), state.workers().end(),
                                    [&](const v1::WorkerState& w) { return w.worker() == worker; });
    known.push_back(found == state.workers().end() ? nullptr : &*found);
  }
  v1::WorkerState merged;
  merged.set_worker(worker);
  for (const v1::WorkerState* state : known) {
    if (state != nullptr && state->incarnation() >= merged.incarnation()) {
      merged.set_incarnation(state->incarnation());
      merged.set_task(state->task());
    }
  }
  IntervalSet lost;
  uint64_t lowest = UINT64_MAX;
  for (const v1::WorkerState* state : known) {
    const bool current = state != nullptr && state->incarnation() == merged.incarnation();
    lowest = std::min(lowest, current ? state->next_clock() : 0);
    if (!current) continue;
    merged.set_next_clock(std::max(merged.next_clock(), state->next_clock()));
    merged.set_counts(merged.counts() || state->counts());
    lost.Insert(state->lost());
    lost.Insert(state->passed());
  }
  if (lowest < merged.next_clock()) lost.Insert(lowest, merged.next_clock());
  *merged.mutable_lost() = lost.ToProto();
  return merged;
}

}  // namespace

absl::Status CheckShardState(const v1::ShardState& state) {
  if (state.shard() >= state.num_shards()) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard ", state.shard(), " of ", state.num_shards(), " shards is not possible"));
  }
  for (int i = 0; i < state.workers_size(); ++i) {
    const v1::WorkerState& worker = state.workers(i);
    const std::string field = absl::StrCat("workers[", i, "]");
    if (i > 0 && worker.worker() <= state.workers(i - 1).worker()) {
      return absl::InvalidArgumentError(absl::StrCat(field, ": the ranks must rise"));
    }
    WEIR_RETURN_IF_ERROR(CheckIntervals(absl::StrCat(field, ".lost"), worker.lost()));
    WEIR_RETURN_IF_ERROR(CheckIntervals(absl::StrCat(field, ".passed"), worker.passed()));
  }
  for (int i = 0; i < state.applied_rows_size(); ++i) {
    const v1::AppliedRows& rows = state.applied_rows(i);
    if (rows.shard() >= rows.num_shards()) {
      return absl::InvalidArgumentError(absl::StrCat("applied_rows[", i, "]: shard ", rows.shard(), " of ",
                                                     rows.num_shards(), " shards is not possible"));
    }
  }
  WEIR_RETURN_IF_ERROR(CheckIntervals("batches", state.batches()));
  return CheckIntervals("stale_batches", state.stale_batches());
}

std::string EncodeShardState(const v1::ShardState& state) {
  return WriteProto(state, [](const google::protobuf::Message&, const google::protobuf::FieldDescriptor&) {
    return false;
  });
}

absl::StatusOr<v1::ShardState> ParseShardState(const std::string& text, const std::string& source) {
  WEIR_ASSIGN_OR_RETURN(const JsonValue json, ParseJson(text, source));
  v1::ShardState state;
  ConfigProblems problems;
  ReadProto(json, "", &state, &problems, UnknownFields::kIgnore);
  WEIR_RETURN_IF_ERROR(problems.ToStatus());
  if (const absl::Status status = CheckShardState(state); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": ", status.message()));
  }
  return state;
}

v1::ShardState MergeShardStates(const std::vector<v1::ShardState>& old, uint32_t shard, uint32_t num_shards) {
  const v1::ShardState& newest =
      *std::max_element(old.begin(), old.end(), [](const v1::ShardState& a, const v1::ShardState& b) {
        return a.version().count() < b.version().count();
      });
  v1::ShardState merged = newest;
  merged.set_shard(shard);
  merged.set_num_shards(num_shards);
  merged.clear_workers();
  merged.clear_applied_rows();
  std::map<uint32_t, v1::WorkerState> workers;
  IntervalSet batches, stale;
  std::set<std::tuple<uint32_t, uint32_t, uint32_t>> known;
  for (const v1::ShardState& state : old) {
    merged.set_epoch(std::max(merged.epoch(), state.epoch()));
    batches.Insert(state.batches());
    stale.Insert(state.stale_batches());
    for (const v1::AppliedRows& rows : state.applied_rows()) {
      // After several changes of the number of shards, several of them know of the same one.
      if (known.insert({rows.part(), rows.shard(), rows.num_shards()}).second)
        *merged.add_applied_rows() = rows;
    }
    for (const v1::WorkerState& worker : state.workers()) {
      if (workers.count(worker.worker()) == 0) workers[worker.worker()] = MergeWorker(old, worker.worker());
    }
  }
  for (auto& [rank, worker] : workers) *merged.add_workers() = std::move(worker);
  *merged.mutable_batches() = batches.ToProto();
  *merged.mutable_stale_batches() = stale.ToProto();
  return merged;
}

}  // namespace weir
