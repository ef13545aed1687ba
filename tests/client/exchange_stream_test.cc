// ExchangeStream over a channel whose other end is this test.
#include "client/exchange/exchange_stream.h"

#include <catch2/catch.hpp>

#include "common/model/model_spec.h"
#include "tests/client/manual_channel.h"

namespace weir {
namespace {

// Shared memory whose segments of the shard never come.
class NoSegments final : public ShardMemory {
 public:
  explicit NoSegments(absl::Status why) : why_(std::move(why)) {}
  std::string token() const override { return "token"; }
  uint32_t slots() const override { return 1; }
  char* SlotData(uint32_t) override { return slot_; }
  uint64_t SlotOffset(uint32_t) const override { return 0; }
  std::optional<uint32_t> NumberOf(const std::shared_ptr<const SharedSegment>&) override {
    return std::nullopt;
  }
  absl::StatusOr<const char*> Map(uint32_t, uint64_t, uint64_t) override { return why_; }

 private:
  const absl::Status why_;
  char slot_[64];
};

// How a pull ends whose weights lie in a segment that cannot be mapped.
absl::Status EndOfPull(const absl::Status& unmapped) {
  ManualLoop loop;
  TestChannel channel(loop, std::make_shared<NoSegments>(unmapped), /*takes_at_once=*/GENERATE(false, true));
  const auto stream = std::make_shared<ExchangeStream>(loop, [] { return v1::Caller(); });
  stream->Start(channel, [] {});
  const TensorMap tensors(ModelSpec{{{"w", {4}, TensorKind::kParameter, Initializer()}}}, 1);
  std::vector<float> weights(4);
  WireOptions wire;
  wire.shared_memory = true;
  std::atomic<uint64_t> answered_clock = 0;
  ShardPull pull;
  pull.tensors = {weights.data()};
  const auto exchange = std::make_shared<ShardExchange>(tensors, 0, wire, "Pull", std::nullopt,
                                                        std::move(pull), answered_clock);
  std::optional<absl::Status> end;
  REQUIRE(
      stream->Add(exchange, [&](const absl::StatusOr<ShardExchange::Progress>& how) { end = how.status(); }));
  loop.Run();
  TestStream& shard = *channel.stream;
  REQUIRE(shard.sent.size() == 2);
  CHECK(shard.sent[0].shared_memory().token() == "token");
  v1::ExchangeReply granted;
  granted.mutable_shared_memory()->set_granted(true);
  REQUIRE(shard.Deliver(granted.SerializeAsString()));
  v1::ExchangeReply named;
  named.set_id(shard.sent[1].id());
  named.mutable_shared()->set_segment(3);
  named.mutable_shared()->set_bytes(16);
  REQUIRE(shard.Deliver(named.SerializeAsString()));
  REQUIRE(end.has_value());
  return *end;
}

TEST_CASE("A shard that is gone before it hands over the memory that it named is lost, and tried again") {
  const absl::Status end = EndOfPull(absl::UnavailableError("the server is gone"));
  CHECK(absl::IsUnavailable(end));
  CHECK_THAT(std::string(end.message()), Catch::Contains("the server is gone"));
}

TEST_CASE("A shard that names a place outside of its memory breaks the protocol") {
  const absl::Status end = EndOfPull(absl::OutOfRangeError("beyond the segment"));
  CHECK(absl::IsInternal(end));
  CHECK_THAT(std::string(end.message()), Catch::Contains("beyond the segment"));
}

}  // namespace
}  // namespace weir
