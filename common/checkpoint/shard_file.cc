#include "common/checkpoint/shard_file.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/checksums.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/manifest.h"
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

// The number of a shard's elements below an address: the address's local position, if the shard has it.
int64_t LocalPosition(const Partition& partition, uint32_t shard, int64_t address) {
  const int64_t block = address / partition.block_size();
  const int64_t rounds = block / partition.shards();
  const int64_t turn = block % partition.shards();
  const int64_t whole_blocks = rounds + (turn > shard ? 1 : 0);
  return whole_blocks * partition.block_size() + (turn == shard ? address % partition.block_size() : 0);
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

std::vector<ShardTensor> TensorsOfShard(const ModelSpec& model, const Partition& partition, uint32_t shard,
                                        const std::vector<std::string>& slots) {
  std::vector<ShardTensor> out;
  uint64_t offset = 0;
  for (size_t array = 0; array <= slots.size(); ++array) {
    const std::string prefix = array == 0 ? "" : absl::StrCat("weir.slot/", slots[array - 1], "/");
    int64_t address = 0;
    for (const TensorSpec& tensor : model.tensors) {
      const int64_t end = address + tensor.elements();
      const LocalRange range{LocalPosition(partition, shard, address), LocalPosition(partition, shard, end)};
      address = end;
      if (range.length() == 0) continue;
      const auto length = static_cast<uint64_t>(range.length());
      out.push_back(
          {array,
           range,
           {absl::StrCat(prefix, tensor.name), TensorType::kF32, {length}, offset, length * sizeof(float)}});
      offset += length * sizeof(float);
    }
  }
  return out;
}

std::vector<StoredTensor> StoredOf(const std::vector<ShardTensor>& tensors) {
  std::vector<StoredTensor> stored;
  for (const ShardTensor& tensor : tensors) stored.push_back(tensor.stored);
  return stored;
}

void ForEachShared(const Partition& partition, uint32_t shard, LocalRange range, const Partition& other,
                   uint32_t other_shard,
                   const std::function<void(int64_t local, int64_t other_local, int64_t length)>& visit) {
  const int64_t size = partition.block_size(), other_size = other.block_size();
  for (int64_t local = range.begin; local < range.end;) {
    const int64_t block_end = std::min(range.end, (local / size + 1) * size);
    int64_t address = partition.block_start(shard, local / size) + local % size;
    while (local < block_end) {
      const int64_t length = std::min(block_end - local, other_size - address % other_size);
      const int64_t other_block = address / other_size;
      if (other_block % other.shards() == other_shard) {
        visit(local, other_block / other.shards() * other_size + address % other_size, length);
      }
      local += length;
      address += length;
    }
  }
}

absl::StatusOr<ShardFile> ShardFile::Open(FileSystem& fs, const std::string& folder,
                                          const v1::CheckpointFile& record,
                                          std::vector<ShardTensor> tensors) {
  ShardFile shard(JoinPath(folder, record.name()), record, std::move(tensors));
  WEIR_ASSIGN_OR_RETURN(shard.file_, OpenRecorded(fs, folder, record));
  WEIR_RETURN_IF_ERROR(shard.CheckHeader());
  return shard;
}

absl::Status ShardFile::CheckHeader() {
  const auto bad = [&](absl::string_view what) {
    return absl::DataLossError(absl::StrCat(path_, ": the header ", what));
  };
  WEIR_ASSIGN_OR_RETURN(const SafetensorsHeader header,
                        ReadRecordedHeader(*file_, path_, record_->header_bytes(), record_->header_crc32c()));
  if (!std::equal(header.tensors.begin(), header.tensors.end(), tensors_.begin(), tensors_.end(),
                  [](const StoredTensor& a, const ShardTensor& b) { return a == b.stored; })) {
    return bad("does not list the tensors of this shard's part of the model");
  }
  const auto text = header.metadata.find(kStateKey);
  if (text == header.metadata.end()) return bad(absl::StrCat("has no ", kStateKey));
  absl::StatusOr<v1::ShardState> state =
      ParseShardState(text->second, absl::StrCat(path_, " (", kStateKey, ")"));
  if (!state.ok()) return absl::DataLossError(state.status().message());
  if (state->shard() != record_->shard() || state->num_shards() != record_->num_shards() ||
      state->version().incarnation() != record_->version().incarnation() ||
      state->version().count() != record_->version().count()) {
    return bad("holds the state of another shard or version");
  }
  state_ = *std::move(state);
  return absl::OkStatus();
}

absl::Status ShardFile::Read(size_t tensor,
                             const std::function<void(int64_t local, absl::Span<const float>)>& take) const {
  // Elements to read at once; they stay in the cache until they are copied.
  constexpr size_t kChunk = 65536;
  const ShardTensor& t = tensors_[tensor];
  std::vector<float> buffer(std::min(kChunk, static_cast<size_t>(t.range.length())));
  uint32_t crc32c = 0;
  uint64_t offset = record_->header_bytes() + t.stored.offset;
  for (int64_t local = t.range.begin; local < t.range.end;) {
    const auto chunk = absl::MakeSpan(buffer).subspan(0, static_cast<size_t>(t.range.end - local));
    const auto bytes = absl::MakeSpan(reinterpret_cast<char*>(chunk.data()), chunk.size() * sizeof(float));
    WEIR_RETURN_IF_ERROR(file_->Read(offset, bytes));
    crc32c = ExtendCrc32c(crc32c, bytes.data(), bytes.size());
    take(local, chunk);
    local += static_cast<int64_t>(chunk.size());
    offset += bytes.size();
  }
  return CheckCrc32c(path_, absl::StrCat("tensor '", t.stored.name, "'"), crc32c,
                     record_->tensors(static_cast<int>(tensor)).crc32c());
}

}  // namespace weir
