// ExchangeStream over a channel whose other end is this test.
#include "client/exchange/exchange_stream.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "client/tables/key_cuts.h"
#include "client/tables/row_routes.h"
#include "common/model/model_spec.h"
#include "tests/client/manual_channel.h"

namespace weir {
namespace {

// Shared memory whose segments of the shard cannot be mapped, until they come.
class NoSegments final : public ShardMemory {
 public:
  explicit NoSegments(absl::Status why) : why_(std::move(why)) {}
  void Come() { why_ = absl::OkStatus(); }
  std::string token() const override { return "token"; }
  uint32_t slots() const override { return 1; }
  char* SlotData(uint32_t) override { return slot_; }
  uint64_t SlotOffset(uint32_t) const override { return 0; }
  std::optional<uint32_t> NumberOf(const std::shared_ptr<const SharedSegment>&) override {
    return std::nullopt;
  }
  absl::StatusOr<const char*> Map(uint32_t, uint64_t, uint64_t) override {
    if (!why_.ok()) return why_;
    return slot_;
  }

 private:
  absl::Status why_;
  char slot_[64] = {};
};

// A pull whose weights lie in a segment that cannot be mapped.
struct UnmappedPull {
  explicit UnmappedPull(const absl::Status& unmapped) : memory(std::make_shared<NoSegments>(unmapped)) {
    wire.shared_memory = true;
    stream->Start(channel, [] {});
    ShardPull pull;
    pull.tensors = {weights.data()};
    const auto exchange = std::make_shared<ShardExchange>(tensors, 0, wire, "Pull", std::nullopt,
                                                          std::move(pull), answered_clock);
    REQUIRE(stream->Add(exchange,
                        [&](const absl::StatusOr<ShardExchange::Progress>& how) { end = how.status(); }));
    loop.Run();
    TestStream& shard = *channel.stream;
    REQUIRE(shard.sent.size() == 2);
    CHECK(shard.sent[0].shared_memory().token() == "token");
    v1::ExchangeReply granted;
    granted.mutable_shared_memory()->set_granted(true);
    REQUIRE(shard.Deliver(granted.SerializeAsString()));
    v1::ExchangeReply named;
    named.set_id(shard.sent[1].id());
    named.mutable_pull()->set_outcome(v1::OK);
    named.mutable_pull()->set_elements(4);
    named.mutable_shared()->set_segment(3);
    named.mutable_shared()->set_bytes(16);
    reads = shard.reads;
    REQUIRE(shard.Deliver(named.SerializeAsString()));
  }
  ~UnmappedPull() {
    stream->Cancel();
    loop.Pass(std::chrono::seconds(1));
    loop.Run();
  }

