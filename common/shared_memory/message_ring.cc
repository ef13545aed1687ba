#include "common/shared_memory/message_ring.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weir {
namespace {

constexpr uint64_t kMask = RingArea::kBytes - 1;
constexpr uint64_t kPrefix = sizeof(uint32_t);
static_assert((RingArea::kBytes & kMask) == 0);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace

MessageRing::MessageRing(RingArea* own, const RingArea* peer, std::shared_ptr<DoorbellPage> bells,
                         uint64_t max_message, std::shared_ptr<const void> memory)
    : own_(own),
      peer_(peer),
      bells_(std::move(bells)),
      max_message_(max_message),
      memory_(std::move(memory)) {}

uint64_t MessageRing::Room() const {
  const uint64_t behind = written_ - peer_->read.load(std::memory_order_acquire);
  // Beyond the ring if the peer claims to have read what was never written.
  return behind <= RingArea::kBytes ? RingArea::kBytes - behind : 0;
}

uint64_t MessageRing::Append(absl::string_view bytes) {
  const uint64_t count = std::min<uint64_t>(bytes.size(), Room());
  const uint64_t at = written_ & kMask, first = std::min(count, RingArea::kBytes - at);
  if (count == 0) return 0;
  std::memcpy(own_->bytes + at, bytes.data(), first);
  std::memcpy(own_->bytes, bytes.data() + first, count - first);
  written_ += count;
  return count;
}

void MessageRing::RingPeer(bool relaxed) {
  // In one order with ReadWith() and WantAll(), whose callers look at the ring afterwards.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (relaxed && peer_->eager.load(std::memory_order_relaxed) == 0) return;
  if (Doorbell* const bell = bells_->Bell(peer_->bell.load(std::memory_order_relaxed))) bell->Ring();
}

bool MessageRing::Write(OutgoingMessage message) {
  uint64_t length = message.head.size();
  for (const OutgoingMessage::Piece& piece : message.payload) length += piece.bytes.size();
  const auto prefix = static_cast<uint32_t>(length);
  char bytes[kPrefix];
  std::memcpy(bytes, &prefix, kPrefix);
  if (Room() >= kPrefix + length) {
    Append({bytes, kPrefix});
    Append(message.head);
    for (const OutgoingMessage::Piece& piece : message.payload) Append(piece.bytes);
    own_->written.store(written_, std::memory_order_release);
    RingPeer(message.relaxed);
    return true;
  }
  pending_ = std::move(message);
  pending_.head.insert(0, bytes, kPrefix);
  return Flush();
}

bool MessageRing::Flush() {
  const uint64_t before = written_;
  own_->blocked.store(0, std::memory_order_relaxed);
  while (true) {
    if (!pending_.head.empty()) {
      pending_.head.erase(0, Append(pending_.head));
    }
    if (pending_.head.empty()) {
      auto piece = pending_.payload.begin();
      for (; piece != pending_.payload.end(); ++piece) {
        piece->bytes.remove_prefix(Append(piece->bytes));
        if (!piece->bytes.empty()) break;
      }
      pending_.payload.erase(pending_.payload.begin(), piece);
    }
    if (flushed() || own_->blocked.load(std::memory_order_relaxed) != 0) break;
    // The peer may have made room before it could see that this end waits.
    own_->blocked.store(1, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  if (flushed()) own_->blocked.store(0, std::memory_order_relaxed);
  if (written_ != before) {
    own_->written.store(written_, std::memory_order_release);
    RingPeer();
  }
  return flushed();
}

bool MessageRing::MayRead() const {
  const uint64_t here = peer_->written.load(std::memory_order_acquire) - read_;
  // Part of a length stays until the rest has come.
  return here >= (length_.has_value() ? 1 : kPrefix);
}

bool MessageRing::MayFlush() const { return !flushed() && Room() > 0; }

absl::StatusOr<bool> MessageRing::Read(std::string* message) {
  const uint64_t written = peer_->written.load(std::memory_order_acquire);
  if (written - read_ > RingArea::kBytes) {
    return absl::DataLossError(absl::StrCat("a ring of ", RingArea::kBytes, " bytes claims to hold ",
                                            written - read_, " that were not read"));
  }
  const auto take = [&](char* to, uint64_t count) {
    const uint64_t at = read_ & kMask, first = std::min(count, RingArea::kBytes - at);
    std::memcpy(to, peer_->bytes + at, first);
    std::memcpy(to + first, peer_->bytes, count - first);
    read_ += count;
  };
  const uint64_t before = read_;
  if (!length_.has_value() && written - read_ >= kPrefix) {
    uint32_t length;
    take(reinterpret_cast<char*>(&length), kPrefix);
    if (length > max_message_) {
      return absl::DataLossError(
          absl::StrCat("a message of ", length, " bytes on a ring; at most ", max_message_, " can be"));
    }
    length_ = length;
  }
  if (length_.has_value()) {
    const uint64_t have = partial_.size(), count = std::min(*length_ - have, written - read_);
    partial_.resize(have + count);
    take(partial_.data() + have, count);
  }
  if (read_ != before) {
    own_->read.store(read_, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (peer_->blocked.load(std::memory_order_relaxed) != 0) RingPeer();
  }
  if (!length_.has_value() || partial_.size() < *length_) return false;
  *message = std::exchange(partial_, std::string());
  length_.reset();
  return true;
}

}  // namespace weir
