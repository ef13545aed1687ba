#include "client/grpc/grpc_shard_channel.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/call/call_group.h"
#include "client/grpc/grpc_channel.h"
#include "client/grpc/grpc_ring_stream.h"
#include "client/shared_memory/shared_memory_link.h"
#include "client/tensors/wire_options.h"
#include "common/base/status_macros.h"
#include "common/config/address.h"
#include "common/net/local_socket.h"
#include "common/protocol/segment_messages.h"
#include "common/rpc/grpc_completion_loop.h"
#include "common/rpc/grpc_convert.h"
#include "common/rpc/grpc_credentials.h"
#include "common/telemetry/logging.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"

namespace weir {
namespace {

// How long setting up shared memory with a server on this host may take; a new stream waits for it.
constexpr std::chrono::milliseconds kLinkLimit{500};

// How long Connect() waits between two looks at whether anybody still wants the connection.
constexpr std::chrono::milliseconds kGlance{100};

// The stream's user holds it, and it holds itself until it has ended.
class GrpcDataStream final : public DataStream, public std::enable_shared_from_this<GrpcDataStream> {
 public:
  GrpcDataStream(GrpcPoller& poller, std::shared_ptr<User> user, std::function<void()> gone)
      : poller_(poller), user_(std::move(user)), gone_(std::move(gone)) {}

  void Start(grpc::GenericStub& stub, const JobToken& token) {
    // The call begins with the first message, and travels together with it.
    context_.set_initial_metadata_corked(true);
    SetToken(token, &context_);
    rpc_ = stub.PrepareCall(&context_, absl::StrCat("/", kExchangeMethod), poller_.queue());
    rpc_->StartCall(nullptr);
    self_ = shared_from_this();
  }

  bool Write(OutgoingMessage message) override {
    ++operations_;
    rpc_->Write(ToByteBuffer(std::move(message)), static_cast<GrpcEvent*>(&written_));
    return false;
  }

  void Read(bool relaxed) override {
    ++operations_;
    const auto read = [this] { rpc_->Read(&message_, static_cast<GrpcEvent*>(&read_)); };
    if (!relaxed) return read();
    // The read sends a window update, which need not hold up other work.
    poller_.Post(read);
  }

  void Cancel() override { context_.TryCancel(); }

 private:
  struct Event final : GrpcEvent {
    using Handler = void (GrpcDataStream::*)(bool ok);
    Event(GrpcDataStream& stream, Handler handler) : stream(stream), handler(handler) {}
    void OnEvent(bool ok) override { stream.Handle(handler, ok); }
    GrpcDataStream& stream;
    const Handler handler;
  };

  void Handle(Event::Handler handler, bool ok) {
    (this->*handler)(ok);
    if (--operations_ > 0) return;
    // The stream is released first: a thread that waits for `gone` may destroy the channel, which the stream
    // may be the last to hold.
    const std::function<void()> gone = std::move(gone_);
    user_ = nullptr;
    self_ = nullptr;
    gone();
  }

  void OnWritten(bool ok) {
    // Not ok: the stream has ended, which OnRead() reports. OnRead() may have reported the end before the
    // completion of a message that had left.
    if (ok && !ended_) user_->OnWritten();
  }

  void OnRead(bool ok) {
    absl::StatusOr<IncomingMessage> message;
    if (ok) message = ToIncoming(message_);
    message_.Clear();
    if (ok && message.ok()) return user_->OnMessage(*std::move(message));
    if (ok) {
      failure_ = message.status();
      context_.TryCancel();
    }
    rpc_->Finish(&status_, static_cast<GrpcEvent*>(&finished_));
  }

  void OnFinished(bool /*ok*/) {
    ended_ = true;
    user_->OnEnd(failure_.ok() ? FromGrpc(status_, kExchangeMethod) : failure_);
  }

  GrpcPoller& poller_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> rpc_;
  Event written_{*this, &GrpcDataStream::OnWritten};
  Event read_{*this, &GrpcDataStream::OnRead};
  Event finished_{*this, &GrpcDataStream::OnFinished};
  // Those under way, and the last one, Finish(), from the beginning on: a user may take its time to read.
  std::atomic<int> operations_ = 1;

  // Used on the polling thread.
  std::shared_ptr<User> user_;
  std::function<void()> gone_;
  std::shared_ptr<GrpcDataStream> self_;
  grpc::ByteBuffer message_;
  absl::Status failure_;
  grpc::Status status_;
  bool ended_ = false;
};

}  // namespace

struct GrpcShardChannel::Connection {
  explicit Connection(std::shared_ptr<grpc::Channel> c) : channel(std::move(c)), stub(channel) {}

