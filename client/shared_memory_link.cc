#include "client/shared_memory_link.h"

#include <errno.h>
#include <sys/random.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/local_host.h"
#include "common/local_socket.h"
#include "common/status_macros.h"

namespace weir {

absl::StatusOr<std::unique_ptr<SharedMemoryLink>> SharedMemoryLink::Connect(const Address& address,
                                                                            uint32_t slots,
                                                                            uint64_t slot_bytes,
                                                                            Deadline deadline) {
  WEIR_ASSIGN_OR_RETURN(UniqueFd socket, ConnectLocal(LocalService::kSegments, address, deadline));
  WEIR_ASSIGN_OR_RETURN(std::unique_ptr<SharedSegment> gradients, SharedSegment::Create(slots * slot_bytes));
  ClientHello hello{};
  hello.magic = kSegmentMagic;
  hello.bytes = gradients->size();
  if (getrandom(hello.token.data(), hello.token.size(), 0) != static_cast<ssize_t>(hello.token.size())) {
    return absl::ErrnoToStatus(errno, "no random bytes");
  }
  const absl::Status sent = SendMessage(socket.get(), &hello, sizeof(hello), gradients->fd());
  // A server that has turned us away already has said why.
  if (!sent.ok() && !absl::IsAborted(sent)) return sent;
  ServerMessage answer;
  const absl::StatusOr<UniqueFd> descriptor = ReceiveMessage(socket.get(), &answer, sizeof(answer), deadline);
  if (!descriptor.ok()) {
    return absl::Status(
        descriptor.status().code(),
        absl::StrCat(address.ToString(), " did not take our segment: ", descriptor.status().message()));
  }
  if (answer.magic != kSegmentMagic) {
    return absl::FailedPreconditionError(absl::StrCat(address.ToString(), " speaks another protocol"));
  }
  if (answer.kind != ServerMessageKind::kAccepted) {
    answer.reason[sizeof(answer.reason) - 1] = '\0';
    return absl::FailedPreconditionError(absl::StrCat(address.ToString(), " refused: ", answer.reason));
  }
  return std::unique_ptr<SharedMemoryLink>(
      new SharedMemoryLink(std::move(socket), hello.token, std::move(gradients), slots, slot_bytes));
}

SharedMemoryLink::SharedMemoryLink(UniqueFd socket, SegmentToken token,
                                   std::unique_ptr<SharedSegment> gradients, uint32_t slots,
                                   uint64_t slot_bytes)
    : socket_(std::move(socket)),
      token_(token),
      gradients_(std::move(gradients)),
      slot_bytes_(slot_bytes),
      slots_(slots) {}

absl::StatusOr<const char*> SharedMemoryLink::Map(uint32_t segment, uint64_t offset, uint64_t bytes,
                                                  Deadline deadline) {
  auto found = weights_.find(segment);
  while (found == weights_.end()) {
    const absl::Status received = Receive(deadline);
    if (!received.ok()) {
      return absl::Status(received.code(),
                          absl::StrCat("the server's segment ", segment, ": ", received.message()));
    }
    found = weights_.find(segment);
  }
  return found->second->At(offset, bytes);
}

absl::Status SharedMemoryLink::Alive() {
  while (true) {
    const absl::Status received = Receive(Deadline());
    if (!received.ok()) return absl::IsUnavailable(received) ? absl::OkStatus() : received;
  }
}

absl::Status SharedMemoryLink::Receive(Deadline deadline) {
  ServerMessage message;
  WEIR_ASSIGN_OR_RETURN(UniqueFd descriptor,
                        ReceiveMessage(socket_.get(), &message, sizeof(message), deadline));
  if (message.magic != kSegmentMagic || message.kind != ServerMessageKind::kSegment) {
    return absl::InvalidArgumentError("a message of another protocol");
  }
  if (weights_.count(message.segment) != 0) return absl::InvalidArgumentError("a segment came twice");
  WEIR_ASSIGN_OR_RETURN(weights_[message.segment],
                        SharedSegment::OpenReadOnly(std::move(descriptor), message.bytes));
  return absl::OkStatus();
}

}  // namespace weir
