#include "ps_server/process/server_end.h"

#include <catch2/catch.hpp>
#include <string>
#include <thread>

#include "common/protocol/job_failure.h"

namespace weir {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1000);

// A server's end, and how often it was told to end its services.
struct Ending {
  int told = 0;
  ServerEnd end{[this] { ++told; }};
};

TEST_CASE("a server is ready until its end is announced, and says why it no longer is") {
  Ending server;
  CHECK(server.end.Ready().ok());
  CHECK_FALSE(server.end.has_begun());
  CHECK(server.told == 0);

  server.end.Announce("got SIGTERM");
  CHECK(server.end.Ready() == absl::UnavailableError("got SIGTERM"));
  CHECK(server.end.has_begun());
  CHECK(server.end.failure().ok());  // healthy, though
  CHECK(server.told == 1);
  server.end.Announce("the server stops");
  CHECK(server.end.Ready() == absl::UnavailableError("got SIGTERM"));

  server.end.Finish(LostPeer("ps:0 was lost"));
  CHECK(server.end.Ready() == absl::UnavailableError("ps:0 was lost"));
  CHECK(server.end.failure() == LostPeer("ps:0 was lost"));
}

TEST_CASE("a server ends once: the first result counts") {
  Ending server;
  v1::ClusterStatus status;
  status.set_step(7);
  server.end.Finish(absl::OkStatus(), status);
  server.end.Finish(LostPeer("ps:0 was lost"));
  CHECK(server.told == 1);
  CHECK(server.end.has_begun());
  CHECK(server.end.Ready() == absl::UnavailableError("the job is done"));
  CHECK(server.end.failure().ok());
  const ServerEnd::Result result = server.end.Wait();
  CHECK(result.failure.ok());
  CHECK(result.status.step() == 7);
}

TEST_CASE("a server that has left a job which continues stays so; one that is over cannot leave") {
  Ending left, over;
  left.end.Leave(LostPeer("got SIGTERM"));
  left.end.Finish(LostPeer("ps:0 was lost"));
  CHECK(left.end.leaves());
  CHECK(left.told == 1);
  CHECK(left.end.Wait().failure == LostPeer("got SIGTERM"));

  over.end.Finish(LostPeer("ps:0 was lost"));
  over.end.Leave(LostPeer("got SIGTERM"));
  CHECK_FALSE(over.end.leaves());
}

TEST_CASE("who waits for the end is woken, and finds that the services have ended") {
  Ending server;
  server.end.Announce("got SIGTERM");
  ServerEnd::Result result;
  int told = 0;
  std::thread waiter([&] {
    result = server.end.Wait();
    told = server.told;
  });
  server.end.Finish(LostPeer("got SIGTERM"));
  waiter.join();
  CHECK(result.failure == LostPeer("got SIGTERM"));
  CHECK(told == 2);
}

TEST_CASE("a drain is late once, after its limit, which another drain does not move") {
  Ending server;
  CHECK_FALSE(server.end.EndLateDrain(kNow).has_value());
  CHECK(server.end.BeginDrain(kNow, "got SIGTERM"));
  CHECK_FALSE(server.end.BeginDrain(kNow + absl::Seconds(9), "got SIGTERM again"));
  CHECK_FALSE(server.end.EndLateDrain(kNow).has_value());
  CHECK(server.end.EndLateDrain(kNow + absl::Milliseconds(1)) == "got SIGTERM");
  CHECK_FALSE(server.end.EndLateDrain(kNow + absl::Hours(1)).has_value());
}

}  // namespace
}  // namespace weir
