// The baselines, and the benchmark's Weir, do all of the work that they are measured for: the returned
// weights are those of the same optimizer over the same gradients.
#include "bench/contestant.h"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/host.h"
#include "bench/memory.h"
#include "bench/row_gather.h"
#include "bench/server_process.h"
#include "bench/weir_contestant.h"
#include "bench/weir_rows.h"
#include "catch2/catch.hpp"
#include "common/base/status_macros.h"

namespace weir::bench {
namespace {

constexpr int64_t kElements = 100'000;

// Several windows of uneven length.
Contestant Make(const std::string& kind, const std::string& optimizer) {
  Contestant contestant;
  contestant.name = contestant.kind = kind;
  contestant.elements = kElements;
  contestant.optimizer = optimizer;
  contestant.window_bytes = 65536;
  return contestant;
}

// The weights after this many gradients of WorkerTensors.
std::vector<float> Expected(const std::string& optimizer, int updates) {
  const Parameters parameters(optimizer, kElements);
  const WorkerTensors tensors(kElements);
  for (int update = 0; update < updates; ++update) {
    parameters.Apply(0, kElements, tensors.gradient.data(), update % 2);
  }
  const float* weights = parameters.weights(updates % 2);
  return {weights, weights + kElements};
}

// Steps of a contestant's clients, one client after another. Returns the first difference from the expected
// weights.
absl::Status TakeSteps(const Contestant& contestant, int steps) {
  WEIR_ASSIGN_OR_RETURN(const auto host, ServerHost::Local());
  WEIR_ASSIGN_OR_RETURN(const auto servers, host->Start(contestant));
  std::vector<std::unique_ptr<StepClient>> clients;
  for (int index = 0; index < contestant.clients; ++index) {
    WEIR_ASSIGN_OR_RETURN(clients.emplace_back(), ConnectClient(contestant, index, servers.addresses));
  }
  for (int updates = 1; updates <= steps * contestant.clients; ++updates) {
    const auto& client = clients[updates % contestant.clients];
    WEIR_RETURN_IF_ERROR(client->Step());
    const std::vector<float> expected = Expected(contestant.optimizer, updates);
    for (int64_t i = 0; i < kElements; ++i) {
      if (client->weights()[i] == expected[i]) continue;
      return absl::InternalError(absl::StrCat("after ", updates, " updates element ", i, " is ",
                                              client->weights()[i], ", expected ", expected[i]));
    }
  }
  return absl::OkStatus();
}

void CheckWeights(const Contestant& contestant, int steps) {
  // Clients start threads, and a process with threads cannot be forked any more.
  const auto child = Child::Fork([&](Control& control) {
    WEIR_RETURN_IF_ERROR(TakeSteps(contestant, steps));
    return control.Send({{"equal", true}});
  });
  REQUIRE(child.ok());
  const auto answer = (*child)->control().Receive();
  INFO(contestant.name << ", " << contestant.optimizer << ", " << contestant.servers << " servers, "
                       << contestant.clients << " clients, " << contestant.connections
                       << " connections: " << answer.status());
  CHECK(answer.ok());
}

TEST_CASE("the raw socket loop applies what is pushed and brings it back") {
  for (const char* transport : {"tcp", "unix"}) {
    for (const char* optimizer : {"sgd", "momentum", "adam"}) {
      Contestant raw = Make("raw", optimizer);
      raw.transport = transport;
      CheckWeights(raw, 3);
      raw.window_bytes = 1 << 30;
      CheckWeights(raw, 3);
      raw.window_bytes = 65536;
      raw.connections = 2;
      raw.servers = 2;
      raw.clients = 3;
      CheckWeights(raw, 2);
    }
  }
}

// Steps of a contestant on rows; `check` gets the keys of each step's batch, and the rows that it has read.
void CheckRows(
    const Contestant& contestant, int steps,
    const std::function<bool(int step, const std::vector<uint64_t>&, absl::Span<const float>)>& check) {
  const auto child = Child::Fork([&](Control& control) -> absl::Status {
    WEIR_ASSIGN_OR_RETURN(const auto host, ServerHost::Local());
    WEIR_ASSIGN_OR_RETURN(const auto servers, host->Start(contestant));
    WEIR_ASSIGN_OR_RETURN(const auto client, ConnectClient(contestant, 0, servers.addresses));
    const std::vector<std::vector<uint64_t>> batches = ZipfBatches(contestant.table_rows, 0);
    for (int step = 0; step < steps; ++step) {
      WEIR_RETURN_IF_ERROR(client->Step());
      if (!check(step, batches[static_cast<size_t>(step) % kBatches], client->weights())) {
        return absl::InternalError(absl::StrCat("step ", step, " has read other rows"));
      }
    }
    return control.Send({{"equal", true}});
  });
  REQUIRE(child.ok());
  const auto answer = (*child)->control().Receive();
  INFO(contestant.name << ": " << answer.status());
  CHECK(answer.ok());
}

TEST_CASE("the baselines of rows read the row of each key of a batch") {
  for (const char* kind : {"bare rows", "raw rows"}) {
    Contestant contestant = Make(kind, "sgd");
    contestant.servers = std::string(kind) == "bare rows" ? 0 : 1;
    contestant.table_rows = 100'000;
    contestant.dim = 3;
    CheckRows(contestant, 3, [](int, const std::vector<uint64_t>& keys, absl::Span<const float> rows) {
      for (size_t i = 0; i < rows.size(); ++i) {
        if (rows[i] != BareRows::ValueOf(keys[i / 3])) return false;
      }
      return rows.size() == 3 * kBatchKeys;
    });
  }
}

TEST_CASE("the benchmark's Weir reads rows, and pushes them") {
  ServerProcess::SetProgram("ps_server/ps_server");
  for (const char* transport : {"tcp", "shared_memory"}) {
    Contestant contestant =
        WeirRows("weir", 20'000, 3, absl::StrCat(R"({"wire": {"transport": ")", transport, R"("}})"));
    contestant.row_step = "both";
    // What a key's row was when it was read last. Pushes change it.
    std::map<uint64_t, std::vector<float>> before;
    CheckRows(contestant, static_cast<int>(kBatches) + 1,
              [&](int step, const std::vector<uint64_t>& keys, absl::Span<const float> rows) {
                std::map<uint64_t, std::vector<float>> now;
                for (size_t i = 0; i < keys.size(); ++i) {
                  const std::vector<float> row(rows.begin() + 3 * i, rows.begin() + 3 * (i + 1));
                  if (now.emplace(keys[i], row).first->second != row) return false;
                }
                if (step == 0) before = now;
                // The first batch again.
                return step < static_cast<int>(kBatches) || now != before;
              });
  }
}

TEST_CASE("a push without its pull is applied too") {
  Contestant raw = Make("raw", "sgd");
  raw.pull = false;
  raw.connections = 2;
  const auto host = ServerHost::Local();
  REQUIRE(host.ok());
  const auto servers = (*host)->Start(raw);
  REQUIRE(servers.ok());
  const auto pusher = ConnectClient(raw, 0, servers->addresses);
  REQUIRE(pusher.ok());
  for (int step = 0; step < 3; ++step) REQUIRE((*pusher)->Step().ok());
  CHECK((*pusher)->weights()[0] == 0);

  raw.pull = true;
  const auto puller = ConnectClient(raw, 0, servers->addresses);
  REQUIRE(puller.ok());
  REQUIRE((*puller)->Step().ok());
  const bool equal = (*puller)->weights() == absl::MakeConstSpan(Expected("sgd", 4));
  CHECK(equal);
}

TEST_CASE("the ring applies what is pushed and brings it back") {
  for (const char* optimizer : {"sgd", "momentum", "adam"}) {
    Contestant ring = Make("ring", optimizer);
    ring.windows_in_flight = 3;
    CheckWeights(ring, 5);
    ring.window_bytes = 1 << 30;
    CheckWeights(ring, 3);
  }
}

TEST_CASE("protobuf over gRPC applies what is pushed and brings it back") {
  Contestant protobuf = Make("protobuf", "momentum");
  CheckWeights(protobuf, 3);
  protobuf.servers = 2;
  protobuf.clients = 2;
  CheckWeights(protobuf, 2);
}

TEST_CASE("Weir's contestant is a job of real servers") {
  ServerProcess::SetProgram("ps_server/ps_server");
  for (const char* transport : {"tcp", "unix", "shared_memory"}) {
    Contestant weir = Weir(transport, std::string(R"({"wire": {"transport": ")") + transport + R"("}})");
    weir.elements = kElements;
    CheckWeights(weir, 3);
    weir.servers = 2;
    CheckWeights(weir, 2);
  }
}

TEST_CASE("a contest runs its clients in processes of their own and says what they used") {
  Contestant raw = Make("raw", "momentum");
  raw.servers = raw.clients = 2;
  const auto host = ServerHost::Local();
  REQUIRE(host.ok());
  const auto contest = Contest::Start(raw, host->get());
  REQUIRE(contest.ok());
  const auto both = (*contest)->Run(4);
  REQUIRE(both.ok());
  CHECK(both->seconds.size() == 8);
  CHECK(both->wall_seconds > 0);
  CHECK(both->client_cpu_seconds > 0);
  CHECK(both->server_cpu_seconds > 0);
  const auto one = (*contest)->Run(3, {1});
  REQUIRE(one.ok());
  CHECK(one->seconds.size() == 3);
  const auto usage = (*contest)->ServerUsage();
  REQUIRE(usage.ok());
  CHECK(usage->peak_resident_bytes >= usage->resident_bytes);
  CHECK(usage->resident_bytes > 4 * kElements * static_cast<int64_t>(sizeof(float)));
}

TEST_CASE("a worker that is stopped in the middle of its push changes nothing; a slow one is waited for") {
  ServerProcess::SetProgram("ps_server/ps_server");
  Contestant weir = Weir("weir", R"({"wire": {"transport": "tcp"}})");
  weir.elements = kElements;
  weir.clients = 3;
  weir.detours[1].bytes_per_second = 4e6;
  weir.detours[2].stop_after = kElements * sizeof(float) / 2;
  const auto host = ServerHost::Local();
  REQUIRE(host.ok());
  const auto contest = Contest::Start(weir, host->get());
  INFO(contest.status());
  REQUIRE(contest.ok());
  REQUIRE((*contest)->client(2).control().Send({{"steps", 1}}).ok());
  const auto result = (*contest)->Run(2, {0, 1});
  INFO(result.status());
  REQUIRE(result.ok());
  const auto last = (*contest)->Run(1, {0});
  REQUIRE(last.ok());
  CHECK(last->versions[0] == 5);
}

TEST_CASE("what cannot start says why") {
  const auto host = ServerHost::Local();
  REQUIRE(host.ok());
  CHECK((*host)->Start(Make("pigeon", "sgd")).status().message().find("pigeon") != std::string::npos);
  ServerProcess::SetProgram("/no/such/ps_server");
  // The host is a fork of this process as it is now.
  const auto other = ServerHost::Local();
  REQUIRE(other.ok());
  CHECK((*other)->Start(Weir("weir", "")).status().message().find("/no/such/ps_server") != std::string::npos);
}

}  // namespace
}  // namespace weir::bench
