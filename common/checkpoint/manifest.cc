#include "common/checkpoint/manifest.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/checksums.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/shard_file.h"
#include "common/checkpoint/table_layout.h"
#include "common/config/json_document.h"
#include "common/config/proto_json.h"
#include "common/model/wire_model.h"
#include "common/protocol/mode_traits.h"

namespace weir {
namespace {

// Enough for thousands of tensors on hundreds of shards.
constexpr uint64_t kMaxManifest = 256 << 20;

std::string Trailer(uint32_t crc32c) { return absl::StrFormat(",\n\"crc32c\": \"%08x\"\n}\n", crc32c); }

template <typename A, typename B>
absl::Status Expect(absl::string_view field, const A& got, const B& expected) {
  if (got == static_cast<A>(expected)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": expected ", expected, ", got ", got));
}

// Lengths and checksums of a file whose tensors are known. File: v1::CheckpointFile or v1::CheckpointTable.
template <typename File>
absl::Status CheckTensors(const File& file, const std::vector<StoredTensor>& tensors) {
  WEIR_RETURN_IF_ERROR(Expect("number of tensors", static_cast<size_t>(file.tensors_size()), tensors.size()));
  // The reader takes this much memory before it reads anything.
  constexpr uint64_t kLength = 8;
  if (file.header_bytes() < kLength || file.header_bytes() - kLength > kMaxSafetensorsHeader) {
    return absl::InvalidArgumentError(absl::StrCat("header_bytes: must be in [", kLength, ", ",
                                                   kLength + kMaxSafetensorsHeader, "], got ",
                                                   file.header_bytes()));
  }
  uint64_t bytes = file.header_bytes();
  uint32_t crc32c = file.header_crc32c();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const v1::CheckpointTensor& tensor = file.tensors(static_cast<int>(i));
    WEIR_RETURN_IF_ERROR(Expect("name of a tensor", tensor.name(), tensors[i].name));
    WEIR_RETURN_IF_ERROR(
        Expect(absl::StrCat("bytes of tensor '", tensor.name(), "'"), tensor.bytes(), tensors[i].bytes));
    bytes += tensor.bytes();
    crc32c = ConcatCrc32c(crc32c, tensor.crc32c(), tensor.bytes());
  }
  WEIR_RETURN_IF_ERROR(Expect("bytes", file.bytes(), bytes));
  return Expect("crc32c", file.crc32c(), crc32c);
}

absl::Status CheckTable(const v1::CheckpointFile& file, size_t index, const v1::CheckpointTable& first) {
  const v1::CheckpointTable& table = file.tables(static_cast<int>(index));
  WEIR_RETURN_IF_ERROR(
      Expect("name", table.name(),
             TableFileName(file.shard(), file.num_shards(), index, /*delta=*/table.has_delta_since())));
  WEIR_RETURN_IF_ERROR(CheckTableSizes(table));
  if (const uint64_t version = VersionOfTable(file, table);
      table.has_delta_since() && table.delta_since() > version) {
    return absl::InvalidArgumentError(absl::StrCat("delta_since: must be at most the table's version, ",
                                                   version, ", got ", table.delta_since()));
  }
  WEIR_RETURN_IF_ERROR(Expect("version", VersionOfTable(file, table), VersionOfTable(file, file.tables(0))));
  // Of all shards; the config says more than a reader needs, but it is one table.
  WEIR_RETURN_IF_ERROR(Expect("table", table.table().ShortDebugString(), first.table().ShortDebugString()));
  WEIR_RETURN_IF_ERROR(Expect("slot_words", table.slot_words(), first.slot_words()));
  // Before memory is taken for that many.
  WEIR_RETURN_IF_ERROR(
      Expect("number of tensors", static_cast<uint64_t>(table.tensors_size()), CountTensors(table)));
  return CheckTensors(table, TensorsOfTable(table));
}

