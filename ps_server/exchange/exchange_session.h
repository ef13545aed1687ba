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
#include "common/protocol/message.h"
#include "common/sync/executor.h"
#include "proto/parameter_server.pb.h"
#include "ps_server/exchange/shared_memory.h"
#include "ps_server/shard/push_arrival.h"
#include "ps_server/shard/shard.h"

namespace weir {

// What one client and the shard have to say to each other (proto/parameter_server.proto, ExchangeRequest):
// takes the client's messages, puts its exchanges to the shard, and makes the replies, small ones first and
// the weights of pulls one chunk at a time, the exchanges in turn. Does no I/O, reads no clock and starts no
// thread: a channel brings it messages and takes its replies, and time enters through the shard.
//
// Gradients are read and applied where they were received, or where they lie in the client's segments of
// shared memory; weights leave as references to the version that holds them, or stay where the client can
// read them. What a client can make a session hold is bounded: kMaxOpen exchanges and kMaxWaiting first
// chunks; how many versions readers may hold, and for how long, is the shard's to say.
//
// Used by one task of the executor at a time; the shard's answers, which come on any thread, are posted
// there. They hold the session until they have come, also when it has ended.
class ExchangeSession : public std::enable_shared_from_this<ExchangeSession> {
 public:
  struct Options {
    // These outlive the session.
    Shard* shard = nullptr;
    Executor* executor = nullptr;
    Shard::Session id = 0;
    // Of weights, in one message.
    uint64_t chunk_elements = 0;
    // Of a gradient, on their way at once.
    uint32_t chunks_in_flight = 1;
    // May be null: none is shared.
    SharedMemory* shared_memory = nullptr;
  };

  // `on_output` runs when there may be something to send, within any call and any task of the executor, until
  // End().
  ExchangeSession(const Options& options, std::function<void()> on_output)
      : options_(options), on_output_(std::move(on_output)) {}

  // Handles a message from the client. An error is the end of the stream.
  absl::Status Receive(const IncomingMessage& message);
  // The client sends no more: pushes that are still arriving fail.
  void EndInput();
  // The job is over: pushes that are still arriving are answered so. The shard answers the rest.
  void EndJob(const absl::Status& failure);
  // The stream has ended: drops everything.
  void End();

  // The next message to the client. False: there is none for now.
  bool Send(OutgoingMessage* message);
  // The channel has sent or copied that message.
  void Sent() { sending_ = nullptr; }
  // Readers have been revoked: lets go what is not to be read any more. True: the message that is being sent
  // holds such weights, so the client does not take them, and the stream must end.
  bool DropRevoked();
  // No exchange is open.
  bool idle() const { return exchanges_.empty(); }
  // The client makes exchanges without reading the replies: it is not to be read from until it has.
  bool congested() const { return closing_ >= kMaxOpen; }
  // Who made the newest exchange; nobody: there was none.
  const std::optional<v1::Caller>& caller() const { return caller_; }

 private:
  static constexpr size_t kMaxOpen = 1024;
  // A push whose turn has not come keeps its first chunk.
  static constexpr size_t kMaxWaiting = 32;

  // A piece of gradient, where it was received.
  struct Chunk {
    uint64_t first = 0;
    uint64_t bytes = 0;  // 0: there is none
    std::vector<absl::string_view> pieces;
    std::shared_ptr<const void> owner;  // of the pieces
  };
  struct Range {
    uint64_t first, count;  // elements
  };
  struct Exchange {
    explicit Exchange(uint64_t id) : id(id) {}

    const uint64_t id;
    std::optional<v1::PullRequest> pull;
    // A push, until the shard is ready for its gradient.
    std::optional<Chunk> waiting;
    // From then until the gradient is whole.
    std::unique_ptr<PushArrival> arrival;
    uint64_t received = 0;  // elements
    uint32_t may_send = 0;  // chunks that the client has credit for
    // Chunks are answered with the same range of the version that they make.
    bool eager = false;
    std::optional<Range> last;        // of it, until the push is answered
    std::optional<v1::Version> made;  // by the push, if it is eager

