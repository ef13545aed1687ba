#include "cli/report/wait_chain.h"

#include "catch2/catch.hpp"

namespace weir {
namespace {

using Catch::Contains;

v1::Wait& Add(v1::ClusterStatus& status, const char* server, const char* calls, double seconds,
              const char* waiting, const char* reason, const char* awaited) {
  v1::Wait& wait = *status.add_waits();
  wait.set_server(server);
  wait.set_calls(calls);
  wait.set_seconds(seconds);
  wait.add_waiting(waiting);
  wait.set_reason(reason);
  wait.add_awaited(awaited);
  return wait;
}

TEST_CASE("the chain goes from the longest wait over the servers to who waits for nobody") {
  v1::ClusterStatus status;
  status.set_seconds_since_update(7.5);
  Add(status, "ps:0", "a push of worker:2 at clock 5", 7, "worker:2", "memory of weights", "worker:3");
  Add(status, "ps:1", "a pull of worker:0 at clock 9", 8, "worker:0", "worker:2 (at clock 5)", "worker:2");
  v1::TaskStatus& task = *status.add_tasks();
  task.set_task("worker:3");
  task.set_state("live");
  task.set_phase(v1::TASK_LIVE);
  task.set_seconds_since_heard(9);
  const std::string text = WaitChain(status);
  CHECK_THAT(text, Contains("last update       7.50 s ago\n"));
  CHECK_THAT(
      text,
      Contains("the chain of the longest wait:\n"
               "  a pull of worker:0 at clock 9 waits 8.00 s on ps:1 for worker:2 (at clock 5)\n"
               "  a push of worker:2 at clock 5 waits 7.00 s on ps:0 for memory of weights\n"
               "  worker:3 has no call that waits: it computes, or has stopped. It was heard 9.00 s ago\n"));
  SECTION("a task that is gone") {
    status.clear_tasks();
    CHECK_THAT(WaitChain(status), Contains("  worker:3 is not in the job\n"));
  }
  SECTION("who waits for each other ends the chain, too") {
    status.mutable_waits(0)->set_awaited(0, "worker:0");
    CHECK_THAT(WaitChain(status), Catch::EndsWith("for memory of weights\n"));
  }
}

// A running job whose ps:1 was stopped 12 s ago.
v1::ClusterStatus Stopped() {
  v1::ClusterStatus status;
  status.set_state(v1::RUNNING);
  for (const char* name : {"ps:0", "ps:1", "worker:0", "worker:1"}) {
    v1::TaskStatus& task = *status.add_tasks();
    task.set_task(name);
    task.set_phase(v1::TASK_LIVE);
    task.set_seconds_since_heard(0.25);
  }
  status.mutable_tasks(1)->set_address("10.0.0.1:2222");
  status.mutable_tasks(1)->set_seconds_since_heard(12);
  return status;
}
constexpr char kStopped[] =
    "ps:1 at 10.0.0.1:2222 stands still, or is cut off: nothing was heard of it for 12.0 s\n";

TEST_CASE("a server that stands still is named first, ends the chain, and its waits have their age") {
  v1::ClusterStatus status = Stopped();
  status.add_waiting_for("ps:1 at 10.0.0.1:2222 to answer");
  CHECK(WaitChain(status) == kStopped);
  Add(status, "ps:1", "a pull of worker:1 at clock 3", 0.5, "worker:1", "worker:0 (at clock 2)", "worker:0");
  Add(status, "ps:0", "a pull of worker:0 at clock 4", 0.25, "worker:0", "worker:1 (at clock 3)", "worker:1");
  std::string text = WaitChain(status);
  CHECK_THAT(text, Catch::StartsWith(kStopped));
  CHECK_THAT(text,
             Contains("\na pull of worker:1 at clock 3 waits 500 ms on ps:1 for worker:0 (at clock 2) (as of "
                      "12.0 s ago)\n"));
  CHECK_THAT(text, Contains("the chain of the longest wait:\n"
                            "  a pull of worker:0 at clock 4 waits 250 ms on ps:0 for worker:1 (at clock 3)\n"
                            "  a pull of worker:1 at clock 3"));
  CHECK_THAT(text, Catch::EndsWith(std::string("  ") + kStopped));
  // A healthy worker is not blamed.
  status.mutable_waits()->DeleteSubrange(0, 1);
  text = WaitChain(status);
  CHECK_THAT(text,
             Contains("  worker:1 has no call that waits on a server that answers: it computes, or waits for "
                      "one that does not. It was heard 250 ms ago\n"));
  CHECK_THAT(text, Catch::EndsWith(std::string("  ") + kStopped));
  // Nor is the commit.
  status.mutable_waits(0)->clear_awaited();
  CHECK_THAT(WaitChain(status), Catch::EndsWith(std::string("  ") + kStopped));
}

TEST_CASE("a worker that stands still is named first, and ends the chain") {
  v1::ClusterStatus status = Stopped();
  status.mutable_tasks(1)->set_seconds_since_heard(0.1);
  status.mutable_tasks(3)->set_seconds_since_heard(7);
  Add(status, "ps:0", "a pull of worker:0 at clock 4", 6, "worker:0", "worker:1 (at clock 3)", "worker:1");
  const char* const line = "worker:1 stands still, or is cut off: nothing was heard of it for 7.00 s\n";
  CHECK_THAT(WaitChain(status), Catch::StartsWith(line) && Catch::EndsWith(std::string("  ") + line));
  // A job that is over hears of nobody.
  status.set_state(v1::DONE);
  CHECK_THAT(WaitChain(status), !Contains("stands still"));
}

TEST_CASE("where no call waits, it says what the job waits for, or that nothing does") {
  v1::ClusterStatus status;
  status.set_seconds_since_update(0.5);
  CHECK(WaitChain(status) == "no call waits on any server; the last update was 500 ms ago\n");
  status.add_waiting_for("worker:1 at 10.0.0.1:2222");
  CHECK(WaitChain(status) == "the job waits for worker:1 at 10.0.0.1:2222\n");
}

}  // namespace
}  // namespace weir