// The chain as a list; whether its checkpoints are there is seen when they are read.
absl::Status CheckChain(const v1::CheckpointManifest& manifest) {
  const bool deltas =
      std::any_of(manifest.files().begin(), manifest.files().end(), [](const v1::CheckpointFile& file) {
        return std::any_of(file.tables().begin(), file.tables().end(),
                           [](const v1::CheckpointTable& table) { return table.has_delta_since(); });
      });
  if (deltas == manifest.chain().empty() || manifest.chain_size() > kMaxChain) {
    return absl::InvalidArgumentError(absl::StrCat("chain: must have ", deltas ? "1 to 10" : "no",
                                                   " checkpoints, since ", deltas ? "some" : "no",
                                                   " file is a delta; got ", manifest.chain_size()));
  }
  for (int i = 0; i < manifest.chain_size(); ++i) {
    const v1::CheckpointLink& link = manifest.chain(i);
    const uint64_t next = i + 1 < manifest.chain_size() ? manifest.chain(i + 1).step() : manifest.step();
    // A name, never a path to elsewhere.
    if (!IsCheckpointFolder(link.folder(), link.step()) || link.step() >= next) {
      return absl::InvalidArgumentError(absl::StrCat("chain[", i, "]: '", link.folder(), "', step ",
                                                     link.step(), ": must be the folder of a step before ",
                                                     next));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckFile(const v1::CheckpointManifest& manifest, const ModelSpec& model,
                       const Partition& partition, uint32_t shard) {
  const v1::CheckpointFile& file = manifest.files(static_cast<int>(shard));
  const std::vector<std::string> slots = SlotsOf(manifest);
  WEIR_RETURN_IF_ERROR(Expect("shard", file.shard(), shard));
  WEIR_RETURN_IF_ERROR(Expect("num_shards", file.num_shards(), partition.shards()));
  WEIR_RETURN_IF_ERROR(Expect("name", file.name(), ShardFileName(shard, partition.shards())));
  WEIR_RETURN_IF_ERROR(Expect("step", file.step(), manifest.step()));
  WEIR_RETURN_IF_ERROR(Expect("model_hash", file.model_hash(), model.Hash()));
  WEIR_RETURN_IF_ERROR(Expect("slots", absl::StrJoin(file.slots(), ", "), absl::StrJoin(slots, ", ")));
  if (TraitsOf(manifest.job().config()).commits_steps) {
    WEIR_RETURN_IF_ERROR(Expect("version.count", file.version().count(), manifest.job().committed_steps()));
  }
  WEIR_RETURN_IF_ERROR(CheckTensors(file, StoredOf(TensorsOfShard(model, partition, shard, slots))));
  const v1::CheckpointFile& first = manifest.files(0);
  WEIR_RETURN_IF_ERROR(Expect("number of tables", file.tables_size(), first.tables_size()));
  std::set<std::string> names;
  for (int i = 0; i < file.tables_size(); ++i) {
    if (!names.insert(file.tables(i).table().name()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("tables[", i, "].table.name: '", file.tables(i).table().name(), "' is there twice"));
    }
    if (absl::Status status = CheckTable(file, static_cast<size_t>(i), first.tables(i)); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("tables[", i, "].", status.message()));
    }
  }
  return absl::OkStatus();
}

absl::Status Parse(absl::string_view text, const std::string& path, v1::CheckpointManifest* manifest) {
  const absl::StatusOr<JsonValue> json = ParseJson(text, path);
  if (!json.ok()) return absl::DataLossError(json.status().message());
  const JsonMember* const member = json->Find("manifest");
  if (member == nullptr) return absl::DataLossError(absl::StrCat(path, ": has no manifest"));
  // The version comes first: in another major version, everything else may be different.
  const auto number = [&](absl::string_view key) {
    const JsonMember* const found = member->value.Find(key);
    return found != nullptr && found->value.kind == JsonValue::Kind::kUnsigned ? found->value.natural : 0;
  };
  const DiskFormat format = {number("format"), number("format_minor")};
  WEIR_RETURN_IF_ERROR(CheckMajor(path, "checkpoint", format, kCheckpointFormat));
  ConfigProblems problems;
  ReadProto(member->value, "", manifest, &problems, UnknownFields::kIgnore);
  absl::Status status = problems.ToStatus();
  if (status.ok()) status = CheckManifest(*manifest);
  if (!status.ok() && IsLater(format, kCheckpointFormat)) {
    return absl::UnimplementedError(absl::StrCat(
        path, ": this checkpoint has format ", format.major, ".", format.minor,
        ", and this Weir, which knows ", kCheckpointFormat.major, ".", kCheckpointFormat.minor,
        ", cannot read it. Use the version of Weir that wrote it, or a later one: ", status.message()));
  }
  return status.ok() ? status : absl::DataLossError(absl::StrCat(path, ": ", status.message()));
}

// The rest of an error that names a link: what builds on it.
std::string Needs(const std::string& folder, int link, int links) {
  return absl::StrCat(folder, " builds on it (link ", link + 1, " of the ", links, " of its chain)");
}

// An error about a link: damage that nobody can repair, unless the link may be read later, or by a newer
// program.
absl::Status AboutLink(const absl::Status& status, const std::string& needs) {
  const std::string message = absl::StrCat(status.message(), "; ", needs);
  return absl::IsNotFound(status) ? absl::DataLossError(message) : absl::Status(status.code(), message);
}

const v1::CheckpointTable* FindTable(const v1::CheckpointFile& file, const std::string& name) {
  const auto found = std::find_if(file.tables().begin(), file.tables().end(),
                                  [&](const auto& table) { return table.table().name() == name; });
  return found == file.tables().end() ? nullptr : &*found;
}

// "" or why a delta cannot build on this file of its table.
std::string Misfit(const TableFile& delta, const v1::CheckpointFile& file, const v1::CheckpointTable* table) {
  const auto differs = [](absl::string_view what, uint64_t expected, uint64_t got) {
    return absl::StrCat(what, " is ", got, ", not ", expected);
  };
  if (table == nullptr) return "it has no such table";
  if (file.num_shards() != delta.file->num_shards()) {
    return differs("the number of shards", delta.file->num_shards(), file.num_shards());
  }
  if (table->table().dim() != delta.table->table().dim()) {
    return differs("dim", delta.table->table().dim(), table->table().dim());
  }
  if (table->slot_words() != delta.table->slot_words()) {
    return differs("slot_words", delta.table->slot_words(), table->slot_words());
  }
  if (VersionOfTable(file, *table) != delta.table->delta_since()) {
    return differs("the table's version", delta.table->delta_since(), VersionOfTable(file, *table));
  }
  return "";
}

}  // namespace

absl::Status CheckManifest(const v1::CheckpointManifest& manifest) {
  WEIR_RETURN_IF_ERROR(Expect("format", manifest.format(), kCheckpointFormat.major));
  WEIR_ASSIGN_OR_RETURN(const ModelSpec model, FromProto(manifest.model()));
  if (manifest.num_shards() == 0) return absl::InvalidArgumentError("num_shards: must be at least 1, got 0");
  WEIR_RETURN_IF_ERROR(
      Expect("number of files", static_cast<uint32_t>(manifest.files_size()), manifest.num_shards()));
  const Partition partition = PartitionOf(manifest);
  WEIR_RETURN_IF_ERROR(Expect("block_size", manifest.block_size(), partition.block_size()));
  for (uint32_t shard = 0; shard < manifest.num_shards(); ++shard) {
    if (absl::Status status = CheckFile(manifest, model, partition, shard); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("files[", shard, "].", status.message()));
    }
  }
  return CheckChain(manifest);
}

