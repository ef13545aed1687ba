// Views of the weights (Client::PullInPlace): a view does not change while it is held, on every transport,
// whoever pushes, leaves or dies meanwhile; and its memory is freed with it.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "catch2/catch.hpp"
#include "common/base/status_macros.h"
#include "local/in_process_cluster.h"
#include "tests/integration/counting_job.h"
#include "tests/integration/processes.h"

namespace weir {
namespace {

constexpr uint32_t kServers = 2;

// Servers and the workers of a job, all joined.
struct Job {
  explicit Job(const std::vector<std::string>& overrides, uint32_t workers = 2) {
    options.config = CountingJob(overrides);
    options.config.mutable_cluster()->set_workers(workers);
    options.servers = kServers;
    options.workers = workers;
    auto started = InProcessCluster::Start(options);
    INFO(started.status());
    REQUIRE(started.ok());
    cluster = *std::move(started);
  }
  void Join(uint32_t count) {
    std::vector<absl::StatusOr<std::unique_ptr<CountingClient>>> joined(count);
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < count; ++rank) {
      threads.emplace_back(
          [&, rank] { joined[rank] = CountingClient::Join(options.config, cluster->addresses(), rank); });
    }
    for (std::thread& thread : threads) thread.join();
    for (auto& client : joined) {
      INFO(client.status());
      REQUIRE(client.ok());
      clients.push_back(*std::move(client));
    }
  }

