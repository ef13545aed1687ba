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
  const uint64_t of_chunk = RowsOfChunk(table);
  first_counters_ = (table.rows() + of_chunk - 1) / of_chunk * RowColumns(table);
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
absl::Status TableReader::ReadColumn(std::vector<T>* column) {
  const StoredTensor& tensor = tensors_[next_];
  const v1::CheckpointTensor& record = table_->tensors(static_cast<int>(next_));
  ++next_;
  if (column == nullptr) return absl::OkStatus();
  column->resize(tensor.bytes / sizeof(T));
  const auto bytes = absl::MakeSpan(reinterpret_cast<char*>(column->data()), tensor.bytes);
  WEIR_RETURN_IF_ERROR(file_->Read(table_->header_bytes() + tensor.offset, bytes));
  return CheckCrc32c(path_, absl::StrCat("tensor '", tensor.name, "'"),
                     ExtendCrc32c(0, bytes.data(), bytes.size()), record.crc32c());
}

absl::Status TableReader::ReadKeys(TableEntries& entries) {
  const std::string tensor = tensors_[next_].name;
  WEIR_RETURN_IF_ERROR(ReadColumn(&entries.keys));
  WEIR_RETURN_IF_ERROR(ReadColumn(&entries.updated));
  for (size_t i = 0; i < entries.keys.size(); ++i) {
    const uint64_t key = entries.keys[i];
    const uint32_t bucket = BucketOfHash(HashKey(key));
    const bool rises = !any_ || bucket > last_bucket_ || (bucket == last_bucket_ && key > last_key_);
    if (!rises || ShardOfBucket(bucket, shard_->num_shards()) != shard_->shard() ||
        entries.updated[i] > shard_->version().count()) {
      return absl::DataLossError(absl::StrCat(path_, ": tensor '", tensor, "': key ", key, " of version ",
                                              entries.updated[i],
                                              " is out of order, of another shard, or of a later version"));
    }
    any_ = true;
    last_bucket_ = bucket;
    last_key_ = key;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> TableReader::NextRows(TableEntries& entries) {
  if (next_ == first_counters_) {
    any_ = false;
    return false;
  }
  WEIR_RETURN_IF_ERROR(ReadKeys(entries));
  WEIR_RETURN_IF_ERROR(ReadColumn(columns_ == Columns::kKeys ? nullptr : &entries.values));
  if (table_->slot_words() > 0) {
    WEIR_RETURN_IF_ERROR(ReadColumn(columns_ == Columns::kAll ? &entries.slots : nullptr));
  }
  return true;
}

absl::StatusOr<bool> TableReader::NextCounters(TableEntries& entries) {
  if (next_ == tensors_.size()) return false;
  WEIR_RETURN_IF_ERROR(ReadKeys(entries));
  WEIR_RETURN_IF_ERROR(ReadColumn(&entries.pushes));
  const bool counts = std::all_of(entries.pushes.begin(), entries.pushes.end(),
                                  [](uint64_t pushes) { return pushes >= 1 && pushes <= UINT32_MAX; });
  if (counts) return true;
  return absl::DataLossError(absl::StrCat(path_, ": tensor '", tensors_[next_ - 1].name,
                                          "': a count must be in [1, ", UINT32_MAX, "]"));
}

}  // namespace weir
