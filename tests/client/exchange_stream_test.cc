// ExchangeStream over a channel whose other end is this test.
#include "client/exchange/exchange_stream.h"

#include <catch2/catch.hpp>

#include "absl/functional/any_invocable.h"
#include "common/model/model_spec.h"
#include "tests/common/task_queue.h"

namespace weir {
namespace {

// An event loop that runs its tasks when the test calls Run(). Its timers never fire.
class ManualLoop final : public EventLoop {
 public:
  void Post(absl::AnyInvocable<void()> task) override { tasks_.Post(std::move(task)); }
  Timer RunAfter(std::chrono::nanoseconds, absl::AnyInvocable<void()>) override { return {}; }
  void Cancel(const Timer&) override {}
  uint32_t Random() override { return 0; }
  void Run() { tasks_.Run(); }

 private:
  TaskQueue tasks_;
};

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

class TestStream final : public DataStream {
 public:
  // `takes_at_once`: Write() returns true.
  TestStream(ManualLoop& loop, std::shared_ptr<User> user, bool takes_at_once)
      : loop_(loop), user_(std::move(user)), takes_at_once_(takes_at_once) {}
  bool Write(OutgoingMessage message) override {
    v1::ExchangeRequest head;
    REQUIRE(head.ParseFromString(message.head));
    sent.push_back(std::move(head));
    if (takes_at_once_) return true;
    loop_.Post([user = user_] { user->OnWritten(); });
    return false;
  }
  void Read(bool) override {}
  void Cancel() override {
    if (std::exchange(ended_, true)) return;
    loop_.Post([this] {
      // The user holds this stream.
      const std::shared_ptr<User> user = std::exchange(user_, nullptr);
      user->OnEnd(absl::CancelledError("the stream was cancelled"));
    });
  }
  void Deliver(const v1::ExchangeReply& reply) {
    REQUIRE(user_ != nullptr);
    const auto bytes = std::make_shared<const std::string>(reply.SerializeAsString());
    const std::shared_ptr<User> user = user_;
    user->OnMessage({{*bytes}, bytes});
    loop_.Run();
  }

  std::vector<v1::ExchangeRequest> sent;

 private:
  ManualLoop& loop_;
  // Null once the stream has ended.
  std::shared_ptr<User> user_;
  const bool takes_at_once_;
  bool ended_ = false;
};

class TestChannel final : public ShardChannel {
 public:
  TestChannel(ManualLoop& loop, std::shared_ptr<ShardMemory> memory, bool takes_at_once)
      : loop_(loop), memory_(std::move(memory)), takes_at_once_(takes_at_once) {}
  std::string name() const override { return "ps:0"; }
  absl::Status Connect(std::chrono::steady_clock::time_point, const std::string&,
                       const std::function<absl::Status()>&) override {
    return absl::OkStatus();
  }
  bool MoveTo(const std::string&) override { return false; }
  Opened Open(std::shared_ptr<DataStream::User> user, std::function<void()>) override {
    stream = std::make_shared<TestStream>(loop_, std::move(user), takes_at_once_);
    return {stream, memory_, [] {}};
  }

  std::shared_ptr<TestStream> stream;

 private:
  ManualLoop& loop_;
  const std::shared_ptr<ShardMemory> memory_;
  const bool takes_at_once_;
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
  shard.Deliver(granted);
  v1::ExchangeReply named;
  named.set_id(shard.sent[1].id());
  named.mutable_shared()->set_segment(3);
  named.mutable_shared()->set_bytes(16);
  shard.Deliver(named);
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