std::string EncodeManifest(const v1::CheckpointManifest& manifest) {
  const auto no_defaults = [](const google::protobuf::Message&, const google::protobuf::FieldDescriptor&) {
    return false;
  };
  std::string text = absl::StrCat("{\n\"manifest\": ", WriteProto(manifest, no_defaults));
  absl::StripTrailingAsciiWhitespace(&text);
  return text + Trailer(Crc32c(text));
}

absl::StatusOr<v1::CheckpointManifest> ReadManifest(FileSystem& fs, const std::string& folder,
                                                    uint32_t* crc32c) {
  const std::string path = JoinPath(folder, kManifestName);
  WEIR_ASSIGN_OR_RETURN(const std::string text, fs.ReadFile(path, kMaxManifest));
  const size_t content = text.size() - std::min(text.size(), Trailer(0).size());
  const uint32_t sum = Crc32c(absl::string_view(text).substr(0, content));
  if (!absl::EndsWith(text, Trailer(sum))) {
    return absl::DataLossError(absl::StrCat(path, ": is damaged: its checksum at its end is not that of its ",
                                            text.size(), " bytes"));
  }
  v1::CheckpointManifest manifest;
  WEIR_RETURN_IF_ERROR(Parse(text, path, &manifest));
  if (crc32c != nullptr) *crc32c = sum;
  return manifest;
}

