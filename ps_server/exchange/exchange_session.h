#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/protocol/exchange_layout.h"
#include "common/protocol/limits.h"
#include "common/protocol/message.h"
#include "common/threads/serial_queue.h"
#include "proto/parameter_server.pb.h"
#include "ps_server/exchange/byte_budget.h"
#include "ps_server/exchange/exchange_request.h"
#include "ps_server/exchange/reply_writer.h"
#include "ps_server/shard/calls/push_arrival.h"
#include "ps_server/shard/rows/row_arrival.h"
#include "ps_server/shard/shard.h"

namespace weir {

// The protocol between one client and the shard (proto/parameter_server.proto, ExchangeRequest): takes the
// client's messages, passes its exchanges to the shard, and makes the replies. Small replies go first; the
// weights of pulls follow one chunk at a time, the exchanges in turn. Does no I/O, reads no clock and starts
// no thread: a channel brings the messages and takes the replies, and the shard supplies all timing.
//
// Gradients are read and applied where they were received, or where they lie in the client's segments of
// shared memory. Weights are sent as references to the version that holds them, or stay where the client can
// read them. Rows of embedding tables (v1.Rows) are put together by a RowArrival, and answered in messages. A
// client can make a session hold only a limited amount: kMaxOpen exchanges, kMaxWaiting first chunks, and
// kMaxRowBytesHeld each way. The shard limits how many versions readers may hold, and for how long.
//
// One task of the executor at a time uses the session. The shard's answers come on any thread and are posted
// to the executor. They keep the session alive until they have come, even after it has ended.
class ExchangeSession : public std::enable_shared_from_this<ExchangeSession> {
 public:
  struct Options {
    // These outlive the session.
    Shard* shard = nullptr;
    Executor* executor = nullptr;
    Shard::Session id = 0;
    // Elements of weights in one message.
    uint64_t chunk_elements = 0;
    // Chunks of a gradient that are in flight at once.
    uint32_t chunks_in_flight = 1;
    // May be null: no memory is shared.
    SharedMemory* shared_memory = nullptr;
    // Whether this client may begin an exchange for that caller, with a push or without one. Called within
    // Receive(). Null: it may for none.
    std::function<absl::Status(const v1::Caller& caller, bool pushes)> admit;
    // For the rows of all clients that are arriving, and for those that pulls have asked for. Null: any
    // number of bytes.
    ByteBudget* arriving_rows = nullptr;
    ByteBudget* asked_rows = nullptr;
    // Counts the limits that exchanges reach. Null: nothing counts them.
    LimitCounters* limits = nullptr;
  };

  // `on_output` runs when there may be a message to send, within any call and any task of the executor, until
  // End().
  ExchangeSession(const Options& options, std::function<void()> on_output);

  // Handles a message from the client. An error ends the stream.
  absl::Status Receive(const IncomingMessage& message);
  // The client sends no more messages: pushes that are still arriving fail.
  void EndInput();
  // The job is over: pushes that are still arriving are answered with JOB_OVER. The shard answers the others.
  void EndJob(const absl::Status& failure);
  // The stream has ended: drops all exchanges.
  void End();

  // The next message to the client. False: there is none for now.
  bool Send(OutgoingMessage* message);
  // The channel has sent or copied that message.
  void Sent() { writer_.Sent(); }
  // Readers have been revoked: releases their weights. True: the message that is being sent contains revoked
  // weights; the client cannot use them, so the stream must end.
  bool DropRevoked();
  // No exchange is open.
  bool idle() const { return exchanges_.empty(); }
  // The client opens exchanges without reading the replies. The channel must not read from it until it has
  // read them.
  bool congested() const { return closing_ >= kMaxOpen; }
  // The caller of the newest exchange; none: there was no exchange.
  const std::optional<v1::Caller>& caller() const { return caller_; }

 private:
  static constexpr size_t kMaxOpen = 1024;
  // A push whose turn has not come keeps its first chunk.
  static constexpr size_t kMaxWaiting = 32;
  // A whole gradient of so many bytes is taken in the shard's turn: that takes less time than a second turn.
  static constexpr uint64_t kMaxWholeBytes = 64 << 10;
  // Rows that are arriving, and rows that pulls have asked for.
  static constexpr uint64_t kMaxRowBytesHeld = 2 * kMaxRowBytes;

  using Chunk = ReceivedChunk;
  using Range = PendingReply::Range;
  struct Exchange {
    Exchange(uint64_t id, ByteBudget* arriving, ByteBudget* asked)
        : id(id), arriving(arriving), asked(asked) {}

