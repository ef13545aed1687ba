#include "ps_server/exchange/exchange_request.h"

#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/codec/wire_codec.h"

namespace weir {
namespace {

using Catch::Matchers::Contains;

// Segment 0, of that many bytes.
class OneSegment final : public ClientSegments {
 public:
  explicit OneSegment(size_t bytes) : memory(bytes, 'x') {}
  absl::StatusOr<const char*> At(uint32_t segment, uint64_t offset, uint64_t bytes) const override {
    if (segment != 0) return absl::NotFoundError(absl::StrCat("segment ", segment));
    if (offset > memory.size() || bytes > memory.size() - offset)
      return absl::OutOfRangeError("of a segment");
    return memory.data() + offset;
  }
  std::string memory;
};

v1::ExchangeRequest SharedRequest(uint64_t offset, uint64_t bytes, uint64_t piece_bytes, uint64_t stride) {
  v1::ExchangeRequest request;
  request.set_first(3);
  request.mutable_shared()->set_offset(offset);
  request.mutable_shared()->set_bytes(bytes);
  request.mutable_shared()->set_piece_bytes(piece_bytes);
  request.mutable_shared()->set_stride(stride);
  return request;
}

// ---- a message

TEST_CASE("A message comes apart into the request and its chunk, which stays where it was received") {
  v1::ExchangeRequest sent;
  sent.set_id(7);
  sent.set_first(16);
  sent.set_gradient("12345678");
  const IncomingMessage message = ToIncoming(sent.SerializeAsString());
  const auto received = ReadRequest(message);
  REQUIRE(received.ok());
  CHECK(received->request.id() == 7);
  CHECK(received->request.gradient().empty());
  CHECK(received->chunk.first == 16);
  CHECK(received->chunk.bytes == 8);
  CHECK_FALSE(received->chunk.rows);
  CHECK(absl::StrJoin(received->chunk.pieces, "") == "12345678");
  CHECK(received->chunk.owner == message.owner);
  CHECK(received->chunk.pieces[0].data() == message.pieces[0].data() + message.pieces[0].size() - 8);
}

TEST_CASE("A gradient that is not the last field is found, too") {
  v1::ExchangeRequest gradient, rest;
  gradient.set_gradient("12345678");
  rest.set_id(7);
  const auto received = ReadRequest(ToIncoming(gradient.SerializeAsString() + rest.SerializeAsString()));
  REQUIRE(received.ok());
  CHECK(received->request.id() == 7);
  CHECK(received->request.gradient().empty());
  CHECK(received->chunk.bytes == 8);
  CHECK(absl::StrJoin(received->chunk.pieces, "") == "12345678");
}

TEST_CASE("A message without a gradient has no chunk; bytes that are no message are refused") {
  v1::ExchangeRequest sent;
  sent.set_id(7);
  const auto received = ReadRequest(ToIncoming(sent.SerializeAsString()));
  REQUIRE(received.ok());
  CHECK(received->chunk.bytes == 0);
  CHECK(ReadRequest(ToIncoming("\xff\xff\xff")).status().code() == absl::StatusCode::kInvalidArgument);
}

// ---- where the chunk lies

TEST_CASE("A chunk in shared memory lies in one piece, or in pieces that are evenly apart") {
  const auto segments = std::make_shared<const OneSegment>(40'000);
  const char* const memory = segments->memory.data();
  ReceivedChunk chunk;
  REQUIRE(FindChunk(SharedRequest(100, 5000, 0, 0), segments, &chunk).ok());
  CHECK(chunk.first == 3);
  CHECK(chunk.bytes == 5000);
  CHECK(chunk.owner == segments);
  REQUIRE(chunk.pieces.size() == 1);
  CHECK(chunk.pieces[0].data() == memory + 100);
  CHECK(chunk.pieces[0].size() == 5000);

  chunk = {};
  REQUIRE(FindChunk(SharedRequest(100, 10'000, 4096, 6000), segments, &chunk).ok());
  CHECK(chunk.bytes == 10'000);
  REQUIRE(chunk.pieces.size() == 3);
  const uint64_t sizes[] = {4096, 4096, 10'000 - 2 * 4096};
  for (size_t i = 0; i < 3; ++i) {
    CHECK(chunk.pieces[i].data() == memory + 100 + 6000 * i);
    CHECK(chunk.pieces[i].size() == sizes[i]);
  }
}

TEST_CASE("A chunk that is too large, or shared where it cannot be, is refused") {
  const std::shared_ptr<const ClientSegments> segments = std::make_shared<OneSegment>(40'000);
  const auto error = [](const v1::ExchangeRequest& request, const std::shared_ptr<const ClientSegments>& in,
                        uint64_t bytes) {
    ReceivedChunk chunk;
    chunk.bytes = bytes;
    return std::string(FindChunk(request, in, &chunk).message());
  };
  const uint64_t most = kMaxChunkBytes, most_shared = kMaxSharedChunkBytes;
  CHECK(error({}, nullptr, most).empty());
  CHECK(error({}, nullptr, most + 1) == "gradient: 1048577 bytes; there a chunk holds at most 1048576");
  CHECK_THAT(error(SharedRequest(0, 4096, 0, 0), nullptr, 0), Contains("was granted no shared memory"));
  CHECK_THAT(error(SharedRequest(0, 4096, 0, 0), segments, 1), Contains("together with a gradient"));
  CHECK_THAT(error(SharedRequest(0, most_shared + 1, 0, 0), segments, 0), Contains("at most 8388608"));
  CHECK_THAT(error(SharedRequest(0, 8192, 4095, 4096), segments, 0), Contains("pieces of 4095 bytes"));
  CHECK_THAT(error(SharedRequest(0, 8192, 4096, 4095), segments, 0), Contains("4095 apart"));
  CHECK_THAT(error(SharedRequest(0, 8192, 4096, UINT64_MAX), segments, 0), Contains("apart"));
  CHECK_THAT(error(SharedRequest(35'905, 4096, 0, 0), segments, 0), Contains("of a segment"));
  CHECK(error(SharedRequest(35'904, 4096, 0, 0), segments, 0).empty());
}

// ---- how an exchange begins

TEST_CASE("An exchange begins with a push, a pull or both, which fit each other") {
  v1::ExchangeRequest both;
  both.mutable_push()->set_clock(4);
  both.mutable_push()->mutable_caller()->set_incarnation(9);
  both.mutable_pull()->set_clock(5);
  both.mutable_pull()->mutable_caller()->set_incarnation(9);
  ReceivedChunk chunk;
  chunk.bytes = 4;
  REQUIRE(CheckFirst(both, chunk).ok());
  const auto error = [&](const std::function<void(v1::ExchangeRequest * request)>& change) {
    v1::ExchangeRequest request = both;
    change(&request);
    return std::string(CheckFirst(request, chunk).message());
  };
  CHECK(error([](auto* r) { r->clear_pull(); }).empty());
  CHECK_THAT(error([](auto* r) { r->clear_push(); }), Contains("gradient: without a push"));
  CHECK_THAT(error([](auto* r) { r->Clear(); }), Contains("must hold a push or a pull"));
  CHECK_THAT(error([](auto* r) { r->mutable_push()->set_dtype(static_cast<v1::Dtype>(9)); }),
             Contains("dtype: 9"));
  CHECK_THAT(error([](auto* r) { r->mutable_pull()->set_dtype(static_cast<v1::Dtype>(9)); }),
             Contains("dtype: 9"));
  CHECK(error([](auto* r) { r->mutable_push()->set_dtype(v1::INT8); }).empty());
  CHECK_THAT(error([](auto* r) {
               r->mutable_push()->set_dtype(v1::INT8);
               r->mutable_pull()->add_rows();
             }),
             Contains("push.dtype: INT8 with rows"));
  CHECK_THAT(error([](auto* r) { r->mutable_pull()->set_dtype(v1::INT8); }), Contains("pull.dtype: 2"));
  CHECK_THAT(error([](auto* r) { r->mutable_pull()->set_dtype(v1::TOPK); }), Contains("pull.dtype: 5"));
  for (const uint32_t kept : {0u, 1u, 2048u, 2049u}) {
    const std::string found = error([kept](auto* r) {
      r->mutable_push()->set_dtype(v1::TOPK);
      r->mutable_push()->set_kept(kept);
    });
    const bool fits = kept == 1 || kept == 2048;
    CHECK(found == (fits ? ""
                         : absl::StrCat("push.kept: ", kept,
                                        " values of a block of 4096 with dtype TOPK; must be 1 to 2048")));
  }
  CHECK_THAT(error([](auto* r) { r->mutable_push()->set_refused("NaN"); }),
             Contains("gradient: with push.refused"));
  CHECK_THAT(error([](auto* r) { r->mutable_pull()->set_pin(1); }), Contains("pull.pin: not with a push"));
  CHECK_THAT(error([](auto* r) { r->mutable_pull()->set_clock(6); }), Contains("must be the push's + 1"));
  CHECK_THAT(error([](auto* r) { r->mutable_pull()->mutable_caller()->set_worker(1); }),
             Contains("pull.caller"));
  CHECK_THAT(error([](auto* r) { r->mutable_pull()->mutable_caller()->set_incarnation(8); }),
             Contains("pull.caller"));
  chunk.rows = true;  // which a pull alone may send: its keys
  CHECK(error([](auto* r) { r->clear_push(); }).empty());
  CHECK(error([](auto* r) { r->mutable_push()->set_refused("NaN"); }).empty());
  CHECK_THAT(error([](auto* r) {
               r->mutable_push()->set_refused("NaN");
               r->mutable_push()->add_rows();
             }),
             Contains("push.rows: with push.refused"));
}

}  // namespace
}  // namespace weir
