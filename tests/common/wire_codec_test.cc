#include "common/wire_codec.h"

#include <algorithm>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/random.h"
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

v1::PullReply Reply(size_t bytes) {
  v1::PullReply reply;
  reply.set_outcome(v1::OK);
  reply.mutable_version()->set_incarnation(0xfedcba9876543210);
  reply.mutable_version()->set_count(300);
  reply.set_epoch(7);
  for (uint32_t w = 0; w < 5; ++w) {
    reply.add_clocks()->set_worker(w);
    reply.mutable_clocks(w)->set_clock(1000 * w);
  }
  reply.set_elements(bytes / 4);
  std::string payload(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) payload[i] = static_cast<char>(i * 31);
  reply.set_weights(payload);
  return reply;
}

TEST_CASE("What the generated code writes is split, however it is cut") {
  for (size_t bytes : {0, 4, 127, 128, 5000}) {
    const v1::PullReply reply = Reply(bytes);
    const std::string wire = reply.SerializeAsString();
    for (uint64_t seed = 0; seed < 50; ++seed) {
      const std::vector<absl::string_view> pieces = Cut(wire, seed);
      const absl::StatusOr<SplitMessage> split = SplitPayload(pieces);
      REQUIRE(split.ok());
      CHECK(split->payload_bytes == bytes);
      CHECK(Joined(split->payload) == reply.weights());
      v1::PullReply head;
      REQUIRE(head.ParseFromString(split->head));
      CHECK(head.weights().empty());
      head.set_weights(reply.weights());
      CHECK(head.SerializeAsString() == wire);
      // And back.
      CHECK(split->head + PayloadPrefix(bytes) + Joined(split->payload) == wire);
    }
  }
}

TEST_CASE("An exchange's replies are split") {
  v1::PushPullReply exchange;
  *exchange.mutable_pull() = Reply(1000);
  std::string wire = exchange.SerializeAsString();
  auto split = SplitExchange(Cut(wire, 3));
  REQUIRE(split.ok());
  CHECK(split->is_pull);
  CHECK(Joined(split->message.payload) == exchange.pull().weights());
  const std::string inner = split->message.head + PayloadPrefix(1000) + exchange.pull().weights();
  CHECK(NestedPrefix(2, inner.size()) + inner == wire);

  exchange.mutable_push()->set_outcome(v1::REFUSED);
  exchange.mutable_push()->set_reason("because");
  split = SplitExchange(Cut(exchange.SerializeAsString(), 4));
  REQUIRE(split.ok());
  CHECK_FALSE(split->is_pull);
  v1::PushReply push;
  REQUIRE(push.ParseFromString(split->message.head));
  CHECK(push.reason() == "because");
}

TEST_CASE("A payload that is not the last field is left to the generated code") {
  v1::PullReply reply = Reply(40);
  // A later field after the payload, as another serializer may write it.
  v1::PullReply later;
  later.set_epoch(8);
  const std::string wire = reply.SerializeAsString() + later.SerializeAsString();
  const auto split = SplitPayload({absl::string_view(wire)});
  REQUIRE(split.ok());
  CHECK(split->payload.empty());
  v1::PullReply parsed;
  REQUIRE(parsed.ParseFromString(split->head));
  CHECK(parsed.weights() == reply.weights());
  CHECK(parsed.epoch() == 8);
}

TEST_CASE("Cut and damaged messages are refused or parse as the generated code would") {
  const std::string wire = Reply(100).SerializeAsString();
  for (size_t length = 0; length < wire.size(); ++length) {
    const std::string cut = wire.substr(0, length);
    const auto split = SplitPayload({absl::string_view(cut)});
    v1::PullReply whole;
    CHECK(split.ok() == whole.ParseFromString(cut));
  }
  RandomStream random(1, 0);
  for (int i = 0; i < 20000; ++i) {
    std::string damaged = wire;
    damaged[random.NextBelow(static_cast<uint32_t>(damaged.size()))] ^=
        static_cast<char>(1 << random.NextBelow(8));
    const auto split = SplitPayload({absl::string_view(damaged)});
    v1::PullReply whole;
    if (!whole.ParseFromString(damaged)) continue;
    // Groups (wire types 3 and 4) are the one thing that generated code would skip and this one refuses.
    if (!split.ok()) continue;
    v1::PullReply head;
    REQUIRE(head.ParseFromString(split->head));
    if (!split->payload.empty()) head.set_weights(Joined(split->payload));
    CHECK(head.SerializeAsString() == whole.SerializeAsString());
  }
}

}  // namespace
}  // namespace weir
