#include "ps_server/shared_memory/shared_memory_server.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/net/local_socket.h"
#include "common/net/tcp.h"
#include "common/protocol/limits.h"
#include "common/threads/thread.h"

namespace weir {
namespace {

using std::chrono::steady_clock;

// How long the thread serves only its known clients when no file descriptor is left for another one.
constexpr int kExhaustedWaitMs = 100;

ServerMessage Message(ServerMessageKind kind) {
  ServerMessage message{};
  message.magic = kSegmentMagic;
  message.kind = kind;
  return message;
}

// The caller then closes the socket. A client that cannot read the message falls back to other transports
// anyway.
void Refuse(int socket, absl::string_view reason) {
  ServerMessage message = Message(ServerMessageKind::kRefused);
  memcpy(message.reason, reason.data(), std::min(reason.size(), sizeof(message.reason) - 1));
  SendMessage(socket, &message, sizeof(message)).IgnoreError();
}

void Wake(const UniqueFd& eventfd) { eventfd_write(eventfd.get(), 1); }

std::optional<SegmentToken> ToToken(absl::string_view bytes) {
  SegmentToken token;
  if (bytes.size() != token.size()) return std::nullopt;
  std::copy(bytes.begin(), bytes.end(), token.begin());
  return token;
}

}  // namespace

absl::StatusOr<const char*> ReceivedSegments::At(uint32_t segment, uint64_t offset, uint64_t bytes) const {
  MutexLock lock(mutex_);
  if (segment >= segments_.size()) {
    return absl::NotFoundError(
        absl::StrCat("segment ", segment, " of a client that has given ", segments_.size()));
  }
  return segments_[segment]->At(offset, bytes);
}

absl::Status ReceivedSegments::Add(uint32_t segment, std::unique_ptr<const SharedSegment> memory) {
  MutexLock lock(mutex_);
  if (segment != segments_.size() || segment >= kMaxClientSegments) {
    return absl::FailedPreconditionError(absl::StrCat("segment ", segment, " where ", segments_.size(),
                                                      " comes next, of at most ", kMaxClientSegments));
  }
  segments_.push_back(std::move(memory));
  return absl::OkStatus();
}

struct SharedMemoryServer::Client {
  UniqueFd socket;
  steady_clock::time_point hello_deadline;
  std::optional<SegmentToken> token;    // set by its first segment
  std::shared_ptr<DoorbellPage> bells;  // null: it wants no rings
  uint32_t next_segment = 0;            // lower numbers have been sent
  bool full = false;                    // its socket's buffer is full
};

struct SharedMemoryServer::Weights {
  struct Segment {
    uint32_t number;
    std::shared_ptr<SharedSegment> memory;
  };
  Mutex mutex;
  uint32_t next_number ABSL_GUARDED_BY(mutex) = 1;
  std::map<uint32_t, std::shared_ptr<SharedSegment>> by_number ABSL_GUARDED_BY(mutex);
  std::map<const char*, Segment> by_address ABSL_GUARDED_BY(mutex);
};

absl::StatusOr<std::unique_ptr<SharedMemoryServer>> SharedMemoryServer::Start(const Address& bound,
                                                                              Options options) {
  WEIR_ASSIGN_OR_RETURN(std::vector<UniqueFd> listeners, ListenLocal(LocalService::kSegments, bound));
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return absl::ErrnoToStatus(errno, "cannot make an eventfd");
  std::unique_ptr<SharedMemoryServer> server(
      new SharedMemoryServer(options, std::move(listeners), std::move(wake)));
  WEIR_ASSIGN_OR_RETURN(server->thread_,
                        MakeThread("share memory with workers", [to = server.get()] { to->Run(); }));
  return server;
}

SharedMemoryServer::SharedMemoryServer(Options options, std::vector<UniqueFd> listeners, UniqueFd wake)
    : options_(options),
      listeners_(std::move(listeners)),
      wake_(std::move(wake)),
      weights_(std::make_shared<Weights>()) {}

SharedMemoryServer::~SharedMemoryServer() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  Wake(wake_);
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<float> SharedMemoryServer::Allocate(size_t elements) {
  absl::StatusOr<std::unique_ptr<SharedSegment>> made =
      SharedSegment::Create(std::max<size_t>(elements, 1) * sizeof(float));
  if (!made.ok()) return nullptr;
  const std::shared_ptr<SharedSegment> memory = *std::move(made);
  uint32_t number;
  {
    MutexLock lock(weights_->mutex);
    number = weights_->next_number++;
    weights_->by_number[number] = memory;
    weights_->by_address[memory->data()] = {number, memory};
  }
  Wake(wake_);
  return std::shared_ptr<float>(reinterpret_cast<float*>(memory->data()),
                                [weights = weights_, number, memory](float*) {
                                  MutexLock lock(weights->mutex);
                                  weights->by_number.erase(number);
                                  weights->by_address.erase(memory->data());
                                });
}

std::optional<SharedMemoryServer::Place> SharedMemoryServer::Find(const void* data) const {
  const char* const at = static_cast<const char*>(data);
  MutexLock lock(weights_->mutex);
  auto above = weights_->by_address.upper_bound(at);
  if (above == weights_->by_address.begin()) return std::nullopt;
  const auto& [start, segment] = *std::prev(above);
  const uint64_t offset = static_cast<uint64_t>(at - start);
  if (offset >= segment.memory->size()) return std::nullopt;
  return Place{segment.number, offset};
}

std::shared_ptr<const ClientSegments> SharedMemoryServer::Claim(absl::string_view token) const {
  const std::optional<SegmentToken> key = ToToken(token);
  if (!key.has_value()) return nullptr;
  MutexLock lock(mutex_);
  const auto found = by_token_.find(*key);
  return found == by_token_.end() ? nullptr : found->second.segments;
}

void SharedMemoryServer::KeepFor(absl::string_view token, std::vector<std::shared_ptr<const void>> memory) {
  const std::optional<SegmentToken> key = ToToken(token);
  if (!key.has_value()) return;
  MutexLock lock(mutex_);
  const auto found = by_token_.find(*key);
  if (found == by_token_.end()) return;
  std::vector<std::shared_ptr<const void>>& kept = found->second.kept;
  kept.insert(kept.end(), std::make_move_iterator(memory.begin()), std::make_move_iterator(memory.end()));
}

void SharedMemoryServer::Run() {
  std::vector<pollfd> entries;
  while (true) {
    // Order: the wake-up, the clients, the listeners.
    entries.assign(1, {wake_.get(), POLLIN, 0});
    for (const auto& client : clients_) {
      entries.push_back(
          {client->socket.get(), static_cast<short>(client->full ? POLLIN | POLLOUT : POLLIN), 0});
    }
    const size_t polled = clients_.size();
    if (accepting_) {
      for (const UniqueFd& listener : listeners_) entries.push_back({listener.get(), POLLIN, 0});
    }
    poll(entries.data(), entries.size(), PollTimeoutMs());
    accepting_ = true;
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
    }
    const bool woken = entries[0].revents != 0;
    if (woken) {
      eventfd_t count;
      eventfd_read(wake_.get(), &count);
    }
    const auto now = steady_clock::now();
    for (size_t i = 0; i < polled; ++i) {
      Client& client = *clients_[i];
      bool stays = Handle(client, entries[i + 1].revents);
      if (stays && woken && client.token.has_value()) stays = SendSegments(client);
      if (!client.token.has_value() && now >= client.hello_deadline) stays = false;
      if (!stays) Drop(client);
    }
    for (size_t i = polled + 1; i < entries.size(); ++i) {
      if (entries[i].revents != 0) Accept(entries[i].fd);
    }
    clients_.erase(std::remove_if(clients_.begin(), clients_.end(),
                                  [](const auto& client) { return !client->socket.valid(); }),
                   clients_.end());
  }
}

