#include "ps_server/grpc_shard_link.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <deque>
#include <utility>

#include "common/mutex.h"
#include "proto/shard_control.grpc.pb.h"

namespace weir {
namespace {

constexpr std::chrono::seconds kShutdownWait{2};

class GrpcShardLink final : public ShardLink,
                            private grpc::ClientBidiReactor<v1::ControlMessage, v1::ShardReport> {
 public:
  GrpcShardLink(const std::string& address, ShardLinkEvents events) : events_(std::move(events)) {
    grpc::ChannelArguments args;
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
    args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
    // Until it is connected gRPC tries again and again; the coordinator's start deadline ends that.
    context_.set_wait_for_ready(true);
    stub_ = v1::ShardControl::NewStub(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args));
    stub_->async()->Attach(&context_, this);
    // So that a Send() from any thread finds the stream alive.
    AddHold();
    StartRead(&report_);
    StartCall();
  }

  ~GrpcShardLink() override {
    {
      MutexLock lock(mutex_);
      if (shutdown_sent_) {
        const auto deadline = std::chrono::steady_clock::now() + kShutdownWait;
        while (!read_ended_ && done_cv_.WaitUntil(mutex_, deadline)) {
        }
      }
    }
    context_.TryCancel();
    MutexLock lock(mutex_);
    while (!done_) done_cv_.Wait(mutex_);
  }

  void Send(const v1::ControlMessage& message) override {
    MutexLock lock(mutex_);
    if (read_ended_) return;
    shutdown_sent_ |= message.has_shutdown();
    queue_.push_back(message);
    if (queue_.size() == 1) StartWrite(&queue_.front());
  }

 private:
  void OnReadInitialMetadataDone(bool ok) override {
    if (ok) events_.connected();
  }

  void OnReadDone(bool ok) override {
    if (ok) {
      events_.report(std::move(report_));
      StartRead(&report_);
      return;
    }
    {
      MutexLock lock(mutex_);
      read_ended_ = true;
      done_cv_.NotifyAll();
    }
    RemoveHold();  // nothing is sent any more, so OnDone may come, with the reason
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(mutex_);
    if (!ok) return;
    queue_.pop_front();
    if (!queue_.empty()) StartWrite(&queue_.front());
  }

  void OnDone(const grpc::Status& status) override {
    bool expected;
    {
      MutexLock lock(mutex_);
      expected = shutdown_sent_;
    }
    if (!expected) {
      const bool clean = status.ok();
      events_.broken(
          clean ? absl::UnavailableError("it ended its control stream")
                : absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message()));
    }
    MutexLock lock(mutex_);
    done_ = true;
    done_cv_.NotifyAll();
  }

  const ShardLinkEvents events_;
  std::unique_ptr<v1::ShardControl::Stub> stub_;
  grpc::ClientContext context_;
  v1::ShardReport report_;
  Mutex mutex_;
  CondVar done_cv_;
  std::deque<v1::ControlMessage> queue_ ABSL_GUARDED_BY(mutex_);
  bool shutdown_sent_ ABSL_GUARDED_BY(mutex_) = false;
  bool read_ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

std::unique_ptr<ShardLink> OpenGrpcShardLink(const std::string& address, ShardLinkEvents events) {
  return std::make_unique<GrpcShardLink>(address, std::move(events));
}

}  // namespace weir