  ManualLoop loop;
  const std::shared_ptr<NoSegments> memory;
  TestChannel channel{loop, memory, /*takes_at_once=*/GENERATE(false, true)};
  const TensorMap tensors{ModelSpec{{{"w", {4}, TensorKind::kParameter, Initializer()}}}, 1};
  WireOptions wire;
  std::vector<float> weights = std::vector<float>(4, 7);
  std::atomic<uint64_t> answered_clock = 0;
  std::optional<absl::Status> end;
  // Of the stream, before the weights came.
  int reads = 0;
  const std::shared_ptr<ExchangeStream> stream =
      std::make_shared<ExchangeStream>(loop, [] { return v1::Caller(); });
};

absl::Status EndOfPull(const absl::Status& unmapped) {
  const UnmappedPull pull(unmapped);
  REQUIRE(pull.end.has_value());
  return *pull.end;
}

TEST_CASE("Weights in a segment that comes late are taken when it has come, and hold up nothing else") {
  UnmappedPull pull(absl::NotFoundError("not yet"));
  // The loop goes on, while the stream brings no other message.
  CHECK(pull.channel.stream->reads == pull.reads);
  bool served = false;
  pull.loop.Post([&] { served = true; });
  pull.loop.Run();
  CHECK(served);
  pull.loop.Pass(std::chrono::seconds(4));
  CHECK_FALSE(pull.end.has_value());
  CHECK(pull.channel.stream->reads == pull.reads);
  pull.memory->Come();
  pull.loop.Pass(std::chrono::milliseconds(20));
  CHECK(pull.channel.stream->reads == pull.reads + 1);
  CHECK(pull.weights == std::vector<float>(4, 0));
}

TEST_CASE("A segment that does not come ends the stream, as if the shard were gone") {
  UnmappedPull pull(absl::NotFoundError("segment 3 is not there"));
  pull.loop.Pass(std::chrono::seconds(6));
  REQUIRE(pull.end.has_value());
  CHECK(absl::IsUnavailable(*pull.end));
  CHECK_THAT(std::string(pull.end->message()), Catch::Contains("segment 3 is not there"));
}

TEST_CASE("A stream that is given up does not wait for a segment") {
  UnmappedPull pull(absl::NotFoundError("not yet"));
  pull.stream->Reopen();
  pull.loop.Pass(std::chrono::milliseconds(20));
  CHECK(pull.channel.stream->reads == pull.reads + 1);
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

// A stream without shared memory to the only shard of a job, and pulls on it.
struct PullStream {
  explicit PullStream(bool takes_at_once) : channel(loop, nullptr, takes_at_once) {
    wire.shared_memory = false;
    stream->Start(channel, [] {});
  }
  ~PullStream() {
    stream->Cancel();
    loop.Run();
  }
  // False: the stream is over.
  bool Add() {
    ShardPull pull;
    pull.tensors = {weights.data()};
    exchanges.push_back(std::make_shared<ShardExchange>(tensors, 0, wire, "Pull", std::nullopt,
                                                        std::move(pull), answered_clock));
    return stream->Add(exchanges.back(),
                       [this](const absl::StatusOr<ShardExchange::Progress>& how) { ends.push_back(how); });
  }

  ManualLoop loop;
  TestChannel channel;
  WireOptions wire;
  const TensorMap tensors{ModelSpec{{{"w", {4}, TensorKind::kParameter, Initializer()}}}, 1};
  std::vector<float> weights = std::vector<float>(4);
  std::atomic<uint64_t> answered_clock = 0;
  std::vector<std::shared_ptr<ShardExchange>> exchanges;
  std::vector<absl::StatusOr<ShardExchange::Progress>> ends;
  const std::shared_ptr<ExchangeStream> stream =
      std::make_shared<ExchangeStream>(loop, [] { return v1::Caller(); });
};

TEST_CASE("A call that is given up before its first message has left does not disturb the stream") {
  PullStream s(/*takes_at_once=*/false);
  REQUIRE(s.Add());
  REQUIRE(s.Add());
  CHECK(s.channel.stream->sent.size() == 1);
  s.stream->Abandon(*s.exchanges[1]);
  CHECK(s.Add());
  s.loop.Run();
  CHECK(s.ends.empty());
  CHECK(s.channel.stream->sent.size() == 2);
}

TEST_CASE("DataLoss is what an exchange says of itself, and nobody else says it of an exchange") {
  PullStream s(/*takes_at_once=*/true);
  REQUIRE(s.Add());
  REQUIRE(s.Add());
  v1::ExchangeReply failed;
  failed.set_id(1);
  failed.mutable_error()->set_code(static_cast<int>(absl::StatusCode::kDataLoss));
  failed.mutable_error()->set_message("of the shard");
  REQUIRE(s.channel.stream->Deliver(failed.SerializeAsString()));
  s.channel.stream->End(absl::DataLossError("of the ring"));
  REQUIRE(s.ends.size() == 2);
  CHECK(s.ends[0].status() == absl::InternalError("of the shard"));
  CHECK(s.ends[1].status() == absl::InternalError("of the ring"));
}

// ---- rows

// Two slots, each as long as the chunks below.
class TwoSlots final : public ShardMemory {
 public:
  static constexpr size_t kSlotBytes = 65536 * sizeof(float);
  std::string token() const override { return "token"; }
  uint32_t slots() const override { return 2; }
  char* SlotData(uint32_t slot) override { return slots_[slot].data(); }
  uint64_t SlotOffset(uint32_t slot) const override { return slot * kSlotBytes; }
  std::optional<uint32_t> NumberOf(const std::shared_ptr<const SharedSegment>&) override { return 5; }
  absl::StatusOr<const char*> Map(uint32_t, uint64_t, uint64_t) override {
    return absl::OutOfRangeError("not used here");
  }

 private:
  std::vector<char> slots_[2] = {std::vector<char>(kSlotBytes), std::vector<char>(kSlotBytes)};
};

// A stream to the only shard of a job with one table of dim 1, which has granted shared memory.
struct RowStream {
  RowStream() {
    wire.shared_memory = true;
    wire.chunk_elements = 65536;
    stream->Start(channel, [] {});
    loop.Run();
    v1::ExchangeReply granted;
    granted.mutable_shared_memory()->set_granted(true);
    Deliver(granted);
    // Three pieces of pushed rows, the last of which has the keys of the pull, too.
    for (uint64_t key = 0; key < 50000; ++key) keys.push_back(key);
  }
  ~RowStream() {
    stream->Cancel();
    loop.Run();
  }

  // `segment`: null, or where the gradient lies.
  std::shared_ptr<ShardExchange> Add(bool pushes, bool pulls,
                                     const std::shared_ptr<const SharedSegment>& segment = nullptr) {
    std::optional<ShardPush> push;
    if (pushes) {
      push.emplace();
      const void* const gradient =
          segment == nullptr ? static_cast<const void*>(dense.data()) : segment->data();
      push->gradient =
          OutgoingGradient::Create({}, tensors, {v1::F32, {gradient}}, wire, nullptr, segment).value();
    }
    std::optional<ShardPull> pull;
    std::vector<RowGradients> pushed;
    std::vector<RowsToRead> read;
    if (pushes) pushed.push_back({0, keys, gradients});
    if (pulls) {
      pull.emplace();
      pull->request.set_header_only(true);
      read.push_back({0, absl::MakeConstSpan(keys).subspan(0, 10), absl::MakeSpan(rows)});
    }
    routes.push_back(RowRoutes::Create({{"t", 1}}, cuts, pushed, read, {}).value());
    const auto exchange = std::make_shared<ShardExchange>(tensors, 0, wire, "Exchange", std::move(push),
                                                          std::move(pull), answered_clock, routes.back());
    REQUIRE(stream->Add(exchange, [this](const absl::StatusOr<ShardExchange::Progress>& how) {
      ended.push_back(how.ok() && *how == ShardExchange::Progress::kComplete);
    }));
    loop.Run();
    return exchange;
  }
  void Deliver(const v1::ExchangeReply& reply) {
    REQUIRE(channel.stream->Deliver(reply.SerializeAsString()));
  }
  v1::ExchangeReply Credit(uint64_t id, uint32_t credit) {
    v1::ExchangeReply reply;
    reply.set_id(id);
    reply.set_credit(credit);
    return reply;
  }
  void AnswerPull(uint64_t id) {
    v1::ExchangeReply reply;
    reply.set_id(id);
    reply.mutable_pull()->set_outcome(v1::OK);
    reply.mutable_pull()->set_elements(4);
    const std::vector<float> values = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    reply.set_rows(true);
    reply.set_weights(std::string(reinterpret_cast<const char*>(values.data()), 40));
    Deliver(reply);
  }
  // Without the greeting.
  std::vector<v1::ExchangeRequest> sent() const {
    return {channel.stream->sent.begin() + 1, channel.stream->sent.end()};
  }
  // Whether the message names this slot, and the slot holds the bytes of the exchange's rows that it should.
  bool IsInSlot(const v1::ExchangeRequest& message, uint32_t slot, const RowRoutes& of) {
    const absl::Span<const char> bytes = of.request(0);
    return message.rows() && message.has_shared() &&
           message.shared().offset() == slot * TwoSlots::kSlotBytes &&
           message.shared().bytes() == std::min(TwoSlots::kSlotBytes, bytes.size() - message.first()) &&
           std::memcmp(memory->SlotData(slot), bytes.data() + message.first(), message.shared().bytes()) == 0;
  }

  ManualLoop loop;
  const std::shared_ptr<TwoSlots> memory = std::make_shared<TwoSlots>();
  TestChannel channel{loop, memory, /*takes_at_once=*/true};
  WireOptions wire;
  const TensorMap tensors{ModelSpec{{{"w", {4}, TensorKind::kParameter, Initializer()}}}, 1};
  const std::vector<float> dense = {1, 2, 3, 4};
  std::vector<uint64_t> keys;
  const std::vector<float> gradients = std::vector<float>(50000, 0.5f);
  std::vector<float> rows = std::vector<float>(10, -1);
  std::atomic<uint64_t> answered_clock = 0;
  KeyCuts cuts{1, 1};
  std::vector<std::shared_ptr<const RowRoutes>> routes;
  std::vector<bool> ended;
  const std::shared_ptr<ExchangeStream> stream =
      std::make_shared<ExchangeStream>(loop, [] { return v1::Caller(); });
};

TEST_CASE("A push's rows lie in the slots, in order and as credit comes, before its gradient") {
  RowStream s;
  s.Add(/*pushes=*/true, /*pulls=*/true);
  REQUIRE(s.sent().size() == 1);
  CHECK(s.sent()[0].push().rows(0).keys() == 50000);
  CHECK(s.sent()[0].pull().rows(0).keys() == 10);
  CHECK(s.IsInSlot(s.sent()[0], 0, *s.routes[0]));
  s.Deliver(s.Credit(1, 1));
  REQUIRE(s.sent().size() == 2);
  CHECK(s.sent()[1].first() == TwoSlots::kSlotBytes);
  CHECK(s.IsInSlot(s.sent()[1], 1, *s.routes[0]));
  CHECK(s.IsInSlot(s.sent()[0], 0, *s.routes[0]));
  s.Deliver(s.Credit(1, 2));
  REQUIRE(s.sent().size() == 4);
  CHECK(s.IsInSlot(s.sent()[2], 0, *s.routes[0]));
  CHECK_FALSE(s.sent()[3].rows());
  CHECK(s.sent()[3].shared().bytes() == 16);
  CHECK(std::memcmp(s.memory->SlotData(1), s.dense.data(), 16) == 0);
  // Nothing is left to send.
  s.Deliver(s.Credit(1, 5));
  CHECK(s.sent().size() == 4);
  v1::ExchangeReply pushed = s.Credit(1, 0);
  pushed.mutable_push()->set_outcome(v1::OK);
  s.Deliver(pushed);
  CHECK(s.ended.empty());
  s.AnswerPull(1);
  CHECK(s.ended == std::vector<bool>{true});
  CHECK(s.rows == std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
}

TEST_CASE("A gradient that the shard reads in place follows its rows, which lie in the slots") {
  RowStream s;
  absl::StatusOr<std::unique_ptr<SharedSegment>> segment = SharedSegment::Create(65536);
  REQUIRE(segment.ok());
  s.Add(/*pushes=*/true, /*pulls=*/false, std::shared_ptr<const SharedSegment>(*std::move(segment)));
  s.Deliver(s.Credit(1, 4));
  REQUIRE(s.sent().size() == 4);
  for (uint32_t i = 0; i < 3; ++i) CHECK(s.IsInSlot(s.sent()[i], i % 2, *s.routes[0]) == (i > 0));
  CHECK_FALSE(s.sent()[3].rows());
  CHECK(s.sent()[3].shared().segment() == 5);
  CHECK(s.sent()[3].shared().bytes() == 16);
}

TEST_CASE("A push that is answered before its rows have come sends them all, for the keys of its pull") {
  RowStream s;
  s.Add(/*pushes=*/true, /*pulls=*/true);
  v1::ExchangeReply repeated = s.Credit(1, 1);
  repeated.mutable_push()->set_outcome(v1::OK);
  s.Deliver(repeated);
  REQUIRE(s.sent().size() == 2);
  CHECK(s.IsInSlot(s.sent()[1], 1, *s.routes[0]));
  // Another push may not have the slots: the shard has not read the keys in them.
  s.Add(/*pushes=*/true, /*pulls=*/false);
  REQUIRE(s.sent().size() == 3);
  CHECK_FALSE(s.sent()[2].has_shared());
  s.Deliver(s.Credit(1, 2));
  REQUIRE(s.sent().size() == 4);
  CHECK(s.IsInSlot(s.sent()[3], 0, *s.routes[0]));
  // There is nothing left to send, but the shard has not read the last keys.
  s.Deliver(s.Credit(1, 1));
  s.Deliver(s.Credit(2, 1));
  REQUIRE(s.sent().size() == 5);
  CHECK(s.sent()[4].rows());
  CHECK_FALSE(s.sent()[4].has_shared());
  s.AnswerPull(1);
  CHECK(s.ended == std::vector<bool>{true});
  // Now it may have them.
  s.Deliver(s.Credit(2, 1));
  REQUIRE(s.sent().size() == 6);
  CHECK(s.sent()[5].id() == 2);
  CHECK(s.sent()[5].has_shared());
}

TEST_CASE("A push without a pull that is answered before its rows have come sends no more of them") {
  RowStream s;
  s.Add(/*pushes=*/true, /*pulls=*/false);
  v1::ExchangeReply repeated = s.Credit(1, 2);
  repeated.mutable_push()->set_outcome(v1::OK);
  s.Deliver(repeated);
  CHECK(s.ended == std::vector<bool>{true});
  CHECK(s.sent().size() == 1);
}

TEST_CASE("A pull's keys go with its first message, at once, and not in the slots") {
  RowStream s;
  s.Add(/*pushes=*/true, /*pulls=*/false);
  s.Add(/*pushes=*/false, /*pulls=*/true);
  s.Add(/*pushes=*/true, /*pulls=*/false);
  REQUIRE(s.sent().size() == 3);
  CHECK(s.sent()[1].rows());
  CHECK(s.sent()[1].pull().header_only());
  CHECK_FALSE(s.sent()[1].has_shared());
  // A push waits until the one before it has been sent.
  CHECK_FALSE(s.sent()[2].rows());
  // It may hold the slots while the pull waits.
  s.Deliver(s.Credit(1, 1));
  REQUIRE(s.sent().size() == 4);
  CHECK(s.IsInSlot(s.sent()[3], 1, *s.routes[0]));
  s.AnswerPull(2);
  CHECK(s.ended == std::vector<bool>{true});
}

TEST_CASE("A pull that is given up before its keys were sent takes its stream along") {
  RowStream s;
  std::vector<float> many(50000);
  ShardPull pull;
  pull.request.set_header_only(true);
  const auto routes = RowRoutes::Create({{"t", 1}}, s.cuts, {},
                                        std::vector<RowsToRead>{{0, s.keys, absl::MakeSpan(many)}}, {})
                          .value();
  const auto exchange = std::make_shared<ShardExchange>(s.tensors, 0, s.wire, "Pull", std::nullopt, pull,
                                                        s.answered_clock, routes);
  REQUIRE(s.stream->Add(exchange, [](const auto&) {}));
  s.loop.Run();
  s.stream->Abandon(*exchange);
  // Otherwise the shard would wait for the rest.
  CHECK_FALSE(s.stream->Add(exchange, [](const auto&) {}));
}

}  // namespace
}  // namespace weir
