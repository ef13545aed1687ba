#include "common/checkpoint/table_chain.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/key_bucket.h"

namespace weir {
namespace {

// Adds entry `i`, whose columns are as wide as these.
void Append(const TableEntries& from, size_t i, size_t dim, size_t slot_words, TableEntries& to) {
  const auto add = [&](const auto& column, size_t width, auto& into) {
    if (column.empty()) return;
    const auto first = column.begin() + static_cast<ptrdiff_t>(i * width);
    into.insert(into.end(), first, first + static_cast<ptrdiff_t>(width));
  };
  add(from.keys, 1, to.keys);
  add(from.updated, 1, to.updated);
  add(from.values, dim, to.values);
  add(from.slots, slot_words, to.slots);
  add(from.pushes, 1, to.pushes);
}

void Clear(TableEntries& entries) {
  entries.keys.clear();
  entries.updated.clear();
  entries.values.clear();
  entries.slots.clear();
  entries.pushes.clear();
}

}  // namespace

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
    const v1::CheckpointTable& table = readers_[lowest->reader].table();
    if (kept) Append(lowest->entries, lowest->at, table.table().dim(), table.slot_words(), entries);
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
    if (!more) Clear(entries);
    return more;
  }
  if (!merge.begun) WEIR_RETURN_IF_ERROR(Begin(merge));
  Clear(entries);
  const uint64_t most = EntriesOfChunk(readers_.back().table(), merge.kept);
  for (bool more = true; more && entries.keys.size() < most;) {
    WEIR_ASSIGN_OR_RETURN(more, Take(merge, most, entries));
  }
  merge.entries += entries.keys.size();
  if (!entries.keys.empty()) return true;
  // The chunks are no longer needed.
  merge.cursors.clear();
  const v1::CheckpointTable& newest = readers_.back().table();
  const uint64_t expected = merge.kept == TableSection::kRows ? RowsOfShard(newest) : CountersOfShard(newest);
  if (merge.entries == expected) return false;
  return absl::DataLossError(absl::StrCat(readers_.back().path(), ": its chain of ", readers_.size(),
                                          " files has ", merge.entries, " ", merge.name,
                                          ", and the manifest records ", expected));
}

}  // namespace weir
