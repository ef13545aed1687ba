#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/call.h"
#include "client/exchange/exchange_stream.h"
#include "client/exchange/shard_channel.h"
#include "client/exchange/shard_exchange.h"
#include "client/tensors/tensor_map.h"
#include "client/tensors/wire_options.h"
#include "common/threads/mutex.h"
#include "proto/parameter_server.pb.h"

namespace weir {

// One shard as a client sees it: one stream at a time, and the calls that travel on it. Does no I/O itself:
// its channel does.
//
// Thread-safe. Outlives its calls.
class ShardClient {
 public:
  using Done = std::function<void(absl::StatusOr<ShardAnswer>)>;

  // The clients of all shards of a job share this. All that it refers to outlives them.
  struct Shared {
    EventLoop& loop;
    const TensorMap& tensors;
    v1::Caller caller;
    // Each try reads `caller.epoch` from here anew.
    const std::atomic<uint64_t>& epoch;
    WireOptions wire;
    CallGroup& group;
    CallLimits limits;  // of each call
    // ClientOptions::again: the shards' addresses were right.
    bool again = false;
  };

  ShardClient(uint32_t index, std::unique_ptr<ShardChannel> channel, const Shared& shared);
  ~ShardClient() { Close(); }

  // As ShardChannel::MoveTo(). Once this has returned, no call takes an answer from another address: calls
  // under way begin again.
  void MoveTo(const std::string& address);

  // Pushes, pulls, or does both as one exchange. Then the pull follows the push if the answer to the push
  // lets it; else the pull is sent separately. Bytes are sent and written as they come: the tensors must live
  // until `done`, and after an error a pull's tensors may be written in part. `done` runs once, on the event
  // loop or within this call, and must not block.
  //
  // Calls are retried until their limits are reached. An answer that breaks the protocol is an Internal
  // error. rows: of both; null: none.
  std::shared_ptr<Call> Exchange(std::optional<ShardPush> push, std::optional<ShardPull> pull,
                                 std::shared_ptr<const RowRoutes> rows, Done done);

  // All pushes with lower clocks were answered, in one incarnation of the shard or another.
  uint64_t answered_clock() const { return answered_clock_; }

  // Ends the stream. Called after the last call, and not on the event loop.
  void Close();

  // "ps:1 at 10.0.0.1:2222".
  std::string name() const { return channel_->name(); }

 private:
  class ShardCall;

  // Begins the exchange on the current stream, or on a new one if that is over. Returns the stream.
  std::shared_ptr<ExchangeStream> Begin(const std::shared_ptr<ShardExchange>& exchange,
                                        const ExchangeStream::Ended& ended);
  v1::Caller CallerNow() const;
  // The error that a call gets when a server says that it is not the server that was called (NotFound). At
  // first the addresses of this program, or of the job, are wrong. Later the shard's process has ended, and
  // another has its address.
  absl::Status Misdirected(const absl::Status& status) const;

  const uint32_t index_;
  const std::unique_ptr<ShardChannel> channel_;
  const Shared shared_;
  std::atomic<uint64_t> answered_clock_ = 0;
  // An exchange with the shard has succeeded, in this membership or in one before.
  std::atomic<bool> reached_;

  Mutex mutex_;
  CondVar stream_gone_;
  // The newest stream; null if all are gone.
  std::shared_ptr<ExchangeStream> stream_ ABSL_GUARDED_BY(mutex_);
  // The streams that their channel still holds.
  int streams_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace weir
