#include "ps_server/shard/push_arrival.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/codec/bfloat16.h"
#include "common/codec/finite.h"
#include "common/codec/wire_codec.h"
#include "common/codec/wire_dtype.h"
#include "common/model/value_cursor.h"

namespace weir {

PushArrival::PushArrival(v1::PushRequest header, std::shared_ptr<VersionBuilder> builder, Slab gradient,
                         std::shared_ptr<const ShardTables> tables, std::shared_ptr<const void> presence,
                         uint64_t unit)
    : header_(std::move(header)),
      builder_(std::move(builder)),
      gradient_(std::move(gradient)),
      tables_(std::move(tables)),
      presence_(std::move(presence)),
      came_(header_.elements(), unit) {}

absl::Status PushArrival::TakeChunk(uint64_t first, absl::Span<const absl::string_view> pieces,
                                    uint64_t bytes) {
  const auto value_bytes = static_cast<uint64_t>(BytesPerValue(header_.dtype()));
  const absl::Status added = came_.Add(first, bytes, value_bytes, kMaxSharedChunkBytes);
  if (!added.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("a chunk of ", bytes, " bytes at position ", first,
                                                   " of a push of ", header_.elements(), " elements, ",
                                                   added.message()));
  }
  const uint64_t count = bytes / value_bytes;

  std::optional<NonFinite> bad;
  if (builder_ != nullptr) {
    bad = builder_->Apply(static_cast<int64_t>(first), static_cast<int64_t>(count), pieces, header_.dtype());
  } else {
    float* const to = gradient_.get() + first;
    ValueCursor cursor(pieces, value_bytes);
    int64_t got = 0;
    for (uint64_t done = 0; done < count; done += static_cast<uint64_t>(got)) {
      const char* const values = cursor.Take(static_cast<int64_t>(count - done), &got);
      if (header_.dtype() == v1::BF16) {
        FromBfloat16(values, to + done, static_cast<size_t>(got));
      } else {
        std::memcpy(to + done, values, static_cast<size_t>(got) * sizeof(float));
      }
    }
    const int64_t n = static_cast<int64_t>(count), at = FirstNonFinite(to, n);
    if (at < n) bad = NonFinite{static_cast<int64_t>(first) + at, to[at]};
  }
  if (!non_finite_.has_value()) non_finite_ = bad;
  return absl::OkStatus();
}

absl::Status PushArrival::SetRows(PushedRows rows) {
  if (!rows.tables.empty()) WEIR_RETURN_IF_ERROR(tables_->CheckKeys(rows));
  rows_ = std::move(rows);
  return absl::OkStatus();
}

}  // namespace weir
