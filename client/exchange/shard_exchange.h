#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/exchange/shared_weights.h"
#include "client/tables/row_routes.h"
#include "client/tensors/outgoing_gradient.h"
#include "client/tensors/tensor_arrivals.h"
#include "client/tensors/tensor_map.h"
#include "client/tensors/wire_options.h"
#include "common/codec/wire_codec.h"
#include "common/protocol/exchange_layout.h"
#include "common/protocol/message.h"
#include "common/threads/mutex.h"
#include "proto/parameter_server.pb.h"

namespace weir {

// Counts what is lent out, and reports when all of it is back. Thread-safe.
class Loans {
 public:
  void Lend() {
    MutexLock lock(mutex_);
    ++out_;
  }

  void Return() {
    std::function<void()> then;
    {
      MutexLock lock(mutex_);
      if (--out_ == 0) then.swap(then_);
    }
    if (then) then();
  }

  bool out() const {
    MutexLock lock(mutex_);
    return out_ > 0;
  }

  // Runs `then` once nothing is lent out: at once, or on the thread that returns the last loan. At most one
  // `then` may wait.
  void WhenReturned(std::function<void()> then) {
    {
      MutexLock lock(mutex_);
      if (out_ > 0) {
        then_ = std::move(then);
        return;
      }
    }
    then();
  }

 private:
  mutable Mutex mutex_;
  int out_ ABSL_GUARDED_BY(mutex_) = 0;
  std::function<void()> then_ ABSL_GUARDED_BY(mutex_);
};

// A call sends a push, a pull, or both to a shard. RowRoutes says which rows go along.
struct ShardPush {
  // All fields but caller, elements, dtype and rows.
  v1::PushRequest header;
  std::shared_ptr<OutgoingGradient> gradient;
};
struct ShardPull {
  // All fields but caller, dtype and rows.
  v1::PullRequest request;
  // If `view` is null, the weights go to these tensors of the caller, in the model's order.
  std::vector<float*> tensors;
  // If not null, the weights go to this view, which outlives the call.
  ShardView* view = nullptr;
  // The only version count that the weights may have; nullopt: any.
  std::optional<uint64_t> want;
  // Null: arrivals are not reported.
  std::shared_ptr<TensorArrivals> arrivals;
};
// The shard's answer: the fields that were asked for. Its outcomes are values that this program knows.
struct ShardAnswer {
  v1::PushReply push;
  v1::PullReply pull;
};

// An exchange with one shard: makes its messages, and takes the replies into the caller's tensors. Where the
// protocol asks for it, another exchange follows until all is answered. Each starts with Begin().
//
// Rows are sent in pieces, which count as chunks: a piece needs credit and a slot as a chunk of the gradient
// does. The pieces go first, because rows are there when the push begins, while the gradient may still be
// computed. The gradient's last chunk waits until all of it was found finite, so no shard has a whole push
// before that.
//
// Not thread-safe, with one exception: while one thread makes messages (under its stream's lock), another may
// take replies. The tensor map and the tensors outlive this; a push's tensors live until loans() are
// returned.
class ShardExchange {
 public:
  // answered_clock: the PushRequest.answered_clock of the shard's exchanges. An answer to a push raises it.
  // It outlives this. rows: of the push and the pull; null: none.
  ShardExchange(const TensorMap& tensors, uint32_t shard, const WireOptions& wire, std::string what,
                std::optional<ShardPush> push, std::optional<ShardPull> pull,
                std::atomic<uint64_t>& answered_clock, std::shared_ptr<const RowRoutes> rows = nullptr);

  // Starts an exchange. If an earlier exchange was incomplete, all that it sent and received is void, except
  // a push's answer, and the weights of a version that is still the one to be read.
  void Begin();

  // ---- its messages

