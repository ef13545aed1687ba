#include "common/checkpoint/checkpoint_writer.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/shard_file.h"
#include "common/checkpoint/table_layout.h"
#include "common/checkpoint/table_writer.h"
#include "common/config/json_document.h"
#include "common/model/key_bucket.h"
#include "common/model/partition.h"
#include "common/model/wire_model.h"

namespace weir {
namespace {

absl::StatusOr<SafetensorsWriter::Checksums> Write(WritableFile& file, const std::string& path,
                                                   const std::vector<StoredTensor>& tensors,
                                                   const ShardSnapshot& snapshot) {
  WEIR_ASSIGN_OR_RETURN(
      const std::unique_ptr<SafetensorsWriter> writer,
      SafetensorsWriter::Create(file, path, tensors, {{kStateKey, EncodeShardState(snapshot.state)}}));
  WEIR_RETURN_IF_ERROR(writer->Append(snapshot.weights));
  for (const ShardSnapshot::Slot& slot : snapshot.slots) WEIR_RETURN_IF_ERROR(writer->Append(slot.values));
  return writer->Finish();
}

absl::Status CheckLength(absl::string_view what, absl::Span<const float> values, const Partition& partition,
                         uint32_t shard) {
  const auto expected = static_cast<size_t>(partition.shard_elements(shard));
  if (values.size() == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("shard ", shard, " has ", expected, " elements, but ", what, " has ", values.size()));
}

absl::Status CheckTensorName(const std::string& name) {
  if (!ParseJson(JsonQuote(name), "").ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor '", absl::CHexEscape(name), "': the name must be UTF-8"));
  }
  if (name == "__metadata__" || absl::StartsWith(name, "weir.")) {
    return absl::InvalidArgumentError(absl::StrCat("tensor '", name,
                                                   "': checkpoints need this name themselves; it must not "
                                                   "be __metadata__ or begin with 'weir.'"));
  }
  return absl::OkStatus();
}

constexpr uint64_t kStep = 0, kIncarnation = 1;

// The positions of the keys in the order of a table's file.
absl::StatusOr<std::vector<size_t>> InOrder(const ImportedRows& rows) {
  std::vector<size_t> order(rows.keys.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto place = [&rows](size_t i) {
    return std::make_pair(BucketOfHash(HashKey(rows.keys[i])), rows.keys[i]);
  };
  std::sort(order.begin(), order.end(), [&place](size_t a, size_t b) { return place(a) < place(b); });
  for (size_t i = 1; i < order.size(); ++i) {
    if (rows.keys[order[i]] != rows.keys[order[i - 1]]) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("table '", rows.table, "' has two rows for the key ", rows.keys[order[i]]));
  }
  return order;
}

absl::StatusOr<v1::CheckpointTable> WriteRows(FileSystem& fs, const std::string& directory, size_t index,
                                              const ImportedRows& rows, const std::vector<size_t>& order) {
  v1::CheckpointTable record;
  record.mutable_table()->set_name(rows.table);
  record.mutable_table()->set_dim(rows.dim);
  record.set_rows(rows.keys.size());
  record.set_chunk_bytes(kTableChunkBytes);
  record.set_version(0);
  TableWriter::Shard shard;
  shard.incarnation = kIncarnation;
  WEIR_ASSIGN_OR_RETURN(const std::unique_ptr<TableWriter> writer,
                        TableWriter::Create(fs, directory, kStep, shard, index, std::move(record)));
  absl::Status status;
  for (size_t i = 0; i < order.size() && status.ok(); ++i) {
    const absl::Span<const float> values(rows.values.data() + order[i] * rows.dim, rows.dim);
    writer->AddRow(rows.keys[order[i]], /*updated=*/0, values);
    if (writer->due()) status = writer->Write();
  }
  return writer->Finish(status);
}

}  // namespace

absl::Status CheckTensorNames(const ModelSpec& model) {
  for (const TensorSpec& tensor : model.tensors) {
    WEIR_RETURN_IF_ERROR(CheckTensorName(tensor.name));
    for (const std::string& alias : tensor.aliases) WEIR_RETURN_IF_ERROR(CheckTensorName(alias));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::CheckpointFile> WriteShardFile(FileSystem& fs, const std::string& dir, uint64_t step,
                                                  const ShardSnapshot& snapshot) {
  const uint32_t shard = snapshot.state.shard(), num_shards = snapshot.state.num_shards();
  WEIR_RETURN_IF_ERROR(CheckTensorNames(snapshot.model));
  WEIR_RETURN_IF_ERROR(CheckShardState(snapshot.state));
  const Partition partition(snapshot.model.elements(), num_shards);
  WEIR_RETURN_IF_ERROR(CheckLength("its weights", snapshot.weights, partition, shard));
  v1::CheckpointFile file;
  std::vector<std::string> slots;
  for (const ShardSnapshot::Slot& slot : snapshot.slots) {
    WEIR_RETURN_IF_ERROR(CheckLength(absl::StrCat("slot ", slot.name), slot.values, partition, shard));
    slots.push_back(slot.name);
    file.add_slots(slot.name);
  }
  file.set_name(ShardFileName(shard, num_shards));
  file.set_step(step);
  file.set_shard(shard);
  file.set_num_shards(num_shards);
  file.set_model_hash(snapshot.model.Hash());
  *file.mutable_version() = snapshot.state.version();

  const std::vector<StoredTensor> tensors = StoredOf(TensorsOfShard(snapshot.model, partition, shard, slots));
  WEIR_ASSIGN_OR_RETURN(const std::string folder, FindFolder(fs, dir, step));
  const std::string path = JoinPath(folder, file.name());
  const std::string temporary =
      JoinPath(folder, TemporaryName(file.name(), snapshot.state.version().incarnation()));
  WEIR_ASSIGN_OR_RETURN(const std::unique_ptr<StagedFile> staged, fs.Stage(path, temporary));
  const absl::StatusOr<SafetensorsWriter::Checksums> sums = Write(*staged, path, tensors, snapshot);
  WEIR_RETURN_IF_ERROR(staged->Publish(sums.status(), FileSystem::Existing::kKeep));

  RecordWritten(*sums, tensors, file);
  return file;
}

absl::Status CommitCheckpoint(FileSystem& fs, const std::string& dir, v1::CheckpointManifest manifest,
                              const Confirm& confirm) {
  std::sort(manifest.mutable_files()->begin(), manifest.mutable_files()->end(),
            [](const auto& a, const auto& b) { return a.shard() < b.shard(); });
  manifest.set_format(kCheckpointFormat.major);
  manifest.set_format_minor(kCheckpointFormat.minor);
  manifest.set_num_shards(static_cast<uint32_t>(manifest.files_size()));
  WEIR_ASSIGN_OR_RETURN(const ModelSpec model, FromProto(manifest.model()));
  if (manifest.files_size() > 0) {
    manifest.set_block_size(Partition(model.elements(), manifest.num_shards()).block_size());
    *manifest.mutable_slots() = manifest.files(0).slots();
  }
  WEIR_ASSIGN_OR_RETURN(const std::string folder, FindFolder(fs, dir, manifest.step()));
  WEIR_RETURN_IF_ERROR(NameChain(fs, dir, manifest));
  if (const absl::Status status = CheckManifest(manifest); !status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, ": what the shards have written is no checkpoint: ", status.message()));
  }
  WEIR_RETURN_IF_ERROR(ReadChain(fs, folder, manifest).status());
  WEIR_ASSIGN_OR_RETURN(const std::unique_ptr<FileSystem> held, fs.OpenFolder(folder));
  for (const v1::CheckpointFile& file : manifest.files()) {
    const absl::Status found = CheckRecorded(*held, folder, file);
    if (absl::IsNotFound(found)) {
      return absl::NotFoundError(absl::StrCat(found.message(), "; shard ", file.shard(),
                                              " has written it: all servers must see the same folder"));
    }
    WEIR_RETURN_IF_ERROR(found);
  }

  const std::string path = JoinPath(folder, kManifestName);
  const std::string temporary = JoinPath(folder, TemporaryName(kManifestName, manifest.incarnation()));
  return held->WriteNew(path, temporary, EncodeManifest(manifest), confirm);
}

absl::Status WriteInitialWeights(FileSystem& fs, const std::string& directory, const ModelSpec& model,
                                 absl::Span<const float> weights, const std::vector<ImportedRows>& tables) {
  WEIR_RETURN_IF_ERROR(CheckTensorNames(model));
  std::vector<std::vector<size_t>> orders;
  for (const ImportedRows& rows : tables) {
    WEIR_ASSIGN_OR_RETURN(orders.emplace_back(), InOrder(rows));
  }
  WEIR_RETURN_IF_ERROR(BeginCheckpoint(fs, directory, kStep));
  ShardSnapshot snapshot;
  snapshot.model = model;
  // One shard's local space is the model's address space.
  snapshot.weights = weights;
  snapshot.state.set_num_shards(1);
  snapshot.state.mutable_version()->set_incarnation(kIncarnation);
  v1::CheckpointManifest manifest;
  manifest.set_step(kStep);
  manifest.set_incarnation(kIncarnation);
  *manifest.mutable_model() = ToProto(model);
  v1::CheckpointFile& file = *manifest.add_files();
  WEIR_ASSIGN_OR_RETURN(file, WriteShardFile(fs, directory, kStep, snapshot));
  for (size_t i = 0; i < tables.size(); ++i) {
    WEIR_ASSIGN_OR_RETURN(*file.add_tables(), WriteRows(fs, directory, i, tables[i], orders[i]));
  }
  return CommitCheckpoint(fs, directory, std::move(manifest));
}

}  // namespace weir
