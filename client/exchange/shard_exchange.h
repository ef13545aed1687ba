#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/exchange/loans.h"
#include "client/exchange/shard_view.h"
#include "client/exchange/shared_weights.h"
#include "client/tensors/outgoing_gradient.h"
#include "client/tensors/tensor_arrivals.h"
#include "client/tensors/tensor_map.h"
#include "client/tensors/wire_options.h"
#include "common/codec/wire_codec.h"
#include "common/protocol/message.h"
#include "proto/parameter_server.pb.h"

namespace weir {

// What a shard is to be sent.
struct ShardPush {
  // All but caller, elements and dtype.
  v1::PushRequest header;
  std::shared_ptr<OutgoingGradient> gradient;
};
struct ShardPull {
  // All but caller and dtype.
  v1::PullRequest request;
  // Where the weights go: the caller's tensors, in the model's order,
  std::vector<float*> tensors;
  // or this, which outlives the call.
  ShardView* view = nullptr;
  // The only version count that the weights may have; nullopt: any.
  std::optional<uint64_t> want;
  // Null: nobody wants to know.
  std::shared_ptr<TensorArrivals> arrivals;
};
// What it answered; the fields that were asked for. Outcomes are known ones.
struct ShardAnswer {
  v1::PushReply push;
  v1::PullReply pull;
};

// An exchange with one shard: makes its messages, and takes the replies into the caller's tensors. Where the
// protocol asks for it, one exchange is followed by another until all is answered: each starts with Begin().
//
// Not thread-safe, with one exception: while one thread makes messages (under its stream's lock), another may
// take replies. Outlived by the tensor map and by the tensors; those of a push until loans() are returned.
class ShardExchange {
 public:
  // answered_clock: of the shard's exchanges, as PushRequest has it; raised when a push is answered. Outlives
  // this.
  ShardExchange(const TensorMap& tensors, uint32_t shard, const WireOptions& wire, std::string what,
                std::optional<ShardPush> push, std::optional<ShardPull> pull,
                std::atomic<uint64_t>& answered_clock);

  // What was sent and received in an exchange that is not complete is void, but for a push's answer and
  // weights of a version that is still the one to be read.
  void Begin();

  // ---- its messages

  // The first one: what the exchange is; that its push is refused, if it is known by now. `head` holds what
  // else is to be said.
  void AddBeginning(const v1::Caller& caller, v1::ExchangeRequest* head);
  // Whether it may be sent. Where the shard has no elements it is all that the shard waits for.
  bool MayBegin() {
    return !pushes_ || elements_ > 0 || push_->gradient->MayFinish() || push_->gradient->refused();
  }
  // The gradient was found not to be finite, and the exchange has begun without saying so: it is to be given
  // up for another one.
  bool outdated() const { return pushes_ && !push_answered_ && !says_refused_ && push_->gradient->refused(); }
  // There is more of the gradient to send.
  bool sends() const { return pushes_ && unsent_ > 0; }
  // Finds and checks the next chunk. False: none may leave now.
  bool FindChunk();
  // The message with the chunk that was found, as pieces of the gradient.
  OutgoingMessage MakeChunk(v1::ExchangeRequest head);
  // The segment that the gradient lies in, if its chunks can be named there; null: no.
  const std::shared_ptr<const SharedSegment>& memory() const { return memory_; }
  // Names the chunk there, and those that follow and may leave too, as far as they fit in one.
  OutgoingMessage MakeChunkInPlace(v1::ExchangeRequest head, uint32_t segment);
  // The same; the chunk's bytes are written to shared memory: `range.offset`, which is
  // `slot`.
  OutgoingMessage MakeSharedChunk(v1::ExchangeRequest head, uint64_t offset, char* slot);
  // Pieces of the caller's gradient that the channel holds.
  Loans& loans() const { return *loans_; }

  // ---- its replies

  enum class Progress {
    kOpen,
    kComplete,
    // Over, without all that was asked for. Another exchange is to follow at once.
    kAgain,
  };
  // `reply` is the parsed `message.head`. Weights that lie in shared memory are `chunk`, which is taken if
  // they are still to be read there when this returns; nullptr: they came in the message. The shard's error,
  // or Internal: it breaks the protocol. Either ends the exchange.
  absl::StatusOr<Progress> Take(v1::ExchangeReply reply, const SplitMessage& message,
                                SharedWeights::Chunk* chunk);
  bool push_answered() const { return push_answered_; }
  ShardAnswer TakeAnswer() { return std::move(answer_); }

 private:
  // A chunk: its elements, their bytes on the wire, and where they lie in the gradient.
  struct Chunk {
    int64_t first, count;
    size_t bytes;
    std::vector<absl::Span<const char>> runs;
  };
  std::shared_ptr<const SharedSegment> FindMemory() const;
  // That chunk, and `more` that follow it.
  Chunk TakeChunk(v1::ExchangeRequest* head, size_t more = 0);
  // The gradient is of another type than the wire's values.
  bool converts() const { return push_->gradient->tensors().dtype != wire_.push_dtype; }
  void Gather(const Chunk& chunk, char* to) const;
  absl::Status TakePush(v1::PushReply reply);
  absl::Status TakePull(v1::PullReply reply);
  absl::Status TakeWeights(uint64_t first, absl::Span<const absl::string_view> pieces, uint64_t bytes,
                           SharedWeights::Chunk* chunk);
  void ExpectWeights();
  void ForgetLanded();
  Progress Judge() const;
  absl::Status Broken(const std::string& problem) const;

  const TensorMap& tensors_;
  const uint32_t shard_;
  const WireOptions wire_;
  const std::string what_;
  const int64_t elements_;
  const std::optional<ShardPush> push_;
  const std::optional<ShardPull> pull_;
  std::atomic<uint64_t>& answered_clock_;

  const std::shared_ptr<const SharedSegment> memory_;

  // Of the messages.
  bool pushes_ = false;                    // this exchange brings the push
  std::atomic<bool> says_refused_{false};  // without its gradient
  std::vector<bool> sent_;                 // by chunk of the gradient
  size_t unsent_ = 0;                      // chunks
  size_t lowest_ = 0;                      // all chunks below it were sent
  size_t next_ = 0;                        // the chunk that FindChunk() found
  const std::shared_ptr<Loans> loans_ = std::make_shared<Loans>();

  // Of the replies.
  ShardAnswer answer_;
  bool push_answered_ = false;
  bool pull_answered_ = false;
  std::vector<bool> taken_;  // weights, by chunk unit
  int64_t missing_ = 0;      // elements of them
  // What lies in the caller's tensors, or is seen by the view, from the exchanges before, too, and of which
  // version; nullopt: of the one that the push is making. It is not written again.
  std::vector<bool> landed_;  // by chunk unit
  std::optional<v1::Version> landed_of_;
};

}  // namespace weir