int SharedMemoryServer::PollTimeoutMs() const {
  int timeout = accepting_ ? -1 : kExhaustedWaitMs;
  const auto now = steady_clock::now();
  for (const auto& client : clients_) {
    if (client->token.has_value()) continue;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(client->hello_deadline - now);
    const int ms = static_cast<int>(std::max<int64_t>(left.count(), 0));
    timeout = timeout < 0 ? ms : std::min(timeout, ms);
  }
  return timeout;
}

void SharedMemoryServer::Accept(int listener) {
  absl::StatusOr<UniqueFd> socket = AcceptClient(listener);
  if (!socket.ok()) {
    accepting_ = !absl::IsResourceExhausted(socket.status());
    return;
  }
  const absl::Status peer = CheckPeer(socket->get());
  if (!peer.ok()) return Refuse(socket->get(), peer.message());
  if (clients_.size() >= options_.max_clients) {
    return Refuse(socket->get(), absl::StrCat("the server has ", options_.max_clients, " clients already"));
  }
  auto client = std::make_unique<Client>();
  client->socket = *std::move(socket);
  client->hello_deadline = steady_clock::now() + options_.hello_limit;
  clients_.push_back(std::move(client));
}

bool SharedMemoryServer::Handle(Client& client, short events) {
  if (events == 0) return true;
  if ((events & ~POLLOUT) != 0 && !TakeMessage(client)) return false;
  return (events & POLLOUT) == 0 || SendSegments(client);
}

