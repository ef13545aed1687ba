#include "client/grpc/grpc_shard_channel.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/call.h"
#include "client/grpc/grpc_channel.h"
#include "client/grpc/grpc_data_stream.h"
#include "client/tensors/wire_options.h"
#include "common/base/status_macros.h"
#include "common/config/address.h"
#include "common/net/local_socket.h"
#include "common/rpc/grpc_completion_loop.h"
#include "common/telemetry/logging.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"

namespace weir {
namespace {

// How long setting up shared memory with a server on this host may take; a new stream waits for it.
constexpr std::chrono::milliseconds kLinkLimit{500};

// How long Connect() waits between two looks at whether anybody still wants the connection.
constexpr std::chrono::milliseconds kGlance{100};

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
  std::shared_ptr<DataStream> stream =
      ring == nullptr
          ? OpenCallStream(poller_, connection_->stub, options_.token, std::move(user), std::move(gone))
          : OpenRingStream(poller_, connection_->stub, options_.token, std::move(ring), memory->token(),
                           std::move(user), std::move(gone));
  return {std::move(stream), std::move(memory),
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
