#include "common/checkpoint/checkpoint_chain.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/table_layout.h"

namespace weir {
namespace {

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