    // To be sent.
    std::optional<v1::PushReply> push_reply;
    std::optional<v1::PullReply> pull_reply;
    absl::Status error;
    uint32_t credit = 0;
    std::deque<Range> weights;
    std::shared_ptr<const LentVersion> version;  // of the weights
    bool queued = false;
    // Nothing comes after what is to be sent.
    bool closing = false;

    bool has_output() const {
      return push_reply.has_value() || pull_reply.has_value() || !error.ok() || credit > 0 ||
             !weights.empty();
    }
  };

  // The exchange, if it is open and not closing.
  Exchange* Find(uint64_t id);
  // Posts `handle`, which runs with the exchange if it is still open then. Any thread.
  template <typename Handler>
  void Deliver(uint64_t id, Handler handle);

  // `found`: whether its chunk is where it says.
  void Begin(v1::ExchangeRequest request, Chunk chunk, const absl::Status& found);
  absl::Status CheckFirst(const v1::ExchangeRequest& request, const Chunk& chunk) const;
  // The chunk of a message where it lies in the client's segments, if it does; checks its size.
  absl::Status FindChunk(const v1::ExchangeRequest& request, Chunk* chunk) const;
  // Lets chunks go that the client has read where they are.
  absl::Status Release(const v1::ExchangeRequest& request);
  void Continue(Exchange& exchange, const Chunk& chunk);

  void StartPush(Exchange& exchange, v1::PushRequest header);
  void OnArrival(Exchange& exchange, std::unique_ptr<PushArrival> arrival, bool eager);
  void TakeChunk(Exchange& exchange, const Chunk& chunk);
  void FinishPush(Exchange& exchange);
  void OnPushed(Exchange& exchange, absl::StatusOr<PushAnswer> answer);
  void StartPull(Exchange& exchange);
  void OnPulled(Exchange& exchange, absl::StatusOr<PullAnswer> answer);

  void AnswerJobOver(Exchange& exchange);
  void AnswerPush(Exchange& exchange, v1::Outcome outcome, const std::string& reason);
  void Fail(Exchange& exchange, absl::Status status);
  void FailCutShort(Exchange& exchange);
  void Grant(Exchange& exchange, uint32_t chunks);
  void Close(Exchange& exchange);
  // Forgets what the exchange would have received, and its weights.
  void Drop(Exchange& exchange);
  // Ends an exchange whose weights were revoked.
  void CutOff(Exchange& exchange);
  void Queue(Exchange& exchange);
  OutgoingMessage NextReply(Exchange& exchange);
  // The next chunk: copied, or where the version holds it. Nothing: the reply says where it lies in shared
  // memory.
  std::optional<OutgoingMessage::Piece> NextWeights(Exchange& exchange, v1::ExchangeReply* reply);

  const Options options_;
  const std::function<void()> on_output_;
  bool ended_ = false;
  bool first_message_ = true;
  bool input_ended_ = false;
  std::optional<absl::Status> job_over_;  // why; OK: it is done
  uint64_t highest_id_ = 0;
  std::optional<v1::Caller> caller_;
  std::map<uint64_t, Exchange> exchanges_;
  size_t waiting_ = 0, closing_ = 0;
  // Ids of those that may have something to send.
  std::deque<uint64_t> urgent_, bulk_;
  std::optional<v1::ExchangeReply> greeting_;  // to be sent
  // The client's; null: chunks travel in messages. And the token that it has them under.
  std::shared_ptr<const ClientSegments> segments_;
  std::string token_;
  // Versions that the client reads in shared memory, by the number of each chunk: from 1, as they were sent.
  std::map<uint64_t, std::shared_ptr<const LentVersion>> shared_;
  uint64_t chunks_shared_ = 0;
  // What the message that is being sent refers to; may be null.
  std::shared_ptr<const LentVersion> sending_;
};

}  // namespace weir
