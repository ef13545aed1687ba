#include "ps_server/shard/push_arrival.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/codec/bfloat16.h"
#include "common/codec/wire_codec.h"
#include "common/codec/wire_dtype.h"
#include "common/model/value_cursor.h"

namespace weir {

PushArrival::PushArrival(v1::PushRequest header, const Kernels& kernels,
                         std::shared_ptr<VersionBuilder> builder, Slab gradient,
                         std::shared_ptr<const void> presence, uint64_t unit)
    : header_(std::move(header)),
      kernels_(kernels),
      builder_(std::move(builder)),
      gradient_(std::move(gradient)),
      presence_(std::move(presence)),
      unit_(unit),
      taken_((header_.elements() + unit_ - 1) / unit_),
      missing_(header_.elements()) {}

absl::Status PushArrival::TakeChunk(uint64_t first, absl::Span<const absl::string_view> pieces,
                                    uint64_t bytes) {
  const uint64_t elements = header_.elements();
  const auto value_bytes = static_cast<uint64_t>(BytesPerValue(header_.dtype()));
  const uint64_t count = bytes / value_bytes;
  if (bytes == 0 || bytes > kMaxSharedChunkBytes || bytes % value_bytes != 0 || first % unit_ != 0 ||
      first >= elements || count > elements - first || (count % unit_ != 0 && first + count != elements)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a chunk of ", bytes, " bytes at position ", first, " of a push of ", elements,
                     " elements of ", value_bytes, " bytes; chunks start and end at multiples of ", unit_,
                     " elements or at the end, and hold at most ", kMaxSharedChunkBytes, " bytes"));
  }
  for (uint64_t unit = first / unit_; unit * unit_ < first + count; ++unit) {
    if (!taken_[unit]) continue;
    return absl::InvalidArgumentError(absl::StrCat("a chunk of ", count, " elements at position ", first,
                                                   " came after one that holds position ", unit * unit_));
  }
  for (uint64_t unit = first / unit_; unit * unit_ < first + count; ++unit) taken_[unit] = true;
  missing_ -= count;

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
    const size_t at = kernels_.first_non_finite(to, count);
    if (at < count) bad = NonFinite{static_cast<int64_t>(first + at), to[at]};
  }
  if (!non_finite_.has_value()) non_finite_ = bad;
  return absl::OkStatus();
}

}  // namespace weir
