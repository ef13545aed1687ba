#include "ps_server/grpc/parameter_server_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/statusor.h"
#include "common/codec/wire_codec.h"
#include "common/protocol/segment_messages.h"
#include "common/rpc/grpc_convert.h"
#include "common/shared_memory/doorbell.h"
#include "common/shared_memory/message_ring.h"

namespace weir {
namespace {

template <typename Hosts, typename Count>
uint64_t Sum(const Hosts& hosts, const Count& count) {
  uint64_t sum = 0;
  for (const auto& host : hosts) sum += count(*host);
  return sum;
}

}  // namespace

// The streams of one loop, and what they share. Only the loop's thread uses it, except for the counters.
struct ParameterServerService::Host {
  ParameterServerService* service = nullptr;
  GrpcEventLoop* loop = nullptr;
  // All fields but `id`.
  ExchangeSession::Options session;
  // Null: no memory is shared, so there are no rings. `bell` is the loop's.
  SharedMemoryServer* rings = nullptr;
  uint32_t bell = 0;
  // Clients say at once what they have released. Otherwise their word may wait in a ring until the next
  // message, which saves the server a wake-up.
  bool wants_releases = false;
  std::set<Stream*> streams;
  // Set when the job is over: the reason, OK if the job is done. Streams end when their open exchanges have
  // been answered.
  std::optional<absl::Status> over;
  std::atomic<uint64_t> open{0}, messages_received{0}, messages_sent{0};
};

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
class ParameterServerService::Stream final : GrpcEventLoop::OperationStarter, SharedWork {
 public:
  // Requests the next call of a client.
  static void Accept(Host* host);
  // Called when host->over has been set.
  void EndJob();
  // host->wants_releases has been set.
  void WantReleases();
  // The shard has revoked readers.
  void DropRevoked();

 private:
  using Operation = GrpcOperation<Stream>;

  explicit Stream(Host* host) : host_(host), stream_(&context_) {}
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
  GrpcAdmission& admission() const { return *host_->service->options_.admission; }
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

  Operation accept_{this, &Stream::OnAccepted};
  Operation read_{this, &Stream::OnRead};
  Operation write_{this, &Stream::OnWritten};
  Operation finish_{this, &Stream::OnFinished};
  // In flight until the call is over, whichever end ended it.
  Operation over_{this, &Stream::OnOver};

