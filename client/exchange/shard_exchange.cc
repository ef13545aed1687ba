#include "client/exchange/shard_exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/codec/value_codec.h"
#include "common/protocol/exchange_layout.h"
#include "common/protocol/job_failure.h"

namespace weir {
namespace {

// To send a piece of the caller's memory costs gRPC about as much as copying this many bytes.
constexpr size_t kWorthBorrowing = 4096;

bool IsKnown(v1::Outcome outcome) {
  return v1::Outcome_IsValid(outcome) && outcome != v1::OUTCOME_UNSPECIFIED;
}

bool IsSame(const v1::Version& a, const v1::Version& b) {
  return a.count() == b.count() && a.incarnation() == b.incarnation();
}

std::string Name(const v1::Version& version) {
  return absl::StrCat(version.count(), " of incarnation ", version.incarnation());
}

void Raise(std::atomic<uint64_t>& value, uint64_t to) {
  uint64_t now = value.load();
  while (now < to && !value.compare_exchange_weak(now, to)) {
  }
}

}  // namespace

ShardExchange::ShardExchange(const TensorMap& tensors, uint32_t shard, const WireOptions& wire,
                             std::string what, std::optional<ShardPush> push, std::optional<ShardPull> pull,
                             std::atomic<uint64_t>& answered_clock, std::shared_ptr<const RowRoutes> rows)
    : tensors_(tensors),
      shard_(shard),
      wire_(wire),
      what_(std::move(what)),
      elements_(tensors.partition().shard_elements(shard)),
      push_(std::move(push)),
      pull_(std::move(pull)),
      answered_clock_(answered_clock),
      rows_(std::move(rows)),
      memory_(FindMemory()) {}

absl::Status ShardExchange::Broken(const std::string& problem) const {
  return absl::InternalError(absl::StrCat("in answer to ", what_, " it ", problem));
}

void ShardExchange::Begin() {
  pushes_ = push_.has_value() && !push_answered_;
  says_refused_ = false;
  unsent_ = pushes_ ? push_->gradient->chunks(shard_) : 0;
  sent_.assign(unsent_, false);
  lowest_ = 0;
  if (rows_ != nullptr) {
    // A push that was answered is not sent again, nor are its rows.
    first_row_byte_ = next_row_byte_ = pushes_ ? 0 : rows_->pull_at(shard_);
    end_row_byte_ = rows_->request(shard_).size();
    // All rows come anew, perhaps of another version.
    row_bytes_ = 0;
    all_row_bytes_ = rows_->reply_bytes(shard_);
  }
  pull_answered_ = false;
  if (!push_answered_) answer_.push.Clear();
  answer_.pull.Clear();
  ExpectWeights();
  // Weights that a view refers to would hold up the shard, and perhaps the very pushes that the shard waits
  // for.
  if (!landed_of_.has_value() || (pull_.has_value() && pull_->view != nullptr)) ForgetLanded();
  if (pull_.has_value() && pull_->arrivals != nullptr) pull_->arrivals->Withdraw(shard_);
}

void ShardExchange::ExpectWeights() {
  const int64_t elements = pull_.has_value() && !pull_->request.header_only() ? elements_ : 0;
  came_ = ChunkSet(static_cast<uint64_t>(elements), static_cast<uint64_t>(wire_.chunk_unit));
  landed_.resize(static_cast<size_t>((elements + wire_.chunk_unit - 1) / wire_.chunk_unit), false);
}

void ShardExchange::ForgetLanded() {
  if (pull_.has_value() && pull_->view != nullptr) pull_->view->Clear();
  for (size_t unit = 0; unit < landed_.size(); ++unit) {
    if (!landed_[unit]) continue;
    landed_[unit] = false;
    const int64_t first = static_cast<int64_t>(unit) * wire_.chunk_unit;
    if (pull_->arrivals != nullptr) {
      pull_->arrivals->Lost(shard_, first, std::min(wire_.chunk_unit, elements_ - first));
    }
  }
}

// ---- messages

void ShardExchange::AddBeginning(const v1::Caller& caller, v1::ExchangeRequest* head) {
  if (pushes_) {
    v1::PushRequest& push = *head->mutable_push();
    push = push_->header;
    *push.mutable_caller() = caller;
    push.set_answered_clock(std::min(answered_clock_.load(), push.clock()));
    push.set_elements(static_cast<uint64_t>(elements_));
    push.set_dtype(wire_.push_dtype);
    push.set_kept(wire_.push_kept);
    if (push_->gradient->refused()) {
      push.set_refused(push_->gradient->refusal());
      unsent_ = 0;
      if (rows_ != nullptr) first_row_byte_ = next_row_byte_ = rows_->pull_at(shard_);
      says_refused_ = true;
    } else if (rows_ != nullptr) {
      *push.mutable_rows() = rows_->push(shard_);
    }
  }
  if (pull_.has_value()) {
    v1::PullRequest& pull = *head->mutable_pull();
    pull = pull_->request;
    *pull.mutable_caller() = caller;
    pull.set_answered_clock(std::min(answered_clock_.load(), pull.clock()));
    pull.set_dtype(wire_.pull_dtype);
    if (rows_ != nullptr) *pull.mutable_rows() = rows_->pull(shard_);
  }
}

void ShardExchange::EndPush() {
  unsent_ = 0;
  if (!reads_rows()) next_row_byte_ = end_row_byte_;
}

bool ShardExchange::FindChunk() {
  if (sends_rows()) return true;
  if (unsent_ == 0) return false;
  OutgoingGradient& gradient = *push_->gradient;
  while (sent_[lowest_]) ++lowest_;
  for (next_ = lowest_; next_ < sent_.size(); ++next_) {
    if (!sent_[next_] && gradient.MaySend(shard_, next_)) return unsent_ > 1 || gradient.MayFinish();
  }
  return false;
}

absl::Span<const char> ShardExchange::TakeRowPiece(v1::ExchangeRequest* head) {
  // As long as a chunk of float32, for which slots have room.
  const uint64_t most = static_cast<uint64_t>(wire_.chunk_elements) * sizeof(float);
  const absl::Span<const char> piece =
      rows_->request(shard_).subspan(next_row_byte_, std::min(most, end_row_byte_ - next_row_byte_));
  head->set_rows(true);
  head->set_first(next_row_byte_ - first_row_byte_);
  next_row_byte_ += piece.size();
  return piece;
}

ShardExchange::Chunk ShardExchange::TakeChunk(v1::ExchangeRequest* head, size_t more) {
  const int64_t size = push_->gradient->chunk_elements();
  Chunk chunk;
  chunk.first = static_cast<int64_t>(next_) * size;
  chunk.count = std::min(size * static_cast<int64_t>(1 + more), elements_ - chunk.first);
  chunk.bytes = static_cast<size_t>(EncodedBytes(wire_.push_type(), static_cast<uint64_t>(chunk.count)));
  if (push_->gradient->encoded() != nullptr) {
    chunk.runs = {push_->gradient->encoded()->Chunk(shard_, next_)};
  } else {
    chunk.runs = tensors_.Locate(shard_, chunk.first, chunk.count, push_->gradient->tensors());
  }
  head->set_first(static_cast<uint64_t>(chunk.first));
  for (size_t i = next_; i <= next_ + more; ++i) sent_[i] = true;
  unsent_ -= 1 + more;
  return chunk;
}

std::shared_ptr<const SharedSegment> ShardExchange::FindMemory() const {
  if (!push_.has_value() || wire_.push_dtype != v1::F32) return nullptr;
  const Partition& partition = tensors_.partition();
  const int64_t piece = partition.block_size() * static_cast<int64_t>(sizeof(float));
  if (partition.shards() > 1 && piece < kMinPieceBytes) return nullptr;
  return push_->gradient->memory();
}

OutgoingMessage ShardExchange::MakeChunkInPlace(v1::ExchangeRequest head, uint32_t segment) {
  OutgoingGradient& gradient = *push_->gradient;
  const size_t most = static_cast<size_t>(
      std::max<int64_t>(1, kMaxSharedChunkBytes / (gradient.chunk_elements() * BytesPerValue(v1::F32))));
  size_t more = 0;
  for (size_t next = next_ + 1; more + 1 < most && next < sent_.size() && !sent_[next]; ++next, ++more) {
    if (!gradient.MaySend(shard_, next) || (unsent_ == more + 2 && !gradient.MayFinish())) break;
  }
  const Chunk chunk = TakeChunk(&head, more);
  v1::SharedRange& range = *head.mutable_shared();
  range.set_segment(segment);
  const char* const first = chunk.runs[0].data();
  range.set_offset(static_cast<uint64_t>(first - memory_->data()));
  range.set_bytes(chunk.bytes);
  if (chunk.runs.size() > 1) {
    range.set_piece_bytes(chunk.runs[0].size());
    range.set_stride(static_cast<uint64_t>(chunk.runs[1].data() - first));
  }
  return {head.SerializeAsString(), {}};
}

void ShardExchange::Gather(const Chunk& chunk, char* to) const {
  for (absl::Span<const char> run : chunk.runs) {
    if (converts()) {
      // From float32: OutgoingGradient refuses the other way.
      const size_t values = run.size() / sizeof(float);
      Encode(wire_.push_dtype, reinterpret_cast<const float*>(run.data()), to, values);
      to += values * static_cast<size_t>(BytesPerValue(wire_.push_dtype));
    } else {
      std::memcpy(to, run.data(), run.size());
      to += run.size();
    }
  }
}

OutgoingMessage ShardExchange::MakeChunk(v1::ExchangeRequest head) {
  if (sends_rows()) {
    const absl::Span<const char> piece = TakeRowPiece(&head);
    return {head.SerializeAsString() + PayloadPrefix(piece.size()), {{{piece.data(), piece.size()}, rows_}}};
  }
  const Chunk chunk = TakeChunk(&head);
  OutgoingMessage message{head.SerializeAsString() + PayloadPrefix(chunk.bytes), {}};
  if (!converts() && chunk.bytes >= kWorthBorrowing * chunk.runs.size()) {
    for (absl::Span<const char> run : chunk.runs) {
      loans_->Lend();
      std::shared_ptr<const void> loan(run.data(), [loans = loans_](const void*) { loans->Return(); });
      message.payload.push_back({{run.data(), run.size()}, std::move(loan)});
    }
  } else {
    const std::shared_ptr<char> gathered(new char[chunk.bytes], std::default_delete<char[]>());
    Gather(chunk, gathered.get());
    message.payload.push_back({{gathered.get(), chunk.bytes}, gathered});
  }
  return message;
}

OutgoingMessage ShardExchange::MakeSharedChunk(v1::ExchangeRequest head, uint64_t offset, char* slot) {
  head.mutable_shared()->set_offset(offset);
  if (sends_rows()) {
    const absl::Span<const char> piece = TakeRowPiece(&head);
    std::memcpy(slot, piece.data(), piece.size());
    head.mutable_shared()->set_bytes(piece.size());
  } else {
    const Chunk chunk = TakeChunk(&head);
    Gather(chunk, slot);
    head.mutable_shared()->set_bytes(chunk.bytes);
  }
  return {head.SerializeAsString(), {}};
}

// ---- replies

absl::StatusOr<ShardExchange::Progress> ShardExchange::Take(v1::ExchangeReply reply,
                                                            const SplitMessage& message,
                                                            SharedWeights::Chunk* chunk) {
  if (reply.has_error()) {
    const int code = reply.error().code();
    if (code <= 0 || code > static_cast<int>(absl::StatusCode::kUnauthenticated)) {
      return Broken(absl::StrCat("sent an error of the unknown code ", code, ": ", reply.error().message()));
    }
    return FromDetails(static_cast<absl::StatusCode>(code), reply.error().message(), /*details=*/"");
  }
  if (reply.has_push()) WEIR_RETURN_IF_ERROR(TakePush(std::move(*reply.mutable_push())));
  if (reply.has_pull()) WEIR_RETURN_IF_ERROR(TakePull(std::move(*reply.mutable_pull())));
  absl::Span<const absl::string_view> pieces = message.payload;
  uint64_t bytes = message.payload_bytes;
  const absl::string_view inside(reply.weights());
  if (bytes == 0 && !inside.empty()) {
    // The shard's serializer does not put the weights last.
    pieces = absl::MakeConstSpan(&inside, 1);
    bytes = inside.size();
    chunk = nullptr;
  }
  if (reply.rows()) {
    WEIR_RETURN_IF_ERROR(TakeRows(reply.first(), pieces, bytes, chunk != nullptr));
  } else if (bytes > 0) {
    WEIR_RETURN_IF_ERROR(TakeWeights(reply.first(), pieces, bytes, chunk));
  }
  return Judge();
}

absl::Status ShardExchange::TakePush(v1::PushReply reply) {
  if (!pushes_) return Broken("answered a push that was not sent");
  if (push_answered_) return Broken("answered the push twice");
  if (!IsKnown(reply.outcome())) {
    return Broken(absl::StrCat("sent the outcome ", static_cast<int>(reply.outcome()),
                               ", which this client does not know"));
  }
  answer_.push = std::move(reply);
  // After SEND_AGAIN the push counts as never sent.
  push_answered_ = answer_.push.outcome() != v1::SEND_AGAIN;
  // Here, and not when the call ends: it may yet fail, because its pull does.
  EncodedGradient* const encoded = push_->gradient->encoded();
  if (push_answered_ && encoded != nullptr) encoded->Answered(shard_, answer_.push.outcome() == v1::OK);
  // A shard takes a worker's clocks in order. A shard that refuses the worker itself has disposed of no push.
  // Initial values have no clock.
  if (PullFollows(answer_.push.outcome()) && !push_->header.initial_values())
    Raise(answered_clock_, push_->header.clock() + 1);
  return absl::OkStatus();
}

absl::Status ShardExchange::TakePull(v1::PullReply reply) {
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
  if (answer_.pull.outcome() != v1::OK) return absl::OkStatus();
  // Weights that came while the push was being applied are of the version that the push made, if it made one.
  const v1::Version& read = answer_.pull.version();
  const bool made = pushes_ && answer_.push.outcome() == v1::OK && IsSame(answer_.push.version(), read);
  if (!made) {
    ExpectWeights();
    if (!landed_of_.has_value() || !IsSame(*landed_of_, read)) {
      if (pull_->arrivals != nullptr && pull_->arrivals->settled()) {
        return absl::DataLossError(absl::StrCat(
            what_,
            " was cut short after its first tensors had been handed over, and by now another version (",
            Name(read), ", not ", Name(*landed_of_), ") is there; pull again"));
      }
      ForgetLanded();
    }
  }
  landed_of_ = read;
  if (pull_->arrivals != nullptr && !pull_->request.header_only() &&
      (!pull_->want.has_value() || *pull_->want == read.count())) {
    pull_->arrivals->Confirm(shard_);
  }
  return absl::OkStatus();
}

absl::Status ShardExchange::TakeWeights(uint64_t first, absl::Span<const absl::string_view> pieces,
                                        uint64_t bytes, SharedWeights::Chunk* chunk) {
  if (!pull_.has_value() || pull_->request.header_only())
    return Broken("sent weights that were not asked for");
  if (!pull_answered_ && !pushes_) {
    return Broken("sent weights before it said what they are of");
  }
  if (pull_answered_ && answer_.pull.outcome() != v1::OK) {
    return Broken(absl::StrCat("sent weights with the outcome ", v1::Outcome_Name(answer_.pull.outcome())));
  }
  const absl::StatusOr<uint64_t> count =
      came_.Add(first, bytes, wire_.pull_dtype, chunk == nullptr ? kMaxChunkBytes : kMaxSharedChunkBytes);
  if (!count.ok()) {
    return Broken(absl::StrCat("sent a chunk of ", bytes, " bytes of weights at position ", first, " of ",
                               elements_, ", ", count.status().message()));
  }
  ValueCursor values(pieces, wire_.pull_dtype, static_cast<int64_t>(*count));
  ShardView* const view = pull_->view;
  // Shared memory brings a chunk in one piece.
  const bool in_place = chunk != nullptr && IsPlain(wire_.pull_dtype) && view != nullptr &&
                        view->MayRefer(pieces.front().data());
  bool kept = false;
  for (int64_t at = static_cast<int64_t>(first), left = static_cast<int64_t>(*count); left > 0;) {
    const int64_t n = std::min(wire_.chunk_unit, left);
    const auto unit = static_cast<size_t>(at / wire_.chunk_unit);
    if (landed_[unit]) {
      values.Skip(n);
    } else {
      if (in_place) {
        const int64_t passed = at - static_cast<int64_t>(first);
        view->Refer(at, pieces.front().data() + passed * BytesPerValue(wire_.pull_dtype));
        values.Skip(n);
        kept = true;
      } else if (view != nullptr) {
        values.Read(view->Copy(at), n);
      } else {
        tensors_.Scatter(shard_, at, n, &values, pull_->tensors);
      }
      landed_[unit] = true;
      if (pull_->arrivals != nullptr) pull_->arrivals->Landed(shard_, at, n);
    }
    at += n;
    left -= n;
  }
  if (kept) view->Keep(std::move(*chunk));
  return absl::OkStatus();
}

absl::Status ShardExchange::TakeRows(uint64_t first, absl::Span<const absl::string_view> pieces,
                                     uint64_t bytes, bool shared) {
  if (!reads_rows()) return Broken("sent rows that were not asked for");
  if (!pull_answered_) return Broken("sent rows before it said what they are of");
  if (answer_.pull.outcome() != v1::OK) {
    return Broken(absl::StrCat("sent rows with the outcome ", v1::Outcome_Name(answer_.pull.outcome())));
  }
  const auto most = static_cast<uint64_t>(shared ? kMaxSharedChunkBytes : kMaxChunkBytes);
  if (first != row_bytes_ || bytes == 0 || bytes > most || bytes > all_row_bytes_ - row_bytes_ ||
      !rows_->RowEndsAt(shard_, first + bytes)) {
    return Broken(absl::StrCat("sent a piece of ", bytes, " bytes of rows at byte ", first,
                               ", which does not fit: ", row_bytes_, " of ", all_row_bytes_,
                               " bytes had come; pieces come in order, hold whole rows, and at most ", most,
                               " bytes"));
  }
  rows_->Place(shard_, first, bytes, pieces);
  row_bytes_ += bytes;
  return absl::OkStatus();
}

ShardExchange::Progress ShardExchange::Judge() const {
  if (pushes_ && !push_answered_) {
    return answer_.push.outcome() == v1::SEND_AGAIN ? Progress::kAgain : Progress::kOpen;
  }
  if (!pull_.has_value()) return Progress::kComplete;
  if (pull_answered_) {
    const bool whole = came_.whole() && row_bytes_ == all_row_bytes_;
    return answer_.pull.outcome() != v1::OK || whole ? Progress::kComplete : Progress::kOpen;
  }
  if (!pushes_ || PullFollows(answer_.push.outcome())) return Progress::kOpen;
  // The exchange ends with such an answer, but the caller wants the weights anyway.
  return answer_.push.outcome() == v1::STEP_PAST ? Progress::kAgain : Progress::kComplete;
}

}  // namespace weir
