#include "common/protocol/exchange_layout.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/codec/value_codec.h"
#include "common/protocol/limits.h"

namespace weir {

absl::Status RowLayout::Append(const Entries& entries, const char* field, uint64_t key_bytes,
                               uint64_t value_bytes, const std::vector<uint32_t>& dims,
                               std::vector<Entry>& out) {
  int64_t before = -1;
  for (int i = 0; i < entries.size(); ++i) {
    const v1::Rows& rows = entries[i];
    const auto error = [&](const auto&... what) {
      return absl::InvalidArgumentError(absl::StrCat(field, ".rows[", i, "]", what...));
    };
    if (rows.table() >= dims.size()) {
      return error(".table: ", rows.table(), "; the job has ", dims.size(), " tables");
    }
    if (int64_t{rows.table()} <= before) {
      return error(".table: ", rows.table(), " comes after ", before, "; tables must rise");
    }
    before = rows.table();
    if (rows.keys() == 0) return error(".keys: 0; an entry has at least one");
    Entry entry;
    entry.table = rows.table();
    entry.keys = rows.keys();
    entry.row_bytes = dims[rows.table()] * value_bytes;
    // Divided, as the product of what a peer declares may need more than 64 bits.
    if (entry.keys > (kMaxRowBytes - bytes_) / (key_bytes + entry.row_bytes)) {
      return error(".keys: ", entry.keys, " keys with rows of ", entry.row_bytes,
                   " bytes; the rows of an exchange ", "have at most ", kMaxRowBytes, " bytes");
    }
    entry.keys_at = bytes_;
    entry.values_at = entry.keys_at + entry.keys * key_bytes;
    entry.end = entry.values_at + entry.keys * entry.row_bytes;
    bytes_ = entry.end;
    out.push_back(entry);
  }
  return absl::OkStatus();
}

absl::StatusOr<RowLayout> RowLayout::OfRequest(const Entries& push, v1::Dtype dtype, const Entries& pull,
                                               const std::vector<uint32_t>& dims) {
  RowLayout layout;
  // Rows are of a fixed type; without them the push's may be quantised.
  const auto value_bytes = push.empty() ? 0 : static_cast<uint64_t>(BytesPerValue(dtype));
  WEIR_RETURN_IF_ERROR(layout.Append(push, "push", sizeof(uint64_t), value_bytes, dims, layout.push_));
  WEIR_RETURN_IF_ERROR(layout.Append(pull, "pull", sizeof(uint64_t), 0, dims, layout.pull_));
  return layout;
}

absl::StatusOr<RowLayout> RowLayout::OfReply(const Entries& pull, v1::Dtype dtype,
                                             const std::vector<uint32_t>& dims) {
  RowLayout layout;
  const auto value_bytes = static_cast<uint64_t>(BytesPerValue(dtype));
  WEIR_RETURN_IF_ERROR(layout.Append(pull, "pull", 0, value_bytes, dims, layout.pull_));
  return layout;
}

absl::Status CheckPushType(const v1::PushRequest& push) {
  if (!v1::Dtype_IsValid(push.dtype())) {
    return absl::InvalidArgumentError(
        absl::StrCat("dtype: ", static_cast<int>(push.dtype()), " is none that this server knows"));
  }
  if (push.dtype() == v1::TOPK && (push.kept() < 1 || push.kept() > kMostKept)) {
    return absl::InvalidArgumentError(absl::StrCat("kept: ", push.kept(), " values of a block of ",
                                                   kTopKBlockValues, " with dtype TOPK; must be 1 to ",
                                                   kMostKept));
  }
  return absl::OkStatus();
}

}  // namespace weir
