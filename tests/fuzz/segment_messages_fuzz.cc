// What a process on this machine sends to the server's socket for shared memory: a sequence of messages,
// whose first byte says which descriptor comes with the rest (descriptors.h).
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "common/net/local_socket.h"
#include "ps_server/shared_memory/shared_memory_server.h"
#include "tests/common/reserved_address.h"
#include "tests/fuzz/descriptors.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/messages.h"

namespace weir {
namespace {

struct Server {
  Server() : bells(DoorbellPage::Create().value()) {
    SharedMemoryServer::Options options;
    options.bells = bells;
    server = SharedMemoryServer::Start(reserved.get(), options).value();
  }
  ReservedAddress reserved;
  std::shared_ptr<DoorbellPage> bells;
  std::unique_ptr<SharedMemoryServer> server;
};

std::string Message(char descriptor, ClientMessageKind kind, uint32_t segment) {
  ClientMessage message{};
  message.magic = kSegmentMagic;
  message.token = {'t'};
  message.bytes = kind == ClientMessageKind::kSegment ? kSegmentBytes : 0;
  message.segment = segment;
  message.kind = kind;
  return descriptor + std::string(reinterpret_cast<const char*>(&message), sizeof message);
}

}  // namespace

// Takes it: the server has accepted a segment.
bool ReadInput(absl::string_view input) {
  static Server& server = *new Server;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  const absl::StatusOr<UniqueFd> socket =
      ConnectLocal(LocalService::kSegments, server.reserved.get(), deadline);
  FuzzCheck(socket.ok(), "the server still listens");
  for (const std::string& message : SplitMessages(input)) {
    if (message.empty()) continue;
    const UniqueFd descriptor = DescriptorOf(message[0]);
    // The server may have closed the connection.
    if (!SendMessage(socket->get(), message.data() + 1, message.size() - 1, descriptor.get()).ok()) break;
  }
  shutdown(socket->get(), SHUT_WR);
  bool accepted = false;
  while (true) {
    ServerMessage answer;
    const absl::StatusOr<UniqueFd> got = ReceiveMessage(socket->get(), &answer, sizeof answer, deadline);
    FuzzCheck(!absl::IsUnavailable(got.status()), "the server answers or ends the connection");
    if (!got.ok()) return accepted;
    FuzzCheck(answer.magic == kSegmentMagic, "the server keeps to its protocol");
    accepted = accepted || answer.kind == ServerMessageKind::kAccepted;
  }
}

std::vector<std::string> Seeds() {
  const std::string first = Message('s', ClientMessageKind::kSegment, 0),
                    second = Message('s', ClientMessageKind::kSegment, 1);
  return {JoinMessages({first, second}),
          JoinMessages({Message('b', ClientMessageKind::kBells, 0), first, second})};
}

std::vector<std::string> Words() {
  return {"WERSHM03", std::string("\x01\0\0\0", 4), std::string("\x02\0\0\0", 4)};
}

}  // namespace weir