  bool input_ended_ = false;
  bool closed_ = false;   // no more operations start
  bool cut_off_ = false;  // this end has cancelled the call
  // The end, once it is decided.
  std::optional<grpc::Status> end_;
};

void ParameterServerService::Stream::Accept(Host* host) {
  if (host->loop->stopping()) return;
  auto* const call = new Stream(host);
  call->context_.AsyncNotifyWhenDone(call->over_.tag());
  GrpcMethods& methods = host->service->service_;
  methods.Accept(methods.IndexOf(kExchangeMethod), &call->context_, &call->stream_, host->loop->queue(),
                 call->accept_.Begin());
}

void ParameterServerService::Stream::OnAccepted(bool ok) {
  if (!ok) {
    delete this;  // the server is shut down
    return;
  }
  over_.Begin();
  host_->loop->CallBegins();
  host_->streams.insert(this);
  ++host_->open;
  host_->service->AcceptNext();
  ExchangeSession::Options options = host_->session;
  options.id = ++host_->service->sessions_;
  const RpcRule& rule = RuleOf(kExchangeMethod);
  std::optional<Identity> caller;
  grpc::Status refused = admission().Admit(context_, rule, &caller);
  if (refused.ok()) {
    options.admit = [this, &rule, caller](const v1::Caller& named, bool pushes) {
      return FromGrpc(admission().AdmitMessage(context_, rule, caller, SpeakerOf(named), pushes),
                      kExchangeMethod);
    };
  }
  session_ = std::make_shared<ExchangeSession>(options, [this] { host_->loop->StartOperationsLater(this); });
  if (refused.ok()) refused = TakeRing();
  if (!refused.ok()) end_ = std::move(refused);
  if (host_->over.has_value()) EndJob();
  host_->loop->StartOperationsLater(this);
}

void ParameterServerService::Stream::OnRead(bool ok) {
  host_->loop->StartOperationsLater(this);
  if (closed_ || end_.has_value()) return;
  if (!ok) {
    // The client has half-closed the stream, or the call is over (OnOver).
    input_ended_ = true;
    session_->EndInput();
    return;
  }
  if (ring_ == nullptr) {
    Receive(ToIncoming(received_));
  } else {
    Receive(absl::InvalidArgumentError("a message in the call, where messages travel over rings"));
  }
  received_.Clear();
}

void ParameterServerService::Stream::Receive(const absl::StatusOr<IncomingMessage>& message) {
  ++host_->messages_received;
  const absl::Status status = message.ok() ? session_->Receive(*message) : message.status();
  if (status.ok()) return;
  session_->End();
  end_ = ToGrpc(status);
}

grpc::Status ParameterServerService::Stream::TakeRing() {
  const auto named = context_.client_metadata().find(kRingsEntry);
  if (named == context_.client_metadata().end()) return grpc::Status::OK;
  if (host_->rings != nullptr) ring_ = host_->rings->TakeRing({named->second.data(), named->second.size()});
  if (ring_ == nullptr) {
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server has no rings under this token any more");
  }
  if (host_->wants_releases) ring_->WantAll();
  ring_->ReadWith(host_->bell);
  host_->loop->Add(this, host_->rings->bells()->Bell(host_->bell));
  return grpc::Status::OK;
}

bool ParameterServerService::Stream::Ready() const {
  return ring_->MayFlush() || (may_read() && ring_->MayRead());
}

void ParameterServerService::Stream::Serve() {
  host_->loop->StartOperationsLater(this);
  if (ring_->MayFlush() && ring_->Flush()) session_->Sent();
  if (!may_read()) return;
  std::string bytes;
  const absl::StatusOr<bool> whole = ring_->Read(&bytes);
  if (!whole.ok()) return Receive(whole.status());
  if (*whole) Receive(ToIncoming(std::move(bytes)));
}

void ParameterServerService::Stream::OnWritten(bool ok) {
  session_->Sent();
  if (!ok) closed_ = true;  // OnOver comes
  host_->loop->StartOperationsLater(this);
}

void ParameterServerService::Stream::OnFinished(bool) { host_->loop->StartOperationsLater(this); }

void ParameterServerService::Stream::OnOver(bool) {
  host_->loop->CallEnds();
  closed_ = true;
  const std::optional<v1::Caller>& caller = session_->caller();
  if (context_.IsCancelled() && !cut_off_ && caller.has_value() && host_->service->options_.on_broken) {
    host_->service->options_.on_broken(*caller);
  }
  session_->End();
  host_->loop->StartOperationsLater(this);
}

void ParameterServerService::Stream::EndJob() {
  session_->EndJob(*host_->over);
  host_->loop->StartOperationsLater(this);
}

void ParameterServerService::Stream::WantReleases() {
  if (ring_ != nullptr) ring_->WantAll();
}

void ParameterServerService::Stream::DropRevoked() {
  if (session_->DropRevoked()) {
    cut_off_ = true;
    context_.TryCancel();
  }
  host_->loop->StartOperationsLater(this);
}

void ParameterServerService::Stream::StartOperations() {
  if (host_->loop->stopping()) closed_ = true;
  if (closed_) {
    if (over_.under_way() || read_.under_way() || write_.under_way() || finish_.under_way()) return;
    if (ring_ != nullptr) host_->loop->Remove(this);
    host_->streams.erase(this);
    --host_->open;
    delete this;
    return;
  }
  Send();
  if (!end_.has_value() && session_->idle()) {
    if (host_->over.has_value()) {
      end_ = grpc::Status(grpc::StatusCode::UNAVAILABLE, "the job is over");
    } else if (input_ended_) {
      end_ = grpc::Status::OK;
    }
  }
  if (end_.has_value() && !writing()) {
    closed_ = true;
    stream_.Finish(*end_, finish_.Begin());
  } else if (!read_.under_way() && may_read()) {
    stream_.Read(&received_, read_.Begin());
  }
}

void ParameterServerService::Stream::Send() {
  OutgoingMessage message;
  while (!writing() && !end_.has_value() && session_->Send(&message)) {
    ++host_->messages_sent;
    if (ring_ == nullptr) {
      stream_.Write(ToByteBuffer(std::move(message)), write_.Begin());
    } else if (ring_->Write(std::move(message))) {
      session_->Sent();
    }
  }
}

// ---- the service

ParameterServerService::ParameterServerService(Options options)
    : options_(std::move(options)),
      arriving_rows_(options_.most_row_bytes),
      asked_rows_(options_.most_row_bytes),
      service_(kService) {}
ParameterServerService::~ParameterServerService() = default;

void ParameterServerService::Register(grpc::ServerBuilder* builder) {
  builder->RegisterService(&service_);
  ExchangeSession::Options session;
  session.shard = options_.shard;
  session.limits = &options_.admission->limits();
  session.arriving_rows = &arriving_rows_;
  session.asked_rows = &asked_rows_;
  session.chunk_elements = static_cast<uint64_t>(ChunkElements(options_.wire.chunk_kib()));
  session.chunks_in_flight = options_.wire.chunks_in_flight();
  for (GrpcEventLoop& loop : *options_.loops) {
    Host& host = *hosts_.emplace_back(std::make_unique<Host>());
    host.service = this;
    host.loop = &loop;
    host.session = session;
    host.session.executor = &loop;
  }
}

void ParameterServerService::Start(SharedMemoryServer* shared_memory) {
  for (size_t i = 0; i < hosts_.size(); ++i) {
    hosts_[i]->session.shared_memory = shared_memory;
    hosts_[i]->rings = shared_memory;
    hosts_[i]->bell = static_cast<uint32_t>(i);
  }
  AcceptNext();
  ServeUnary<v1::ReadRowsRequest, v1::ReadRowsReply>(
      &options_.loops->front(), &service_, options_.admission, RuleOf("weir.v1.ParameterServer/ReadRows"),
      [this](v1::ReadRowsRequest request, auto done) {
        options_.shard->ShowRows(std::move(request), std::move(done));
        return nullptr;
      });
}

void ParameterServerService::AcceptNext() {
  Host* const host = std::min_element(hosts_.begin(), hosts_.end(), [](const auto& a, const auto& b) {
                       return a->open < b->open;
                     })->get();
  host->loop->Post([host] { Stream::Accept(host); });
}

void ParameterServerService::OnEach(const std::function<void(Host&)>& run) {
  for (const auto& host : hosts_) {
    host->loop->Post([run, host = host.get()] { run(*host); });
  }
}

void ParameterServerService::End(const absl::Status& failure) {
  OnEach([failure](Host& host) {
    host.over = failure;
    for (Stream* stream : host.streams) stream->EndJob();
  });
}

void ParameterServerService::DropRevoked() {
  OnEach([](Host& host) {
    for (Stream* stream : host.streams) stream->DropRevoked();
  });
}

void ParameterServerService::WantReleases() {
  if (wants_releases_.exchange(true)) return;
  OnEach([](Host& host) {
    host.wants_releases = true;
    for (Stream* stream : host.streams) stream->WantReleases();
  });
}

uint64_t ParameterServerService::open_streams() const {
  return Sum(hosts_, [](const Host& host) { return host.open.load(); });
}

uint64_t ParameterServerService::messages_received() const {
  return Sum(hosts_, [](const Host& host) { return host.messages_received.load(); });
}

uint64_t ParameterServerService::messages_sent() const {
  return Sum(hosts_, [](const Host& host) { return host.messages_sent.load(); });
}

}  // namespace weir
