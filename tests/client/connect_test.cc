// How long the client's attempts to reach a coordinator that does not answer may take.
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/grpc/grpc_poller.h"
#include "client/job/client_impl.h"
#include "client/job/transport.h"
#include "tests/client/client_fixture.h"

namespace weir {
namespace {

using std::chrono::nanoseconds;
using std::chrono::seconds;

// The end of each try to join. No other call is made.
class UnansweredChannel final : public CoordinatorChannel {
 public:
  UnansweredChannel(absl::Status end, EventLoop& loop) : end_(std::move(end)), loop_(loop) {}
  std::string name() const override { return "ps:0 (coordinator) at 10.0.0.1:2222"; }
  bool connected() const override { return false; }

 private:
  TryPtr StartMethod(const std::string&, const Message&, std::shared_ptr<Message>, Limit,
                     std::function<void(const absl::Status&)> done) override {
    loop_.Post([done = std::move(done), end = end_] { done(end); });
    return nullptr;
  }

  const absl::Status end_;
  EventLoop& loop_;
};

// The first attempts find nobody; the last one is refused, which ends the join.
class SilentTransport final : public Transport {
 public:
  std::shared_ptr<EventLoop> loop() override { return loop_; }
  uint64_t NewInstance() override { return 1; }
  std::unique_ptr<CoordinatorChannel> OpenCoordinator(const std::string&,
                                                      std::optional<nanoseconds> attempt) override {
    attempts.push_back(attempt.value());
    return std::make_unique<UnansweredChannel>(attempts.size() < 6
                                                   ? absl::UnavailableError("no answer to the greeting")
                                                   : absl::InvalidArgumentError("scripted"),
                                               *loop_);
  }
  std::unique_ptr<ShardChannel> OpenShard(uint32_t, const std::string&, int64_t) override { return nullptr; }

  std::vector<nanoseconds> attempts;

 private:
  const std::shared_ptr<GrpcPoller> loop_ = GrpcPoller::Start(std::chrono::microseconds(0)).value();
};

TEST_CASE("each attempt to connect leaves the server more time to greet than the one before") {
  ClientFixture f(ClientFixture::Small());
  f.config.mutable_cluster()->set_start_seconds(3600);
  SilentTransport transport;
  const absl::Status joined = ClientImpl::Join(f.options, f.model, f.config, transport).status();
  CHECK(joined == absl::InvalidArgumentError("ps:0 (coordinator) at 10.0.0.1:2222: scripted"));
  const std::vector<nanoseconds> doubled{seconds(1), seconds(2),  seconds(4),
                                         seconds(8), seconds(16), seconds(16)};
  CHECK(transport.attempts == doubled);
}

}  // namespace
}  // namespace weir