ModelSpec ModelOf(const v1::CheckpointManifest& manifest) { return FromProto(manifest.model()).value(); }

Partition PartitionOf(const v1::CheckpointManifest& manifest) {
  return Partition(ModelOf(manifest).elements(), manifest.num_shards());
}

std::vector<std::string> SlotsOf(const v1::CheckpointManifest& manifest) {
  return {manifest.slots().begin(), manifest.slots().end()};
}

template <typename File>
absl::StatusOr<std::unique_ptr<ReadableFile>> OpenRecorded(FileSystem& fs, const std::string& folder,
                                                           const File& file) {
  const std::string path = JoinPath(folder, file.name());
  WEIR_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> open, fs.Open(path));
  if (open->size() == file.bytes()) return open;
  std::string where = "it has grown";
  if (open->size() < file.header_bytes()) {
    where = "it was cut within its header";
  } else if (open->size() < file.bytes()) {
    uint64_t end = file.header_bytes();
    const auto cut = std::find_if(file.tensors().begin(), file.tensors().end(),
                                  [&](const auto& tensor) { return (end += tensor.bytes()) > open->size(); });
    where = absl::StrCat("it was cut within tensor '", cut->name(), "'");
  }
  return absl::DataLossError(absl::StrCat(path, ": is damaged: it has ", open->size(),
                                          " bytes, and the manifest records ", file.bytes(), "; ", where));
}

template absl::StatusOr<std::unique_ptr<ReadableFile>> OpenRecorded(FileSystem&, const std::string&,
                                                                    const v1::CheckpointFile&);
template absl::StatusOr<std::unique_ptr<ReadableFile>> OpenRecorded(FileSystem&, const std::string&,
                                                                    const v1::CheckpointTable&);

absl::Status CheckRecorded(FileSystem& fs, const std::string& folder, const v1::CheckpointTable& table) {
  return OpenRecorded(fs, folder, table).status();
}

absl::Status CheckRecorded(FileSystem& fs, const std::string& folder, const v1::CheckpointFile& file) {
  WEIR_RETURN_IF_ERROR(OpenRecorded(fs, folder, file).status());
  for (const v1::CheckpointTable& table : file.tables()) {
    WEIR_RETURN_IF_ERROR(CheckRecorded(fs, folder, table));
  }
  return absl::OkStatus();
}

absl::StatusOr<SafetensorsHeader> ReadRecordedHeader(const ReadableFile& file, const std::string& path,
                                                     uint64_t header_bytes, uint32_t header_crc32c) {
  std::string raw(header_bytes, '\0');
  WEIR_RETURN_IF_ERROR(file.Read(0, absl::MakeSpan(&raw[0], raw.size())));
  WEIR_RETURN_IF_ERROR(CheckCrc32c(path, "the header", Crc32c(raw), header_crc32c));
  WEIR_ASSIGN_OR_RETURN(SafetensorsHeader header, ReadSafetensorsHeader(file, path));
  if (header.bytes == header_bytes) return header;
  return absl::DataLossError(absl::StrCat(path, ": the header has ", header.bytes,
                                          " bytes, and the manifest records ", header_bytes));
}

absl::Status CheckCrc32c(const std::string& path, absl::string_view where, uint32_t seen, uint32_t recorded) {
  if (seen == recorded) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat(
      "%s: %s is damaged: its checksum is %08x, and the manifest records %08x", path, where, seen, recorded));
}

