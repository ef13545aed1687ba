#include "ps_server/shard/calls/push_arrival.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/codec/floats.h"
#include "common/codec/value_codec.h"
#include "common/codec/wire_codec.h"

namespace weir {
namespace {

// If no chunk has come for the time that the whole push takes at this speed, or for kStandstill, the stream
// stands still. A busy machine leaves a process without a core for less than kStandstill.
constexpr double kSlowBytesPerSecond = 2e9;
constexpr absl::Duration kStandstill = absl::Milliseconds(25);

}  // namespace

PushArrival::PushArrival(v1::PushRequest header, std::shared_ptr<VersionBuilder> builder, Slab gradient,
                         std::shared_ptr<const ShardTables> tables, std::shared_ptr<const void> presence,
                         uint64_t unit)
    : header_(std::move(header)),
      builder_(std::move(builder)),
      gradient_(std::move(gradient)),
      tables_(std::move(tables)),
      presence_(std::move(presence)),
      came_(header_.elements(), unit) {}

absl::StatusOr<uint64_t> PushArrival::TakeChunk(uint64_t first, absl::Span<const absl::string_view> pieces,
                                                uint64_t bytes) {
  const absl::StatusOr<uint64_t> count = came_.Add(first, bytes, TypeOf(header_), kMaxSharedChunkBytes);
  if (!count.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("a chunk of ", bytes, " bytes at position ", first,
                                                   " of a push of ", header_.elements(), " elements, ",
                                                   count.status().message()));
  }
  const auto n = static_cast<int64_t>(*count);

  std::optional<NonFinite> bad;
  if (builder_ != nullptr) {
    bad = builder_->Apply(static_cast<int64_t>(first), n, pieces, TypeOf(header_));
  } else {
    float* const to = gradient_.get() + first;
    ValueCursor(pieces, TypeOf(header_), n).Read(to, n);
    const int64_t at = FirstNonFinite(to, n);
    if (at < n) bad = NonFinite{static_cast<int64_t>(first) + at, to[at]};
  }
  if (!non_finite_.has_value()) non_finite_ = bad;
  return count;
}

absl::Status PushArrival::SetRows(PushedRows rows) {
  if (!rows.tables.empty()) WEIR_RETURN_IF_ERROR(tables_->CheckKeys(rows));
  rows_ = std::move(rows);
  return absl::OkStatus();
}

std::shared_ptr<const void> PushArrivals::Add(const PushKey& key, uint64_t row_bytes) {
  constexpr size_t kCopies = 2;
  Prune(key.worker);
  Arriving& push = arriving_[KeyOf(key)];
  if (push.copies.size() >= kCopies) return nullptr;
  auto presence = std::make_shared<const char>();
  push.copies.push_back(presence);
  push.row_bytes = row_bytes;
  return presence;
}

std::map<uint32_t, uint64_t> PushArrivals::RowBytesOf(uint64_t step) const {
  std::map<uint32_t, uint64_t> bytes;
  for (const auto& [key, push] : arriving_) {
    const auto& [worker, clock, part] = key;
    const bool there = std::any_of(push.copies.begin(), push.copies.end(),
                                   [](const auto& arrival) { return !arrival.expired(); });
    if (clock == step && there) bytes[part] = std::max(bytes[part], push.row_bytes);
  }
  return bytes;
}

void PushArrivals::Remove(const PushKey& key) { arriving_.erase(KeyOf(key)); }

void PushArrivals::RemoveWorker(uint32_t worker) {
  arriving_.erase(arriving_.lower_bound({worker, 0, 0}), arriving_.lower_bound({worker + 1, 0, 0}));
  overtaken_.erase(worker);
}

void PushArrivals::Prune(uint32_t worker) {
  const auto end = arriving_.lower_bound({worker + 1, 0, 0});
  for (auto push = arriving_.lower_bound({worker, 0, 0}); push != end;) {
    auto& copies = push->second.copies;
    copies.erase(
        std::remove_if(copies.begin(), copies.end(), [](const auto& arrival) { return arrival.expired(); }),
        copies.end());
    push = copies.empty() ? arriving_.erase(push) : std::next(push);
  }
}

void PushArrivals::BeginStream(const PushKey& key, absl::Time now) {
  streamed_ = key;
  chunks_ = 0;
  moved_ = now;
}

void PushArrivals::Overtake() {
  if (!streamed_.has_value()) return;
  overtaken_[streamed_->worker] = streamed_->clock;
  streamed_.reset();
}

bool PushArrivals::WasOvertaken(const PushKey& key) const {
  const auto found = overtaken_.find(key.worker);
  return found != overtaken_.end() && found->second == key.clock;
}

absl::Duration PushArrivals::WaitForStream(int64_t bytes, uint64_t chunks, absl::Time now) {
  if (chunks != chunks_) {
    chunks_ = chunks;
    moved_ = now;
  }
  const absl::Duration patience =
      std::min(kStandstill, absl::Seconds(static_cast<double>(bytes) / kSlowBytesPerSecond));
  return now - moved_ < patience ? patience : absl::ZeroDuration();
}

}  // namespace weir
