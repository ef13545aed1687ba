#include "ps_server/grpc/grpc_shard_link.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <deque>

#include "absl/strings/str_cat.h"
#include "common/protocol/handshake.h"
#include "common/rpc/grpc_convert.h"
#include "proto/shard_control.grpc.pb.h"

namespace weir {
namespace {

constexpr std::chrono::seconds kShutdownWait{2};

}  // namespace

// Lives on the loop's thread.
class GrpcShardLinks::Stream final : public GrpcEventLoop::OperationStarter,
                                     public std::enable_shared_from_this<Stream> {
 public:
  Stream(GrpcShardLinks* links, ShardLinkEvents events) : links_(links), events_(std::move(events)) {}

  void Start(uint32_t index, const std::string& address) {
    address_ = absl::StrCat("the server at ", address);
    links_->streams_.insert(shared_from_this());
    grpc::ChannelArguments args;
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    // The time limit of one connection attempt. A server may have hundreds of clients to greet; if the server
    // is down, its machine refuses at once.
    args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);
    // All tasks wait for a server that was lost, so it must be found as soon as it is back.
    args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 250);
    // Also under its name, if the name has been moved to another machine.
    args.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 500);
    // gRPC retries until it is connected; the coordinator's deadlines end the attempts.
    context_.set_wait_for_ready(true);
    SetToken(links_->token_, &context_);
    stub_ = v1::ShardControl::NewStub(
        grpc::CreateCustomChannel(address, links_->credentials_->ToServer(index, address), args));
    call_ = stub_->PrepareAsyncAttach(&context_, links_->loop_->queue());
    call_->StartCall(start_.Begin());
  }

  void Send(const v1::ControlMessage& message) {
    if (ended_) return;
    shutdown_sent_ |= message.has_shutdown();
    queue_.push_back(message);
    StartOperationsLater();
  }

  // The link is closed, so no more events are reported. A stream that carries the Shutdown is not cancelled,
  // except by `force`.
  void Close(bool force) {
    closing_ = true;
    if (force || !shutdown_sent_) context_.TryCancel();
  }

 private:
  void StartOperationsLater() { links_->loop_->StartOperationsLater(this); }

  void OnStarted(bool ok) {
    if (ok) {
      call_->ReadInitialMetadata(metadata_.Begin());
    } else {
      ended_ = true;
    }
    StartOperationsLater();
  }
  void OnMetadata(bool ok) {
    ended_ = !ok;
    StartOperationsLater();
    if (!ok || closing_) return;
    const auto& metadata = context_.GetServerInitialMetadata();
    const auto attached = metadata.find(kAttachedMetadata);
    if (attached == metadata.end()) return;
    const absl::Status fits =
        CheckProtocol(address_, ParseProtocol({attached->second.data(), attached->second.size()}), "ps:0");
    if (fits.ok()) return events_.connected();
    closing_ = true;
    context_.TryCancel();
    events_.ended(absl::UnimplementedError(fits.message()));
  }
  void OnRead(bool ok) {
    if (ok) {
      if (!closing_) events_.report(std::move(report_));
      report_.Clear();
    } else {
      ended_ = true;
    }
    StartOperationsLater();
  }
  void OnWritten(bool ok) {
    if (ok) queue_.pop_front();
    broken_ = !ok;  // the read fails too and ends the stream
    StartOperationsLater();
  }
  void OnFinished(bool) {
    if (!closing_) {
      const bool unasked = status_.ok() && !shutdown_sent_;
      events_.ended(unasked ? absl::UnavailableError("it ended its control stream")
                            : FromGrpc(status_, "weir.v1.ShardControl/Attach"));
    }
    over_ = true;
    StartOperationsLater();
  }

  void StartOperations() override {
    if (start_.under_way() || metadata_.under_way()) return;
    if (over_) {
      if (write_.under_way()) return;
      const auto self = shared_from_this();
      links_->streams_.erase(self);
      MutexLock lock(links_->mutex_);
      --links_->open_;
      links_->changed_.NotifyAll();
    } else if (ended_) {
      if (!finish_.under_way()) call_->Finish(&status_, finish_.Begin());
    } else {
      if (!read_.under_way()) call_->Read(&report_, read_.Begin());
      if (!write_.under_way() && !broken_ && !queue_.empty()) call_->Write(queue_.front(), write_.Begin());
    }
  }

  using Operation = GrpcOperation<Stream>;

  GrpcShardLinks* const links_;
  const ShardLinkEvents events_;
  std::string address_;  // for messages
  std::unique_ptr<v1::ShardControl::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientAsyncReaderWriter<v1::ControlMessage, v1::ShardReport>> call_;
  v1::ShardReport report_;
  grpc::Status status_;
  std::deque<v1::ControlMessage> queue_;  // the front one is being written
  bool shutdown_sent_ = false;
  bool closing_ = false;
  bool broken_ = false;  // no more writes start
  bool ended_ = false;   // only the status is still to come
  bool over_ = false;    // the status has come
  Operation start_{this, &Stream::OnStarted};
  Operation metadata_{this, &Stream::OnMetadata};
  Operation read_{this, &Stream::OnRead};
  Operation write_{this, &Stream::OnWritten};
  Operation finish_{this, &Stream::OnFinished};
};

class GrpcShardLinks::Link final : public ShardLink {
 public:
  Link(GrpcEventLoop* loop, std::shared_ptr<Stream> stream) : loop_(loop), stream_(std::move(stream)) {}
  ~Link() override {
    loop_->Post([stream = stream_] { stream->Close(/*force=*/false); });
  }
  void Send(const v1::ControlMessage& message) override {
    loop_->Post([stream = stream_, message] { stream->Send(message); });
  }

 private:
  GrpcEventLoop* const loop_;
  const std::shared_ptr<Stream> stream_;
};

std::unique_ptr<ShardLink> GrpcShardLinks::Open(uint32_t index, const std::string& address,
                                                ShardLinkEvents events) {
  auto stream = std::make_shared<Stream>(this, std::move(events));
  MutexLock lock(mutex_);
  if (!closed_) {
    ++open_;
    loop_->Post([stream, index, address] { stream->Start(index, address); });
  }
  return std::make_unique<Link>(loop_, std::move(stream));
}

void GrpcShardLinks::Close() {
  const auto close = [this](bool force) {
    loop_->Post([this, force] {
      for (const auto& stream : streams_) stream->Close(force);
    });
  };
  const auto deadline = std::chrono::steady_clock::now() + kShutdownWait;
  MutexLock lock(mutex_);
  closed_ = true;
  close(/*force=*/false);
  while (open_ > 0 && changed_.WaitUntil(mutex_, deadline)) {
  }
  close(/*force=*/true);
  while (open_ > 0) changed_.Wait(mutex_);
}

}  // namespace weir
