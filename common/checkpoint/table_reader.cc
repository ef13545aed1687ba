#include "common/checkpoint/table_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/checksums.h"
#include "common/base/status_macros.h"
#include "common/model/key_bucket.h"

namespace weir {
namespace {

// Adds entry `i` of some in `table`.
void Append(const v1::CheckpointTable& table, const TableEntries& from, size_t i, TableEntries& to) {
  const auto add = [&](const auto& column, size_t width, auto& into) {
    if (column.empty()) return;
    const auto first = column.begin() + static_cast<ptrdiff_t>(i * width);
    into.insert(into.end(), first, first + static_cast<ptrdiff_t>(width));
  };
  add(from.keys, 1, to.keys);
  add(from.updated, 1, to.updated);
  add(from.values, table.table().dim(), to.values);
  add(from.slots, table.slot_words(), to.slots);
  add(from.pushes, 1, to.pushes);
}

void Clear(const v1::CheckpointTable& table, TableEntries& entries) {
  ForEachColumn(table, entries, [](auto& column, size_t) { column.clear(); });
}

}  // namespace

TableReader::TableReader(std::string path, const v1::CheckpointFile& file, const v1::CheckpointTable& table,
                         Columns columns)
    : path_(std::move(path)),
      shard_(&file),
      table_(&table),
      columns_(columns),
      tensors_(TensorsOfTable(table)) {
  size_t tensor = 0;
  for (size_t i = 0; i < kTableSections; ++i) {
    positions_[i].next = tensor;
    positions_[i].end = tensor += CountTensors(table, static_cast<TableSection>(i));
  }
}

absl::StatusOr<TableReader> TableReader::Open(FileSystem& fs, const std::string& folder,
                                              const v1::CheckpointFile& file,
                                              const v1::CheckpointTable& table, Columns columns) {
  TableReader reader(JoinPath(folder, table.name()), file, table, columns);
  WEIR_ASSIGN_OR_RETURN(reader.file_, OpenRecorded(fs, folder, table));
  WEIR_RETURN_IF_ERROR(reader.CheckHeader());
  return reader;
}

absl::Status TableReader::CheckHeader() const {
  WEIR_ASSIGN_OR_RETURN(const SafetensorsHeader header,
                        ReadRecordedHeader(*file_, path_, table_->header_bytes(), table_->header_crc32c()));
  if (header.tensors == tensors_) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(path_, ": the header does not list the tensors of table '", table_->table().name(), "'"));
}

template <typename T>
absl::Status TableReader::ReadColumn(Position& at, std::vector<T>* column) {
  const StoredTensor& tensor = tensors_[at.next];
  const v1::CheckpointTensor& record = table_->tensors(static_cast<int>(at.next));
  ++at.next;
  if (column == nullptr) return absl::OkStatus();
  column->resize(tensor.bytes / sizeof(T));
  const auto bytes = absl::MakeSpan(reinterpret_cast<char*>(column->data()), tensor.bytes);
  WEIR_RETURN_IF_ERROR(file_->Read(table_->header_bytes() + tensor.offset, bytes));
  return CheckCrc32c(path_, absl::StrCat("tensor '", tensor.name, "'"),
                     ExtendCrc32c(0, bytes.data(), bytes.size()), record.crc32c());
}