  // Fills in the first message: what the exchange is, and that its push is refused, if that is known by now.
  // `head` may hold other fields already.
  void AddBeginning(const v1::Caller& caller, v1::ExchangeRequest* head);
  // Returns whether the first message may be sent. A shard without elements waits for no further message.
  bool MayBegin() {
    return !pushes_ || elements_ > 0 || push_->gradient->MayFinish() || push_->gradient->refused();
  }
  // Returns whether another exchange must replace this one, because the gradient is not finite and the first
  // message of this one did not say so.
  bool outdated() const { return pushes_ && !push_answered_ && !says_refused_ && push_->gradient->refused(); }
  // This exchange sends a push.
  bool pushes() const { return pushes_; }
  // There are more chunks to send.
  bool sends() const { return unsent_ > 0 || sends_rows(); }
  // The next chunk is a piece of the rows.
  bool sends_rows() const { return next_row_byte_ < end_row_byte_; }
  // The push is answered: the shard takes no more of it, but still all rows if there are keys to read.
  void EndPush();
  // Finds and checks the next chunk. False: none may leave now.
  bool FindChunk();
  // Makes the message with the chunk that FindChunk() found, as pieces of the gradient or of the rows.
  OutgoingMessage MakeChunk(v1::ExchangeRequest head);
  // The segment that the gradient lies in, if its chunks can be named there; null: they cannot.
  const std::shared_ptr<const SharedSegment>& memory() const { return memory_; }
  // Makes the message that names the chunk of FindChunk() in memory(), and as many of the next chunks that
  // may leave as one message can name.
  OutgoingMessage MakeChunkInPlace(v1::ExchangeRequest head, uint32_t segment);
  // Makes the message with the chunk of FindChunk(), and copies its bytes to `slot`, at `offset` in shared
  // memory.
  OutgoingMessage MakeSharedChunk(v1::ExchangeRequest head, uint64_t offset, char* slot);
  // Pieces of the caller's gradient that the channel holds.
  Loans& loans() const { return *loans_; }

  // ---- its replies

  enum class Progress {
    kOpen,
    kComplete,
    // The exchange is over, but not all was answered. Another exchange follows at once.
    kAgain,
  };
  // `reply` is the parsed `message.head`. `chunk`: the shared memory that the weights lie in; taken over if
  // they will be read there after the return. nullptr: the weights came in the message. An error ends the
  // exchange: it is the shard's, or Internal if the reply breaks the protocol.
  absl::StatusOr<Progress> Take(v1::ExchangeReply reply, const SplitMessage& message,
                                SharedWeights::Chunk* chunk);
  bool push_answered() const { return push_answered_; }
  // The shard has read all that it will read of this exchange's chunks.
  bool chunks_read() const { return (!pushes_ || push_answered_) && (pull_answered_ || !reads_rows()); }
  ShardAnswer TakeAnswer() { return std::move(answer_); }

 private:
  // A chunk: its elements, their bytes on the wire, and where they lie, in the gradient or encoded.
  struct Chunk {
    int64_t first, count;
    size_t bytes;
    std::vector<absl::Span<const char>> runs;
  };
  std::shared_ptr<const SharedSegment> FindMemory() const;
  // The pull has keys of this shard.
  bool reads_rows() const { return rows_ != nullptr && !rows_->pull(shard_).empty(); }
  // Takes the next piece of the rows.
  absl::Span<const char> TakeRowPiece(v1::ExchangeRequest* head);
  // Takes the chunk that FindChunk() found, and `more` chunks after it.
  Chunk TakeChunk(v1::ExchangeRequest* head, size_t more = 0);
  // The gradient is of a different type from the wire's values, and each message converts its part.
  bool converts() const {
    return push_->gradient->encoded() == nullptr && push_->gradient->tensors().dtype != wire_.push_dtype;
  }
  void Gather(const Chunk& chunk, char* to) const;
  absl::Status TakePush(v1::PushReply reply);
  absl::Status TakePull(v1::PullReply reply);
  absl::Status TakeWeights(uint64_t first, absl::Span<const absl::string_view> pieces, uint64_t bytes,
                           SharedWeights::Chunk* chunk);
  absl::Status TakeRows(uint64_t first, absl::Span<const absl::string_view> pieces, uint64_t bytes,
                        bool shared);
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
  const std::shared_ptr<const RowRoutes> rows_;

  const std::shared_ptr<const SharedSegment> memory_;

  // State of the messages.
  bool pushes_ = false;                    // this exchange sends the push
  std::atomic<bool> says_refused_{false};  // its first message refused the push
  std::vector<bool> sent_;                 // by chunk of the gradient
  size_t unsent_ = 0;                      // of these chunks
  size_t lowest_ = 0;                      // all chunks below it were sent
  size_t next_ = 0;                        // the chunk of the gradient that FindChunk() found
  // Of RowRoutes::request(): where this exchange's part begins, where what is still to be sent, and the end.
  uint64_t first_row_byte_ = 0, next_row_byte_ = 0, end_row_byte_ = 0;
  const std::shared_ptr<Loans> loans_ = std::make_shared<Loans>();

  // State of the replies.
  ShardAnswer answer_;
  bool push_answered_ = false;
  bool pull_answered_ = false;
  ChunkSet came_;  // weights
  // The weights that lie in the caller's tensors, or that the view sees, from earlier exchanges, too. They
  // are not written again. landed_of_: their version; nullopt: the version that the push is making.
  std::vector<bool> landed_;  // by chunk unit
  std::optional<v1::Version> landed_of_;
  // Of the rows: the bytes that have come in this exchange, and all of them.
  uint64_t row_bytes_ = 0, all_row_bytes_ = 0;
};

}  // namespace weir
