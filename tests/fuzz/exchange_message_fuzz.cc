// The reader of a data plane's message, which comes in pieces: head and payload are those of the plain
// protobuf message, however the pieces are cut.
#include <algorithm>

#include "common/codec/wire_codec.h"
#include "proto/parameter_server.pb.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/messages.h"

namespace weir {
namespace {

// The message that a split one stands for; empty if its head is none.
std::string Join(const SplitMessage& split) {
  v1::ExchangeRequest request;
  if (!request.ParseFromString(split.head)) return "";
  std::string payload;
  for (const absl::string_view piece : split.payload) payload.append(piece.data(), piece.size());
  FuzzCheck(payload.size() == split.payload_bytes, "payload_bytes is the payload's length");
  // The field may have come before, too: its last value counts.
  if (!payload.empty()) request.set_gradient(payload);
  return request.SerializeAsString();
}

}  // namespace

bool ReadInput(absl::string_view input) {
  const absl::StatusOr<SplitMessage> whole = SplitPayload({input});
  // Pieces of 1, 2, 3, ... bytes.
  std::vector<absl::string_view> pieces;
  size_t length = 1;
  for (size_t at = 0; at < input.size(); at += length++) pieces.push_back(input.substr(at, length));
  const absl::StatusOr<SplitMessage> pieced = SplitPayload(pieces);
  FuzzCheck(whole.ok() == pieced.ok(), "the pieces' borders do not decide");
  if (!whole.ok()) return false;
  FuzzCheck(whole->head == pieced->head, "one head, however the pieces are cut");
  const std::string joined = Join(*whole);
  FuzzCheck(joined == Join(*pieced), "one payload, however the pieces are cut");
  v1::ExchangeRequest plain;
  if (!plain.ParseFromArray(input.data(), static_cast<int>(input.size()))) return false;
  FuzzCheck(joined == plain.SerializeAsString(), "the same message as protobuf reads");
  return true;
}

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (const v1::ExchangeRequest& request : Requests()) seeds.push_back(request.SerializeAsString());
  return seeds;
}

// Tags of the payload's field, and lengths.
std::vector<std::string> Words() { return {"\x7a", "\x7a\x04", "\x7a\xff\xff\xff\xff\x0f", "\x0b\x0c"}; }

}  // namespace weir
