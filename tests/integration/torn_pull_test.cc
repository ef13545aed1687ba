// A worker or reader that pulls while others push gets one version of each shard, whole: over every
// transport, with either way to apply, and with any dtype on the wire.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/base/status_macros.h"
#include "local/in_process_cluster.h"
#include "tests/integration/counting_job.h"
#include "tests/integration/transport.h"

namespace weir {
namespace {

constexpr uint32_t kServers = 2, kWriters = 2, kReaders = 2;
// At most 256: bfloat16 holds these integers exactly.
#ifdef WEIR_TSAN
constexpr uint64_t kPushes = 12;
#else
constexpr uint64_t kPushes = 80;
#endif

// What one client saw.
struct Seen {
  absl::Status status;
  uint64_t pulls = 0, pushes = 0;
  int64_t torn = 0;
  // No shard's version went back; and the last versions.
  bool forward = true;
  std::vector<uint64_t> versions = std::vector<uint64_t>(kServers, 0);

  void Look(const CountingClient& client) {
    ++pulls;
    torn += client.TornElements();
    for (uint32_t shard = 0; shard < kServers; ++shard) {
      forward = forward && client.versions()[shard] >= versions[shard];
    }
    versions = client.versions();
  }
};

// Pushes, each with the next pull, and separate pulls between.
absl::Status Write(const v1::JobConfig& config, const std::vector<std::string>& servers, uint32_t rank,
                   Seen* seen) {
  WEIR_ASSIGN_OR_RETURN(const auto client, CountingClient::Join(config, servers, rank));
  while (true) {
    WEIR_ASSIGN_OR_RETURN(const bool stepped, client->Step());
    if (!stepped) return client->client().Leave();
    seen->pushes += client->last_push().applied;
    seen->Look(*client);
    WEIR_RETURN_IF_ERROR(client->Pull());
    seen->Look(*client);
  }
}

absl::Status Read(const v1::JobConfig& config, const std::vector<std::string>& servers, uint32_t rank,
                  Seen* seen) {
  WEIR_ASSIGN_OR_RETURN(const auto client, CountingClient::Join(config, servers, rank, /*reader=*/true));
  bool last = false;
  while (!last) {
    last = client->client().draining();
    WEIR_RETURN_IF_ERROR(client->PullSnapshot());
    seen->Look(*client);
  }
  return client->client().Leave();
}

void CheckNothingTorn(const std::string& transport, const std::vector<std::string>& more) {
  std::vector<std::string> overrides = {"wire.transport=" + transport,
                                        absl::StrCat("train={\"examples\": ", kPushes, "}")};
  overrides.insert(overrides.end(), more.begin(), more.end());
  InProcessCluster::Options options;
  options.config = CountingJob(overrides);
  options.servers = kServers;
  options.workers = kWriters;
  const auto cluster = InProcessCluster::Start(options);
  INFO(cluster.status());
  REQUIRE(cluster.ok());
  const std::vector<std::string> servers = (*cluster)->addresses();

  std::vector<Seen> seen(kWriters + kReaders);
  std::vector<std::thread> threads;
  std::atomic<int> running{0};
  // Otherwise clients that wait for a failed client would wait long.
  const auto finish = [&](Seen& mine) {
    if (!mine.status.ok()) (*cluster)->server(0)->Stop(std::string(mine.status.message()));
    --running;
  };
  running = kWriters + kReaders;
  for (uint32_t i = 0; i < kWriters + kReaders; ++i) {
    threads.emplace_back([&, i] {
      seen[i].status = i < kWriters ? Write(options.config, servers, i, &seen[i])
                                    : Read(options.config, servers, i - kWriters, &seen[i]);
      finish(seen[i]);
    });
  }
  // The transport in use: the largest number of connections seen at once.
  int sockets = 0, segments = 0;
  const auto server = ParseAddress(servers[0]);
  while (running > 0) {
    sockets = std::max(sockets, LocalConnections(LocalService::kGrpc, *server));
    segments = std::max(segments, LocalConnections(LocalService::kSegments, *server));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  for (std::thread& thread : threads) thread.join();

  uint64_t pushes = 0;
  for (uint32_t i = 0; i < kWriters + kReaders; ++i) {
    INFO((i < kWriters ? "writer " : "reader ") << i << ": " << seen[i].pulls << " pulls");
    INFO(seen[i].status);
    REQUIRE(seen[i].status.ok());
    CHECK(seen[i].torn == 0);
    CHECK(seen[i].forward);
    CHECK(seen[i].pulls > 0);
    pushes += seen[i].pushes;
    // The versions at the end.
    if (i >= kWriters) CHECK(seen[i].versions == std::vector<uint64_t>(kServers, kPushes));
  }
  CHECK(pushes == kPushes);
  CHECK((sockets > 0) == (transport != "tcp"));
  CHECK((segments > 0) == (transport == "shared_memory"));
}

TEST_CASE("no pull is torn: streamed apply") {
  CheckNothingTorn(GENERATE("tcp", "unix", "shared_memory"), {"server.apply=streamed"});
}

TEST_CASE("no pull is torn: staged apply") {
  CheckNothingTorn(GENERATE("tcp", "unix", "shared_memory"), {"server.apply=staged"});
}

TEST_CASE("no pull is torn: bfloat16 gradients") {
  CheckNothingTorn(GENERATE("tcp", "unix", "shared_memory"), {"wire.push_dtype=bf16"});
}

TEST_CASE("no pull is torn: bfloat16 both ways") {
  CheckNothingTorn(GENERATE("tcp", "unix", "shared_memory"), {"server.apply=staged", "wire.dtype=bf16"});
}

TEST_CASE("no pull is torn: more and smaller chunks on their way") {
  CheckNothingTorn(GENERATE("tcp", "unix", "shared_memory"),
                   {"wire.chunk_kib=256", "wire.chunks_in_flight=5", "server.io_threads=3"});
}

}  // namespace
}  // namespace weir
