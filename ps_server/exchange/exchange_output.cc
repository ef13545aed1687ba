// The part of ExchangeSession that makes what the client gets: answers, credit, weights and rows, and the end
// of each exchange.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/codec/value_codec.h"
#include "common/codec/wire_codec.h"
#include "common/protocol/job_failure.h"
#include "ps_server/exchange/exchange_session.h"

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

ExchangeSession::Exchange* ExchangeSession::Find(uint64_t id) {
  const auto it = exchanges_.find(id);
  return it == exchanges_.end() || it->second.closing ? nullptr : &it->second;
}

void ExchangeSession::AnswerJobOver(Exchange& exchange) {
  if (exchange.wants_keys) {
    Drop(exchange);
    exchange.pull_reply.emplace().set_outcome(v1::JOB_OVER);
    exchange.pull_reply->set_reason(std::string(job_over_->message()));
    exchange.pull_reply->set_failure_kind(KindOf(*job_over_));
    return Close(exchange);
  }
  AnswerPush(exchange, v1::JOB_OVER, std::string(job_over_->message()));
  exchange.push_reply->set_failure_kind(KindOf(*job_over_));
}

void ExchangeSession::AnswerPush(Exchange& exchange, v1::Outcome outcome, const std::string& reason) {
  Drop(exchange);
  exchange.push_reply.emplace().set_outcome(outcome);
  exchange.push_reply->set_reason(reason);
  Close(exchange);
}

void ExchangeSession::Fail(Exchange& exchange, absl::Status status) {
  Drop(exchange);
  if (options_.limits != nullptr) options_.limits->CountIfLimit(status);
  exchange.error = std::move(status);
  Close(exchange);
}

void ExchangeSession::FailCutShort(Exchange& exchange) {
  std::string what;
  if (exchange.arrival != nullptr) {
    what = absl::StrCat(exchange.received, " of ", exchange.arrival->header().elements(),
                        " elements of the push's gradient");
  }
  if (exchange.rows != nullptr) {
    absl::StrAppend(&what, what.empty() ? "" : " and ", exchange.rows->received(), " of ",
                    exchange.rows->bytes(), " bytes of its rows");
  }
  Fail(exchange, absl::InvalidArgumentError(absl::StrCat("the stream ended after ", what)));
}

void ExchangeSession::Drop(Exchange& exchange) {
  if (exchange.waiting.has_value()) --waiting_;
  exchange.waiting.reset();
  exchange.arrival = nullptr;
  exchange.may_send = exchange.credit = 0;
  exchange.eager = false;
  exchange.last.reset();
  exchange.weights.clear();
  exchange.version = nullptr;
  exchange.read = nullptr;
}

void ExchangeSession::CutOff(Exchange& exchange) {
  if (exchange.arrival != nullptr) {
    // The version that this push was making is dead.
    return AnswerPush(exchange, v1::SEND_AGAIN, "another push was applied while this one was arriving");
  }
  Drop(exchange);
  exchange.error =
      absl::UnavailableError("the weights were not taken for so long that others needed their memory");
  if (exchange.closing) {
    Queue(exchange);
  } else {
    Close(exchange);
  }
}

bool ExchangeSession::DropRevoked() {
  for (auto& [id, exchange] : exchanges_) {
    if (exchange.version != nullptr && exchange.version->revoked) CutOff(exchange);
  }
  return sending_ != nullptr && sending_->revoked;
}

void ExchangeSession::Close(Exchange& exchange) {
  exchange.closing = true;
  exchange.wants_keys = false;
  exchange.rows = nullptr;
  exchange.arriving.GiveBack();
  if (exchange.read == nullptr) Unreserve(exchange);
  ++closing_;
  Queue(exchange);
}

void ExchangeSession::Grant(Exchange& exchange, uint32_t chunks) {
  exchange.may_send += chunks;
  exchange.credit += chunks;
  if (chunks > 0) Queue(exchange);
}

void ExchangeSession::Queue(Exchange& exchange) {
  on_output_();
  if (exchange.queued) return;
  exchange.queued = true;
  const bool bulk = exchange.has_payload() && !exchange.eager && !exchange.push_reply.has_value();
  (bulk ? bulk_ : urgent_).push_back(exchange.id);
}

bool ExchangeSession::Send(OutgoingMessage* message) {
  if (greeting_.has_value()) {
    *message = {greeting_->SerializeAsString(), {}};
    greeting_.reset();
    return true;
  }
  while (true) {
    std::deque<uint64_t>& queue = urgent_.empty() ? bulk_ : urgent_;
    if (queue.empty()) return false;
    Exchange& exchange = exchanges_.at(queue.front());
    // This comes first, while the exchange is in the queue: otherwise CutOff() would put it there again after
    // its removal.
    if (exchange.version != nullptr && exchange.version->revoked) CutOff(exchange);
    queue.pop_front();
    exchange.queued = false;
    if (!exchange.has_output()) continue;
    *message = NextReply(exchange);
    if (exchange.has_payload()) {
      Queue(exchange);
    } else if (exchange.closing) {
      --closing_;
      Unreserve(exchange);
      exchanges_.erase(exchange.id);
    }
    return true;
  }
}