  const std::shared_ptr<grpc::Channel> channel;
  // Sends bytes, not messages, so that tensors travel in slices of their own memory.
  grpc::GenericStub stub;
};

GrpcShardChannel::GrpcShardChannel(Options options, GrpcPoller& poller)
    : options_(std::move(options)), poller_(poller), home_(options_.address), address_(home_) {}
GrpcShardChannel::~GrpcShardChannel() = default;

absl::StatusOr<std::shared_ptr<grpc::Channel>> GrpcShardChannel::MakeData(
    const std::string& address, std::optional<std::chrono::nanoseconds> attempt) const {
  return MakeDataChannel(options_.index, address, *options_.credentials, options_.server_wait, attempt,
                         options_.wire, options_.bytes);
}

std::string GrpcShardChannel::NameOf(const std::string& address) const {
  return absl::StrCat("ps:", options_.index, " at ", address);
}

std::string GrpcShardChannel::name() const {
  MutexLock lock(mutex_);
  return NameOf(address_);
}

absl::Status GrpcShardChannel::Connect(std::chrono::steady_clock::time_point deadline,
                                       const std::string& otherwise,
                                       const std::function<absl::Status()>& alive) {
  const std::string missing = name();
  std::chrono::nanoseconds attempt = kFirstAttempt;
  for (bool own = true;;
       own = !own, attempt = std::min<std::chrono::nanoseconds>(2 * attempt, kLongestAttempt)) {
    std::string at;
    {
      MutexLock lock(mutex_);
      const bool moved = address_ != home_;
      at = own || moved || otherwise.empty() ? address_ : otherwise;
    }
    WEIR_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel, MakeData(at, attempt));
    // Each attempt has a fresh channel: on one channel, gRPC would look up a name that does not resolve yet
    // less and less often.
    const auto end = std::min(deadline, std::chrono::steady_clock::now() + attempt);
    do {
      WEIR_RETURN_IF_ERROR(alive());
      const auto left = std::min<std::chrono::nanoseconds>(end - std::chrono::steady_clock::now(), kGlance);
      if (channel->WaitForConnected(std::chrono::system_clock::now() + left)) {
        MutexLock lock(mutex_);
        if (address_ == home_) home_ = address_ = at;
        if (address_ == at) connection_ = std::make_unique<Connection>(channel);
        return absl::OkStatus();
      }
    } while (std::chrono::steady_clock::now() < end);
    if (end == deadline) return absl::UnavailableError(absl::StrCat(missing, " could not be reached"));
  }
}

bool GrpcShardChannel::MoveTo(const std::string& address) {
  MutexLock lock(mutex_);
  const std::string& to = address.empty() ? home_ : address;
  if (to == address_) return false;
  LogInfo("ps:", options_.index, " is at ", to, " now, and not at ", address_);
  address_ = to;
  connection_ = nullptr;
  return true;
}

ShardChannel::Opened GrpcShardChannel::Open(std::shared_ptr<DataStream::User> user,
                                            std::function<void()> gone) {
  MutexLock lock(mutex_);
  // A name may stand for another machine by now, and only servers on this machine have Unix sockets to
  // connect to.
  if (connection_ == nullptr || connection_->channel->GetState(false) != GRPC_CHANNEL_READY) {
    auto made = MakeData(address_, std::nullopt);
    // An error is unlikely, because such a channel could be made before.
    if (!made.ok()) LogWarning(NameOf(address_), ": ", made.status().message());
    connection_ = std::make_unique<Connection>(
        made.ok() ? *std::move(made)
                  : MakeChannel(options_.index, address_, *options_.credentials, options_.server_wait));
  }
  std::unique_ptr<SharedMemoryLink> memory = ShareMemory();
  std::unique_ptr<MessageRing> ring = memory == nullptr ? nullptr : memory->TakeRing();
  std::shared_ptr<DataStream> opened;
  if (ring != nullptr) {
    const auto stream =
        std::make_shared<GrpcRingStream>(poller_, std::move(ring), std::move(user), std::move(gone));
    stream->Start(connection_->stub, options_.token, memory->token());
    opened = stream;
  } else {
    const auto stream = std::make_shared<GrpcDataStream>(poller_, std::move(user), std::move(gone));
    stream->Start(connection_->stub, options_.token);
    opened = stream;
  }
  return {std::move(opened), std::move(memory),
          [this, name = NameOf(address_)] { NoSharedMemory(name, "the server has none to give"); }};
}

std::unique_ptr<SharedMemoryLink> GrpcShardChannel::ShareMemory() const {
  if (!WireOptions::From(options_.wire).shared_memory) return nullptr;
  const absl::StatusOr<Address> server = ParseAddress(address_);
  if (!server.ok() || !IsThisHost(*server)) {
    NoSharedMemory(NameOf(address_), "it is on another host");
    return nullptr;
  }
  // No chunk is larger than all that an exchange brings, so workers of a small model take little memory.
  constexpr uint64_t kLine = 64;
  const uint64_t slot_bytes = std::min(uint64_t{options_.wire.chunk_kib()} << 10,
                                       (static_cast<uint64_t>(options_.bytes) / kLine + 1) * kLine);
  // Without doorbells there are no rings, and the messages travel over gRPC.
  const absl::StatusOr<std::shared_ptr<DoorbellPage>> bells = poller_.bells();
  absl::StatusOr<std::unique_ptr<SharedMemoryLink>> link =
      SharedMemoryLink::Connect(*server, options_.wire.chunks_in_flight(), slot_bytes,
                                std::chrono::steady_clock::now() + kLinkLimit, bells.ok() ? *bells : nullptr);
  if (!link.ok()) {
    NoSharedMemory(NameOf(address_), link.status().message());
    return nullptr;
  }
  return *std::move(link);
}

void GrpcShardChannel::NoSharedMemory(const std::string& name, absl::string_view why) const {
  if (options_.wire.transport() == v1::WireConfig::TRANSPORT_SHARED_MEMORY) {
    LogWarning("no shared memory with ", name, ", chunks travel over its socket: ", std::string(why));
  }
}

}  // namespace weir
