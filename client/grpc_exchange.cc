#include "client/grpc_exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/bfloat16.h"
#include "common/grpc_payload.h"
#include "common/status_macros.h"

namespace weir {
namespace {

// A slice of the caller's memory costs gRPC about as much as copying so many bytes.
constexpr int64_t kWorthBorrowing = 4096;

bool IsKnown(v1::Outcome outcome) {
  return v1::Outcome_IsValid(outcome) && outcome != v1::OUTCOME_UNSPECIFIED;
}

int64_t BytesPerValue(v1::Dtype dtype) { return dtype == v1::BF16 ? 2 : 4; }

// Whether a pull that came with the push is answered after this.
bool PullFollows(v1::Outcome push) {
  return push == v1::OK || push == v1::REFUSED || push == v1::DUPLICATE_BATCH;
}

}  // namespace

GrpcExchange::GrpcExchange(const TensorMap& tensors, uint32_t shard, const WireOptions& wire,
                           std::string what, std::optional<ShardPush> push, std::optional<ShardPull> pull)
    : tensors_(tensors),
      shard_(shard),
      wire_(wire),
      what_(std::move(what)),
      elements_(tensors.partition().shard_elements(shard)),
      push_(std::move(push)),
      pull_(std::move(pull)) {}

absl::Status GrpcExchange::Broken(const std::string& problem) const {
  return absl::InternalError(absl::StrCat("in answer to ", what_, " it ", problem));
}

void GrpcExchange::Begin() {
  pushes_ = push_.has_value() && !push_answered_;
  sent_ = 0;
  pull_answered_ = false;
  if (!push_answered_) answer_.push.Clear();
  answer_.pull.Clear();
  ForgetWeights();
}

void GrpcExchange::ForgetWeights() {
  missing_ = pull_.has_value() && !pull_->request.header_only() ? elements_ : 0;
  taken_.assign(static_cast<size_t>((missing_ + kChunkUnit - 1) / kChunkUnit), false);
}

// ---- messages

void GrpcExchange::AddBeginning(const v1::Caller& caller, v1::ExchangeRequest* head) {
  if (pushes_) {
    v1::PushRequest& push = *head->mutable_push();
    push = push_->header;
    *push.mutable_caller() = caller;
    push.set_elements(static_cast<uint64_t>(elements_));
    push.set_dtype(wire_.push_dtype);
  }
  if (pull_.has_value()) {
    v1::PullRequest& pull = *head->mutable_pull();
    pull = pull_->request;
    *pull.mutable_caller() = caller;
    pull.set_dtype(wire_.pull_dtype);
  }
}

GrpcExchange::Chunk GrpcExchange::NextChunk(v1::ExchangeRequest* head) {
  Chunk chunk;
  chunk.first = sent_;
  chunk.count = std::min(wire_.chunk_elements, elements_ - sent_);
  chunk.bytes = static_cast<size_t>(chunk.count * BytesPerValue(wire_.push_dtype));
  chunk.runs = tensors_.Locate(shard_, chunk.first, chunk.count, push_->gradient);
  head->set_first(static_cast<uint64_t>(chunk.first));
  sent_ += chunk.count;
  return chunk;
}

void GrpcExchange::Gather(const Chunk& chunk, char* to) const {
  for (absl::Span<const float> run : chunk.runs) {
    if (wire_.push_dtype == v1::BF16) {
      ToBfloat16(run.data(), to, run.size());
    } else {
      std::memcpy(to, run.data(), run.size() * sizeof(float));
    }
    to += run.size() * BytesPerValue(wire_.push_dtype);
  }
}

grpc::ByteBuffer GrpcExchange::MakeChunk(v1::ExchangeRequest head) {
  const Chunk chunk = NextChunk(&head);
  std::vector<grpc::Slice> payload;
  if (wire_.push_dtype == v1::F32 &&
      chunk.count * 4 >= kWorthBorrowing * static_cast<int64_t>(chunk.runs.size())) {
    for (absl::Span<const float> run : chunk.runs) {
      loans_->Lend();
      std::shared_ptr<const void> loan(run.data(), [loans = loans_](const void*) { loans->Return(); });
      payload.push_back(BorrowedSlice(run.data(), run.size() * sizeof(float), std::move(loan)));
    }
  } else {
    const std::shared_ptr<char> gathered(new char[chunk.bytes], std::default_delete<char[]>());
    Gather(chunk, gathered.get());
    payload.push_back(BorrowedSlice(gathered.get(), chunk.bytes, gathered));
  }
  return MakeMessage(head.SerializeAsString() + PayloadPrefix(chunk.bytes), std::move(payload));
}

grpc::ByteBuffer GrpcExchange::MakeSharedChunk(v1::ExchangeRequest head, uint64_t offset, char* slot) {
  const Chunk chunk = NextChunk(&head);
  Gather(chunk, slot);
  head.mutable_shared()->set_offset(offset);
  head.mutable_shared()->set_bytes(chunk.bytes);
  return MakeMessage(head.SerializeAsString());
}

// ---- replies

absl::StatusOr<GrpcExchange::Progress> GrpcExchange::Take(v1::ExchangeReply reply,
                                                          const SplitMessage& message) {
  if (reply.has_error()) {
    const int code = reply.error().code();
    if (code <= 0 || code > static_cast<int>(absl::StatusCode::kUnauthenticated)) {
      return Broken(absl::StrCat("sent an error of the unknown code ", code, ": ", reply.error().message()));
    }
    return absl::Status(static_cast<absl::StatusCode>(code), reply.error().message());
  }
  if (reply.has_push()) WEIR_RETURN_IF_ERROR(TakePush(std::move(*reply.mutable_push())));
  if (reply.has_pull()) WEIR_RETURN_IF_ERROR(TakePull(std::move(*reply.mutable_pull())));
  if (message.payload_bytes > 0) {
    WEIR_RETURN_IF_ERROR(TakeWeights(reply.first(), message.payload, message.payload_bytes));
  } else if (!reply.weights().empty()) {
    // A serializer that does not put the weights last.
    const absl::string_view piece(reply.weights());
    WEIR_RETURN_IF_ERROR(TakeWeights(reply.first(), absl::MakeConstSpan(&piece, 1), piece.size()));
  }
  return Judge();
}

absl::Status GrpcExchange::TakePush(v1::PushReply reply) {
  if (!pushes_) return Broken("answered a push that was not sent");
  if (push_answered_) return Broken("answered the push twice");
  if (!IsKnown(reply.outcome())) {
    return Broken(absl::StrCat("sent the outcome ", static_cast<int>(reply.outcome()),
                               ", which this client does not know"));
  }
  answer_.push = std::move(reply);
  // Else it is as if it had never been sent.
  push_answered_ = answer_.push.outcome() != v1::SEND_AGAIN;
  return absl::OkStatus();
}

absl::Status GrpcExchange::TakePull(v1::PullReply reply) {
  if (!pull_.has_value()) return Broken("answered a pull that was not sent");
  if (pull_answered_) return Broken("answered the pull twice");
  if (push_.has_value() && !push_answered_) return Broken("answered the pull before the push");
  if (!IsKnown(reply.outcome())) {
    return Broken(absl::StrCat("sent the outcome ", static_cast<int>(reply.outcome()),
                               ", which this client does not know"));
  }
  if (reply.outcome() == v1::OK && static_cast<int64_t>(reply.elements()) != elements_) {
    return Broken(absl::StrCat("said that it has ", reply.elements(),
                               " elements; by this client's model it has ", elements_));
  }
  answer_.pull = std::move(reply);
  pull_answered_ = true;
  // Weights that came while the push was being applied are of the version that it made, if it made one.
  const v1::Version& made = answer_.push.version();
  const v1::Version& read = answer_.pull.version();
  const bool same = pushes_ && answer_.push.outcome() == v1::OK && made.count() == read.count() &&
                    made.incarnation() == read.incarnation();
  if (!same) ForgetWeights();
  return absl::OkStatus();
}

absl::Status GrpcExchange::TakeWeights(uint64_t first, absl::Span<const absl::string_view> pieces,
                                       uint64_t bytes) {
  if (!pull_.has_value() || pull_->request.header_only())
    return Broken("sent weights that were not asked for");
  if (!pull_answered_ && !pushes_) {
    return Broken("sent weights before it said what they are of");
  }
  if (pull_answered_ && answer_.pull.outcome() != v1::OK) {
    return Broken(absl::StrCat("sent weights with the outcome ", v1::Outcome_Name(answer_.pull.outcome())));
  }
  const uint64_t size = static_cast<uint64_t>(BytesPerValue(wire_.pull_dtype));
  const uint64_t count = bytes / size, elements = static_cast<uint64_t>(elements_);
  const auto wrong = [&](const char* problem) {
    return Broken(absl::StrCat("sent ", bytes, " bytes of weights for position ", first, " of ", elements_,
                               ", ", problem));
  };
  if (bytes % size != 0 || bytes > kMaxChunkBytes || first % kChunkUnit != 0 || first > elements ||
      count > elements - first || ((first + count) % kChunkUnit != 0 && first + count != elements)) {
    return wrong("which is not a chunk");
  }
  const auto begin = taken_.begin() + static_cast<int64_t>(first / kChunkUnit);
  const auto end = begin + static_cast<int64_t>((count + kChunkUnit - 1) / kChunkUnit);
  if (std::find(begin, end, true) != end) return wrong("some of which it had sent before");
  std::fill(begin, end, true);
  missing_ -= static_cast<int64_t>(count);
  tensors_.Scatter(shard_, static_cast<int64_t>(first), static_cast<int64_t>(count), pieces, wire_.pull_dtype,
                   pull_->tensors);
  return absl::OkStatus();
}

GrpcExchange::Progress GrpcExchange::Judge() const {
  if (pushes_ && !push_answered_) {
    return answer_.push.outcome() == v1::SEND_AGAIN ? Progress::kAgain : Progress::kOpen;
  }
  if (!pull_.has_value()) return Progress::kComplete;
  if (pull_answered_) {
    return answer_.pull.outcome() != v1::OK || missing_ == 0 ? Progress::kComplete : Progress::kOpen;
  }
  if (!pushes_ || PullFollows(answer_.push.outcome())) return Progress::kOpen;
  // The exchange ends with such an answer, but the caller wants the weights all the same.
  return answer_.push.outcome() == v1::STEP_PAST ? Progress::kAgain : Progress::kComplete;
}

}  // namespace weir
