#include "ps_server/exchange/exchange_request.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/codec/value_codec.h"
#include "common/codec/wire_codec.h"
#include "common/protocol/exchange_layout.h"
#include "common/protocol/limits.h"

namespace weir {
namespace {

// The limit for the distance between pieces of a chunk in shared memory. Bytes.
constexpr uint64_t kMaxStride = uint64_t{1} << 40;

// Fields that this program does not know are taken out of a head that is larger. They would stay for as long
// as the exchange does.
constexpr size_t kSmallHead = 1024;

absl::Status CheckPushDtype(const v1::ExchangeRequest& request) {
  if (const absl::Status known = CheckPushType(request.push()); !known.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("push.", known.message()));
  }
  const v1::Dtype dtype = request.push().dtype();
  if (IsQuantised(dtype) && (request.push().rows_size() > 0 || request.pull().rows_size() > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("push.dtype: ", v1::Dtype_Name(dtype), " with rows; with them it is F32 or BF16"));
  }
  return absl::OkStatus();
}

absl::Status CheckPullDtype(v1::Dtype dtype) {
  if (v1::Dtype_IsValid(dtype) && !IsQuantised(dtype)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("pull.dtype: ", static_cast<int>(dtype), " is not one of F32 (0) and BF16 (1)"));
}

absl::Status CheckPullOfPush(const v1::PushRequest& push, const v1::PullRequest& pull) {
  if (pull.pin() != 0) return absl::InvalidArgumentError("pull.pin: not with a push");
  if (pull.clock() != push.clock() + 1) {
    return absl::InvalidArgumentError(absl::StrCat("pull.clock: ", pull.clock(), " with a push at clock ",
                                                   push.clock(), "; must be the push's + 1"));
  }
  if (pull.caller().worker() != push.caller().worker() ||
      pull.caller().incarnation() != push.caller().incarnation()) {
    return absl::InvalidArgumentError("pull.caller: must be the push's");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ReceivedRequest> ReadRequest(const IncomingMessage& message) {
  WEIR_ASSIGN_OR_RETURN(SplitMessage split, SplitPayload(message.pieces));
  ReceivedRequest received;
  auto& [request, chunk] = received;
  if (!request.ParseFromString(split.head)) return absl::InvalidArgumentError("not an ExchangeRequest");
  const size_t head = split.head.size() - request.gradient().size();
  if (head > kMaxRequestBytes) {
    return LimitReached(Limit::kRequestBytes, absl::StatusCode::kResourceExhausted,
                        absl::StrCat("a message has ", head, " bytes beside its gradient; at most ",
                                     kMaxRequestBytes, " are allowed"));
  }
  if (head > kSmallHead) request.DiscardUnknownFields();
  chunk = {request.first(), split.payload_bytes, request.rows(), std::move(split.payload), message.owner};
  if (chunk.bytes == 0 && !request.gradient().empty()) {
    // The client's serializer did not put the gradient last.
    const auto flat = std::make_shared<const std::string>(std::move(*request.mutable_gradient()));
    chunk.bytes = flat->size();
    chunk.pieces = {*flat};
    chunk.owner = flat;
  }
  request.clear_gradient();
  return received;
}

absl::Status FindChunk(const v1::ExchangeRequest& request,
                       const std::shared_ptr<const ClientSegments>& segments, ReceivedChunk* chunk) {
  const auto too_large = [](const char* field, uint64_t bytes, int64_t limit) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": ", bytes, " bytes; there a chunk holds at most ", limit));
  };
  if (!request.has_shared()) {
    return chunk->bytes <= kMaxChunkBytes ? absl::OkStatus()
                                          : too_large("gradient", chunk->bytes, kMaxChunkBytes);
  }
  if (segments == nullptr) {
    return absl::InvalidArgumentError("shared: this stream was granted no shared memory");
  }
  if (chunk->bytes > 0) return absl::InvalidArgumentError("shared: together with a gradient in the message");
  const v1::SharedRange& range = request.shared();
  if (range.bytes() > kMaxSharedChunkBytes) return too_large("shared", range.bytes(), kMaxSharedChunkBytes);
  const bool together = range.piece_bytes() == 0;
  if (!together && (range.piece_bytes() < kMinPieceBytes || range.stride() < range.piece_bytes() ||
                    range.stride() > kMaxStride)) {
    return absl::InvalidArgumentError(absl::StrCat("shared: pieces of ", range.piece_bytes(), " bytes, ",
                                                   range.stride(), " apart; must be at least ",
                                                   kMinPieceBytes, ", and apart by that to ", kMaxStride));
  }
  *chunk = {request.first(), range.bytes(), request.rows(), {}, segments};
  uint64_t left = range.bytes();
  for (uint64_t at = range.offset(); left > 0; at += range.stride()) {
    const uint64_t bytes = together ? left : std::min(left, range.piece_bytes());
    WEIR_ASSIGN_OR_RETURN(const char* const data, segments->At(range.segment(), at, bytes));
    chunk->pieces.emplace_back(data, bytes);
    left -= bytes;
  }
  return absl::OkStatus();
}

absl::Status CheckFirst(const v1::ExchangeRequest& request, const ReceivedChunk& chunk) {
  if (!request.has_push() && !request.has_pull()) {
    return absl::InvalidArgumentError("the first message of an exchange must hold a push or a pull");
  }
  if (request.has_push()) {
    WEIR_RETURN_IF_ERROR(CheckPushDtype(request));
    if (!request.push().refused().empty() && chunk.bytes > 0 && !chunk.rows) {
      return absl::InvalidArgumentError("gradient: with push.refused, which says that none comes");
    }
    if (!request.push().refused().empty() && request.push().rows_size() > 0) {
      return absl::InvalidArgumentError("push.rows: with push.refused, which says that none come");
    }
  } else if (chunk.bytes > 0 && !chunk.rows) {
    return absl::InvalidArgumentError("gradient: without a push");
  }
  if (request.has_pull()) {
    WEIR_RETURN_IF_ERROR(CheckPullDtype(request.pull().dtype()));
    if (request.has_push()) WEIR_RETURN_IF_ERROR(CheckPullOfPush(request.push(), request.pull()));
  }
  return absl::OkStatus();
}

}  // namespace weir
