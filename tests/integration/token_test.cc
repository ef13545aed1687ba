// Access: a job with a token and strangers without it, a job without a token and another user's processes.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "catch2/catch.hpp"
#include "cli/commands/grpc_status_client.h"
#include "common/program/exit_codes.h"
#include "common/rpc/job_token.h"
#include "tests/common/socket_folder.h"
#include "tests/integration/processes.h"
#include "tests/skip.h"

namespace weir {
namespace {

using Catch::Contains;
using Codes = std::map<std::string, int>;  // gRPC codes, by method

constexpr int kOk = 0, kInvalidArgument = 3, kPermissionDenied = 7, kFailedPrecondition = 9,
              kUnimplemented = 12, kUnavailable = 14, kUnauthenticated = 16;

// Not a message of any method.
const std::string kGarbage = "\xff\xff\xff";
// The default value of every message.
const std::string kEmpty;
constexpr uid_t kNobody = 65534;

struct Called {
  Codes codes;
  std::string output;
};

// Calls all methods from a process of that user.
Called CallAll(const std::string& address, uid_t user, const std::string& bytes,
               const std::string& authorization = "") {
  const RunResult run =
      RunToEnd({"tests/integration/stranger", address, std::to_string(user), bytes, authorization}, {});
  INFO(run.output);
  REQUIRE(run.status == 0);
  Called called{{}, run.output};
  std::istringstream lines(run.output);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string method;
    int code = 0;
    if (words >> method >> code) called.codes[method] = code;
  }
  REQUIRE(called.codes.size() == 15);
  return called;
}

void CheckRefused(const Called& called, bool coordinator) {
  INFO(called.output);
  for (const auto& [method, code] : called.codes) {
    INFO(method);
    const bool here = method != "Attach" || !coordinator;
    if (method != "Check") CHECK(code == (here ? kUnauthenticated : kUnimplemented));
  }
  CHECK_THAT(called.output, Contains("this job has a token, and the caller has"));
}

// A token in a file.
struct TestToken {
  explicit TestToken(const TestFolder& folder, const std::string& name)
      : token(JobToken::Random().value()), path(folder.path(name)), flag("--token_file=" + path) {
    REQUIRE(token.Write(path).ok());
  }
  const JobToken token;
  const std::string path, flag;
};

// A long job, which runs until the test has seen everything.
const std::vector<std::string> kLong = {"train.epochs=1000"};

RunResult Status(const TestJob& job, const std::vector<std::string>& more) {
  return RunToEnd(With({"cli/weir", "status", "--address=" + job.address("ps:0")}, more), {});
}

TEST_CASE("a job with a token trains") {
  TestJob job({.set = {"train.epochs=2"}});
  const TestToken token(job.folder(), "token");
  for (const std::string& task : job.tasks()) job.Start(task, {token.flag});
  job.ExpectAllExit(kExitOk);
  for (const std::string& task : job.tasks()) {
    INFO(task);
    CHECK_THAT(job[task].log(), !Contains("has no token"));
    CHECK_THAT(job[task].log(), !Contains(token.token.Authorization().substr(7)));
  }
}

TEST_CASE("the environment may name the token's file") {
  TestJob job({.ps = 1, .workers = 1, .set = {"train.epochs=1"}});
  const TestToken token(job.folder(), "token");
  for (const std::string& task : job.tasks()) {
    job.StartWith(task, job.Args(task), {{"TF_CONFIG", job.TfConfig(task)}, {"WEIR_TOKEN_FILE", token.path}});
  }
  job.ExpectAllExit(kExitOk);
  CHECK_THAT(job["ps:0"].log(), !Contains("has no token"));
}

TEST_CASE("without a job's token nobody is let in, and nothing that he says is read") {
  TestJob job({.set = kLong});
  const TestToken token(job.folder(), "token"), other(job.folder(), "other");
  for (const std::string& task : job.tasks()) job.Start(task, {token.flag});
  job["worker:0"].WaitForLog("computing");
  for (const std::string task : {"ps:0", "ps:1"}) {
    job[task].WaitForLog("listens on");
    for (const std::string& authorization : {std::string(), other.token.Authorization(),
                                             token.token.Authorization().substr(7), std::string("Bearer ")}) {
      const Called called = CallAll(job.address(task), geteuid(), kGarbage, authorization);
      CheckRefused(called, task == std::string("ps:0"));
      CHECK(CallAll(job.address(task), geteuid(), kEmpty, authorization).codes.at("Check") == kOk);
    }
  }
  // A worker without a token, or with another one, ends at once and says what is missing.
  for (const std::vector<std::string>& flags : {std::vector<std::string>{}, {other.flag}}) {
    const Stopwatch stopwatch;
    const RunResult worker =
        RunToEnd(With(job.Args("worker:1"), flags), {{"TF_CONFIG", job.TfConfig("worker:1")}});
    CHECK(worker.status == kExitConfig);
    CHECK_THAT(worker.output, Contains("ps:0 (coordinator) at " + job.address("ps:0") +
                                       ": this job has a token, and the caller " +
                                       (flags.empty() ? "has none" : "has another one")));
    CHECK(stopwatch.Elapsed() < kEndLimit);
  }
  CHECK(Status(job, {}).status == kExitConfig);
  CHECK_THAT(Status(job, {}).output, Contains("give --token_file=FILE"));
  CHECK(Status(job, {other.flag}).status == kExitConfig);
  const RunResult take =
      RunToEnd({"cli/weir", "checkpoint", "take", "--address=" + job.address("ps:0"), other.flag}, {});
  CHECK(take.status == kExitConfig);
  // A caller with the token gets through: garbage then gives another error.
  CHECK(CallAll(job.address("ps:0"), geteuid(), kGarbage, token.token.Authorization()).codes.at("Join") !=
        kUnauthenticated);
  const RunResult status = Status(job, {token.flag});
  CHECK(status.status == kExitOk);
  CHECK_THAT(status.output, Contains("RUNNING") || Contains("running") || Contains("worker:0"));
}

TEST_CASE("servers of different tokens say so, and end") {
  TestJob job({.set = kLong});
  const TestToken token(job.folder(), "token"), other(job.folder(), "other");
  // ps:0 knows only its own address, so that only ps:1 calls.
  job.StartWith("ps:0", With(job.Args("ps:0"), {token.flag}),
                {{"TF_CONFIG", R"({"cluster": {"ps": [")" + job.address("ps:0") +
                                   R"("]}, "task": {"type": "ps", "index": 0}})"}});
  job.Start("ps:1", {other.flag});
  job.ExpectExit("ps:1", kExitConfig);
  CHECK_THAT(job["ps:1"].log(), Contains("this job has a token"));
}

