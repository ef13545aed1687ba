#include "tests/common/checkpoint/checkpoint_fixture.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/shard_file.h"
#include "common/checkpoint/table_writer.h"
#include "common/model/key_bucket.h"
#include "common/model/wire_model.h"
#include "google/protobuf/util/message_differencer.h"

namespace weir {

ModelSpec TestModel(int64_t elements) {
  ModelSpec model;
  model.tensors.push_back({"scale", {}, TensorKind::kParameter, {Initializer::Kind::kConstant, 1.5f}});
  model.tensors.push_back({"dense \"0\"/weight", {2, 2}, TensorKind::kParameter, Initializer::HeNormal(2)});
  model.tensors.push_back({"mean", {2}, TensorKind::kBuffer, Initializer::Zeros()});
  model.tensors.push_back({"größe", {elements - 7, 1}, TensorKind::kParameter, Initializer::Zeros()});
  return model;
}

v1::TableConfig TestTable(const std::string& name, uint32_t dim) {
  v1::TableConfig table;
  table.set_name(name);
  table.set_dim(dim);
  table.mutable_optimizer()->set_type(v1::TableOptimizer::KIND_ADAGRAD);
  table.mutable_init()->set_value(0.5f);
  return table;
}

std::map<uint64_t, StoredJob::Entry> StoredJob::Entries(size_t table, bool counters) const {
  std::map<uint64_t, Entry> entries;
  for (uint64_t i = 0; i < (counters ? rows / 3 : rows); ++i) {
    const auto words = [&](uint64_t first, size_t count) {
      std::vector<float> out(count);
      for (size_t k = 0; k < count; ++k) {
        const uint32_t bits = Philox(salt + 50 + table, i, first + k)[0];
        std::memcpy(&out[k], &bits, sizeof bits);
      }
      return out;
    };
    const auto random = Philox(salt + 50 + table, i, counters ? 1 : 2);
    const uint64_t key = uint64_t{random[0]} << 32 | random[1];
    Entry& entry = entries[key];
    entry.updated = random[2] % 1000;
    if (counters) {
      entry.pushes = 1 + random[3] % 9;
    } else {
      entry.values = words(100, tables[table].dim());
      entry.slots = words(200, kSlotWords);
    }
  }
  return entries;
}

absl::Status StoredJob::WriteTables(FileSystem& fs, const std::string& dir, uint64_t step,
                                    uint64_t incarnation, v1::CheckpointFile& file) const {
  for (size_t table = 0; table < tables.size(); ++table) {
    using Placed = std::tuple<uint32_t, uint64_t, Entry>;  // bucket, key
    const auto of_shard = [&](bool counters) {
      std::vector<Placed> placed;
      for (const auto& [key, entry] : Entries(table, counters)) {
        const uint32_t bucket = BucketOfHash(HashKey(key));
        if (ShardOfBucket(bucket, file.num_shards()) == file.shard()) placed.emplace_back(bucket, key, entry);
      }
      std::sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
        return std::make_pair(std::get<0>(a), std::get<1>(a)) <
               std::make_pair(std::get<0>(b), std::get<1>(b));
      });
      return placed;
    };
    const std::vector<Placed> placed = of_shard(false), counters = of_shard(true);
    v1::CheckpointTable record;
    *record.mutable_table() = tables[table];
    record.set_rows(placed.size());
    record.set_counters(counters.size());
    record.set_slot_words(kSlotWords);
    record.set_chunk_bytes(200);
    WEIR_ASSIGN_OR_RETURN(
        const std::unique_ptr<TableWriter> writer,
        TableWriter::Create(fs, dir, step, {file.shard(), file.num_shards(), incarnation}, table, record));
    absl::Status status;
    for (const auto& [bucket, key, entry] : placed) {
      std::vector<float> words = entry.values;
      words.insert(words.end(), entry.slots.begin(), entry.slots.end());
      writer->AddRow(key, entry.updated, words);
      if (status.ok() && writer->due()) status = writer->Write();
    }
    for (const auto& [bucket, key, entry] : counters) {
      writer->AddCounter(key, entry.updated, static_cast<uint32_t>(entry.pushes));
    }
    WEIR_ASSIGN_OR_RETURN(*file.add_tables(), writer->Finish(status));
  }
  return absl::OkStatus();
}

