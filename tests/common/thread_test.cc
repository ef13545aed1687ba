#include "common/threads/thread.h"

#include <future>
#include <string>

#include "catch2/catch.hpp"
#include "common/net/tcp.h"
#include "common/program/exit_codes.h"
#include "common/system/process.h"
#include "common/system/subprocess.h"
#include "common/telemetry/http_server.h"
#include "common/threads/serial_queue.h"
#include "tests/common/fake_root.h"
#include "tests/common/no_threads.h"

namespace weir {
namespace {

using Catch::Contains;

// The status says for what there is no thread, and ends a task with 70.
void CheckSays(const absl::Status& status, const std::string& purpose) {
  CHECK_THAT(std::string(status.message()), Contains("gives no thread to " + purpose + " (") &&
                                                Contains("a limit of threads, or of memory, is reached"));
  CHECK(ExitCodeOf(status) == kExitInternal);
}

TEST_CASE("a thread runs what it is given; without one an error says what it was for") {
  std::promise<void> ran;
  absl::StatusOr<std::thread> thread = MakeThread("fly", [&] { ran.set_value(); });
  REQUIRE(thread.ok());
  thread->join();
  CHECK(ran.get_future().wait_for(std::chrono::seconds(0)) == std::future_status::ready);
  const NoThreads none;
  CheckSays(MakeThread("fly", [] {}).status(), "fly");
}

TEST_CASE("room for threads is checked by making them") {
  CHECK(CheckRoomForThreads(20, "fly").ok());
  CHECK(CheckRoomForThreads(0, "fly").ok());
  const NoThreads none;
  const absl::Status status = CheckRoomForThreads(3, "fly");
  CheckSays(status, "fly");
  CHECK_THAT(std::string(status.message()), Contains("Of 3 more threads it gave 0"));
}

TEST_CASE("without threads what can do without goes on, and the rest says so") {
  const NoThreads none;
  CheckSays(WorkThread::Start("fly").status(), "fly");
  CheckSays(HttpServer::Start({}).status(), "serve HTTP");
  CheckSays(SignalWaiter::Start({}, [](int) {}).status(), "wait for signals");
  Subprocess::Options process;
  process.args = {"true"};
  CheckSays(Subprocess::Start(process).status(), "start true");
  ThreadPool pool(4);
  CHECK(pool.threads() == 1);
  SerialQueue queue;
  queue.Post([&] { CHECK_FALSE(queue.StartThread()); });
  // Twice: the first look-up is not under way any more.
  for (int i = 0; i < 2; ++i) CHECK(ResolveSoon("localhost").empty());
}

TEST_CASE("a name is looked up once there are threads again") {
  {
    const NoThreads none;
    CHECK(ResolveSoon("localhost").empty());
  }
  CHECK_FALSE(ResolveSoon("localhost").empty());
}

TEST_CASE("the limit of the nearest control group is told, of either version") {
  const FakeRoot root;
  SECTION("the first") {
    root.Write("/proc/self/cgroup", "5:cpu,cpuacct:/other\n4:pids:/pod/task\n0::/\n");
    root.Write("/sys/fs/cgroup/pids/pod/task/pids.max", "max\n");
    root.Write("/sys/fs/cgroup/pids/pod/pids.max", "64\n");
  }
  SECTION("the second") {
    root.Write("/proc/self/cgroup", "0::/pod/task\n");
    root.Write("/sys/fs/cgroup/pod/pids.max", "64\n");
  }
  SECTION("in a container, whose group is the root") {
    root.Write("/proc/self/cgroup", "0::/\n");
    root.Write("/sys/fs/cgroup/pids.max", "64\n");
  }
  CHECK_THAT(LimitsOfThreads(root.path()), Contains("pids.max of the control group 64"));
}

}  // namespace
}  // namespace weir