absl::Status TableReader::CheckKeys(const std::string& tensor, Position& at,
                                    const TableEntries& entries) const {
  const auto wrong = [&](uint64_t key, const auto&... what) {
    return absl::DataLossError(absl::StrCat(path_, ": tensor '", tensor, "': key ", key, what...));
  };
  for (size_t i = 0; i < entries.keys.size(); ++i) {
    const uint64_t key = entries.keys[i];
    const uint32_t bucket = BucketOfHash(HashKey(key));
    const bool rises = !at.any || bucket > at.last_bucket || (bucket == at.last_bucket && key > at.last_key);
    if (!rises || ShardOfBucket(bucket, shard_->num_shards()) != shard_->shard()) {
      return wrong(key, " is out of order, or of another shard");
    }
    at.any = true;
    at.last_bucket = bucket;
    at.last_key = key;
    if (entries.updated.empty()) continue;
    const uint64_t updated = entries.updated[i];
    if (const uint64_t version = VersionOfTable(*shard_, *table_); updated > version) {
      return wrong(key, " is of version ", updated, ", after that of the table, ", version);
    }
    if (table_->has_delta_since() && updated <= table_->delta_since()) {
      return wrong(key, " is of version ", updated, ", which a delta since ", table_->delta_since(),
                   " does not have");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> TableReader::Next(TableSection section, TableEntries& entries) {
  Position& at = positions_[static_cast<size_t>(section)];
  if (at.next == at.end) return false;
  const std::string tensor = tensors_[at.next].name;
  entries.updated.clear();
  WEIR_RETURN_IF_ERROR(ReadColumn(at, &entries.keys));
  if (ColumnsOf(*table_, section) > 1) WEIR_RETURN_IF_ERROR(ReadColumn(at, &entries.updated));
  WEIR_RETURN_IF_ERROR(CheckKeys(tensor, at, entries));
  if (section == TableSection::kRows) {
    WEIR_RETURN_IF_ERROR(ReadColumn(at, columns_ == Columns::kKeys ? nullptr : &entries.values));
    if (table_->slot_words() == 0) return true;
    WEIR_RETURN_IF_ERROR(ReadColumn(at, columns_ == Columns::kAll ? &entries.slots : nullptr));
  } else if (section == TableSection::kCounters) {
    WEIR_RETURN_IF_ERROR(ReadColumn(at, &entries.pushes));
    if (std::any_of(entries.pushes.begin(), entries.pushes.end(),
                    [](uint64_t pushes) { return pushes < 1 || pushes > UINT32_MAX; })) {
      return absl::DataLossError(absl::StrCat(path_, ": tensor '", tensors_[at.next - 1].name,
                                              "': a count must be in [1, ", UINT32_MAX, "]"));
    }
  }
  return true;
}

absl::StatusOr<TableChain> TableChain::Open(FileSystem& fs, const std::vector<TableFile>& files,
                                            TableReader::Columns columns) {
  TableChain chain;
  for (const TableFile& file : files) {
    WEIR_ASSIGN_OR_RETURN(TableReader reader,
                          TableReader::Open(fs, file.folder, *file.file, *file.table, columns));
    chain.readers_.push_back(std::move(reader));
  }
  return chain;
}

absl::Status TableChain::Advance(Cursor& cursor) {
  if (++cursor.at >= cursor.entries.keys.size()) {
    WEIR_ASSIGN_OR_RETURN(const bool more, readers_[cursor.reader].Next(cursor.section, cursor.entries));
    cursor.done = !more;
    cursor.at = 0;
    if (!more) return absl::OkStatus();
  }
  cursor.key = cursor.entries.keys[cursor.at];
  cursor.bucket = BucketOfHash(HashKey(cursor.key));
  return absl::OkStatus();
}

absl::Status TableChain::Begin(Merge& merge) {
  merge.begun = true;
  for (size_t reader = readers_.size(); reader-- > 0;) {
    for (const TableSection section : {merge.kept, merge.removed}) {
      merge.cursors.push_back({reader, section});
      WEIR_RETURN_IF_ERROR(Advance(merge.cursors.back()));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> TableChain::Take(Merge& merge, uint64_t most, TableEntries& entries) {
  Cursor *lowest = nullptr, *next = nullptr;
  for (Cursor& cursor : merge.cursors) {
    if (cursor.done) continue;
    if (lowest == nullptr || cursor.Before(*lowest)) {
      next = std::exchange(lowest, &cursor);
    } else if (next == nullptr || cursor.Before(*next)) {
      next = &cursor;
    }
  }
  if (lowest == nullptr) return false;
  const auto take = [&, kept = lowest->section == merge.kept] {
    if (kept) Append(readers_[lowest->reader].table(), lowest->entries, lowest->at, entries);
    return Advance(*lowest);
  };
  if (next == nullptr || lowest->Before(*next)) {
    do {
      WEIR_RETURN_IF_ERROR(take());
    } while (!lowest->done && entries.keys.size() < most && (next == nullptr || lowest->Before(*next)));
    return true;
  }
  const uint64_t key = lowest->key;
  WEIR_RETURN_IF_ERROR(take());
  for (Cursor& cursor : merge.cursors) {
    if (cursor.done || cursor.key != key) continue;
    if (cursor.reader == lowest->reader) {
      return absl::DataLossError(absl::StrCat(readers_[cursor.reader].path(), ": key ", key, " is in ",
                                              merge.name, " and in removed ", merge.name));
    }
    WEIR_RETURN_IF_ERROR(Advance(cursor));
  }
  return true;
}

absl::StatusOr<bool> TableChain::Next(Merge& merge, TableEntries& entries) {
  if (readers_.size() == 1) {
    WEIR_ASSIGN_OR_RETURN(const bool more, readers_[0].Next(merge.kept, entries));
    if (!more) Clear(readers_[0].table(), entries);
    return more;
  }
  if (!merge.begun) WEIR_RETURN_IF_ERROR(Begin(merge));
  const v1::CheckpointTable& newest = readers_.back().table();
  Clear(newest, entries);
  const uint64_t most = EntriesOfChunk(newest, merge.kept);
  for (bool more = true; more && entries.keys.size() < most;) {
    WEIR_ASSIGN_OR_RETURN(more, Take(merge, most, entries));
  }
  merge.entries += entries.keys.size();
  if (!entries.keys.empty()) return true;
  // The chunks are no longer needed.
  merge.cursors.clear();
  const uint64_t expected = merge.kept == TableSection::kRows ? RowsOfShard(newest) : CountersOfShard(newest);
  if (merge.entries == expected) return false;
  return absl::DataLossError(absl::StrCat(readers_.back().path(), ": its chain of ", readers_.size(),
                                          " files has ", merge.entries, " ", merge.name,
                                          ", and the manifest records ", expected));
}

}  // namespace weir
