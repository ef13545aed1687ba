// What a killed client leaves behind on a server with which it shared memory, and what workers do where a
// server's local sockets are not available.
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "catch2/catch.hpp"
#include "common/net/local_socket.h"
#include "common/shared_memory/message_ring.h"
#include "common/system/unique_fd.h"
#include "local/in_process_cluster.h"
#include "tests/integration/counting_job.h"
#include "tests/integration/processes.h"
#include "tests/integration/sync_run.h"
#include "tests/integration/transport.h"

namespace weir {
namespace {

using Catch::Contains;
using Clock = std::chrono::steady_clock;

// ---- clients that are killed

constexpr uint32_t kServers = 2;
// The size of a client's segment, which none of the servers' own segments has: its end of the rings, in whole
// pages, and three slots.
constexpr off_t kSegmentBytes = kRingAreaPages + (3 << 20);

v1::JobConfig SharedMemoryJob(const std::string& apply) {
  return CountingJob({"wire.transport=shared_memory", "wire.chunk_kib=1024", "wire.chunks_in_flight=3",
                      "server.apply=" + apply, "cluster.grace_seconds=0.05", "cluster.min_workers=1"});
}

// Not a test: the program of the client that is killed. It is this program, run with the name of this case.
TEST_CASE("a client that pushes until it is killed", "[.]") {
  const char* servers = std::getenv("COUNTING_SERVERS");
  const char* apply = std::getenv("COUNTING_APPLY");
  if (servers == nullptr || apply == nullptr) return;
  const auto client = CountingClient::Join(SharedMemoryJob(apply), absl::StrSplit(servers, ','), /*rank=*/1);
  INFO(client.status());
  REQUIRE(client.ok());
  while (true) {
    const auto stepped = (*client)->Step();
    INFO(stepped.status());
    REQUIRE(stepped.ok());
  }
}

// The resources that this process, which is servers and a client, holds for its clients.
struct Holdings {
  // Descriptors of sockets.
  int local = 0, tcp = 0;
  // Clients' descriptors and mappings.
  int segments = 0;

  // A client of this process may have one more TCP connection than before, with both ends here: it opens its
  // heartbeat connection when it needs it. A leak would leave two with every client that dies.
  bool NoMoreThan(const Holdings& before) const {
    return local == before.local && segments == before.segments && tcp <= before.tcp + 2;
  }
};

Holdings Count() {
  Holdings held;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename().string());
    int domain = 0;
    socklen_t length = sizeof(domain);
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0) {
      ++(domain == AF_UNIX ? held.local : held.tcp);
      continue;
    }
    struct stat file;
    if (fstat(fd, &file) != 0) continue;
    std::error_code error;
    const std::string link = std::filesystem::read_symlink(entry.path(), error).string();
    held.segments += link.find("/memfd:weir") == 0 && file.st_size == kSegmentBytes;
  }
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/memfd:weir") == std::string::npos) continue;
    const size_t dash = line.find('-');
    const uint64_t first = std::stoull(line.substr(0, dash), nullptr, 16);
    const uint64_t end = std::stoull(line.substr(dash + 1), nullptr, 16);
    held.segments += end - first == static_cast<uint64_t>(kSegmentBytes);
  }
  return held;
}

