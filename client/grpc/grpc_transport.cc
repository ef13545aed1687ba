// Client::Join(): a member of the job over gRPC, and over shared memory where the job's config and the host
// allow it.
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "client/grpc/grpc_channel.h"
#include "client/grpc/grpc_poller.h"
#include "client/grpc/grpc_shard_channel.h"
#include "client/job/client_impl.h"
#include "client/job/transport.h"
#include "client/tensors/wire_options.h"
#include "common/base/status_macros.h"
#include "common/codec/wire_codec.h"
#include "common/rpc/grpc_completion_loop.h"
#include "common/rpc/grpc_convert.h"
#include "common/rpc/grpc_credentials.h"
#include "common/rpc/tls.h"
#include "common/telemetry/grpc_process.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/impl/codegen/proto_utils.h"

namespace weir {
namespace {

class UnaryTry final : public CoordinatorChannel::Try,
                       public std::enable_shared_from_this<UnaryTry>,
                       private GrpcEvent {
 public:
  using Message = CoordinatorChannel::Message;
  using Stub = grpc::TemplatedGenericStub<Message, Message>;

  UnaryTry(const std::string& method, std::shared_ptr<grpc::Channel> channel, const JobToken& token,
           CoordinatorChannel::Limit limit, std::shared_ptr<Message> reply,
           std::function<void(const absl::Status&)> done)
      : name_(absl::StrCat("weir.v1.Coordinator/", method)),
        channel_(std::move(channel)),
        done_(std::move(done)),
        reply_(std::move(reply)) {
    if (limit != CoordinatorChannel::Limit::max()) {
      context_.set_deadline(std::chrono::system_clock::now() + limit);
    }
    SetToken(token, &context_);
  }

  void Start(const Message& request, grpc::CompletionQueue* queue) {
    self_ = shared_from_this();
    rpc_ = Stub(channel_).PrepareUnaryCall(&context_, absl::StrCat("/", name_), request, queue);
    rpc_->StartCall();
    rpc_->Finish(reply_.get(), &status_, static_cast<GrpcEvent*>(this));
  }
  void Cancel() override { context_.TryCancel(); }

 private:
  void OnEvent(bool /*ok*/) override {
    const auto self = std::move(self_);
    done_(FromGrpc(status_, name_));
  }

  const std::string name_;  // of the call
  // The context holds the channel, too. But the owner of the other reference may let go at the same time, and
  // ThreadSanitizer sees the order only where this code, and not gRPC's, lets go last.
  const std::shared_ptr<grpc::Channel> channel_;
  grpc::ClientContext context_;
  const std::function<void(const absl::Status&)> done_;
  std::unique_ptr<grpc::ClientAsyncResponseReader<Message>> rpc_;
  const std::shared_ptr<Message> reply_;
  grpc::Status status_;
  // Set until OnEvent().
  std::shared_ptr<UnaryTry> self_;
};

// The poller outlives the channel and its tries.
class GrpcCoordinatorChannel final : public CoordinatorChannel {
 public:
  // server_wait: how long to wait for a silent coordinator. attempt: how long an attempt to connect may take.
  GrpcCoordinatorChannel(const std::string& address, const JobToken& token,
                         std::shared_ptr<const JobCredentials> credentials,
                         std::chrono::nanoseconds server_wait,
                         std::optional<std::chrono::nanoseconds> attempt, GrpcPoller& poller)
      : address_(address),
        token_(token),
        credentials_(std::move(credentials)),
        poller_(poller),
        channel_(MakeChannel(/*index=*/0, address, *credentials_, server_wait, attempt)) {}

  std::string name() const override { return absl::StrCat("ps:0 (coordinator) at ", address_); }
  bool connected() const override {
    return channel_->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY;
  }
  absl::Status Diagnose() override { return ProbeTls(address_, /*server=*/0, credentials_->tls()); }

 private:
  TryPtr StartMethod(const std::string& method, const Message& request, std::shared_ptr<Message> reply,
                     Limit limit, std::function<void(const absl::Status&)> done) override {
    auto started =
        std::make_shared<UnaryTry>(method, channel_, token_, limit, std::move(reply), std::move(done));
    started->Start(request, poller_.queue());
    return started;
  }

  const std::string address_;
  const JobToken token_;
  const std::shared_ptr<const JobCredentials> credentials_;
  GrpcPoller& poller_;
  const std::shared_ptr<grpc::Channel> channel_;
};

class GrpcTransport final : public Transport {
 public:
  // The config outlives this object.
  GrpcTransport(const v1::JobConfig& config, const ClientOptions& options, std::shared_ptr<GrpcPoller> poller)
      : config_(config),
        server_wait_(absl::ToChronoNanoseconds(absl::Seconds(config.cluster().server_wait_seconds()))),
        token_(options.token),
        credentials_(std::make_shared<const JobCredentials>(options.tls)),
        poller_(std::move(poller)) {}

  std::shared_ptr<EventLoop> loop() override { return poller_; }
  uint64_t NewInstance() override {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  }
  std::unique_ptr<CoordinatorChannel> OpenCoordinator(
      const std::string& address, std::optional<std::chrono::nanoseconds> attempt) override {
    return std::make_unique<GrpcCoordinatorChannel>(address, token_, credentials_, server_wait_, attempt,
                                                    *poller_);
  }
  std::unique_ptr<ShardChannel> OpenShard(uint32_t shard, const std::string& address,
                                          int64_t elements) override {
    GrpcShardChannel::Options options;
    options.index = shard;
    options.address = address;
    options.token = token_;
    options.credentials = credentials_;
    options.wire = config_.wire();
    options.bytes = elements * static_cast<int64_t>(sizeof(float));
    // Any number of rows may come along.
    if (config_.tables_size() > 0) options.bytes = std::max(options.bytes, kMaxChunkBytes);
    options.server_wait = server_wait_;
    return std::make_unique<GrpcShardChannel>(std::move(options), *poller_);
  }

 private:
  const v1::JobConfig& config_;
  const std::chrono::nanoseconds server_wait_;
  const JobToken token_;
  const std::shared_ptr<const JobCredentials> credentials_;
  const std::shared_ptr<GrpcPoller> poller_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Join(const ClientOptions& options, const ModelSpec& model) {
  v1::JobConfig config;
  if (!config.ParseFromString(options.job_config)) {
    return absl::InvalidArgumentError("the job's config is not a serialized weir.v1.JobConfig");
  }
  WEIR_RETURN_IF_ERROR(CheckRoomForGrpc());
  WEIR_ASSIGN_OR_RETURN(std::shared_ptr<GrpcPoller> poller,
                        GrpcPoller::Shared(std::chrono::microseconds(config.wire().busy_poll_us()),
                                           WireOptions::From(config.wire()).shared_memory));
  GrpcTransport transport(config, options, std::move(poller));
  return ClientImpl::Join(options, model, config, transport);
}

}  // namespace weir