absl::StatusOr<std::vector<TableFile>> FilesOfTable(const std::string& folder,
                                                    const v1::CheckpointManifest& manifest,
                                                    const std::vector<ChainLink>& chain, uint32_t shard,
                                                    size_t index) {
  const int at = static_cast<int>(shard);
  const v1::CheckpointFile& file = manifest.files(at);
  std::vector<TableFile> files = {{folder, &file, &file.tables(static_cast<int>(index))}};
  const std::string name = files[0].table->table().name();
  for (auto link = chain.rbegin(); files.back().table->has_delta_since(); ++link) {
    const TableFile& delta = files.back();
    const std::string path = JoinPath(delta.folder, delta.table->name());
    if (link == chain.rend()) {
      return absl::DataLossError(
          absl::StrCat(path, ": is a delta, and the chain of ", folder, " has no checkpoint before it"));
    }
    const bool there = link->manifest.files_size() > at;
    const v1::CheckpointFile& before = link->manifest.files(there ? at : 0);
    const v1::CheckpointTable* const table = FindTable(before, name);
    if (const std::string misfit = Misfit(delta, before, table); !misfit.empty()) {
      return absl::DataLossError(absl::StrCat(path, ": is a delta of table '", name, "' on ", link->folder,
                                              ", which does not fit: ", misfit));
    }
    files.push_back({link->folder, &before, table});
  }
  std::reverse(files.begin(), files.end());
  return files;
}

absl::StatusOr<std::vector<ChainLink>> ReadChain(FileSystem& fs, const std::string& folder,
                                                 const v1::CheckpointManifest& manifest) {
  std::vector<ChainLink> chain;
  for (int i = 0; i < manifest.chain_size(); ++i) {
    const v1::CheckpointLink& link = manifest.chain(i);
    const std::string path = JoinPath(ParentFolder(folder), link.folder());
    const std::string needs = Needs(folder, i, manifest.chain_size());
    uint32_t crc32c = 0;
    absl::StatusOr<v1::CheckpointManifest> read = ReadManifest(fs, path, &crc32c);
    if (!read.ok()) return AboutLink(read.status(), needs);
    if (read->step() != link.step() || crc32c != link.crc32c()) {
      return absl::DataLossError(absl::StrCat(path, " is a different checkpoint from the one that ", needs));
    }
    chain.push_back({path, *std::move(read)});
  }
  for (const v1::CheckpointFile& file : manifest.files()) {
    for (int table = 0; table < file.tables_size(); ++table) {
      WEIR_RETURN_IF_ERROR(
          FilesOfTable(folder, manifest, chain, file.shard(), static_cast<size_t>(table)).status());
    }
  }
  return chain;
}

absl::Status CheckChainFiles(FileSystem& fs, const std::string& folder,
                             const v1::CheckpointManifest& manifest, const std::vector<ChainLink>& chain) {
  for (const v1::CheckpointFile& file : manifest.files()) {
    for (int table = 0; table < file.tables_size(); ++table) {
      WEIR_ASSIGN_OR_RETURN(const std::vector<TableFile> files,
                            FilesOfTable(folder, manifest, chain, file.shard(), static_cast<size_t>(table)));
      for (const TableFile& of : files) {
        if (of.table == &file.tables(table)) continue;
        if (const absl::Status found = CheckRecorded(fs, of.folder, *of.table); !found.ok()) {
          return AboutLink(found, absl::StrCat(folder, " builds on it"));
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status NameChain(FileSystem& fs, const std::string& dir, v1::CheckpointManifest& manifest) {
  if (manifest.chain().empty()) return absl::OkStatus();
  const uint64_t step = manifest.chain(manifest.chain_size() - 1).step();
  WEIR_ASSIGN_OR_RETURN(const std::string folder, CompleteFolder(fs, dir, step));
  uint32_t crc32c = 0;
  const absl::StatusOr<v1::CheckpointManifest> before = ReadManifest(fs, folder, &crc32c);
  if (!before.ok()) {
    return AboutLink(before.status(), absl::StrCat("checkpoint ", manifest.step(), " builds on it"));
  }
  *manifest.mutable_chain() = before->chain();
  v1::CheckpointLink& last = *manifest.add_chain();
  last.set_folder(folder.substr(folder.rfind('/') + 1));
  last.set_step(step);
  last.set_crc32c(crc32c);
  return absl::OkStatus();
}

}  // namespace weir