absl::Status StoredJob::LoadTables(const CheckpointReader& reader, uint32_t shard, uint32_t num_shards,
                                   bool weights_only) const {
  WEIR_RETURN_IF_ERROR(reader.CheckTables(tables, weights_only));
  const auto same = [](absl::Span<const float> a, const std::vector<float>& b) {
    return a.size() == b.size() &&
           (a.empty() || std::memcmp(a.data(), b.data(), b.size() * sizeof(float)) == 0);
  };
  for (size_t table = 0; table < tables.size(); ++table) {
    const auto taker = [&](bool counters, size_t* count) {
      return [&, counters, count, wanted = Entries(table, counters)](const TableEntries& got) {
        const size_t dim = counters ? 0 : tables[table].dim(),
                     slots = counters || weights_only ? 0 : kSlotWords;
        for (size_t i = 0; i < got.keys.size(); ++i, ++*count) {
          const auto entry = wanted.find(got.keys[i]);
          const bool right =
              entry != wanted.end() && got.updated[i] == entry->second.updated &&
              ShardOfKey(got.keys[i], num_shards) == shard &&
              same(absl::MakeConstSpan(got.values).subspan(i * dim, dim), entry->second.values) &&
              (weights_only ||
               same(absl::MakeConstSpan(got.slots).subspan(i * slots, slots), entry->second.slots)) &&
              (!counters || got.pushes[i] == entry->second.pushes);
          if (!right) return absl::InternalError(absl::StrCat("key ", got.keys[i], " has another state"));
        }
        return absl::OkStatus();
      };
    };
    size_t rows_seen = 0, counters_seen = 0;
    CheckpointReader::TableTarget target{taker(false, &rows_seen), taker(true, &counters_seen)};
    if (weights_only) target.counters = nullptr;
    WEIR_RETURN_IF_ERROR(reader.LoadTable(reader.FindTable(tables[table].name()), shard, num_shards, target));
    const auto of_shard = [&](bool of_counters) {
      const auto all = Entries(table, of_counters);
      return static_cast<size_t>(std::count_if(all.begin(), all.end(), [&](const auto& entry) {
        return ShardOfKey(entry.first, num_shards) == shard;
      }));
    };
    if (rows_seen != of_shard(false) || counters_seen != (weights_only ? 0 : of_shard(true))) {
      return absl::InternalError(
          absl::StrCat("table ", table, " has ", rows_seen, " rows, ", counters_seen, " counters"));
    }
  }
  return absl::OkStatus();
}