bool SharedMemoryServer::TakeMessage(Client& client) {
  ClientMessage given;
  absl::StatusOr<UniqueFd> descriptor = ReceiveMessage(client.socket.get(), &given, sizeof(given));
  if (absl::IsUnavailable(descriptor.status())) return true;
  if (absl::IsAborted(descriptor.status())) return false;
  const auto refuse = [&](absl::string_view reason) {
    Refuse(client.socket.get(), reason);
    return false;
  };
  if (!descriptor.ok()) return refuse(descriptor.status().message());
  if (given.magic != kSegmentMagic) return refuse("a message of another protocol");
  if (given.kind == ClientMessageKind::kBells) {
    absl::StatusOr<std::shared_ptr<DoorbellPage>> bells = DoorbellPage::Open(*std::move(descriptor));
    if (!bells.ok()) return refuse(bells.status().message());
    client.bells = *std::move(bells);
    return true;
  }
  if (given.kind != ClientMessageKind::kSegment) return refuse("a message of another protocol");
  absl::StatusOr<std::unique_ptr<const SharedSegment>> segment =
      SharedSegment::OpenReadOnly(*std::move(descriptor), given.bytes);
  if (!segment.ok()) return refuse(segment.status().message());
  const bool first = !client.token.has_value();
  std::shared_ptr<ReceivedSegments> segments;
  {
    MutexLock lock(mutex_);
    if (first) {
      segments = std::make_shared<ReceivedSegments>();
      if (!by_token_.emplace(given.token, Known{segments, nullptr, {}}).second) {
        return refuse("another client has chosen the same token");
      }
      client.token = given.token;
    } else {
      segments = by_token_.at(*client.token).segments;
    }
  }
  const absl::Status added = segments->Add(given.segment, *std::move(segment));
  if (!added.ok()) return refuse(added.message());
  if (first && client.bells != nullptr && options_.bells != nullptr) {
    absl::StatusOr<std::unique_ptr<MessageRing>> ring = MakeRing(client, segments);
    if (!ring.ok()) return refuse(ring.status().message());
    MutexLock lock(mutex_);
    by_token_.at(*client.token).ring = *std::move(ring);
  }
  ServerMessage accepted = Message(ServerMessageKind::kAccepted);
  accepted.segment = given.segment;
  return SendMessage(client.socket.get(), &accepted, sizeof(accepted)).ok() &&
         (!first || SendSegments(client));
}

absl::StatusOr<std::unique_ptr<MessageRing>> SharedMemoryServer::MakeRing(
    Client& client, std::shared_ptr<const ReceivedSegments> segments) {
  WEIR_ASSIGN_OR_RETURN(const char* const peer, segments->At(0, 0, sizeof(RingArea)));
  WEIR_ASSIGN_OR_RETURN(const std::shared_ptr<SharedSegment> own, SharedSegment::Create(sizeof(RingArea)));
  auto* const area = new (own->data()) RingArea;
  ServerMessage message = Message(ServerMessageKind::kBells);
  WEIR_RETURN_IF_ERROR(SendMessage(client.socket.get(), &message, sizeof(message), options_.bells->fd()));
  message = Message(ServerMessageKind::kRing);
  message.bytes = own->size();
  WEIR_RETURN_IF_ERROR(SendMessage(client.socket.get(), &message, sizeof(message), own->fd()));
  using Memory = std::pair<std::shared_ptr<const SharedSegment>, std::shared_ptr<const ReceivedSegments>>;
  return std::make_unique<MessageRing>(area, reinterpret_cast<const RingArea*>(peer), client.bells,
                                       kMaxMessageBytes,
                                       std::make_shared<const Memory>(own, std::move(segments)));
}

std::unique_ptr<MessageRing> SharedMemoryServer::TakeRing(absl::string_view token) {
  const std::optional<SegmentToken> key = ToToken(token);
  if (!key.has_value()) return nullptr;
  MutexLock lock(mutex_);
  const auto found = by_token_.find(*key);
  return found == by_token_.end() ? nullptr : std::move(found->second.ring);
}

bool SharedMemoryServer::SendSegments(Client& client) {
  client.full = false;
  while (true) {
    ServerMessage message = Message(ServerMessageKind::kSegment);
    std::shared_ptr<const SharedSegment> memory;
    {
      MutexLock lock(weights_->mutex);
      const auto next = weights_->by_number.lower_bound(client.next_segment);
      if (next == weights_->by_number.end()) return true;
      message.segment = next->first;
      memory = next->second;
    }
    message.bytes = memory->size();
    const absl::Status sent = SendMessage(client.socket.get(), &message, sizeof(message), memory->fd());
    client.full = absl::IsUnavailable(sent);
    if (!sent.ok()) return client.full;
    client.next_segment = message.segment + 1;
  }
}

void SharedMemoryServer::Drop(Client& client) {
  client.socket.Close();
  if (!client.token.has_value()) return;
  // Declared before the lock, because releasing the memory may call a function of its owner.
  Known known;
  MutexLock lock(mutex_);
  const auto found = by_token_.find(*client.token);
  known = std::move(found->second);
  by_token_.erase(found);
}

}  // namespace weir
