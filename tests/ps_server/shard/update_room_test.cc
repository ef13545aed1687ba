#include "ps_server/shard/update_room.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/optimizer/kernels.h"
#include "common/threads/thread.h"

namespace weir {
namespace {

// A store of 40 elements, without tables. An update waits at most a second for readers.
struct Fixture {
  Fixture() {
    BlockStore::Options options;
    options.model.tensors = {{"w", {40}, TensorKind::kParameter, Initializer::Zeros()}};
    options.optimizer.set_type(v1::OptimizerConfig::KIND_SGD);
    options.optimizer.set_learning_rate(0.1);
    options.kernels = &BestKernels();
    options.threads = &threads;
    options.reader_limits.patience = absl::Seconds(1);
    options.clock = &clock;
    options.on_release = [this] { room.OnRelease(); };
    auto made = BlockStore::Create(options);
    REQUIRE(made.ok());
    store = *made;
    install.set_workers(1);
    install.set_num_shards(1);
    now.Begin(1, {store, nullptr, {}, {}, nullptr}, MakeAsyncPolicy());
    room.Begin(install);
  }
  ~Fixture() {
    read.clear();
    room.End();
    now.End();
  }
  const UpdateRoom::Pin& Hold(uint64_t number) {
    v1::PinVersion pin;
    pin.set_pin(number);
    pin.set_lease_seconds(10);
    return room.Hold(pin);
  }
  // Worker 3 reads each version, the first of which is pinned, until there is no room for the next one.
  void Fill() {
    Hold(1);
    const std::vector<float> ones(40, 1);
    const WeightedGradient gradient{ones.data(), 1};
    for (int i = 0; i < 3; ++i) {
      REQUIRE(room.Make());
      store->Update(absl::MakeConstSpan(&gradient, 1));
      read.push_back(store->Lend({7, 3, 0}));
    }
  }

  v1::JobConfig config;
  ManualClock clock;
  ThreadPool threads{1};
  v1::Install install;
  ShardCounters counters;
  Incarnation now{config, install, counters};
  int shortages = 0, revocations = 0, nudges = 0;
  UpdateRoom room{{&config, &clock, &now, &counters.versions_written_off, 0,
                   [this](absl::Duration) { ++nudges; }, [this] { ++revocations; }, [this] { ++shortages; },
                   [] { return std::nullopt; }}};
  std::shared_ptr<BlockStore> store;
  std::vector<std::shared_ptr<const LentVersion>> read;
};

TEST_CASE("UpdateRoom: an update waits for workers for a while, and then writes their versions off") {
  Fixture f;
  f.Fill();
  CHECK(f.shortages == 0);
  CHECK_FALSE(f.room.Make());
  CHECK(f.shortages == 1);
  CHECK(f.room.Holders() ==
        "memory of weights, which readers hold: version 0 (old for 0.0 s): pin 1; version 1 (old for 0.0 s): "
        "worker 3 on stream 7; version 2 "
        "(old for 0.0 s): worker 3 on stream 7; version 3 (the newest): worker 3 on stream 7");
  CHECK(f.room.Tasks() == std::vector<std::string>{"worker 3"});
  f.clock.Advance(absl::Seconds(2));
  CHECK(f.room.Make());
  CHECK(f.revocations == 1);
  CHECK(f.counters.versions_written_off == 1);
  CHECK(f.read[0]->revoked);
  CHECK(f.room.Find(1) != nullptr);
}

TEST_CASE("UpdateRoom: a version that is released while calls wait asks for a turn") {
  Fixture f;
  f.Fill();
  f.read.pop_back();
  CHECK(f.nudges == 0);
  f.room.SetShort(true);
  f.read.pop_back();
  CHECK(f.nudges == 1);
  CHECK(f.room.Make());
}

TEST_CASE("UpdateRoom: a pin ends with its lease, unless it is renewed") {
  Fixture f;
  f.Hold(1);
  f.Hold(2);
  f.clock.Advance(absl::Seconds(6));
  f.Hold(2);
  f.clock.Advance(absl::Seconds(6));
  f.room.EndPins();
  CHECK(f.room.Find(1) == nullptr);
  CHECK(f.room.Find(2) != nullptr);
}

}  // namespace
}  // namespace weir
