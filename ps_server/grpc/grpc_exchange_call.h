#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "common/shared_memory/doorbell.h"
#include "common/shared_memory/message_ring.h"
#include "ps_server/exchange/exchange_session.h"
#include "ps_server/grpc/grpc_admission.h"
#include "ps_server/grpc/grpc_event_loop.h"
#include "ps_server/grpc/grpc_methods.h"
#include "ps_server/shared_memory/shared_memory_server.h"

namespace weir {

// One Exchange call: carries messages between a client and its session. At most one read and one write are in
// flight. The next message is read when the previous one has been handled, so gRPC's flow control slows a
// client that sends more than the shard can take.
//
// A client on this host may name rings in shared memory instead (common/shared_memory/message_ring.h). Then
// messages travel over these, and the call itself carries none: it admits the client, and its end is the
// stream's end.
//
// Lives on its loop's thread and owns itself: it is deleted when the call is over and all its operations have
// ended.
class GrpcExchangeCall final : GrpcEventLoop::OperationStarter, SharedWork {
 public:
  // The streams of one loop, and what they share. Only the loop's thread uses it, except for the counters.
  struct Host {
    GrpcMethods* service = nullptr;
    GrpcEventLoop* loop = nullptr;
    // All fields but `id`.
    ExchangeSession::Options session;
    GrpcAdmission* admission = nullptr;
    // Null: no memory is shared, so there are no rings. `bell` is the loop's.
    SharedMemoryServer* rings = nullptr;
    uint32_t bell = 0;
    // Clients say at once what they have released. Otherwise their word may wait in a ring until the next
    // message, which saves the server a wake-up.
    bool wants_releases = false;
    std::atomic<uint64_t>* sessions = nullptr;  // the last id that was given out
    // A call has come: requests the next one, on some loop.
    std::function<void()> accept_next;
    // ParameterServerService::Options::on_broken.
    std::function<void(const v1::Caller&)> on_broken;
    std::set<GrpcExchangeCall*> calls;
    // Set when the job is over: the reason, OK if the job is done. Streams end when their open exchanges have
    // been answered.
    std::optional<absl::Status> over;
    std::atomic<uint64_t> open{0}, messages_received{0}, messages_sent{0};
  };

  // Requests the next call of a client.
  static void Accept(Host* host);
  // Called when host->over has been set.
  void EndJob();
  // host->wants_releases has been set.
  void WantReleases();
  // The shard has revoked readers.
  void DropRevoked();

 private:
  using Operation = GrpcOperation<GrpcExchangeCall>;

  explicit GrpcExchangeCall(Host* host) : host_(host), stream_(&context_) {}
  void OnAccepted(bool ok);
  void OnRead(bool ok);
  void OnWritten(bool ok);
  void OnFinished(bool ok);
  void OnOver(bool ok);
  void StartOperations() override;

  // Takes the rings that the client names, if it names any.
  grpc::Status TakeRing();
  // For the rings.
  bool Ready() const override;
  void Serve() override;
  // A message from the client.
  void Receive(const absl::StatusOr<IncomingMessage>& message);
  // Sends messages of the session for as long as the channel takes them.
  void Send();
  // The channel is sending a message.
  bool writing() const { return write_.under_way() || (ring_ != nullptr && !ring_->flushed()); }
  // The session may be given the next message.
  bool may_read() const { return !closed_ && !input_ended_ && !end_.has_value() && !session_->congested(); }

  Host* const host_;
  grpc::ServerContext context_;
  GrpcMethods::Stream stream_;
  std::shared_ptr<ExchangeSession> session_;
  grpc::ByteBuffer received_;
  // Null: messages travel in the call.
  std::unique_ptr<MessageRing> ring_;

  Operation accept_{this, &GrpcExchangeCall::OnAccepted};
  Operation read_{this, &GrpcExchangeCall::OnRead};
  Operation write_{this, &GrpcExchangeCall::OnWritten};
  Operation finish_{this, &GrpcExchangeCall::OnFinished};
  // In flight until the call is over, whichever end ended it.
  Operation over_{this, &GrpcExchangeCall::OnOver};

  bool input_ended_ = false;
  bool closed_ = false;   // no more operations start
  bool cut_off_ = false;  // this end has cancelled the call
  // The end, once it is decided.
  std::optional<grpc::Status> end_;
};

}  // namespace weir
