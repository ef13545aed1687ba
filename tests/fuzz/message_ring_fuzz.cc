// One end of a connection over shared memory whose other end writes anything. The input is a sequence of
// steps, each a byte, which says what the other end claims and what this end does next, and a number of two
// bytes.
#include <algorithm>
#include <cstring>

#include "common/shared_memory/message_ring.h"
#include "tests/fuzz/fuzz_target.h"

namespace weir {
namespace {

constexpr uint64_t kMostBytes = 4096;  // of a message

uint64_t Number(absl::string_view bytes) {
  return static_cast<unsigned char>(bytes[0]) | static_cast<unsigned char>(bytes[1]) << 8;
}

}  // namespace

bool ReadInput(absl::string_view input) {
  static const std::shared_ptr<DoorbellPage> bells = DoorbellPage::Create().value();
  const auto own = std::make_unique<RingArea>(), peer = std::make_unique<RingArea>();
  MessageRing ring(own.get(), peer.get(), bells, kMostBytes, nullptr);
  uint64_t ever_written = 0;
  bool any = false;
  for (; input.size() >= 3; input.remove_prefix(std::min<size_t>(input.size(), 3))) {
    const uint64_t number = Number(input.substr(1));
    switch (input[0]) {
      case 'b': {  // bytes that the other end writes and publishes
        const absl::string_view bytes = input.substr(3, number);
        for (const char c : bytes) peer->bytes[peer->written++ % RingArea::kBytes] = c;
        input.remove_prefix(bytes.size());
        break;
      }
      case 'w':  // a claim to have written, near the truth or far from it
        peer->written += number;
        break;
      case 'W':
        peer->written = ~number;
        break;
      case 'r':  // a claim to have read
        peer->read += number;
        break;
      case 'R':
        peer->read = ~number;
        break;
      case 'e':
        peer->eager = static_cast<uint32_t>(number);
        peer->blocked = static_cast<uint32_t>(number >> 1);
        peer->bell = static_cast<uint32_t>(number << 1);
        break;
      case 's':  // this end sends
        if (ring.flushed()) ring.Write({std::string(number % kMostBytes, 'm'), {}, number % 2 == 0});
        FuzzCheck(own->written >= ever_written, "what was written stays written");
        ever_written = own->written;
        break;
      case 'f':
        if (ring.MayFlush()) ring.Flush();
        break;
      default: {  // this end reads
        std::string message;
        const absl::StatusOr<bool> read = ring.Read(&message);
        if (!read.ok()) return false;  // it ends the connection
        FuzzCheck(message.size() <= kMostBytes, "no message is longer than the limit");
        any = any || *read;
      }
    }
  }
  return any;
}

std::vector<std::string> Seeds() {
  using std::string_literals::operator""s;
  return {"b\x09\0\x05\0\0\0hello"s + "g\0\0"s, "e\1\0s\x10\0s\0\x0f"s + "b\x06\0\x05\0\0\0he"s + "g\0\0"s +
                                                    "b\x03\0llo"s + "g\0\0"s + "r\x10\0"s + "f\0\0"s};
}

std::vector<std::string> Words() {
  using std::string_literals::operator""s;
  return {"g\0\0"s, "s\xff\x0f", "f\0\0"s, "b\x04\0\0\x10\0\0"s, "W\0\0"s, "r\xff\xff"};
}

}  // namespace weir
