#include "common/checkpoint/table_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/crc32c.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/manifest.h"
#include "common/model/key_bucket.h"

namespace weir {

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

}  // namespace weir