    const uint64_t id;
    std::optional<v1::PullRequest> pull;
    // The first chunk of a push, until the shard is ready for the gradient.
    std::optional<Chunk> waiting;
    // Set from then until the gradient is whole, its rows included, and the pull's keys are there.
    std::unique_ptr<PushArrival> arrival;
    uint64_t received = 0;  // elements
    uint32_t may_send = 0;  // chunks that the client has credit for
    // The rows that the client sends; null: none, or they are whole.
    std::unique_ptr<RowArrival> rows;
    // Of them only the pull's keys are wanted: there is no push, or it is answered.
    bool wants_keys = false;
    RowKeys keys;  // of the pull, whole
    // The bytes of the exchange's rows, each way.
    ByteBudget::Share arriving, asked;
    std::optional<Range> last;        // the last chunk's, until the push is answered
    std::optional<v1::Version> made;  // the version that the push made, if the reply is eager

    // Output to send.
    PendingReply reply;
    bool queued = false;
    // No output follows after this.
    bool closing = false;

    // The pull may be answered with the version that the push makes. Rows are those of their own version.
    bool wants_made() const { return pull.has_value() && !pull->header_only() && pull->rows_size() == 0; }
  };

  // Returns the exchange if it is open and not closing, otherwise nullptr.
  Exchange* Find(uint64_t id);
  // Posts `handle`, which runs with the exchange if the exchange is still open then. Any thread.
  template <typename Handler>
  void Deliver(uint64_t id, Handler handle);

  // `found`: the error of finding the message's chunk, or OK.
  void Begin(v1::ExchangeRequest request, Chunk chunk, const absl::Status& found);
  // Finds where the rows lie that the request brings, and those of its reply.
  absl::Status PrepareRows(const v1::ExchangeRequest& request, const Chunk& chunk, Exchange& exchange) const;
  void Continue(Exchange& exchange, const Chunk& chunk);

  void StartPush(Exchange& exchange, v1::PushRequest header);
  // Null, or the whole gradient of a push whose first message has it.
  static PushFill WholeOf(const Exchange& exchange, const v1::PushRequest& header);
  void OnArrival(Exchange& exchange, std::unique_ptr<PushArrival> arrival, bool eager);
  void Take(Exchange& exchange, const Chunk& chunk);
  void TakeChunk(Exchange& exchange, const Chunk& chunk);
  void TakeRows(Exchange& exchange, const Chunk& chunk);
  // A piece was taken: continues the exchange if that was the last one.
  void Proceed(Exchange& exchange);
  // Counts the rows that are about to arrive. False: there are too many, and the exchange has failed.
  bool Reserve(Exchange& exchange);
  void Unreserve(Exchange& exchange);
  void FinishPush(Exchange& exchange);
  // Lets the client send the keys of its pull; `first`: a piece that it has sent already.
  void AskForKeys(Exchange& exchange, const std::optional<Chunk>& first);
  void OnPushed(Exchange& exchange, absl::StatusOr<PushAnswer> answer);
  void StartPull(Exchange& exchange);
  void OnPulled(Exchange& exchange, absl::StatusOr<PullAnswer> answer);

  void AnswerJobOver(Exchange& exchange);
  void AnswerPush(Exchange& exchange, v1::Outcome outcome, const std::string& reason);
  void Fail(Exchange& exchange, absl::Status status);
  void FailCutShort(Exchange& exchange);
  // Waits for messages of the client.
  static bool IsArriving(const Exchange& exchange) {
    return exchange.arrival != nullptr || exchange.wants_keys;
  }
  void Grant(Exchange& exchange, uint32_t chunks);
  void Close(Exchange& exchange);
  // Drops the rest of the exchange's gradient, and its weights.
  void Drop(Exchange& exchange);
  // Ends an exchange whose weights were revoked.
  void CutOff(Exchange& exchange);
  void Queue(Exchange& exchange);

  const Options options_;
  const std::function<void()> on_output_;
  std::vector<uint32_t> dims_;  // of the job's tables
  bool ended_ = false;
  bool first_message_ = true;
  bool input_ended_ = false;
  std::optional<absl::Status> job_over_;  // why; OK: it is done
  uint64_t highest_id_ = 0;
  std::optional<v1::Caller> caller_;
  // For this stream's rows, of what all clients may have. The exchanges take from them.
  ByteBudget arriving_, asked_;
  std::map<uint64_t, Exchange> exchanges_;
  size_t waiting_ = 0, closing_ = 0;
  // Ids of the exchanges that may have output.
  std::deque<uint64_t> urgent_, bulk_;
  std::optional<v1::ExchangeReply> greeting_;  // output to send
  ReplyWriter writer_;
};

}  // namespace weir
