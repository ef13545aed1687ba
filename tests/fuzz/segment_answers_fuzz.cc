// What a process that listens as a server sends to a client over the socket for shared memory: a sequence of
// messages, whose first byte says which descriptor comes with the rest (descriptors.h). The first of the
// sequence is none: its bytes say what the client does with its link.
#include <poll.h>
#include <sys/socket.h>

#include <optional>
#include <thread>

#include "client/shared_memory/shared_memory_link.h"
#include "common/net/local_socket.h"
#include "common/net/tcp.h"
#include "tests/common/reserved_address.h"
#include "tests/fuzz/descriptors.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/messages.h"

namespace weir {
namespace {

constexpr uint64_t kSlotBytes = 4096;
// So many fit into a socket that nobody reads.
constexpr size_t kMostMessages = 64;
constexpr size_t kMostCalls = 32;
constexpr std::chrono::seconds kLimit{20};

struct Server {
  // The socket of the next client, to which all these have been sent, and to which nothing more will be.
  UniqueFd Serve(const std::vector<std::string>& messages) const {
    pollfd waiting{listener.get(), POLLIN, 0};
    poll(&waiting, 1, std::chrono::milliseconds(kLimit).count());
    absl::StatusOr<UniqueFd> client = AcceptClient(listener.get());
    FuzzCheck(client.ok(), "a client comes");
    for (const std::string& message : messages) {
      if (message.empty()) continue;
      const UniqueFd descriptor = DescriptorOf(message[0]);
      // The client may have closed the connection.
      if (!SendMessage(client->get(), message.data() + 1, message.size() - 1, descriptor.get()).ok()) break;
    }
    shutdown(client->get(), SHUT_WR);
    return *std::move(client);
  }

  const ReservedAddress reserved;
  const UniqueFd listener =
      ListenLocal(NamesToListenOn(LocalService::kSegments, reserved.get()).at(0), SOCK_SEQPACKET).value();
};

void Use(SharedMemoryLink* link, absl::string_view calls) {
  static const std::shared_ptr<const SharedSegment> further = SharedSegment::Create(kSlotBytes).value();
  for (; !calls.empty(); calls.remove_prefix(1)) {
    switch (calls[0]) {
      case 'n': {
        const std::optional<uint32_t> number = link->NumberOf(further);
        FuzzCheck(!number.has_value() || *number == 1, "a segment has the number under which it was given");
        break;
      }
      case 'r': {
        const std::unique_ptr<MessageRing> ring = link->TakeRing();
        if (ring == nullptr) break;
        std::string message;
        FuzzCheck(!ring->Read(&message).value_or(true), "no message is in a ring of zeros");
        ring->Write({"message", {}});
        break;
      }
      default: {
        const auto segment = static_cast<unsigned char>(calls[0]);
        const absl::StatusOr<const char*> data = link->Map(segment, 0, kSegmentBytes);
        FuzzCheck(!absl::IsNotFound(data.status()), "of a server that is gone nothing can come any more");
        if (!data.ok()) break;
        FuzzCheck((*data)[0] == 0 && (*data)[kSegmentBytes - 1] == 0, "a segment is mapped whole");
        FuzzCheck(absl::IsOutOfRange(link->Map(segment, kSegmentBytes, 1).status()), "and nothing behind it");
      }
    }
  }
}

std::string Message(char descriptor, ServerMessageKind kind, uint32_t segment, uint64_t bytes = 0) {
  ServerMessage message{};
  message.magic = kSegmentMagic;
  message.kind = kind;
  message.segment = segment;
  message.bytes = bytes;
  return descriptor + std::string(reinterpret_cast<const char*>(&message), sizeof message);
}

}  // namespace

// Takes it: the client has a link.
bool ReadInput(absl::string_view input) {
  static const Server& server = *new Server;
  static const std::shared_ptr<DoorbellPage> bells = DoorbellPage::Create().value();
  std::vector<std::string> messages = SplitMessages(input);
  if (messages.empty()) return false;
  const std::string calls = messages[0].substr(0, kMostCalls);
  messages.erase(messages.begin());
  if (messages.size() > kMostMessages) messages.resize(kMostMessages);
  UniqueFd client;
  std::thread serve([&] { client = server.Serve(messages); });
  const absl::StatusOr<std::unique_ptr<SharedMemoryLink>> link = SharedMemoryLink::Connect(
      server.reserved.get(), 1, kSlotBytes, std::chrono::steady_clock::now() + kLimit, bells);
  // From here on all that the server sends is there, so that no call depends on time.
  serve.join();
  if (!link.ok()) return false;
  Use(link->get(), calls);
  return true;
}

std::vector<std::string> Seeds() {
  const std::string accepted = Message('-', ServerMessageKind::kAccepted, 0);
  return {JoinMessages({"\5", accepted}),
          JoinMessages({"\5rnn\6", Message('b', ServerMessageKind::kBells, 0),
                        Message('s', ServerMessageKind::kRing, 0, kSegmentBytes), accepted,
                        Message('s', ServerMessageKind::kSegment, 5, kSegmentBytes),
                        Message('-', ServerMessageKind::kAccepted, 1)}),
          JoinMessages({"\5\5", accepted, Message('-', ServerMessageKind::kRefused, 0)})};
}

std::vector<std::string> Words() {
  return {"WERSHM03",
          std::string("\x01\0\0\0", 4),
          std::string("\x02\0\0\0", 4),
          std::string("\x03\0\0\0", 4),
          std::string("\x04\0\0\0", 4),
          std::string("\x05\0\0\0", 4)};
}

}  // namespace weir