// Any bits, including NaNs with payloads.
float StoredJob::Value(size_t array, int64_t address) const {
  const uint32_t bits = Philox(salt, array, static_cast<uint64_t>(address))[0];
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

std::vector<float> StoredJob::Array(size_t array, uint32_t shard, uint32_t num_shards) const {
  const Partition partition(model.elements(), num_shards);
  std::vector<float> out;
  for (int64_t block = 0; block < partition.shard_blocks(shard); ++block) {
    for (int64_t i = 0; i < partition.block_length(shard, block); ++i) {
      out.push_back(Value(array, partition.block_start(shard, block) + i));
    }
  }
  return out;
}

v1::ShardState StoredJob::State(uint32_t shard, uint32_t num_shards) const {
  v1::ShardState state;
  state.set_shard(shard);
  state.set_num_shards(num_shards);
  state.mutable_version()->set_incarnation(7);
  state.mutable_version()->set_count(version > 0 ? version : 1000 + salt);
  state.set_epoch(12);
  for (uint32_t w : {0u, 3u}) {
    v1::WorkerState* worker = state.add_workers();
    worker->set_worker(w);
    worker->set_incarnation(40 + w);
    worker->set_task(absl::StrCat("worker:", w));
    worker->set_next_clock(500 + w);
    worker->set_counts(w == 0);
    v1::Interval* lost = worker->add_lost();
    lost->set_begin(2);
    lost->set_end(5);
    v1::RecordedAnswer* answer = worker->add_answers();
    answer->set_clock(499 + w);
    answer->mutable_reply()->set_outcome(v1::REFUSED);
    answer->mutable_reply()->set_reason("größe[3] is \"NaN\"\n");
    answer->mutable_reply()->mutable_version()->set_incarnation(7);
    answer->mutable_reply()->mutable_version()->set_count(UINT64_MAX);
  }
  for (uint64_t begin : {0, 100}) {
    v1::Interval* batches = state.add_batches();
    batches->set_begin(begin);
    batches->set_end(begin + 64);
  }
  v1::CommitStep* commit = state.add_commits();
  commit->set_step(999);
  commit->add_parts(0);
  commit->add_parts(2);
  state.add_commits()->set_step(1000);  // without parts
  state.set_pushes_applied(12345);
  state.set_pushes_refused(1);
  state.mutable_version_staleness()->add_counts(3);
  state.mutable_lead()->set_max(4);
  return state;
}

v1::CheckpointManifest StoredJob::Manifest(uint64_t step) const {
  v1::CheckpointManifest manifest;
  manifest.set_step(step);
  manifest.set_incarnation(9);
  *manifest.mutable_model() = ToProto(model);
  v1::CoordinatorState& job = *manifest.mutable_job();
  job.mutable_config()->set_name("a \"job\"");
  job.mutable_config()->set_seed(salt);
  job.mutable_config()->mutable_model()->add_layers()->set_type(v1::LayerConfig::LAYER_RELU);
  job.mutable_config()->mutable_data()->set_format(v1::DataConfig::FORMAT_DIGITS);
  job.mutable_config()->mutable_consistency()->set_mode(v1::ConsistencyConfig::MODE_ASYNC);
  job.mutable_config()->mutable_optimizer()->set_learning_rate(0.1f);
  job.set_workers(4);
  job.set_parts(4);
  job.set_total_batches(10000);
  job.set_done(true);
  job.set_epoch(12);
  job.set_last_incarnation(77);
  v1::Member* member = job.add_members();
  member->set_worker(3);
  member->set_incarnation(43);
  return manifest;
}

absl::StatusOr<v1::CheckpointFile> StoredJob::WriteShard(FileSystem& fs, const std::string& dir,
                                                         uint64_t step, uint32_t shard, uint32_t num_shards,
                                                         uint64_t incarnation) const {
  ShardSnapshot snapshot;
  snapshot.model = model;
  snapshot.state = State(shard, num_shards);
  snapshot.state.mutable_version()->set_incarnation(incarnation);
  std::vector<std::vector<float>> arrays;
  for (size_t i = 0; i <= slots.size(); ++i) arrays.push_back(Array(i, shard, num_shards));
  snapshot.weights = arrays[0];
  for (size_t i = 0; i < slots.size(); ++i) snapshot.slots.push_back({slots[i], arrays[i + 1]});
  WEIR_ASSIGN_OR_RETURN(v1::CheckpointFile file, WriteShardFile(fs, dir, step, snapshot));
  WEIR_RETURN_IF_ERROR(WriteTables(fs, dir, step, incarnation, file));
  return file;
}

absl::Status StoredJob::Write(FileSystem& fs, const std::string& dir, uint64_t step, uint32_t num_shards,
                              std::optional<uint64_t> best) const {
  WEIR_RETURN_IF_ERROR(BeginCheckpoint(fs, dir, step));
  v1::CheckpointManifest manifest = Manifest(step);
  if (best.has_value()) manifest.mutable_job()->mutable_best()->set_checkpoint(*best);
  // In an order in which the shards might answer.
  for (uint32_t shard = num_shards; shard-- > 0;) {
    WEIR_ASSIGN_OR_RETURN(*manifest.add_files(), WriteShard(fs, dir, step, shard, num_shards));
  }
  return CommitCheckpoint(fs, dir, std::move(manifest));
}

absl::Status StoredJob::LoadAll(FileSystem& fs, const std::string& folder, uint32_t num_shards) const {
  WEIR_ASSIGN_OR_RETURN(const CheckpointReader reader, CheckpointReader::Open(fs, folder));
  v1::CheckpointManifest manifest = reader.manifest();
  const uint32_t written_by = manifest.num_shards();
  for (uint32_t shard = 0; shard < num_shards; ++shard) {
    const size_t n = static_cast<size_t>(Partition(model.elements(), num_shards).shard_elements(shard));
    std::vector<std::vector<float>> arrays(slots.size() + 1, std::vector<float>(n));
    CheckpointReader::Target target;
    target.weights = absl::MakeSpan(arrays[0]);
    for (size_t i = 0; i < slots.size(); ++i) {
      target.slots.push_back({slots[i], absl::MakeSpan(arrays[i + 1])});
    }
    WEIR_ASSIGN_OR_RETURN(const v1::ShardState state, reader.LoadShard(model, shard, num_shards, target));
    v1::ShardState expected = State(shard, num_shards);
    if (num_shards != written_by) {
      for (v1::WorkerState& worker : *expected.mutable_workers()) worker.clear_answers();
    }
    if (!google::protobuf::util::MessageDifferencer::Equals(state, expected)) {
      return absl::InternalError(absl::StrCat("the state of shard ", shard, " is ", state.DebugString()));
    }
    for (size_t i = 0; i < arrays.size(); ++i) {
      const std::vector<float> wanted = Array(i, shard, num_shards);
      if (n > 0 && std::memcmp(wanted.data(), arrays[i].data(), n * sizeof(float)) != 0) {
        return absl::InternalError(absl::StrCat("array ", i, " of shard ", shard, " is another"));
      }
    }
    WEIR_RETURN_IF_ERROR(LoadTables(reader, shard, num_shards, /*weights_only=*/false));
  }
  v1::CheckpointManifest expected = Manifest(manifest.step());
  manifest.clear_files();
  expected.set_format(1);
  expected.set_format_minor(6);
  expected.set_num_shards(written_by);
  expected.set_block_size(Partition(model.elements(), written_by).block_size());
  for (const std::string& slot : slots) expected.add_slots(slot);
  if (!google::protobuf::util::MessageDifferencer::Equals(manifest, expected)) {
    return absl::InternalError(absl::StrCat("the manifest is ", manifest.DebugString()));
  }
  return absl::OkStatus();
}

}  // namespace weir
