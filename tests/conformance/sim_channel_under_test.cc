#include "tests/conformance/sim_channel_under_test.h"

#include <utility>

#include "tests/simulation/sim_channel.h"
#include "tests/simulation/sim_server.h"
#include "tests/simulation/site.h"

namespace weir {
namespace {

// A job of one shard without random faults.
Plan MakeCalmPlan(bool shared_memory) {
  Plan plan = MakePlan(1);
  plan.config.clear_checkpoint();
  plan.ledger.shards = 1;
  plan.ledger.poisoned.clear();
  plan.network = NetworkFaults();
  plan.faults.clear();
  plan.shared_memory = shared_memory;
  return plan;
}

class SimShardEnd final : public ShardEnd, public std::enable_shared_from_this<SimShardEnd> {
 public:
  SimShardEnd(std::shared_ptr<Connection> connection, std::function<void(const std::string&)> to_client)
      : connection_(std::move(connection)), to_client_(std::move(to_client)) {}

  void Send(std::string message) override {
    connection_->Send(Connection::kAcceptor,
                      [to_client = to_client_, message = std::move(message)] { to_client(message); });
  }
  void End(const absl::Status& status) override { connection_->Close(Connection::kAcceptor, status); }
  std::vector<std::string> received() const override { return received_; }
  bool over() const override { return connection_->over(Connection::kAcceptor); }

  void Receive(const std::string& message) { received_.push_back(message); }

 private:
  const std::shared_ptr<Connection> connection_;
  const std::function<void(const std::string&)> to_client_;
  std::vector<std::string> received_;
};

class SimChannelUnderTest final : public ChannelUnderTest {
 public:
  explicit SimChannelUnderTest(bool shared_memory) : plan_(MakeCalmPlan(shared_memory)) {
    site_.servers.push_back(std::make_unique<SimServer>(&site_, 0));
    site_.servers[0]->Start();
    site_.world.Start(client_);
    site_.seams.accept = [this](std::shared_ptr<Connection> connection, Seams::Receiver to_client) {
      const auto end = std::make_shared<SimShardEnd>(std::move(connection), std::move(to_client));
      ends_.push_back(end);
      // ends_ holds the end, and the end holds the connection, which holds this function.
      return [weak = std::weak_ptr<SimShardEnd>(end)](const std::string& message) {
        if (const auto end = weak.lock()) end->Receive(message);
      };
    };
  }

  ShardChannel& channel() override { return channel_; }
  bool Await(const std::function<bool()>& done) override {
    return site_.world.Run(site_.world.elapsed() + absl::Seconds(20), done, [] {});
  }
  Bell& bell() override { return bell_; }
  std::vector<std::shared_ptr<ShardEnd>> streams() const override { return {ends_.begin(), ends_.end()}; }
  void Kill() override { site_.servers[0]->Kill(); }
  SharedMemory& memory() override { return site_.servers[0]->shared_memory(); }
  std::shared_ptr<float> Allocate(size_t elements) override {
    std::shared_ptr<float> memory = AllocateSlab(elements);
    site_.mapped.Add(memory, elements);
    return memory;
  }

 private:
  const Plan plan_;
  Site site_{plan_, /*verbose=*/false};
  const World::Node client_ = site_.world.AddNode("worker:0");
  const std::shared_ptr<SimEventLoop> loop_ = std::make_shared<SimEventLoop>(&site_.world, client_);
  const std::shared_ptr<SimShardStreams> streams_ =
      std::make_shared<SimShardStreams>(SimShardStreams{&site_, client_, 0, Site::AddressOf(0), loop_, {}});
  SimShardChannel channel_{streams_};
  Bell bell_;
  std::vector<std::shared_ptr<SimShardEnd>> ends_;
};

}  // namespace

std::unique_ptr<ChannelUnderTest> MakeSimChannelUnderTest(bool shared_memory) {
  return std::make_unique<SimChannelUnderTest>(shared_memory);
}

}  // namespace weir
