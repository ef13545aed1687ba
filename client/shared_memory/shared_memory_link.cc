#include "client/shared_memory/shared_memory_link.h"

#include <errno.h>
#include <sys/random.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/net/local_host.h"
#include "common/net/local_socket.h"

namespace weir {

absl::StatusOr<std::unique_ptr<SharedMemoryLink>> SharedMemoryLink::Connect(const Address& address,
                                                                            uint32_t slots,
                                                                            uint64_t slot_bytes,
                                                                            Deadline deadline) {
  WEIR_ASSIGN_OR_RETURN(UniqueFd socket, ConnectLocal(LocalService::kSegments, address, deadline));
  WEIR_ASSIGN_OR_RETURN(std::shared_ptr<SharedSegment> gradients, SharedSegment::Create(slots * slot_bytes));
  SegmentToken token;
  if (getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size())) {
    return absl::ErrnoToStatus(errno, "no random bytes");
  }
  std::unique_ptr<SharedMemoryLink> link(
      new SharedMemoryLink(std::move(socket), token, std::move(gradients), slots, slot_bytes));
  MutexLock lock(link->mutex_);
  const absl::Status given = link->Give(link->gradients_);
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

absl::Status SharedMemoryLink::Give(std::shared_ptr<const SharedSegment> segment) {
  ClientMessage message{};
  message.magic = kSegmentMagic;
  message.token = token_;
  message.bytes = segment->size();
  message.segment = static_cast<uint32_t>(given_.size());
  WEIR_RETURN_IF_ERROR(SendMessage(socket_.get(), &message, sizeof(message), segment->fd()));
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

absl::StatusOr<const char*> SharedMemoryLink::Map(uint32_t segment, uint64_t offset, uint64_t bytes,
                                                  Deadline deadline) {
  MutexLock lock(mutex_);
  auto found = weights_.find(segment);
  while (found == weights_.end()) {
    const absl::Status received = Receive(deadline);
    if (!received.ok()) {
      const absl::StatusCode code =
          absl::IsAborted(received) ? absl::StatusCode::kUnavailable : received.code();
      return absl::Status(code, absl::StrCat("the server's segment ", segment, ": ", received.message()));
    }
    found = weights_.find(segment);
  }
  return found->second->At(offset, bytes);
}

absl::Status SharedMemoryLink::Alive() {
  MutexLock lock(mutex_);
  while (true) {
    const absl::Status received = Receive(Deadline());
    if (!received.ok()) return absl::IsUnavailable(received) ? absl::OkStatus() : received;
  }
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
    case ServerMessageKind::kSegment:
      if (weights_.count(message.segment) != 0) return absl::InvalidArgumentError("a segment came twice");
      WEIR_ASSIGN_OR_RETURN(weights_[message.segment],
                            SharedSegment::OpenReadOnly(std::move(descriptor), message.bytes));
      return absl::OkStatus();
  }
  return absl::InvalidArgumentError("a message of another protocol");
}

}  // namespace weir
