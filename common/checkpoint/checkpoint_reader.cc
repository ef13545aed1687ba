#include "common/checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/checksums.h"
#include "common/base/status_macros.h"
#include "common/model/key_bucket.h"

namespace weir {
namespace {

// Elements to read at once; they stay in the cache until they are copied.
constexpr size_t kChunk = 65536;

ModelSpec WithoutInitialValues(ModelSpec model) {
  for (TensorSpec& tensor : model.tensors) tensor.init = {};
  return model;
}

using Columns = TableReader::Columns;

std::string KindOf(const v1::TableConfig& table) {
  return v1::TableOptimizer::Kind_Name(table.optimizer().type());
}

std::string InitOf(const v1::TableConfig& table) {
  return absl::StrCat(v1::TableInit::Kind_Name(table.init().type()), " ", table.init().value());
}

// "" or the first difference between two tables of one name.
std::string Difference(const v1::TableConfig& expected, const v1::TableConfig& got, bool weights_only) {
  const auto say = [](absl::string_view field, const auto& a, const auto& b) {
    return absl::StrCat(field, ": expected ", a, ", got ", b);
  };
  if (expected.dim() != got.dim()) return say("dim", expected.dim(), got.dim());
  if (weights_only) return "";
  if (KindOf(expected) != KindOf(got)) return say("optimizer.type", KindOf(expected), KindOf(got));
  // A key without a row reads it.
  if (InitOf(expected) != InitOf(got)) return say("init", InitOf(expected), InitOf(got));
  return "";
}

// Keeps the elements [i * width, (i + 1) * width) for which keep[i].
template <typename T>
void KeepSome(const std::vector<bool>& keep, size_t width, std::vector<T>& values) {
  if (values.empty()) return;
  size_t kept = 0;
  for (size_t i = 0; i < keep.size(); ++i) {
    if (!keep[i]) continue;
    const auto from = values.begin() + static_cast<ptrdiff_t>(i * width);
    std::copy(from, from + static_cast<ptrdiff_t>(width),
              values.begin() + static_cast<ptrdiff_t>(kept++ * width));
  }
  values.resize(kept * width);
}

void KeepThoseOf(uint32_t shard, uint32_t num_shards, const v1::CheckpointTable& table,
                 TableEntries& entries) {
  std::vector<bool> keep;
  keep.reserve(entries.keys.size());
  for (const uint64_t key : entries.keys) {
    keep.push_back(ShardOfKey(key, num_shards) == shard);
  }
  ForEachColumn(table, entries, [&](auto& column, size_t width) { KeepSome(keep, width, column); });
}

}  // namespace

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

absl::StatusOr<ShardFile> CheckpointReader::OpenShard(uint32_t shard) const {
  return ShardFile::Open(*fs_, folder_, manifest_.files(static_cast<int>(shard)),
                         TensorsOfShard(model_, partition_, shard, SlotsOf(manifest_)));
}

absl::Status CheckpointReader::Verify() const {
  for (uint32_t shard = 0; shard < manifest_.num_shards(); ++shard) {
    WEIR_ASSIGN_OR_RETURN(const ShardFile file, OpenShard(shard));
    for (size_t tensor = 0; tensor < file.tensors().size(); ++tensor) {
      WEIR_RETURN_IF_ERROR(file.Read(tensor, [](int64_t, absl::Span<const float>) {}));
    }
    const TableTarget nowhere = {[](const TableEntries&) { return absl::OkStatus(); },
                                 [](const TableEntries&) { return absl::OkStatus(); }};
    for (size_t table = 0; table < NumTables(); ++table) {
      WEIR_RETURN_IF_ERROR(LoadTable(table, shard, manifest_.num_shards(), nowhere));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::Copy(const ShardFile& file, size_t tensor, const Partition& to, uint32_t shard,
                                    int64_t begin, absl::Span<float> values) const {
  return file.Read(tensor, [&](int64_t first, absl::Span<const float> piece) {
    const LocalRange range{first, first + static_cast<int64_t>(piece.size())};
    ForEachShared(partition_, file.shard(), range, to, shard,
                  [&](int64_t local, int64_t other, int64_t length) {
                    std::memcpy(values.data() + (other - begin), piece.data() + (local - first),
                                static_cast<size_t>(length) * sizeof(float));
                  });
  });
}

absl::StatusOr<std::vector<v1::ShardState>> CheckpointReader::LoadArrays(
    uint32_t shard, uint32_t num_shards, const std::vector<absl::Span<float>>& arrays) const {
  const Partition partition(model_.elements(), num_shards);
  for (const absl::Span<float>& array : arrays) {
    if (array.size() != static_cast<size_t>(partition.shard_elements(shard))) {
      return absl::InvalidArgumentError(absl::StrCat("shard ", shard, " of ", num_shards, " has ",
                                                     partition.shard_elements(shard), " elements, not ",
                                                     array.size()));
    }
  }
  std::vector<v1::ShardState> states;
  for (uint32_t old = 0; old < manifest_.num_shards(); ++old) {
    if (num_shards == manifest_.num_shards() && old != shard) continue;
    WEIR_ASSIGN_OR_RETURN(const ShardFile file, OpenShard(old));
    for (size_t tensor = 0; tensor < file.tensors().size(); ++tensor) {
      const ShardTensor& t = file.tensors()[tensor];
      if (t.array >= arrays.size()) break;
      bool needed = false;
      ForEachShared(partition_, old, t.range, partition, shard,
                    [&](int64_t, int64_t, int64_t) { needed = true; });
      if (needed) WEIR_RETURN_IF_ERROR(Copy(file, tensor, partition, shard, 0, arrays[t.array]));
    }
    states.push_back(file.state());
  }
  return states;
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
  WEIR_ASSIGN_OR_RETURN(const std::vector<v1::ShardState> states, LoadArrays(shard, num_shards, arrays));
  return num_shards == manifest_.num_shards() ? states[0] : MergeShardStates(states, shard, num_shards);
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
  return LoadArrays(shard, num_shards, {weights}).status();
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
      WEIR_RETURN_IF_ERROR(Copy(part, next[i]++, whole, 0, address, absl::MakeSpan(values)));
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

size_t CheckpointReader::NumTables() const {
  return manifest_.files_size() == 0 ? 0 : static_cast<size_t>(manifest_.files(0).tables_size());
}

const v1::TableConfig& CheckpointReader::TableAt(size_t index) const {
  return manifest_.files(0).tables(static_cast<int>(index)).table();
}

size_t CheckpointReader::FindTable(const std::string& name) const {
  size_t index = 0;
  while (index < NumTables() && TableAt(index).name() != name) ++index;
  return index;
}

uint64_t CheckpointReader::RowsOf(size_t index) const {
  uint64_t rows = 0;
  for (const v1::CheckpointFile& file : manifest_.files()) {
    rows += RowsOfShard(file.tables(static_cast<int>(index)));
  }
  return rows;
}

absl::Status CheckpointReader::CheckTables(const std::vector<v1::TableConfig>& tables,
                                           bool weights_only) const {
  const auto differs = [&](absl::string_view table, absl::string_view how) {
    return absl::FailedPreconditionError(absl::StrCat(
        folder_, " has other embedding tables than the job: table '", table, "'", how,
        weights_only ? "" : "; the weights and rows alone can start a new job (checkpoint.init_from)"));
  };
  for (size_t i = 0; i < NumTables(); ++i) {
    const std::string& name = TableAt(i).name();
    if (std::none_of(tables.begin(), tables.end(), [&](const auto& table) { return table.name() == name; })) {
      return differs(name, " is not one of the job");
    }
  }
  for (const v1::TableConfig& table : tables) {
    const size_t saved = FindTable(table.name());
    if (saved == NumTables()) {
      if (weights_only) continue;
      return differs(table.name(), " is missing in it");
    }
    const std::string difference = Difference(table, TableAt(saved), weights_only);
    if (!difference.empty()) return differs(table.name(), absl::StrCat(", ", difference));
  }
  return absl::OkStatus();
}

uint64_t CheckpointReader::VersionOfTable(size_t index, uint32_t shard, uint32_t num_shards) const {
  uint64_t version = 0;
  for (const v1::CheckpointFile& file : manifest_.files()) {
    if (index == NumTables() || (num_shards == manifest_.num_shards() && file.shard() != shard)) continue;
    version = std::max(version, weir::VersionOfTable(file, file.tables(static_cast<int>(index))));
  }
  return version;
}

absl::Status CheckpointReader::LoadTable(size_t index, uint32_t shard, uint32_t num_shards,
                                         const TableTarget& target) const {
  if (index == NumTables()) return absl::OkStatus();
  const bool same_shards = num_shards == manifest_.num_shards();
  TableEntries entries;
  for (const v1::CheckpointFile& file : manifest_.files()) {
    if (same_shards && file.shard() != shard) continue;
    const v1::CheckpointTable& of = file.tables(static_cast<int>(index));
    WEIR_ASSIGN_OR_RETURN(TableChain reader,
                          OpenTable(file.shard(), index, target.counters ? Columns::kAll : Columns::kValues));
    const auto take_all = [&](const auto& next, const auto& take) -> absl::Status {
      while (true) {
        WEIR_ASSIGN_OR_RETURN(const bool more, next());
        if (!more) return absl::OkStatus();
        if (!same_shards) KeepThoseOf(shard, num_shards, of, entries);
        WEIR_RETURN_IF_ERROR(take(entries));
      }
    };
    WEIR_RETURN_IF_ERROR(take_all([&] { return reader.NextRows(entries); }, target.rows));
    if (!target.counters) continue;
    entries = {};
    WEIR_RETURN_IF_ERROR(take_all([&] { return reader.NextCounters(entries); }, target.counters));
    entries = {};
  }
  return absl::OkStatus();
}

absl::StatusOr<TableChain> CheckpointReader::OpenTable(uint32_t shard, size_t index, Columns columns) const {
  WEIR_ASSIGN_OR_RETURN(const std::vector<TableFile> files,
                        FilesOfTable(folder_, manifest_, chain_, shard, index));
  return TableChain::Open(*fs_, files, columns);
}

absl::Status CheckpointReader::AddExportedTables(std::vector<StoredTensor>& tensors) const {
  for (size_t i = 0; i < NumTables(); ++i) {
    const std::string& name = TableAt(i).name();
    const uint64_t rows = RowsOf(i);
    for (StoredTensor& tensor : std::vector<StoredTensor>{
             {absl::StrCat(name, "/keys"), TensorType::kI64, {rows}, 0, 0},
             {absl::StrCat(name, "/values"), TensorType::kF32, {rows, TableAt(i).dim()}, 0, 0}}) {
      if (std::any_of(tensors.begin(), tensors.end(),
                      [&](const StoredTensor& other) { return other.name == tensor.name; })) {
        return absl::FailedPreconditionError(absl::StrCat(folder_, ": the model has a tensor '", tensor.name,
                                                          "', which table '", name, "' needs in an export"));
      }
      tensors.push_back(std::move(tensor));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::ExportTables(SafetensorsWriter& writer) const {
  TableEntries entries;
  for (size_t i = 0; i < NumTables(); ++i) {
    // All keys come before all values, so the files are read twice, their keys alone at first.
    for (const Columns columns : {Columns::kKeys, Columns::kValues}) {
      for (const v1::CheckpointFile& file : manifest_.files()) {
        WEIR_ASSIGN_OR_RETURN(TableChain reader, OpenTable(file.shard(), i, columns));
        while (true) {
          WEIR_ASSIGN_OR_RETURN(const bool more, reader.NextRows(entries));
          if (!more) break;
          WEIR_RETURN_IF_ERROR(
              columns == Columns::kValues
                  ? writer.Append(entries.values)
                  : writer.Append(absl::string_view(reinterpret_cast<const char*>(entries.keys.data()),
                                                    entries.keys.size() * sizeof(uint64_t))));
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ReadWhole(FileSystem& fs, const std::string& folder) {
  WEIR_ASSIGN_OR_RETURN(const CheckpointReader reader, CheckpointReader::Open(fs, folder));
  return reader.Verify();
}

absl::StatusOr<FoundCheckpoint> FindWholeBefore(FileSystem& fs, const std::string& path, uint64_t below,
                                                const OnDamaged& damaged) {
  if (!IsFolderOfCheckpoints(fs, path)) {
    return absl::DataLossError(absl::StrCat(path,
                                            " names one checkpoint, so no other one is taken; name the ",
                                            "folder that it is in, or another checkpoint there"));
  }
  std::vector<std::string> seen;
  while (true) {
    absl::StatusOr<FoundCheckpoint> found = ResolveCheckpoint(fs, path, below);
    if (absl::IsNotFound(found.status())) {
      seen.emplace_back(found.status().message());
      return absl::DataLossError(absl::StrJoin(seen, "; "));
    }
    WEIR_RETURN_IF_ERROR(found.status());
    seen.insert(seen.end(), found->refused.begin(), found->refused.end());
    const absl::Status whole = ReadWhole(fs, found->folder);
    if (whole.ok()) {
      found->refused = std::move(seen);
      return found;
    }
    if (!IsDamage(whole)) return whole;
    seen.emplace_back(whole.message());
    if (damaged) damaged(found->folder, seen.back());
    below = found->manifest.step();
  }
}

}  // namespace weir