OutgoingMessage ExchangeSession::NextReply(Exchange& exchange) {
  v1::ExchangeReply reply;
  reply.set_id(exchange.id);
  if (exchange.push_reply.has_value()) *reply.mutable_push() = *std::move(exchange.push_reply);
  if (exchange.pull_reply.has_value()) *reply.mutable_pull() = *std::move(exchange.pull_reply);
  exchange.push_reply.reset();
  exchange.pull_reply.reset();
  if (!exchange.error.ok()) {
    reply.mutable_error()->set_code(static_cast<int>(exchange.error.code()));
    reply.mutable_error()->set_message(std::string(exchange.error.message()));
  }
  reply.set_credit(std::exchange(exchange.credit, 0));
  OutgoingMessage message;
  uint64_t payload_bytes = 0;
  std::optional<OutgoingMessage::Piece> payload;
  if (exchange.read != nullptr) {
    payload = NextRows(exchange, &reply);
  } else if (!exchange.weights.empty()) {
    payload = NextWeights(exchange, &reply);
  }
  if (payload.has_value()) {
    payload_bytes = payload->bytes.size();
    message.payload.push_back(*std::move(payload));
  }
  message.head = reply.SerializeAsString() + PayloadPrefix(payload_bytes);
  return message;
}

void ExchangeSession::Share(const SharedMemory::Place& place, uint64_t bytes,
                            std::shared_ptr<const void> owner, v1::ExchangeReply* reply) {
  reply->mutable_shared()->set_segment(place.segment);
  reply->mutable_shared()->set_offset(place.offset);
  reply->mutable_shared()->set_bytes(bytes);
  shared_.emplace(++chunks_shared_, std::move(owner));
}

std::optional<OutgoingMessage::Piece> ExchangeSession::NextRows(Exchange& exchange,
                                                                v1::ExchangeReply* reply) {
  const v1::Dtype dtype = exchange.pull->dtype();
  const auto value_bytes = static_cast<uint64_t>(BytesPerValue(dtype));
  const std::shared_ptr<const ReadRows> read = exchange.read;
  const uint64_t begin = exchange.rows_sent;
  const float* const values = read->values.get() + begin / value_bytes;
  std::optional<SharedMemory::Place> place;
  if (segments_ != nullptr && IsPlain(dtype)) place = options_.shared_memory->Find(values);
  const uint64_t limit =
      begin + (place.has_value() ? kMaxSharedChunkBytes : options_.chunk_elements * value_bytes);
  uint64_t end = begin;
  for (const RowLayout::Entry& entry : exchange.reply_rows.pull()) {
    if (entry.end <= end) continue;
    // A row that is longer than a chunk goes alone.
    const uint64_t room = end == begin ? std::max(limit - end, entry.row_bytes) : limit - end;
    end = std::min(entry.end, end + room / entry.row_bytes * entry.row_bytes);
    if (end < entry.end || end >= limit) break;
  }
  const uint64_t bytes = end - begin;
  reply->set_rows(true);
  reply->set_first(begin);
  exchange.rows_sent = end;
  if (end == exchange.reply_rows.bytes()) exchange.read = nullptr;
  if (place.has_value()) {
    Share(*place, bytes, read, reply);
    return std::nullopt;
  }
  if (!IsPlain(dtype)) return CopyOf(values, bytes / value_bytes, dtype);
  return OutgoingMessage::Piece{{reinterpret_cast<const char*>(values), bytes}, read};
}

std::optional<OutgoingMessage::Piece> ExchangeSession::NextWeights(Exchange& exchange,
                                                                   v1::ExchangeReply* reply) {
  Range& range = exchange.weights.front();
  const float* const values = exchange.version->weights.get() + range.first;
  const v1::Dtype dtype = exchange.pull->dtype();
  std::optional<SharedMemory::Place> place;
  if (segments_ != nullptr && IsPlain(dtype) && exchange.version->may_refer) {
    place = options_.shared_memory->Find(values);
  }
  // In shared memory, the answer to a chunk is as large as the chunk.
  const bool whole = place.has_value() && exchange.eager;
  const uint64_t count = whole ? range.count : std::min(range.count, options_.chunk_elements);
  reply->set_first(range.first);
  range.first += count;
  range.count -= count;
  if (range.count == 0) exchange.weights.pop_front();
  const uint64_t bytes = count * static_cast<uint64_t>(BytesPerValue(dtype));
  if (!IsPlain(dtype) || !exchange.version->may_refer) return CopyOf(values, count, dtype);
  if (!place.has_value()) {
    sending_ = exchange.version;
    return OutgoingMessage::Piece{{reinterpret_cast<const char*>(values), bytes}, exchange.version};
  }
  Share(*place, bytes, exchange.version, reply);
  return std::nullopt;
}

}  // namespace weir
