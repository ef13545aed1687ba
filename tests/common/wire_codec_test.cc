#include "common/codec/wire_codec.h"

#include <algorithm>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/random.h"
#include "proto/parameter_server.pb.h"

namespace weir {
namespace {

std::string Joined(const std::vector<absl::string_view>& pieces) {
  std::string out;
  for (absl::string_view piece : pieces) out.append(piece.data(), piece.size());
  return out;
}

// Cuts `text` into pieces of random length, some empty.
std::vector<absl::string_view> Cut(const std::string& text, uint64_t seed) {
  RandomStream random(seed, 0);
  std::vector<absl::string_view> pieces;
  for (size_t at = 0; at < text.size();) {
    const size_t length = std::min<size_t>(random.NextBelow(9), text.size() - at);
    pieces.push_back(absl::string_view(text).substr(at, length));
    at += length;
  }
  return pieces;
}

std::string Payload(size_t bytes) {
  std::string payload(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) payload[i] = static_cast<char>(i * 31);
  return payload;
}

v1::ExchangeReply Reply(size_t bytes) {
  v1::ExchangeReply reply;
  reply.set_id(77);
  reply.mutable_push()->set_outcome(v1::REFUSED);
  reply.mutable_push()->set_reason("because");
  v1::PullReply& pull = *reply.mutable_pull();
  pull.set_outcome(v1::OK);
  pull.mutable_version()->set_incarnation(0xfedcba9876543210);
  pull.mutable_version()->set_count(300);
  pull.set_epoch(7);
  for (uint32_t w = 0; w < 5; ++w) {
    pull.add_clocks()->set_worker(w);
    pull.mutable_clocks(w)->set_clock(1000 * w);
  }
  pull.set_elements(bytes / 4);
  reply.set_credit(1);
  reply.set_first(65536);
  reply.set_weights(Payload(bytes));
  return reply;
}

TEST_CASE("What the generated code writes is split, however it is cut") {
  for (size_t bytes : {0, 4, 127, 128, 5000}) {
    const v1::ExchangeReply reply = Reply(bytes);
    const std::string wire = reply.SerializeAsString();
    for (uint64_t seed = 0; seed < 50; ++seed) {
      const std::vector<absl::string_view> pieces = Cut(wire, seed);
      const absl::StatusOr<SplitMessage> split = SplitPayload(pieces);
      REQUIRE(split.ok());
      CHECK(split->payload_bytes == bytes);
      CHECK(Joined(split->payload) == reply.weights());
      v1::ExchangeReply head;
      REQUIRE(head.ParseFromString(split->head));
      CHECK(head.weights().empty());
      head.set_weights(reply.weights());
      CHECK(head.SerializeAsString() == wire);
      // And back.
      CHECK(split->head + PayloadPrefix(bytes) + Joined(split->payload) == wire);
    }
  }
}

TEST_CASE("A request is what the generated code writes, and is split") {
  v1::ExchangeRequest head;
  head.set_id(3);
  head.mutable_push()->set_clock(12);
  head.mutable_push()->set_elements(250);
  head.mutable_pull()->set_clock(13);
  head.set_first(131072);
  const std::string gradient = Payload(1000);
  v1::ExchangeRequest whole = head;
  whole.set_gradient(gradient);
  const std::string wire = whole.SerializeAsString();
  CHECK(head.SerializeAsString() + PayloadPrefix(1000) + gradient == wire);
  const auto split = SplitPayload(Cut(wire, 3));
  REQUIRE(split.ok());
  CHECK(split->head == head.SerializeAsString());
  CHECK(Joined(split->payload) == gradient);
}

TEST_CASE("A payload that is not the last field is left to the generated code") {
  v1::ExchangeReply reply = Reply(40);
  // A field after the payload, as another serializer may write it.
  v1::ExchangeReply later;
  later.set_credit(8);
  const std::string wire = reply.SerializeAsString() + later.SerializeAsString();
  const auto split = SplitPayload({absl::string_view(wire)});
  REQUIRE(split.ok());
  CHECK(split->payload.empty());
  v1::ExchangeReply parsed;
  REQUIRE(parsed.ParseFromString(split->head));
  CHECK(parsed.weights() == reply.weights());
  CHECK(parsed.credit() == 8);
}

TEST_CASE("Cut and damaged messages are refused or parse as the generated code would") {
  const std::string wire = Reply(100).SerializeAsString();
  for (size_t length = 0; length < wire.size(); ++length) {
    const std::string cut = wire.substr(0, length);
    const auto split = SplitPayload({absl::string_view(cut)});
    v1::ExchangeReply whole;
    CHECK(split.ok() == whole.ParseFromString(cut));
  }
  RandomStream random(1, 0);
  for (int i = 0; i < 20000; ++i) {
    std::string damaged = wire;
    damaged[random.NextBelow(static_cast<uint32_t>(damaged.size()))] ^=
        static_cast<char>(1 << random.NextBelow(8));
    const auto split = SplitPayload({absl::string_view(damaged)});
    v1::ExchangeReply whole;
    if (!whole.ParseFromString(damaged)) continue;
    // Groups (wire types 3 and 4) are the one thing that generated code would skip and this codec refuses.
    if (!split.ok()) continue;
    v1::ExchangeReply head;
    REQUIRE(head.ParseFromString(split->head));
    if (!split->payload.empty()) head.set_weights(Joined(split->payload));
    CHECK(head.SerializeAsString() == whole.SerializeAsString());
  }
}

}  // namespace
}  // namespace weir
