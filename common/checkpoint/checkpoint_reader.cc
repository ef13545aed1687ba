#include "common/checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/checksums.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/shard_layout.h"
#include "common/checkpoint/shard_state.h"

namespace weir {
namespace {

// Elements to read at once; they stay in the cache until they are copied.
constexpr size_t kChunk = 65536;

ModelSpec WithoutInitialValues(ModelSpec model) {
  for (TensorSpec& tensor : model.tensors) tensor.init = {};
  return model;
}

}  // namespace

// A shard's file whose length and header are those that the manifest records.
class CheckpointReader::ShardFile {
 public:
  static absl::StatusOr<ShardFile> Open(FileSystem& fs, const std::string& folder,
                                        const v1::CheckpointFile& record, std::vector<ShardTensor> tensors) {
    ShardFile shard(JoinPath(folder, record.name()), record, std::move(tensors));
    WEIR_ASSIGN_OR_RETURN(shard.file_, OpenRecorded(fs, folder, record));
    WEIR_RETURN_IF_ERROR(shard.CheckHeader());
    return shard;
  }

  uint32_t shard() const { return record_->shard(); }
  const std::vector<ShardTensor>& tensors() const { return tensors_; }
  const v1::ShardState& state() const { return state_; }

  // Hands out a tensor's values in pieces, each with the local position of its first value. The values are
  // known to be right only when this has returned OK.
  absl::Status Read(size_t tensor,
                    const std::function<void(int64_t local, absl::Span<const float>)>& take) const {
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

 private:
  ShardFile(std::string path, const v1::CheckpointFile& record, std::vector<ShardTensor> tensors)
      : path_(std::move(path)), record_(&record), tensors_(std::move(tensors)) {}

  absl::Status CheckHeader() {
    const auto bad = [&](absl::string_view what) {
      return absl::DataLossError(absl::StrCat(path_, ": the header ", what));
    };
    WEIR_ASSIGN_OR_RETURN(
        const SafetensorsHeader header,
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

  std::string path_;
  const v1::CheckpointFile* record_;
  std::vector<ShardTensor> tensors_;
  std::unique_ptr<ReadableFile> file_;
  v1::ShardState state_;
};

// The tensors of a safetensors file that a model has not.
class CheckpointReader::Additions {
 public:
  static absl::StatusOr<Additions> Open(FileSystem& fs, const std::string& path, const ModelSpec& model) {
    Additions additions;
    if (path.empty()) return additions;
    WEIR_ASSIGN_OR_RETURN(additions.file_, fs.Open(path));
    WEIR_ASSIGN_OR_RETURN(additions.header_, ReadSafetensorsHeader(*additions.file_, path));
    std::map<std::string, const TensorSpec*> known;
    for (const TensorSpec& tensor : model.tensors) {
      known[tensor.name] = &tensor;
      for (const std::string& alias : tensor.aliases) known[alias] = &tensor;
    }
    for (const StoredTensor& tensor : additions.header_.tensors) {
      const auto found = known.find(tensor.name);
      if (found == known.end()) {
        additions.tensors_.push_back(tensor);
      } else if (!std::equal(tensor.shape.begin(), tensor.shape.end(), found->second->shape.begin(),
                             found->second->shape.end())) {
        return absl::FailedPreconditionError(
            absl::StrCat(path, " is of a different model from the checkpoint: tensor '", tensor.name,
                         "' has the shape [", absl::StrJoin(tensor.shape, ", "), "] there, and [",
                         absl::StrJoin(found->second->shape, ", "), "] in the checkpoint"));
      }
    }
    return additions;
  }

  const std::vector<StoredTensor>& tensors() const { return tensors_; }

  absl::Status Copy(SafetensorsWriter& writer) const {
    std::vector<char> buffer(kChunk);
    for (const StoredTensor& tensor : tensors_) {
      for (uint64_t done = 0; done < tensor.bytes;) {
        const auto piece = absl::MakeSpan(buffer).subspan(0, std::min<uint64_t>(kChunk, tensor.bytes - done));
        WEIR_RETURN_IF_ERROR(file_->Read(header_.bytes + tensor.offset + done, piece));
        WEIR_RETURN_IF_ERROR(writer.Append(absl::string_view(piece.data(), piece.size())));
        done += piece.size();
      }
    }
    return absl::OkStatus();
  }

 private:
  std::unique_ptr<ReadableFile> file_;
  SafetensorsHeader header_;
  std::vector<StoredTensor> tensors_;
};

CheckpointReader::CheckpointReader(FileSystem& fs, std::string folder, v1::CheckpointManifest manifest,
                                   std::vector<ChainLink> chain)
    : fs_(&fs),
      folder_(std::move(folder)),
      manifest_(std::move(manifest)),
      chain_(std::move(chain)),
      model_(ModelOf(manifest_)),
      partition_(PartitionOf(manifest_)) {}

absl::StatusOr<CheckpointReader> CheckpointReader::Open(FileSystem& fs, const std::string& folder) {
  WEIR_ASSIGN_OR_RETURN(v1::CheckpointManifest manifest, ReadManifest(fs, folder));
  WEIR_ASSIGN_OR_RETURN(std::vector<ChainLink> chain, ReadChain(fs, folder, manifest));
  return CheckpointReader(fs, folder, std::move(manifest), std::move(chain));
}

absl::StatusOr<CheckpointReader::ShardFile> CheckpointReader::OpenShard(uint32_t shard) const {
  return ShardFile::Open(*fs_, folder_, manifest_.files(static_cast<int>(shard)),
                         TensorsOfShard(model_, partition_, shard, SlotsOf(manifest_)));
}

absl::Status CheckpointReader::Verify() const {
  for (uint32_t shard = 0; shard < manifest_.num_shards(); ++shard) {
    WEIR_ASSIGN_OR_RETURN(const ShardFile file, OpenShard(shard));
    for (size_t tensor = 0; tensor < file.tensors().size(); ++tensor) {
      WEIR_RETURN_IF_ERROR(file.Read(tensor, [](int64_t, absl::Span<const float>) {}));
    }
    WEIR_RETURN_IF_ERROR(VerifyTables(manifest_.files(static_cast<int>(shard))));
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::LoadFrom(const ShardFile& file, const Partition& partition, uint32_t shard,
                                        const std::vector<absl::Span<float>>& arrays) const {
  for (size_t tensor = 0; tensor < file.tensors().size(); ++tensor) {
    const ShardTensor& t = file.tensors()[tensor];
    if (t.array >= arrays.size()) break;
    bool needed = false;
    ForEachShared(partition_, file.shard(), t.range, partition, shard,
                  [&](int64_t, int64_t, int64_t) { needed = true; });
    if (!needed) continue;
    WEIR_RETURN_IF_ERROR(file.Read(tensor, [&](int64_t first, absl::Span<const float> values) {
      const LocalRange range{first, first + static_cast<int64_t>(values.size())};
      ForEachShared(partition_, file.shard(), range, partition, shard,
                    [&](int64_t local, int64_t other, int64_t length) {
                      std::memcpy(arrays[t.array].data() + other, values.data() + (local - first),
                                  static_cast<size_t>(length) * sizeof(float));
                    });
    }));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::ShardState> CheckpointReader::LoadShard(const ModelSpec& model, uint32_t shard,
                                                           uint32_t num_shards, const Target& target) const {
  if (const std::string difference = model.FirstDifference(model_); !difference.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(folder_, " is of a different model from the job's: ", difference));
  }
  std::vector<std::string> slots;
  std::vector<absl::Span<float>> arrays = {target.weights};
  for (const Target::Slot& slot : target.slots) {
    slots.push_back(slot.name);
    arrays.push_back(slot.values);
  }
  if (slots != SlotsOf(manifest_)) {
    return absl::FailedPreconditionError(
        absl::StrCat(folder_, " is of a different optimizer from the job's: expected the slots [",
                     absl::StrJoin(slots, ", "), "], got [", absl::StrJoin(manifest_.slots(), ", "),
                     "]; its weights alone can start a new job"));
  }
  const Partition partition(model.elements(), num_shards);
  for (const absl::Span<float>& array : arrays) {
    if (array.size() != static_cast<size_t>(partition.shard_elements(shard))) {
      return absl::InvalidArgumentError(absl::StrCat("shard ", shard, " of ", num_shards, " has ",
                                                     partition.shard_elements(shard), " elements, not ",
                                                     array.size()));
    }
  }
  if (num_shards == manifest_.num_shards()) {
    WEIR_ASSIGN_OR_RETURN(const ShardFile file, OpenShard(shard));
    WEIR_RETURN_IF_ERROR(LoadFrom(file, partition, shard, arrays));
    return file.state();
  }
  std::vector<v1::ShardState> states;
  for (uint32_t old = 0; old < manifest_.num_shards(); ++old) {
    WEIR_ASSIGN_OR_RETURN(const ShardFile file, OpenShard(old));
    WEIR_RETURN_IF_ERROR(LoadFrom(file, partition, shard, arrays));
    states.push_back(file.state());
  }
  return MergeShardStates(states, shard, num_shards);
}

absl::Status CheckpointReader::CheckModel(const ModelSpec& model) const {
  const std::string difference = WithoutInitialValues(model).FirstDifference(WithoutInitialValues(model_));
  if (difference.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(folder_, " is of a different model from the job's: ", difference));
}

absl::Status CheckpointReader::LoadWeights(const ModelSpec& model, uint32_t shard, uint32_t num_shards,
                                           absl::Span<float> weights) const {
  WEIR_RETURN_IF_ERROR(CheckModel(model));
  const Partition partition(model.elements(), num_shards);
  if (weights.size() != static_cast<size_t>(partition.shard_elements(shard))) {
    return absl::InvalidArgumentError(absl::StrCat("shard ", shard, " of ", num_shards, " has ",
                                                   partition.shard_elements(shard), " elements, not ",
                                                   weights.size()));
  }
  for (uint32_t old = 0; old < manifest_.num_shards(); ++old) {
    if (num_shards == manifest_.num_shards() && old != shard) continue;
    WEIR_ASSIGN_OR_RETURN(const ShardFile file, OpenShard(old));
    WEIR_RETURN_IF_ERROR(LoadFrom(file, partition, shard, {weights}));
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::WriteExport(WritableFile& file, const std::string& path,
                                           const Additions& additions) const {
  std::vector<ShardFile> files;
  for (uint32_t shard = 0; shard < manifest_.num_shards(); ++shard) {
    WEIR_ASSIGN_OR_RETURN(ShardFile opened, OpenShard(shard));
    files.push_back(std::move(opened));
  }
  std::vector<StoredTensor> stored;
  std::map<std::string, std::string> metadata = {{"format", "pt"},
                                                 {"weir.step", absl::StrCat(manifest_.step())}};
  for (const TensorSpec& tensor : model_.tensors) {
    stored.push_back({tensor.name, TensorType::kF32, {tensor.shape.begin(), tensor.shape.end()}, 0, 0});
    for (const std::string& alias : tensor.aliases) {
      stored.push_back(stored.back());
      stored.back().name = alias;
      metadata[kAliasKey + alias] = tensor.name;
    }
  }
  stored.insert(stored.end(), additions.tensors().begin(), additions.tensors().end());
  WEIR_RETURN_IF_ERROR(AddExportedTables(stored));
  WEIR_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsWriter> writer,
                        SafetensorsWriter::Create(file, path, std::move(stored), metadata));
  // A partition of one shard, whose local space is the address space.
  const Partition whole(partition_.elements(), 1);
  std::vector<float> values;
  std::vector<size_t> next(files.size(), 0);  // by file: the next tensor
  int64_t address = 0;
  for (const TensorSpec& tensor : model_.tensors) {
    values.resize(static_cast<size_t>(tensor.elements()));
    for (size_t i = 0; i < files.size(); ++i) {
      const ShardFile& part = files[i];
      if (next[i] == part.tensors().size() || part.tensors()[next[i]].stored.name != tensor.name) continue;
      WEIR_RETURN_IF_ERROR(part.Read(next[i]++, [&](int64_t first, absl::Span<const float> piece) {
        const LocalRange range{first, first + static_cast<int64_t>(piece.size())};
        ForEachShared(partition_, part.shard(), range, whole, 0,
                      [&](int64_t local, int64_t at, int64_t length) {
                        std::memcpy(values.data() + (at - address), piece.data() + (local - first),
                                    static_cast<size_t>(length) * sizeof(float));
                      });
      }));
    }
    for (size_t names = 0; names <= tensor.aliases.size(); ++names) {
      WEIR_RETURN_IF_ERROR(writer->Append(values));
    }
    address += tensor.elements();
  }
  WEIR_RETURN_IF_ERROR(additions.Copy(*writer));
  WEIR_RETURN_IF_ERROR(ExportTables(*writer));
  return writer->Finish().status();
}

absl::StatusOr<size_t> CheckpointReader::Export(const std::string& path, const std::string& with) const {
  WEIR_ASSIGN_OR_RETURN(const Additions additions, Additions::Open(*fs_, with, model_));
  WEIR_ASSIGN_OR_RETURN(const std::unique_ptr<StagedFile> file, fs_->Stage(path, absl::StrCat(path, ".tmp")));
  WEIR_RETURN_IF_ERROR(file->Publish(WriteExport(*file, path, additions), FileSystem::Existing::kReplace));
  return additions.tensors().size();
}

}  // namespace weir
