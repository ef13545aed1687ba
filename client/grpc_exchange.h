#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/loans.h"
#include "client/shard_exchange.h"
#include "client/tensor_map.h"
#include "client/wire_options.h"
#include "common/wire_codec.h"
#include "grpcpp/support/byte_buffer.h"
#include "proto/parameter_server.pb.h"

namespace weir {

// An exchange with one shard: makes its messages, and takes the replies into the caller's tensors. Where the
// protocol asks for it, one exchange is followed by another until all is answered: each starts with Begin().
//
// Not thread-safe, with one exception: while one thread makes messages (under its stream's lock), another may
// take replies. Outlived by the tensor map and by the tensors; those of a push until loans() are returned.
class GrpcExchange {
 public:
  GrpcExchange(const TensorMap& tensors, uint32_t shard, const WireOptions& wire, std::string what,
               std::optional<ShardPush> push, std::optional<ShardPull> pull);

  // What was sent and received in an exchange that is not complete is void, but for a push's answer.
  void Begin();

  // ---- its messages

  // The first one: what the exchange is. `head` holds what else is to be said.
  void AddBeginning(const v1::Caller& caller, v1::ExchangeRequest* head);
  // There is more of the gradient to send.
  bool has_chunk() const { return pushes_ && sent_ < elements_; }
  // The message with the next chunk, as slices of the gradient.
  grpc::ByteBuffer MakeChunk(v1::ExchangeRequest head);
  // The message with the next chunk, whose bytes are written to shared memory: `range.offset`, which is
  // `slot`.
  grpc::ByteBuffer MakeSharedChunk(v1::ExchangeRequest head, uint64_t offset, char* slot);
  // Slices of the caller's gradient that gRPC holds.
  Loans& loans() const { return *loans_; }

  // ---- its replies

  enum class Progress {
    kOpen,
    kComplete,
    // Over, without all that was asked for. Another exchange is to follow at once.
    kAgain,
  };
  // `reply` is the parsed `message.head`. The shard's error, or Internal: it breaks the protocol. Either ends
  // the exchange.
  absl::StatusOr<Progress> Take(v1::ExchangeReply reply, const SplitMessage& message);
  bool push_answered() const { return push_answered_; }
  ShardAnswer TakeAnswer() { return std::move(answer_); }

 private:
  // The next chunk: its elements and their bytes on the wire.
  struct Chunk {
    int64_t first, count;
    size_t bytes;
    std::vector<absl::Span<const float>> runs;
  };
  Chunk NextChunk(v1::ExchangeRequest* head);
  void Gather(const Chunk& chunk, char* to) const;
  absl::Status TakePush(v1::PushReply reply);
  absl::Status TakePull(v1::PullReply reply);
  absl::Status TakeWeights(uint64_t first, absl::Span<const absl::string_view> pieces, uint64_t bytes);
  void ForgetWeights();
  Progress Judge() const;
  absl::Status Broken(const std::string& problem) const;

  const TensorMap& tensors_;
  const uint32_t shard_;
  const WireOptions wire_;
  const std::string what_;
  const int64_t elements_;
  const std::optional<ShardPush> push_;
  const std::optional<ShardPull> pull_;

  // Of the messages.
  bool pushes_ = false;  // this exchange brings the push
  int64_t sent_ = 0;     // elements of the gradient
  const std::shared_ptr<Loans> loans_ = std::make_shared<Loans>();

  // Of the replies.
  ShardAnswer answer_;
  bool push_answered_ = false;
  bool pull_answered_ = false;
  std::vector<bool> taken_;  // weights, by kChunkUnit of elements
  int64_t missing_ = 0;      // elements of them
};

}  // namespace weir
