#include "ps_server/exchange/exchange_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/exchange_layout.h"
#include "common/protocol/job_failure.h"
#include "common/protocol/limits.h"

namespace weir {
namespace {

absl::Status TooManyRows(const std::string& why) {
  return LimitReached(Limit::kRowBytes, absl::StatusCode::kUnavailable, why);
}
// `all`: what all clients may have, of which too little is left.
absl::Status TooManyRows(absl::string_view what, const ByteBudget& all, uint64_t bytes) {
  return TooManyRows(absl::StrCat("rows of ", all.taken(), " bytes ", what, ", and ", bytes,
                                  " more are over the limit of ", all.most(), "; send it again"));
}

}  // namespace

ExchangeSession::ExchangeSession(const Options& options, std::function<void()> on_output)
    : options_(options),
      on_output_(std::move(on_output)),
      arriving_(kMaxRowBytesHeld, options.arriving_rows),
      asked_(kMaxRowBytesHeld, options.asked_rows),
      writer_(options.shared_memory, options.chunk_elements) {
  for (const v1::TableConfig& table : options_.shard->tables()) dims_.push_back(table.dim());
}

// ---- what the client says

absl::Status ExchangeSession::Receive(const IncomingMessage& message) {
  WEIR_ASSIGN_OR_RETURN(ReceivedRequest received, ReadRequest(message));
  auto& [request, chunk] = received;
  const bool first_message = std::exchange(first_message_, false);
  if (request.has_shared_memory()) {
    if (!first_message) {
      return absl::InvalidArgumentError("shared_memory: only in the first message of a stream");
    }
    greeting_.emplace().set_id(request.id());
    greeting_->mutable_shared_memory()->set_granted(writer_.Claim(request.shared_memory().token()));
    on_output_();
    return absl::OkStatus();
  }
  WEIR_RETURN_IF_ERROR(writer_.Release(request));
  const uint64_t id = request.id();
  if (id == 0 && request.released() > 0) return absl::OkStatus();
  if (id == 0) return absl::InvalidArgumentError("id: must be at least 1");
  const absl::Status found = FindChunk(request, writer_.segments(), &chunk);
  if (id > highest_id_) {
    highest_id_ = id;
    Begin(std::move(request), std::move(chunk), found);
    return absl::OkStatus();
  }
  if (request.has_push() || request.has_pull()) {
    return absl::InvalidArgumentError(
        absl::StrCat("id: ", id, " begins an exchange after ", highest_id_, "; ids must rise"));
  }
  if (Exchange* exchange = Find(id)) {
    if (found.ok()) {
      Continue(*exchange, chunk);
    } else {
      Fail(*exchange, found);
    }
  }
  return absl::OkStatus();
}

void ExchangeSession::Begin(v1::ExchangeRequest request, Chunk chunk, const absl::Status& found) {
  const bool too_many = exchanges_.size() - closing_ >= kMaxOpen;
  Exchange& exchange = exchanges_.try_emplace(request.id(), request.id(), &arriving_, &asked_).first->second;
  if (too_many) {
    return Fail(exchange, LimitReached(Limit::kExchanges, absl::StatusCode::kResourceExhausted,
                                       absl::StrCat("the stream has ", kMaxOpen,
                                                    " exchanges open, as many as it may have")));
  }
  absl::Status status = found;
  if (status.ok()) status = CheckFirst(request, chunk);
  const v1::Caller& caller = request.has_push() ? request.push().caller() : request.pull().caller();
  if (status.ok()) status = PrepareRows(request, chunk, exchange);
  if (status.ok()) {
    status = options_.admit ? options_.admit(caller, request.has_push())
                            : absl::PermissionDeniedError("this stream has no caller that was admitted");
  }
  if (!status.ok()) return Fail(exchange, std::move(status));
  caller_ = caller;
  if (request.has_pull()) {
    exchange.pull = std::move(*request.mutable_pull());
    exchange.reply.dtype = exchange.pull->dtype();
  }
  const std::optional<Chunk> first = chunk.bytes > 0 ? std::optional(std::move(chunk)) : std::nullopt;
  if (!request.has_push()) {
    if (exchange.rows == nullptr) return StartPull(exchange);
    if (Reserve(exchange)) AskForKeys(exchange, first);
    return;
  }
  if (first.has_value()) {
    if (waiting_ >= kMaxWaiting) {
      return Fail(exchange, LimitReached(Limit::kWaitingPushes, absl::StatusCode::kUnavailable,
                                         absl::StrCat(kMaxWaiting,
                                                      " pushes of this stream wait for their "
                                                      "turn; send it again")));
    }
    exchange.waiting = first;
    ++waiting_;
  }
  StartPush(exchange, std::move(*request.mutable_push()));
}

absl::Status ExchangeSession::PrepareRows(const v1::ExchangeRequest& request, const Chunk& chunk,
                                          Exchange& exchange) const {
  WEIR_ASSIGN_OR_RETURN(RowLayout layout, RowLayout::OfRequest(request.push().rows(), request.push().dtype(),
                                                               request.pull().rows(), dims_));
  WEIR_ASSIGN_OR_RETURN(exchange.reply.row_layout,
                        RowLayout::OfReply(request.pull().rows(), request.pull().dtype(), dims_));
  if (layout.bytes() > 0) {
    exchange.rows =
        std::make_unique<RowArrival>(options_.shard->tables(), std::move(layout), request.push().dtype());
  } else if (chunk.rows) {
    return absl::InvalidArgumentError("rows: neither push.rows nor pull.rows says that any come");
  }
  return absl::OkStatus();
}

void ExchangeSession::Continue(Exchange& exchange, const Chunk& chunk) {
  if (chunk.bytes == 0) {
    return Fail(exchange, absl::InvalidArgumentError("gradient: a further message must hold a chunk"));
  }
  if (exchange.may_send == 0) {
    return Fail(exchange, absl::InvalidArgumentError("gradient: a chunk for which the client has no credit"));
  }
  --exchange.may_send;
  Take(exchange, chunk);
}

void ExchangeSession::EndInput() {
  input_ended_ = true;
  for (auto& [id, exchange] : exchanges_) {
    if (IsArriving(exchange)) FailCutShort(exchange);
  }
}

void ExchangeSession::EndJob(const absl::Status& failure) {
  job_over_ = failure;
  for (auto& [id, exchange] : exchanges_) {
    if (IsArriving(exchange)) AnswerJobOver(exchange);
  }
}

void ExchangeSession::End() {
  if (ended_) return;
  ended_ = true;
  exchanges_.clear();
  urgent_.clear();
  bulk_.clear();
  greeting_.reset();
  writer_.End();
  options_.shard->End(options_.id);
}

// ---- pushes

template <typename Handler>
void ExchangeSession::Deliver(uint64_t id, Handler handle) {
  options_.executor->Post([self = shared_from_this(), id, handle = std::move(handle)]() mutable {
    if (Exchange* exchange = self->Find(id)) handle(*self, *exchange);
  });
}

void ExchangeSession::StartPush(Exchange& exchange, v1::PushRequest header) {
  PushFill whole = WholeOf(exchange, header);
  options_.shard->Begin(
      options_.id, std::move(header),
      [self = shared_from_this(), id = exchange.id, wants_made = exchange.wants_made()](auto answer) {
        bool eager = false;
        if (answer.ok() && wants_made) {
          if (const auto* arrival = absl::get_if<std::unique_ptr<PushArrival>>(&*answer)) {
            eager = (*arrival)->streamed() && self->options_.shard->AnswersAfter((*arrival)->header());
          }
        }
        self->Deliver(id, [eager, answer = std::move(answer)](auto& self, Exchange& exchange) mutable {
          if (!answer.ok()) return self.Fail(exchange, answer.status());
          if (auto* pushed = absl::get_if<PushAnswer>(&*answer)) {
            return self.OnPushed(exchange, std::move(*pushed));
          }
          self.OnArrival(exchange, absl::get<std::unique_ptr<PushArrival>>(*std::move(answer)), eager);
        });
      },
      std::move(whole));
}

PushFill ExchangeSession::WholeOf(const Exchange& exchange, const v1::PushRequest& header) {
  const std::optional<Chunk>& chunk = exchange.waiting;
  if (!chunk.has_value() || chunk->first > 0 || chunk->bytes > kMaxWholeBytes || header.initial_values() ||
      exchange.rows != nullptr || chunk->bytes != EncodedBytes(TypeOf(header), header.elements())) {
    return nullptr;
  }
  return [chunk = *chunk](PushArrival& arrival) {
    return arrival.TakeChunk(chunk.first, chunk.pieces, chunk.bytes).status();
  };
}

void ExchangeSession::OnArrival(Exchange& exchange, std::unique_ptr<PushArrival> arrival, bool eager) {
  if (job_over_.has_value()) return AnswerJobOver(exchange);
  if (!Reserve(exchange)) return;
  exchange.arrival = std::move(arrival);
  exchange.reply.eager = eager;
  uint32_t credit = options_.chunks_in_flight;
  if (exchange.waiting.has_value()) {
    --waiting_;
    --credit;
    const Chunk chunk = *std::exchange(exchange.waiting, std::nullopt);
    Take(exchange, chunk);
  } else if (exchange.arrival->whole() && exchange.rows == nullptr) {
    FinishPush(exchange);  // a shard without elements
  }
  if (exchange.arrival == nullptr) return;
  if (input_ended_) return FailCutShort(exchange);
  Grant(exchange, credit);
}

void ExchangeSession::Take(Exchange& exchange, const Chunk& chunk) {
  if (chunk.rows) return TakeRows(exchange, chunk);
  TakeChunk(exchange, chunk);
}

void ExchangeSession::TakeRows(Exchange& exchange, const Chunk& chunk) {
  if (exchange.rows == nullptr) {
    return Fail(exchange, absl::InvalidArgumentError("rows: a piece after all rows of the exchange"));
  }
  if (absl::Status status = exchange.rows->Take(chunk.first, chunk.pieces, chunk.bytes); !status.ok()) {
    return Fail(exchange, std::move(status));
  }
  Proceed(exchange);
}

void ExchangeSession::Proceed(Exchange& exchange) {
  const bool rows = exchange.rows == nullptr || exchange.rows->whole();
  if (exchange.arrival != nullptr) {
    if (rows && exchange.arrival->whole()) return FinishPush(exchange);
  } else if (rows) {
    exchange.may_send = 0;
    exchange.wants_keys = false;
    exchange.keys = exchange.rows->TakePull();
    exchange.rows = nullptr;
    return StartPull(exchange);
  }
  Grant(exchange, 1);
}

bool ExchangeSession::Reserve(Exchange& exchange) {
  const uint64_t bytes = exchange.rows == nullptr ? 0 : exchange.rows->bytes();
  const ByteBudget* const short_of = exchange.arriving.Take(bytes);
  if (short_of == nullptr) return true;
  Fail(exchange, short_of == &arriving_
                     ? TooManyRows(absl::StrCat("rows of ", arriving_.taken(),
                                                " bytes are arriving on this stream; send it again"))
                     : TooManyRows("are arriving from all clients", *short_of, bytes));
  return false;
}

void ExchangeSession::Unreserve(Exchange& exchange) {
  exchange.arriving.GiveBack();
  exchange.asked.GiveBack();
}

void ExchangeSession::TakeChunk(Exchange& exchange, const Chunk& chunk) {
  if (exchange.arrival == nullptr) {
    return Fail(exchange, absl::InvalidArgumentError("gradient: only the keys of the pull are missing"));
  }
  const absl::StatusOr<uint64_t> count = exchange.arrival->TakeChunk(chunk.first, chunk.pieces, chunk.bytes);
  if (!count.ok()) return Fail(exchange, count.status());
  const Range range{chunk.first, *count};
  exchange.received += range.count;
  if (exchange.arrival->streamed()) {
    const auto making = exchange.arrival->making();
    if (making == nullptr) {
      return AnswerPush(exchange, v1::SEND_AGAIN, "another push was applied while this one was arriving");
    }
    if (exchange.reply.eager) exchange.reply.version = making;
  }
  const bool whole = exchange.arrival->whole();
  if (exchange.reply.eager) {
    if (whole) {
      exchange.last = range;
    } else {
      exchange.reply.weights.push_back(range);
    }
  }
  Proceed(exchange);
}

void ExchangeSession::FinishPush(Exchange& exchange) {
  exchange.may_send = 0;
  if (exchange.rows != nullptr) {
    if (absl::Status status = exchange.arrival->SetRows(exchange.rows->TakePush()); !status.ok()) {
      return Fail(exchange, std::move(status));
    }
    exchange.keys = exchange.rows->TakePull();
    exchange.rows = nullptr;
    Unreserve(exchange);
  }
  options_.shard->Push(options_.id, std::move(exchange.arrival),
                       [self = shared_from_this(), id = exchange.id](absl::StatusOr<PushAnswer> answer) {
                         self->Deliver(id,
                                       [answer = std::move(answer)](auto& self, Exchange& exchange) mutable {
                                         self.OnPushed(exchange, std::move(answer));
                                       });
                       });
}

void ExchangeSession::OnPushed(Exchange& exchange, absl::StatusOr<PushAnswer> answer) {
  if (!answer.ok()) return Fail(exchange, answer.status());
  exchange.reply.push = std::move(answer->reply);
  const v1::Outcome outcome = exchange.reply.push->outcome();
  std::optional<Chunk> first;  // of the rows, if nothing of them was taken yet
  if (exchange.waiting.has_value() && exchange.waiting->rows) first = exchange.waiting;
  if (!exchange.reply.eager || outcome != v1::OK) Drop(exchange);
  if (!exchange.pull.has_value() || !PullFollows(outcome)) return Close(exchange);
  if (exchange.reply.eager) {
    exchange.made = exchange.reply.push->version();
    if (exchange.last.has_value()) exchange.reply.weights.push_back(*exchange.last);
  }
  if (answer->made.has_value() && exchange.wants_made()) {
    if (!exchange.reply.eager) {
      exchange.reply.version = std::move(answer->version);
      exchange.reply.weights.push_back({0, answer->made->elements()});
    }
    options_.shard->CountPulled(answer->made->elements(), exchange.pull->dtype());
    exchange.reply.pull = *std::move(answer->made);
    return Close(exchange);
  }
  Queue(exchange);
  // The push may have been answered without its gradient.
  if (exchange.pull->rows_size() == 0) exchange.rows = nullptr;
  if (exchange.rows == nullptr) return StartPull(exchange);
  exchange.rows->DropPush();
  if (!Reserve(exchange)) return;
  AskForKeys(exchange, first);
}

// ---- pulls

void ExchangeSession::AskForKeys(Exchange& exchange, const std::optional<Chunk>& first) {
  exchange.wants_keys = true;
  if (job_over_.has_value()) return AnswerJobOver(exchange);
  if (first.has_value()) TakeRows(exchange, *first);
  if (!exchange.wants_keys) return;
  if (input_ended_) return FailCutShort(exchange);
  // One was granted for the first piece.
  Grant(exchange, options_.chunks_in_flight - (first.has_value() ? 1 : 0));
}

void ExchangeSession::StartPull(Exchange& exchange) {
  Unreserve(exchange);
  const uint64_t bytes = exchange.reply.row_layout.bytes();
  if (const ByteBudget* const short_of = exchange.asked.Take(bytes); short_of != nullptr) {
    return Fail(exchange, short_of == &asked_
                              ? TooManyRows(absl::StrCat("pulls of this stream have asked for rows of ",
                                                         asked_.taken(), " bytes; pull again"))
                              : TooManyRows("have all clients asked for", *short_of, bytes));
  }
  options_.shard->Pull(
      options_.id, *exchange.pull,
      [self = shared_from_this(), id = exchange.id](auto answer) {
        self->Deliver(id, [answer = std::move(answer)](auto& self, Exchange& exchange) mutable {
          self.OnPulled(exchange, std::move(answer));
        });
      },
      std::exchange(exchange.keys, {}));
}

void ExchangeSession::OnPulled(Exchange& exchange, absl::StatusOr<PullAnswer> answer) {
  if (!answer.ok()) return Fail(exchange, answer.status());
  const v1::PullReply& header = exchange.reply.pull.emplace(std::move(answer->header));
  const bool sent = exchange.made.has_value() && header.outcome() == v1::OK &&
                    header.version().count() == exchange.made->count() &&
                    header.version().incarnation() == exchange.made->incarnation();
  if (!sent) {
    Drop(exchange);
    exchange.reply.version = std::move(answer->version);
    if (exchange.reply.version != nullptr && header.elements() > 0) {
      exchange.reply.weights.push_back({0, header.elements()});
    }
  }
  exchange.reply.rows = std::move(answer->rows);
  Close(exchange);
}

// ---- what the client gets

ExchangeSession::Exchange* ExchangeSession::Find(uint64_t id) {
  const auto it = exchanges_.find(id);
  return it == exchanges_.end() || it->second.closing ? nullptr : &it->second;
}

void ExchangeSession::AnswerJobOver(Exchange& exchange) {
  if (exchange.wants_keys) {
    Drop(exchange);
    exchange.reply.pull.emplace().set_outcome(v1::JOB_OVER);
    exchange.reply.pull->set_reason(std::string(job_over_->message()));
    exchange.reply.pull->set_failure_kind(KindOf(*job_over_));
    return Close(exchange);
  }
  AnswerPush(exchange, v1::JOB_OVER, std::string(job_over_->message()));
  exchange.reply.push->set_failure_kind(KindOf(*job_over_));
}

void ExchangeSession::AnswerPush(Exchange& exchange, v1::Outcome outcome, const std::string& reason) {
  Drop(exchange);
  exchange.reply.push.emplace().set_outcome(outcome);
  exchange.reply.push->set_reason(reason);
  Close(exchange);
}

void ExchangeSession::Fail(Exchange& exchange, absl::Status status) {
  Drop(exchange);
  if (options_.limits != nullptr) options_.limits->CountIfLimit(status);
  exchange.reply.error = std::move(status);
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
  exchange.may_send = 0;
  exchange.last.reset();
  exchange.reply.DropPayload();
}

void ExchangeSession::CutOff(Exchange& exchange) {
  if (exchange.arrival != nullptr) {
    // The version that this push was making is dead.
    return AnswerPush(exchange, v1::SEND_AGAIN, "another push was applied while this one was arriving");
  }
  Drop(exchange);
  exchange.reply.error =
      absl::UnavailableError("the weights were not taken for so long that others needed their memory");
  if (exchange.closing) {
    Queue(exchange);
  } else {
    Close(exchange);
  }
}

bool ExchangeSession::DropRevoked() {
  for (auto& [id, exchange] : exchanges_) {
    if (exchange.reply.version != nullptr && exchange.reply.version->revoked) CutOff(exchange);
  }
  return writer_.sends_revoked();
}

void ExchangeSession::Close(Exchange& exchange) {
  exchange.closing = true;
  exchange.wants_keys = false;
  exchange.rows = nullptr;
  exchange.arriving.GiveBack();
  if (exchange.reply.rows == nullptr) Unreserve(exchange);
  ++closing_;
  Queue(exchange);
}

void ExchangeSession::Grant(Exchange& exchange, uint32_t chunks) {
  exchange.may_send += chunks;
  exchange.reply.credit += chunks;
  if (chunks > 0) Queue(exchange);
}

void ExchangeSession::Queue(Exchange& exchange) {
  on_output_();
  if (exchange.queued) return;
  exchange.queued = true;
  (exchange.reply.bulk() ? bulk_ : urgent_).push_back(exchange.id);
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
    if (exchange.reply.version != nullptr && exchange.reply.version->revoked) CutOff(exchange);
    queue.pop_front();
    exchange.queued = false;
    if (exchange.reply.empty()) continue;
    *message = writer_.Next(exchange.id, exchange.reply);
    if (exchange.reply.has_payload()) {
      Queue(exchange);
    } else if (exchange.closing) {
      --closing_;
      Unreserve(exchange);
      exchanges_.erase(exchange.id);
    }
    return true;
  }
}

}  // namespace weir
