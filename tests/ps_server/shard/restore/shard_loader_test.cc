#include "ps_server/shard/restore/shard_loader.h"

#include <catch2/catch.hpp>
#include <deque>
#include <string>
#include <utility>

#include "common/optimizer/kernels.h"
#include "common/threads/thread.h"
#include "tests/common/faulty_file_system.h"

namespace weir {
namespace {

// A loader whose background work runs when the test says so; the queue is the test's thread.
struct Fixture {
  explicit Fixture(bool logs)
      : config(Config(logs)),
        loader({&config,
                &files,
                &queue,
                &Clock::Real(),
                [this](std::function<void()> work) { background.push_back(std::move(work)); },
                {},
                0,
                {}}) {
    REQUIRE(files.MakeFolder("/checkpoints").ok());
  }
  static v1::JobConfig Config(bool logs) {
    v1::JobConfig config;
    config.mutable_consistency()->set_mode(v1::ConsistencyConfig::MODE_ASYNC);
    config.mutable_checkpoint()->set_directory("/checkpoints");
    if (logs) config.mutable_server()->set_durability(v1::ServerConfig::DURABILITY_LOG);
    return config;
  }
  // Begins a load. `done` gets the load's number at its end.
  void Load(int number) {
    v1::Install install;
    install.set_num_shards(1);
    install.set_number(number);
    BlockStore::Options store;
    store.model.tensors = {{"w", {40}, TensorKind::kParameter, Initializer::Zeros()}};
    store.optimizer.set_type(v1::OptimizerConfig::KIND_SGD);
    store.optimizer.set_learning_rate(0.1);
    store.kernels = &BestKernels();
    store.threads = &threads;
    loader.Load(install, v1::JobIdentity(), store,
                [this, number](absl::StatusOr<ShardLoader::Loaded> loaded) {
                  done.push_back(number);
                  REQUIRE(loaded.ok());
                  CHECK(loaded->store->elements() == 40);
                  CHECK((loaded->log != nullptr) ==
                        (config.server().durability() == v1::ServerConfig::DURABILITY_LOG));
                });
  }
  void RunNext() {
    const std::function<void()> work = std::move(background.front());
    background.pop_front();
    work();
  }

  const v1::JobConfig config;
  SerialQueue queue;
  FaultyFileSystem files{1};
  ThreadPool threads{1};
  std::deque<std::function<void()>> background;
  std::vector<int> done;
  ShardLoader loader;
};

TEST_CASE("A load ends in the queue, unless it was abandoned") {
  Fixture f(/*logs=*/false);
  CHECK_FALSE(f.loader.under_way());
  f.Load(1);
  CHECK(f.done.empty());
  CHECK(f.loader.under_way());
  f.RunNext();
  CHECK(f.done == std::vector<int>{1});
  CHECK_FALSE(f.loader.under_way());
  f.Load(2);
  const uint64_t before = f.loader.generation();
  f.loader.Abandon();
  CHECK(f.loader.generation() > before);
  CHECK_FALSE(f.loader.under_way());
  f.Load(3);
  // The end of the abandoned load does not end the next one.
  f.RunNext();
  CHECK(f.done == std::vector<int>{1});
  CHECK(f.loader.under_way());
  f.RunNext();
  CHECK(f.done == std::vector<int>{1, 3});
  CHECK_FALSE(f.loader.under_way());
}

TEST_CASE("With the log one load runs at a time, and the newest of those that wait comes next") {
  Fixture f(/*logs=*/true);
  f.Load(1);
  f.Load(2);
  f.Load(3);
  CHECK(f.background.size() == 1);
  f.RunNext();
  // The first load no longer has an effect: the third one opens the log again.
  CHECK(f.done.empty());
  REQUIRE(f.background.size() == 1);
  f.RunNext();
  CHECK(f.done == std::vector<int>{3});
}

TEST_CASE("A load that waits is abandoned, too, and stops no later one") {
  Fixture f(/*logs=*/true);
  f.Load(1);
  f.Load(2);
  f.loader.Abandon();
  f.RunNext();
  CHECK(f.background.empty());
  f.Load(3);
  f.RunNext();
  CHECK(f.done == std::vector<int>{3});
}

}  // namespace
}  // namespace weir
