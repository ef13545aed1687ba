#include "client/shared_memory/shared_memory_link.h"

#include <errno.h>
#include <sys/random.h>

#include <algorithm>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/net/local_socket.h"
#include "common/protocol/limits.h"

namespace weir {

absl::StatusOr<std::unique_ptr<SharedMemoryLink>> SharedMemoryLink::Connect(
    const Address& address, uint32_t slots, uint64_t slot_bytes, Deadline deadline,
    const std::shared_ptr<DoorbellPage>& bells) {
  WEIR_ASSIGN_OR_RETURN(UniqueFd socket, ConnectLocal(LocalService::kSegments, address, deadline));
  WEIR_ASSIGN_OR_RETURN(std::shared_ptr<SharedSegment> gradients,
                        SharedSegment::Create(kRingAreaPages + slots * slot_bytes));
  new (gradients->data()) RingArea;
  SegmentToken token;
  if (getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size())) {
    return absl::ErrnoToStatus(errno, "no random bytes");
  }
  std::unique_ptr<SharedMemoryLink> link(
      new SharedMemoryLink(std::move(socket), token, std::move(gradients), slots, slot_bytes));
  MutexLock lock(link->mutex_);
  absl::Status given;
  if (bells != nullptr) given = link->Send(ClientMessageKind::kBells, 0, 0, bells->fd());
  if (given.ok()) given = link->Give(link->gradients_);
  // A server that has refused us already has said why.
  if (!given.ok() && !absl::IsAborted(given)) return given;
  while (link->taken_ == 0) {
    const absl::Status taken = link->Receive(deadline);
    if (taken.ok()) continue;
    return absl::Status(taken.code(),
                        absl::StrCat(address.ToString(), " did not take our segment: ", taken.message()));
  }
  return link;
}

SharedMemoryLink::SharedMemoryLink(UniqueFd socket, SegmentToken token,
                                   std::shared_ptr<SharedSegment> gradients, uint32_t slots,
                                   uint64_t slot_bytes)
    : socket_(std::move(socket)),
      token_(token),
      gradients_(std::move(gradients)),
      slot_bytes_(slot_bytes),
      slots_(slots) {}

std::unique_ptr<MessageRing> SharedMemoryLink::TakeRing() {
  MutexLock lock(mutex_);
  const ServerRing ring = std::exchange(ring_, {});
  if (ring.segment == nullptr || ring.bells == nullptr) return nullptr;
  auto* const own = reinterpret_cast<RingArea*>(gradients_->data());
  const auto* const peer = reinterpret_cast<const RingArea*>(ring.segment->data());
  using Memory = std::pair<std::shared_ptr<const SharedSegment>, std::shared_ptr<const SharedSegment>>;
  return std::make_unique<MessageRing>(own, peer, ring.bells, kMaxMessageBytes,
                                       std::make_shared<const Memory>(gradients_, ring.segment));
}

absl::Status SharedMemoryLink::Send(ClientMessageKind kind, uint32_t segment, uint64_t bytes,
                                    int descriptor) {
  ClientMessage message{};
  message.magic = kSegmentMagic;
  message.token = token_;
  message.kind = kind;
  message.bytes = bytes;
  message.segment = segment;
  return SendMessage(socket_.get(), &message, sizeof(message), descriptor);
}

absl::Status SharedMemoryLink::Give(std::shared_ptr<const SharedSegment> segment) {
  WEIR_RETURN_IF_ERROR(Send(ClientMessageKind::kSegment, static_cast<uint32_t>(given_.size()),
                            segment->size(), segment->fd()));
  given_.push_back(std::move(segment));
  return absl::OkStatus();
}

std::optional<uint32_t> SharedMemoryLink::NumberOf(const std::shared_ptr<const SharedSegment>& gradients) {
  MutexLock lock(mutex_);
  const auto found = std::find(given_.begin(), given_.end(), gradients);
  if (found == given_.end()) {
    // If the socket is full, the next call tries again. If the server is gone, so is this link's connection.
    if (given_.size() < kMaxClientSegments) Give(gradients).IgnoreError();
    return std::nullopt;
  }
  const auto number = static_cast<uint32_t>(found - given_.begin());
  while (number >= taken_ && Receive(Deadline()).ok()) {
  }
  return number < taken_ ? std::optional<uint32_t>(number) : std::nullopt;
}

absl::StatusOr<const char*> SharedMemoryLink::Map(uint32_t segment, uint64_t offset, uint64_t bytes) {
  MutexLock lock(mutex_);
  auto found = weights_.find(segment);
  while (found == weights_.end()) {
    const absl::Status received = Receive(Deadline());
    if (!received.ok()) {
      const absl::StatusCode code = absl::IsUnavailable(received) ? absl::StatusCode::kNotFound
                                    : absl::IsAborted(received)   ? absl::StatusCode::kUnavailable
                                                                  : received.code();
      return absl::Status(code, absl::StrCat("the server's segment ", segment, ": ", received.message()));
    }
    found = weights_.find(segment);
  }
  return found->second->At(offset, bytes);
}

absl::Status SharedMemoryLink::Receive(Deadline deadline) {
  ServerMessage message;
  WEIR_ASSIGN_OR_RETURN(UniqueFd descriptor,
                        ReceiveMessage(socket_.get(), &message, sizeof(message), deadline));
  if (message.magic != kSegmentMagic) return absl::FailedPreconditionError("it speaks another protocol");
  switch (message.kind) {
    case ServerMessageKind::kAccepted:
      if (message.segment != taken_ || taken_ >= given_.size()) {
        return absl::InvalidArgumentError("it took a segment that was not given");
      }
      ++taken_;
      return absl::OkStatus();
    case ServerMessageKind::kRefused:
      message.reason[sizeof(message.reason) - 1] = '\0';
      return absl::FailedPreconditionError(absl::StrCat("refused: ", message.reason));
    case ServerMessageKind::kSegment: {
      if (weights_.count(message.segment) != 0) return absl::InvalidArgumentError("a segment came twice");
      WEIR_ASSIGN_OR_RETURN(weights_[message.segment],
                            SharedSegment::OpenReadOnly(std::move(descriptor), message.bytes));
      return absl::OkStatus();
    }
    case ServerMessageKind::kBells: {
      WEIR_ASSIGN_OR_RETURN(ring_.bells, DoorbellPage::Open(std::move(descriptor)));
      return absl::OkStatus();
    }
    case ServerMessageKind::kRing: {
      if (message.bytes < sizeof(RingArea)) return absl::InvalidArgumentError("a ring that is too small");
      WEIR_ASSIGN_OR_RETURN(ring_.segment, SharedSegment::OpenReadOnly(std::move(descriptor), message.bytes));
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError("a message of another protocol");
}

}  // namespace weir