TEST_CASE("ps:0 that another server refuses ends the job as one that was started wrongly") {
  // Each server knows only its own address, so that only ps:0 calls.
  TestJob job({.workers = 1, .set = kLong});
  const TestToken token(job.folder(), "token"), other(job.folder(), "other");
  for (const std::string task : {"ps:0", "ps:1"}) {
    const std::string alone = R"({"cluster": {"ps": [")" + job.address(task) +
                              R"("]}, "task": {"type": "ps", "index": )" + task[3] + "}}";
    job.StartWith(task, With(job.Args(task), {task == std::string("ps:1") ? other.flag : token.flag}),
                  {{"TF_CONFIG", alone}});
  }
  job.Start("worker:0", {token.flag});
  job.ExpectExit("ps:0", kExitConfig);
  job.ExpectExit("worker:0", kExitConfig);
  CHECK_THAT(job["ps:0"].log(),
             Contains("ps:1 at " + job.address("ps:1") + " refuses ps:0: this job has a token"));
}

TEST_CASE("a token file that others may read is refused by all programs") {
  TestJob job({});
  const TestToken token(job.folder(), "token");
  REQUIRE(chmod(token.path.c_str(), 0644) == 0);
  for (const std::string task : {"ps:0", "worker:0"}) {
    const RunResult run = RunToEnd(With(job.Args(task), {token.flag}), {{"TF_CONFIG", job.TfConfig(task)}});
    CHECK(run.status == kExitConfig);
    CHECK_THAT(run.output, Contains("its mode is 0644") && Contains(token.path));
  }
  const RunResult run = Status(job, {token.flag});
  CHECK(run.status == kExitConfig);
  CHECK_THAT(run.output, Contains("its mode is 0644"));
}

