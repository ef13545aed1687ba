#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "client/exchange/shard_channel.h"
#include "client/grpc/grpc_poller.h"
#include "common/rpc/grpc_completion_loop.h"
#include "common/rpc/job_token.h"
#include "common/shared_memory/doorbell.h"
#include "common/shared_memory/message_ring.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"

namespace weir {

// A data stream whose messages travel over rings in shared memory. A gRPC call without messages stands for
// the stream: with it the server admits the client, and its end is the stream's end, whichever side dies.
//
// The stream's user holds it, and it holds itself until it has ended.
class GrpcRingStream final : public DataStream,
                             SharedWork,
                             public std::enable_shared_from_this<GrpcRingStream> {
 public:
  // `poller` outlives the stream's end.
  GrpcRingStream(GrpcPoller& poller, std::unique_ptr<MessageRing> ring, std::shared_ptr<User> user,
                 std::function<void()> gone);

  // `segments`: the token by which the server knows the rings (ShardMemory::token()).
  void Start(grpc::GenericStub& stub, const JobToken& token, const std::string& segments);

  bool Write(OutgoingMessage message) override;
  void Read(bool relaxed) override;
  void Cancel() override;

 private:
  using Operation = GrpcOperation<GrpcRingStream>;

  bool Ready() const override;
  void Serve() override;
  void OnStarted(bool ok);
  void OnRead(bool ok);
  void OnFinished(bool ok);
  void Break(absl::Status why);
  void End();

  GrpcPoller& poller_;
  const std::unique_ptr<MessageRing> ring_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> rpc_;
  Operation started_{this, &GrpcRingStream::OnStarted};
  Operation read_{this, &GrpcRingStream::OnRead};
  Operation finished_{this, &GrpcRingStream::OnFinished};

  // The user waits for a message; for a message to leave.
  std::atomic<bool> reading_ = false, writing_ = false;
  // The user takes a message.
  std::atomic<bool> delivering_ = false;
  std::atomic<bool> cancelled_ = false;

  // Used on the polling thread.
  std::shared_ptr<User> user_;
  std::function<void()> gone_;
  std::shared_ptr<GrpcRingStream> self_;
  grpc::ByteBuffer unexpected_;
  absl::Status failure_;
  grpc::Status status_;
  bool call_over_ = false;
};

}  // namespace weir
