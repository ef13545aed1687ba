#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/protocol/exchange_layout.h"
#include "common/protocol/message.h"
#include "proto/parameter_server.pb.h"
#include "ps_server/exchange/exchange_request.h"
#include "ps_server/shard/shard.h"

namespace weir {

// The output of one exchange that a session has still to send.
struct PendingReply {
  struct Range {
    uint64_t first, count;  // elements
  };

  std::optional<v1::PushReply> push;
  std::optional<v1::PullReply> pull;
  absl::Status error;
  // Chunks that the client may send from now on.
  uint32_t credit = 0;
  // The type of weights and rows.
  v1::Dtype dtype = v1::F32;
  // The weights of `version` that are left.
  std::deque<Range> weights;
  std::shared_ptr<const LentVersion> version;
  // Each chunk of the push is answered with the same range of the version that the push makes. In shared
  // memory the answer to a chunk is as large as the chunk.
  bool eager = false;
  RowLayout row_layout;
  // Null: no rows are left.
  std::shared_ptr<const ReadRows> rows;
  uint64_t rows_sent = 0;  // bytes of row_layout

  bool has_payload() const { return !weights.empty() || rows != nullptr; }
  bool empty() const {
    return !push.has_value() && !pull.has_value() && error.ok() && credit == 0 && !has_payload();
  }
  // All other replies are sent before a bulk reply.
  bool bulk() const { return has_payload() && !eager && !push.has_value(); }
  void DropPayload();
};

// Makes the messages of one stream's replies. Weights and rows travel as references to the version that holds
// them, or as copies in another type. Or they stay where the client reads them in shared memory; then this
// object holds the memory until the client has released it. Not thread-safe.
class ReplyWriter {
 public:
  // `memory` may be null: nothing is shared. `chunk_elements`: weights of one message.
  ReplyWriter(SharedMemory* memory, uint64_t chunk_elements)
      : memory_(memory), chunk_elements_(chunk_elements) {}

  // Finds the segments of the client that chose this token. False: there are none, and chunks travel in
  // messages.
  bool Claim(const std::string& token);
  // The client's segments; null: the stream has none.
  const std::shared_ptr<const ClientSegments>& segments() const { return segments_; }
  // The client has read the shared chunks that the request names. InvalidArgument: it does not hold them.
  absl::Status Release(const v1::ExchangeRequest& request);

  // The next message of exchange `id`. At most one chunk of payload leaves `reply`; everything else does.
  OutgoingMessage Next(uint64_t id, PendingReply& reply);
  // The message that Next() made has been sent or copied.
  void Sent() { sending_ = nullptr; }
  // That message refers to weights that were revoked meanwhile.
  bool sends_revoked() const { return sending_ != nullptr && sending_->revoked; }

  // The stream is over. The client may not know yet, and may still read what it holds in shared memory.
  void End();

 private:
  using Piece = std::optional<OutgoingMessage::Piece>;
  // The next chunk, copied or as a reference. Nothing: `message` says where it lies in shared memory.
  Piece NextWeights(PendingReply& reply, v1::ExchangeReply* message);
  Piece NextRows(PendingReply& reply, v1::ExchangeReply* message);
  // Where the client can read these values in this type; nothing: it cannot.
  std::optional<SharedMemory::Place> PlaceOf(const float* values, v1::Dtype dtype) const;
  // The payload lies at `place`. `owner` keeps it as it is until the client has read it.
  void Share(const SharedMemory::Place& place, uint64_t bytes, std::shared_ptr<const void> owner,
             v1::ExchangeReply* message);

  SharedMemory* const memory_;
  const uint64_t chunk_elements_;
  std::string token_;
  std::shared_ptr<const ClientSegments> segments_;
  // The memory that the client reads, by the number of each chunk: from 1, in the order of sending.
  std::map<uint64_t, std::shared_ptr<const void>> shared_;
  uint64_t chunks_shared_ = 0;
  // The version to which the message that is being sent refers; may be null.
  std::shared_ptr<const LentVersion> sending_;
};

}  // namespace weir
