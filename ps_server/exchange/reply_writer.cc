#include "ps_server/exchange/reply_writer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/codec/value_codec.h"
#include "common/codec/wire_codec.h"
#include "common/protocol/limits.h"

namespace weir {
namespace {

// The values as they travel in this type.
OutgoingMessage::Piece CopyOf(const float* values, uint64_t count, v1::Dtype dtype) {
  const uint64_t bytes = count * static_cast<uint64_t>(BytesPerValue(dtype));
  const std::shared_ptr<char> copy(new char[bytes], std::default_delete<char[]>());
  Encode(dtype, values, copy.get(), count);
  return {{copy.get(), bytes}, copy};
}

}  // namespace

void PendingReply::DropPayload() {
  credit = 0;
  weights.clear();
  version = nullptr;
  eager = false;
  rows = nullptr;
}

bool ReplyWriter::Claim(const std::string& token) {
  if (memory_ == nullptr) return false;
  token_ = token;
  segments_ = memory_->Claim(token_);
  return segments_ != nullptr;
}

absl::Status ReplyWriter::Release(const v1::ExchangeRequest& request) {
  const uint64_t count = request.released();
  if (count == 0) return absl::OkStatus();
  if (count > shared_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("released: ", count, " chunks of ", shared_.size(),
                                                   " that the client holds in shared memory"));
  }
  const bool oldest = request.id() != 0 || request.first() == 0;
  const auto begin = oldest ? shared_.begin() : shared_.find(request.first());
  auto end = begin;
  for (uint64_t i = 0; i < count; ++i, ++end) {
    if (end == shared_.end() || (!oldest && end->first != request.first() + i)) {
      return absl::InvalidArgumentError(absl::StrCat("released: chunk ", request.first() + i,
                                                     ", which the client does not hold in shared memory"));
    }
  }
  shared_.erase(begin, end);
  return absl::OkStatus();
}

OutgoingMessage ReplyWriter::Next(uint64_t id, PendingReply& reply) {
  v1::ExchangeReply head;
  head.set_id(id);
  if (reply.push.has_value()) *head.mutable_push() = *std::exchange(reply.push, std::nullopt);
  if (reply.pull.has_value()) *head.mutable_pull() = *std::exchange(reply.pull, std::nullopt);
  if (!reply.error.ok()) {
    head.mutable_error()->set_code(static_cast<int>(reply.error.code()));
    head.mutable_error()->set_message(std::string(reply.error.message()));
  }
  head.set_credit(std::exchange(reply.credit, 0));
  OutgoingMessage message;
  uint64_t payload_bytes = 0;
  Piece payload;
  if (reply.rows != nullptr) {
    payload = NextRows(reply, &head);
  } else if (!reply.weights.empty()) {
    payload = NextWeights(reply, &head);
  }
  if (payload.has_value()) {
    payload_bytes = payload->bytes.size();
    message.payload.push_back(*std::move(payload));
  }
  message.head = head.SerializeAsString() + PayloadPrefix(payload_bytes);
  return message;
}

ReplyWriter::Piece ReplyWriter::NextRows(PendingReply& reply, v1::ExchangeReply* message) {
  const auto value_bytes = static_cast<uint64_t>(BytesPerValue(reply.dtype));
  const std::shared_ptr<const ReadRows> read = reply.rows;
  const uint64_t begin = reply.rows_sent;
  const float* const values = read->values.get() + begin / value_bytes;
  const std::optional<SharedMemory::Place> place = PlaceOf(values, reply.dtype);
  const uint64_t limit = begin + (place.has_value() ? kMaxSharedChunkBytes : chunk_elements_ * value_bytes);
  uint64_t end = begin;
  for (const RowLayout::Entry& entry : reply.row_layout.pull()) {
    if (entry.end <= end) continue;
    // A row that is longer than a chunk goes alone.
    const uint64_t room = end == begin ? std::max(limit - end, entry.row_bytes) : limit - end;
    end = std::min(entry.end, end + room / entry.row_bytes * entry.row_bytes);
    if (end < entry.end || end >= limit) break;
  }
  const uint64_t bytes = end - begin;
  message->set_rows(true);
  message->set_first(begin);
  reply.rows_sent = end;
  if (end == reply.row_layout.bytes()) reply.rows = nullptr;
  if (place.has_value()) {
    Share(*place, bytes, read, message);
    return std::nullopt;
  }
  if (!IsPlain(reply.dtype)) return CopyOf(values, bytes / value_bytes, reply.dtype);
  return OutgoingMessage::Piece{{reinterpret_cast<const char*>(values), bytes}, read};
}

ReplyWriter::Piece ReplyWriter::NextWeights(PendingReply& reply, v1::ExchangeReply* message) {
  PendingReply::Range& range = reply.weights.front();
  const std::shared_ptr<const LentVersion>& version = reply.version;
  const float* const values = version->weights.get() + range.first;
  const std::optional<SharedMemory::Place> place =
      version->may_refer ? PlaceOf(values, reply.dtype) : std::nullopt;
  const bool whole = place.has_value() && reply.eager;
  const uint64_t count = whole ? range.count : std::min(range.count, chunk_elements_);
  message->set_first(range.first);
  range.first += count;
  range.count -= count;
  if (range.count == 0) reply.weights.pop_front();
  const uint64_t bytes = count * static_cast<uint64_t>(BytesPerValue(reply.dtype));
  if (!IsPlain(reply.dtype) || !version->may_refer) return CopyOf(values, count, reply.dtype);
  if (!place.has_value()) {
    sending_ = version;
    return OutgoingMessage::Piece{{reinterpret_cast<const char*>(values), bytes}, version};
  }
  Share(*place, bytes, version, message);
  return std::nullopt;
}

std::optional<SharedMemory::Place> ReplyWriter::PlaceOf(const float* values, v1::Dtype dtype) const {
  if (segments_ == nullptr || !IsPlain(dtype)) return std::nullopt;
  return memory_->Find(values);
}

void ReplyWriter::Share(const SharedMemory::Place& place, uint64_t bytes, std::shared_ptr<const void> owner,
                        v1::ExchangeReply* message) {
  message->mutable_shared()->set_segment(place.segment);
  message->mutable_shared()->set_offset(place.offset);
  message->mutable_shared()->set_bytes(bytes);
  shared_.emplace(++chunks_shared_, std::move(owner));
}

void ReplyWriter::End() {
  if (shared_.empty()) return;
  std::vector<std::shared_ptr<const void>> read;
  for (auto& [number, owner] : shared_) read.push_back(std::move(owner));
  shared_.clear();
  memory_->KeepFor(token_, std::move(read));
}

}  // namespace weir
