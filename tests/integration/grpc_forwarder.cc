#include "tests/integration/grpc_forwarder.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>

#include <chrono>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/threads/mutex.h"

namespace weir {
namespace {

using grpc::ByteBuffer;

// One call: passes each message of the caller to the server, and each message of the server back. Handles
// unary calls as streams with one message each way.
class Call : public std::enable_shared_from_this<Call> {
 public:
  Call(const GrpcForwarder::Options* hooks, grpc::GenericStub* stub,
       grpc::GenericCallbackServerContext* context)
      : hooks_(*hooks),
        context_(*context),
        method_(context->method()),
        on_request_(hooks->on_call(method_)),
        caller_(this),
        server_(this) {
    onward_.set_deadline(context->deadline());
    stub->PrepareBidiStreamingCall(&onward_, method_, {}, &server_);
  }
  grpc::ServerGenericBidiReactor* Start() {
    self_ = shared_from_this();
    // Messages for the server come from outside its reactor, until its stream has ended.
    server_.AddHold();
    server_.StartCall();
    caller_.StartRead(&request_);
    return &caller_;
  }

 private:
  struct Caller final : grpc::ServerGenericBidiReactor {
    explicit Caller(Call* call) : call(call) {}
    void OnReadDone(bool ok) override { call->OnRequest(ok); }
    void OnWriteDone(bool ok) override { call->OnReplied(ok); }
    void OnCancel() override { call->onward_.TryCancel(); }
    // Runs last: the call ends for its caller only after it has ended at the server.
    void OnDone() override { const std::shared_ptr<Call> last = std::move(call->self_); }
    Call* const call;
  };
  struct Server final : grpc::ClientBidiReactor<ByteBuffer, ByteBuffer> {
    explicit Server(Call* call) : call(call) {}
    // The server has taken the call; ps:0 waits for this signal.
    void OnReadInitialMetadataDone(bool ok) override {
      if (ok) call->Taken();
      StartRead(&call->reply_);
    }
    void OnReadDone(bool ok) override { call->OnReply(ok); }
    void OnWriteDone(bool ok) override {
      if (ok) call->caller_.StartRead(&call->request_);
    }
    void OnDone(const grpc::Status& status) override { call->caller_.Finish(status); }
    Call* const call;
  };

  void Taken() {
    for (const auto& [key, value] : onward_.GetServerInitialMetadata()) {
      context_.AddInitialMetadata(std::string(key.data(), key.size()),
                                  std::string(value.data(), value.size()));
    }
    caller_.StartSendInitialMetadata();
  }
  void OnRequest(bool ok) {
    if (ok) {
      return on_request_(&request_, [self = shared_from_this()] {
        MutexLock lock(self->mutex_);
        if (!self->ended_) self->server_.StartWrite(&self->request_);
      });
    }
    MutexLock lock(mutex_);
    if (!ended_) server_.StartWritesDone();
  }
  void OnReply(bool ok) {
    if (ok) {
      hooks_.on_reply(method_, &reply_);
      return caller_.StartWrite(&reply_);
    }
    {
      MutexLock lock(mutex_);
      ended_ = true;
    }
    server_.RemoveHold();
  }
  void OnReplied(bool ok) {
    if (!ok) onward_.TryCancel();
    server_.StartRead(&reply_);
  }

  const GrpcForwarder::Options& hooks_;
  grpc::GenericCallbackServerContext& context_;  // until OnDone()
  const std::string method_;
  const GrpcForwarder::OnRequest on_request_;
  grpc::ClientContext onward_;
  ByteBuffer request_, reply_;
  Caller caller_;
  Server server_;
  std::shared_ptr<Call> self_;
  Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

std::shared_ptr<grpc::Channel> Connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // A killed server is soon back.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

class ForwarderImpl final : public GrpcForwarder, grpc::CallbackGenericService {
 public:
  explicit ForwarderImpl(Options options)
      : options_(std::move(options)), channel_(Connect(options_.server)), stub_(channel_) {
    grpc::ServerBuilder builder;
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 500);
    builder.AddListeningPort(options_.listen, grpc::InsecureServerCredentials(), &port_);
    builder.RegisterCallbackGenericService(this);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) std::abort();
  }
  ~ForwarderImpl() override {
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  std::string address() const override {
    return absl::StrCat(options_.listen.substr(0, options_.listen.rfind(':') + 1), port_);
  }
  const std::shared_ptr<grpc::Channel>& channel() const override { return channel_; }

 private:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    return std::make_shared<Call>(&options_, &stub_, context)->Start();
  }

  const Options options_;
  const std::shared_ptr<grpc::Channel> channel_;
  grpc::GenericStub stub_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

std::unique_ptr<GrpcForwarder> GrpcForwarder::Start(Options options) {
  return std::make_unique<ForwarderImpl>(std::move(options));
}

}  // namespace weir