  InProcessCluster::Options options;
  std::unique_ptr<InProcessCluster> cluster;
  std::vector<std::unique_ptr<CountingClient>> clients;
};

void Require(const absl::Status& status) {
  INFO(status);
  REQUIRE(status.ok());
}

void Step(CountingClient& client) {
  const auto stepped = client.Step();
  Require(stepped.status());
  REQUIRE(*stepped);
  REQUIRE(client.TornElements() == 0);
}

WeightsView View(CountingClient& client) {
  auto view = client.client().PullInPlace(0).Take();
  Require(view.status());
  return *std::move(view);
}

TEST_CASE("views are not torn while others push, on any transport") {
  const std::string transport = GENERATE("tcp", "unix", "shared_memory");
  const std::string apply = GENERATE("streamed", "staged");
  const std::string dtype = GENERATE("f32", "bf16");
  constexpr uint64_t kPushes = 40;
  Job job({"wire.transport=" + transport, "server.apply=" + apply, "wire.dtype=" + dtype,
           absl::StrCat("train={\"examples\": ", kPushes, "}")});
  job.Join(2);
  // Two workers in async: the views are copies, for which no push waits.
  const bool expect_in_place = false;

  struct Seen {
    absl::Status status;
    int64_t torn = 0;
    uint64_t pushes = 0, elsewhere = 0;
  };
  std::vector<Seen> seen(2);
  const auto train = [&](CountingClient& client, Seen* seen) -> absl::Status {
    while (true) {
      WEIR_ASSIGN_OR_RETURN(const bool stepped, client.StepInPlace());
      // The view was held until the next was there, through the other worker's pushes and its own.
      seen->torn += client.TornElementsOfView();
      if (!stepped) return client.client().Leave();
      seen->pushes += client.last_push().applied;
      seen->elsewhere += client.view().in_place() != expect_in_place;
      // A pull while a view is held.
      WEIR_RETURN_IF_ERROR(client.Pull());
      seen->torn += client.TornElements();
      seen->torn += client.TornElementsOfView();
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      seen[i].status = train(*job.clients[i], &seen[i]);
      if (!seen[i].status.ok()) job.cluster->server(0)->Stop(std::string(seen[i].status.message()));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Seen& mine : seen) {
    Require(mine.status);
    CHECK(mine.torn == 0);
    CHECK(mine.elsewhere == 0);
  }
  CHECK(seen[0].pushes + seen[1].pushes == kPushes);
}

TEST_CASE("a view that is held stays as it is, and holds nobody up") {
  const std::string transport = GENERATE("tcp", "unix", "shared_memory");
  const std::string apply = GENERATE("streamed", "staged");
  Job job({"wire.transport=" + transport, "server.apply=" + apply});
  job.Join(2);
  CountingClient &holder = *job.clients[0], &other = *job.clients[1];
  Step(other);
  const WeightsView view = View(holder);
  CHECK_FALSE(view.in_place());  // two workers in async
  REQUIRE(view.tensors() == 3);
  CHECK(view.pieces(0).size() > 1);  // with two servers
  CHECK(view.contiguous(0) == nullptr);
  REQUIRE(view.contiguous(1) != nullptr);
  CHECK(*view.contiguous(1) == static_cast<float>(view.pull().versions[0]));
  for (int i = 0; i < 4; ++i) {
    Step(other);
    // The holder's chunks of later pulls are released, though the view's came first.
    Step(holder);
  }
  CHECK(holder.versions() == std::vector<uint64_t>(kServers, 9));
  CHECK(view.pull().versions == std::vector<uint64_t>(kServers, 1));
  CHECK(CountingClient::TornElementsOf(view) == 0);
}

TEST_CASE("a view outlives its client and the servers") {
  const std::string transport = GENERATE("tcp", "shared_memory");
  Job job({"wire.transport=" + transport, "server.apply=" + std::string(GENERATE("streamed", "staged"))});
  job.Join(2);
  Step(*job.clients[1]);
  WeightsView view = View(*job.clients[0]);
  REQUIRE(job.clients[0]->client().Leave().ok());
  job.clients[0] = nullptr;
  // Without the view, the end of the stream would have let the servers reuse its memory.
  for (int i = 0; i < 4; ++i) Step(*job.clients[1]);
  CHECK(CountingClient::TornElementsOf(view) == 0);
  job.clients.clear();
  job.cluster = nullptr;
  CHECK(view.pull().versions == std::vector<uint64_t>(kServers, 1));
  CHECK(CountingClient::TornElementsOf(view) == 0);
  // Destroys the view on another thread, after everything else of the client is gone.
  std::thread([moved = std::move(view)] {}).join();
}

TEST_CASE("where more workers could hold views than servers can keep, they are copies") {
  Job job({"wire.transport=shared_memory"}, /*workers=*/3);
  job.Join(3);
  for (const auto& client : job.clients) {
    const WeightsView view = View(*client);
    CHECK_FALSE(view.in_place());
    CHECK(CountingClient::TornElementsOf(view) == 0);
  }
  // So that all clients may hold a view and push.
  std::vector<WeightsView> views;
  for (const auto& client : job.clients) {
    for (int i = 0; i < 2; ++i) {
      views.push_back(View(*client));
      Step(*client);
    }
  }
  for (const WeightsView& view : views) CHECK(CountingClient::TornElementsOf(view) == 0);
}

const std::vector<std::string> kMortalJob = {"wire.transport=shared_memory", "cluster.grace_seconds=0.05",
                                             "cluster.min_workers=1"};

// Not a test: the program of the client that is killed. It is this program, run with the name of this case.
TEST_CASE("a client that holds views until it is killed", "[.]") {
  const char* servers = std::getenv("COUNTING_SERVERS");
  if (servers == nullptr) return;
  const auto client = CountingClient::Join(CountingJob(kMortalJob), absl::StrSplit(servers, ','), /*rank=*/1);
  Require(client.status());
  std::vector<WeightsView> views;
  for (int i = 0; i < 3; ++i) {
    views.push_back(View(**client));
    REQUIRE(views.back().in_place());
    if (i < 2) Step(**client);
  }
  std::puts("holds them");
  std::fflush(stdout);
  while (true) pause();
}

TEST_CASE("a worker that is killed lets its views go") {
  Job job(kMortalJob);
  const TestFolder folder;
  TestProcess other({"/proc/self/exe", "a client that holds views until it is killed"},
                    {{"COUNTING_SERVERS", absl::StrJoin(job.cluster->addresses(), ",")}}, folder.path("log"));
  // Alone in the job, so that its views are in place.
  other.WaitForLog("holds them");
  job.Join(1);
  // The killed client held so many old versions that without their release this step would wait for ever.
  absl::StatusOr<bool> stepped = false;
  std::thread step([&] { stepped = job.clients[0]->Step(); });
  other.Signal(SIGKILL);
  CHECK(other.Wait() == 128 + SIGKILL);
  step.join();
  Require(stepped.status());
  CHECK(job.clients[0]->TornElements() == 0);
  for (int i = 0; i < 4; ++i) Step(*job.clients[0]);
}

}  // namespace
}  // namespace weir