TEST_CASE("without a token a server says so, and control is refused to other users' processes") {
  if (geteuid() != 0) {
    SaySkipped("only root can become another user");
    return;
  }
  TestJob job({.workers = 1, .set = kLong});
  for (const std::string task : {"ps:0", "ps:1"}) {
    job.Start(task);
    job[task].WaitForLog("this server has no token: whoever reaches its port (every user of this machine)");
  }
  const Codes own = CallAll(job.address("ps:0"), 0, kEmpty).codes;
  CHECK(own.at("Checkpoint") == kFailedPrecondition);  // the job takes no checkpoints
  CHECK(own.at("Announce") == kFailedPrecondition);    // ps:0 is no server that announces itself
  const Called stranger = CallAll(job.address("ps:0"), kNobody, kEmpty);
  INFO(stranger.output);
  CHECK(stranger.codes.at("Checkpoint") == kPermissionDenied);
  CHECK(stranger.codes.at("Announce") == kPermissionDenied);
  CHECK_THAT(stranger.output, Contains("the caller's process is user 65534's"));
  CHECK(stranger.codes.at("Status") == kOk);
  CHECK(stranger.codes.at("Join") == kInvalidArgument);
  const Called at_shard = CallAll(job.address("ps:1"), kNobody, kEmpty);
  INFO(at_shard.output);
  CHECK(at_shard.codes.at("Attach") == kPermissionDenied);
  // The shard is still available to ps:0.
  job.Start("worker:0");
  job.WaitForPushes(1);
}

// TF_CONFIG of a job's only server, at a Unix socket.
std::string AtSocket(const std::string& path) {
  return R"({"cluster": {"ps": ["unix:)" + path + R"("]}, "task": {"type": "ps", "index": 0}})";
}

TEST_CASE("a Unix socket without a token is closed to other users") {
  if (geteuid() != 0) {
    SaySkipped("only root can become another user");
    return;
  }
  TestJob job({.ps = 1, .workers = 1, .set = kLong});
  const TestToken token(job.folder(), "token");
  const SocketFolder folder;
  // The folder of the socket is open to all users.
  std::filesystem::permissions(folder.path(), std::filesystem::perms(0755));
  const auto code_of = [&](const std::vector<std::string>& flags, uid_t user) {
    const std::string path = folder.path() + "/socket";
    const mode_t before = umask(0);
    job.StartWith("ps:0", With(job.Args("ps:0"), flags), {{"TF_CONFIG", AtSocket(path)}});
    umask(before);
    job["ps:0"].WaitForLog("listens on");
    return CallAll("unix:" + path, user, kEmpty).codes.at("Check");
  };
  CHECK(code_of({}, 0) == kOk);
  CHECK(code_of({}, kNobody) == kUnavailable);
  // With a token, the server asks for the token instead.
  CHECK(code_of({token.flag}, kNobody) == kOk);
}

TEST_CASE("weir up makes a token for its job, and takes it away at the end") {
  const TestFolder folder;
  TestProcess up({"cli/weir", "up", "configs/digits.json", "--set", "train.epochs=1000",
                  "--log_dir=" + folder.path("logs")},
                 {}, folder.path("up.log"));
  std::string port;
  const Stopwatch stopwatch;
  while (port.empty()) {
    REQUIRE(stopwatch.Elapsed() < kHangLimit);
    port = ReadWholeFile(folder.path("logs/ps-0.port"));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const std::string address = "127.0.0.1:" + port.substr(0, port.find('\n'));
  CheckRefused(CallAll(address, geteuid(), kGarbage), true);
  const std::string path = folder.path("logs/token");
  CHECK(JobToken::Read(path).ok());
  CHECK(RunToEnd({"cli/weir", "status", "--address=" + address}, {{"WEIR_TOKEN_FILE", path}}).status ==
        kExitOk);
  up.Signal(SIGINT);
  up.Wait();
  CHECK_FALSE(std::filesystem::exists(path));
  CHECK_THAT(up.log(), !Contains("has no token"));
}

TEST_CASE("HTTP needs leave to be served on another interface, with a Unix address too") {
  TestJob job({.ps = 1, .workers = 1, .set = {}});
  const SocketFolder folder;
  const std::string spec = AtSocket(folder.path() + "/socket");
  const RunResult refused =
      RunToEnd(With(job.Args("ps:0"), {"--bind=0.0.0.0", "--http_port=0"}), {{"TF_CONFIG", spec}});
  CHECK(refused.status == kExitConfig);
  CHECK_THAT(refused.output, Contains("--bind=0.0.0.0 is not loopback") && Contains("--insecure_plaintext"));
  job.StartWith("ps:0", With(job.Args("ps:0"), {"--bind=0.0.0.0", "--http_port=0", "--insecure_plaintext"}),
                {{"TF_CONFIG", spec}});
  job["ps:0"].WaitForLog("metrics at http://");
}

}  // namespace
}  // namespace weir