TEST_CASE("a client is killed in the middle of its pushes through shared memory") {
  const std::string apply = GENERATE("streamed", "staged");
  InProcessCluster::Options options;
  options.config = SharedMemoryJob(apply);
  options.servers = kServers;
  options.workers = 2;
  const auto cluster = InProcessCluster::Start(options);
  INFO(cluster.status());
  REQUIRE(cluster.ok());
  const std::vector<std::string> servers = (*cluster)->addresses();
  const auto joined = CountingClient::Join(options.config, servers, /*rank=*/0);
  INFO(joined.status());
  REQUIRE(joined.ok());
  CountingClient& client = **joined;

  uint64_t own = 0;
  const auto step = [&] {
    const auto stepped = client.Step();
    INFO(stepped.status());
    REQUIRE(stepped.ok());
    // A batch whose push a killed client delivered, without getting the answer, is given out again.
    const PushResult& push = client.last_push();
    INFO(push.reason);
    REQUIRE((push.applied || push.reason.find("DUPLICATE_BATCH") != std::string::npos));
    own += push.applied;
    REQUIRE(client.TornElements() == 0);
  };
  for (int i = 0; i < 3; ++i) step();
  const Holdings before = Count();
  // This client's own segments, at both ends; the mapping of each and the descriptor at the end that made it.
  CHECK(before.segments == 3 * static_cast<int>(kServers));

  const TestFolder folder;
  for (int round = 0; round < 4; ++round) {
    const std::string log = folder.path(std::to_string(round) + ".log");
    TestProcess other({"/proc/self/exe", "a client that pushes until it is killed"},
                      {{"COUNTING_SERVERS", absl::StrJoin(servers, ",")}, {"COUNTING_APPLY", apply}}, log);
    const uint64_t others = client.versions()[0] - own;
    const auto deadline = Clock::now() + kHangLimit;
    while (client.versions()[0] - own < others + 4 + round) {
      INFO("the log of the other client:\n" << other.log());
      REQUIRE(Clock::now() < deadline);
      REQUIRE_FALSE(other.Ended());
      step();
    }
    other.Signal(SIGKILL);
    CHECK(other.Wait() == 128 + SIGKILL);
    for (int i = 0; i < 3; ++i) step();
    while (!Count().NoMoreThan(before)) {
      const Holdings now = Count();
      INFO("Unix sockets: " << before.local << ", now " << now.local);
      INFO("TCP sockets: " << before.tcp << ", now " << now.tcp);
      INFO("clients' segments: " << before.segments << ", now " << now.segments);
      REQUIRE(Clock::now() < deadline);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  for (const std::string& server : servers) {
    CHECK(LocalConnections(LocalService::kSegments, *ParseAddress(server)) == 1);
  }
  // A killed client's push counts on the shards where it arrived whole, and nowhere else.
  step();
  CHECK(client.versions()[0] > own);
  CHECK(client.client().Leave().ok());
}

// ---- sockets that cannot be had

// Takes a server's names, so that the server cannot have them.
std::vector<UniqueFd> TakeNames(LocalService service, const std::string& address, bool listening) {
  std::vector<UniqueFd> taken;
  const int type = service == LocalService::kGrpc ? SOCK_STREAM : SOCK_SEQPACKET;
  for (const std::string& name : NamesToListenOn(service, *ParseAddress(address))) {
    taken.emplace_back(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    sockaddr_un at{};
    at.sun_family = AF_UNIX;
    memcpy(at.sun_path + 1, name.data(), name.size());
    const socklen_t length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    REQUIRE(bind(taken.back().get(), reinterpret_cast<const sockaddr*>(&at), length) == 0);
    if (listening) REQUIRE(listen(taken.back().get(), 8) == 0);
  }
  REQUIRE_FALSE(taken.empty());
  return taken;
}

struct ShortJob {
  explicit ShortJob(const std::string& transport) {
    TestJob::Options options;
    options.config = folder.Write("job.json", DigitsJobText());
    options.set = set;
    options.set.push_back("wire.transport=" + transport);
    job = std::make_unique<TestJob>(options);
  }

  void CheckBits() {
    job->ExpectAllExit(0);
    CHECK(job->Summary()["weights_sha256"] == SerialDigits(set).weights_sha256);
  }
  std::string log(const std::string& task) { return (*job)[task].log(); }

  const std::vector<std::string> set = {"train.examples=413"};
  const TestFolder folder;
  std::unique_ptr<TestJob> job;
};

TEST_CASE("a server without shared memory: workers say so, and the result is the same") {
  // Another process that does not listen there, or listens and sends nothing.
  const bool listening = GENERATE(false, true);
  ShortJob shared("shared_memory");
  const auto taken = TakeNames(LocalService::kSegments, shared.job->address("ps:1"), listening);
  shared.job->StartAll();
  shared.CheckBits();
  CHECK_THAT(shared.log("ps:0"), !Contains("workers on this host have no"));
  CHECK_THAT(shared.log("ps:1"), Contains("workers on this host have no shared memory with shard 1") &&
                                     Contains("is taken") && !Contains("no Unix socket"));
  for (const char* worker : {"worker:0", "worker:1"}) {
    CHECK_THAT(shared.log(worker),
               Contains("no shared memory with ps:1") && !Contains("no shared memory with ps:0"));
  }
}

TEST_CASE("a server without a Unix socket: workers say so and take TCP, and the result is the same") {
  ShortJob unix_job("unix");
  const std::string server = unix_job.job->address("ps:1");
  const auto taken = TakeNames(LocalService::kGrpc, server, /*listening=*/false);
  unix_job.job->StartAll();
  unix_job.CheckBits();
  CHECK_THAT(unix_job.log("ps:1"), Contains("workers on this host have no Unix socket with shard 1"));
  for (const char* worker : {"worker:0", "worker:1"}) {
    CHECK_THAT(unix_job.log(worker), Contains("no Unix socket of " + server + ", TCP instead") &&
                                         !Contains("no Unix socket of " + unix_job.job->address("ps:0")));
  }
}

TEST_CASE("with neither, auto still works") {
  ShortJob quiet("auto");
  std::vector<UniqueFd> taken;
  for (const char* server : {"ps:0", "ps:1"}) {
    for (const LocalService service : {LocalService::kGrpc, LocalService::kSegments}) {
      for (UniqueFd& fd : TakeNames(service, quiet.job->address(server), /*listening=*/false)) {
        taken.push_back(std::move(fd));
      }
    }
  }
  quiet.job->StartAll();
  quiet.CheckBits();
  // The config asked for no more.
  CHECK_THAT(quiet.log("worker:0"), !Contains("no shared memory") && !Contains("no Unix socket"));
}

}  // namespace
}  // namespace weir
