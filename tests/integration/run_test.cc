// `weir run`: one program for all tasks, as in a container.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/program/exit_codes.h"
#include "tests/integration/processes.h"
#include "tests/skip.h"

namespace weir {
namespace {

using Catch::Contains;
using Catch::StartsWith;
using Args = std::vector<std::string>;

constexpr const char* kCluster = "--cluster=dns:ps=weir-ps:2,worker=weir-worker:2,chief=weir-chief:1";

// A copy of weir with programs beside it that say which they are, which signals are blocked, and what they
// were given.
std::string WeirWithFakes(const TestFolder& folder) {
  namespace fs = std::filesystem;
  for (const char* name : {"ps_server", "worker"}) {
    const std::string path = folder.Write(
        name, std::string("#!/bin/sh\necho ") + name + " $(grep SigBlk /proc/self/status) \"$@\"\nexit 5\n");
    fs::permissions(path, fs::perms::owner_all);
  }
  fs::copy_file("cli/weir", folder.path("weir"));
  return folder.path("weir");
}

TEST_CASE("weir run becomes the program of its task, with its other flags and no signal lost meanwhile") {
  const TestFolder folder;
  const std::string weir = WeirWithFakes(folder);
  // SIGINT and SIGTERM.
  const std::string blocked = " SigBlk: 0000000000004002 ";
  struct Case {
    Args args;
    std::map<std::string, std::string> environment;
    std::string says;
  };
  const std::string tf_config =
      R"({"cluster": {"ps": ["a:1"], "worker": ["b:1"]}, "task": {"type": "ps", "index": 0}})";
  const std::string cluster = kCluster;
  const std::vector<Case> cases = {
      {{cluster, "--task=ps:1", "--config", "j.json", "--set", "seed=3"},
       {},
       "ps_server" + blocked + "--config j.json --set seed=3 " + cluster + " --task=ps:1"},
      // The names of commands are no commands here.
      {{"--config", "up", cluster, "--task=worker:0"},
       {},
       "worker" + blocked + "--config up " + cluster + " --task=worker:0"},
      {{cluster, "--task=pod"}, {{"POD_NAME", "weir-ps-0"}}, "ps_server" + blocked + cluster + " --task=pod"},
      {{cluster, "--task=pod"}, {{"POD_NAME", "weir-chief-0"}}, "worker" + blocked + cluster + " --task=pod"},
      {{cluster, "--task=pod"},
       {{"POD_NAME", "weir-worker-1-x7k2p"}, {"JOB_COMPLETION_INDEX", "1"}},
       "worker" + blocked + cluster + " --task=pod"},
      {{cluster, "--task=evaluator"}, {}, "worker" + blocked},
      {{"--config=j.json"}, {{"TF_CONFIG", tf_config}}, "ps_server" + blocked + "--config=j.json\n"},
      {{"--task=worker:0"}, {{"TF_CONFIG", tf_config}}, "worker" + blocked + "--task=worker:0\n"},
      // A job in one process.
      {{"--config=j.json"}, {}, "worker" + blocked + "--config=j.json\n"},
  };
  for (const Case& c : cases) {
    Args args = {weir, "run"};
    args.insert(args.end(), c.args.begin(), c.args.end());
    const RunResult result = RunToEnd(args, c.environment);
    INFO(result.output);
    CHECK(result.status == 5);
    CHECK_THAT(result.output, StartsWith(c.says));
  }
}

TEST_CASE("weir run runs a program instead of worker, which finds its task and the overrides") {
  const TestFolder folder;
  const std::string weir = WeirWithFakes(folder);
  const std::string cluster = kCluster;
  const Args program = {"--", "sh", "-c", "echo $TF_CONFIG $WEIR_SET \"$@\"; exit 9", "sh", "--task=x"};
  const std::string peers =
      R"("cluster":{"chief":["weir-chief-0.weir-chief:2222"],)"
      R"("ps":["weir-ps-0.weir-ps:2222","weir-ps-1.weir-ps:2222"],)"
      R"("worker":["weir-worker-0.weir-worker:2222","weir-worker-1.weir-worker:2222"]})";
  struct Case {
    Args args;
    std::map<std::string, std::string> environment;
    int status;
    std::string says;
  };
  const std::string part =
      R"({"cluster": {"worker": {"1": "b:1"}, "ps": ["a:1"]}, "task": {"type": "worker", "index": 1}})";
  const std::vector<Case> cases = {
      {{cluster, "--task=worker:1", "--set", "name=\"a b\"", "--set=seed=3"},
       {},
       9,
       "{" + peers + R"(,"task":{"type":"worker","index":1}} ["name=\"a b\"","seed=3"] --task=x)"},
      {{cluster, "--task=evaluator:0"},
       {},
       9,
       "{" + peers + R"(,"task":{"type":"evaluator","index":0}} --task=x)"},
      {{}, {{"TF_CONFIG", part}}, 9, part + " --task=x"},
      {{"--task=worker:1"},
       {{"TF_CONFIG", part}},
       9,
       R"({"cluster":{"ps":{"0":"a:1"},"worker":{"1":"b:1"}},"task":{"type":"worker","index":1}} --task=x)"},
      // A job in one process.
      {{}, {}, 9, "--task=x"},
      // A server is no program's task.
      {{cluster, "--task=ps:0", "--http_port=1"},
       {},
       5,
       "ps_server SigBlk: 0000000000004002 --http_port=1 " + cluster},
      {{cluster, "--task=worker:0", "--config=j.json"},
       {},
       64,
       "error: --config=j.json: a program gets no flags of `worker`"},
  };
  for (const Case& c : cases) {
    Args args = {weir, "run"};
    args.insert(args.end(), c.args.begin(), c.args.end());
    args.insert(args.end(), program.begin(), program.end());
    const RunResult result = RunToEnd(args, c.environment);
    INFO(result.output);
    CHECK(result.status == c.status);
    CHECK_THAT(result.output, StartsWith(c.says));
  }
  const RunResult killed = RunToEnd({weir, "run", "--", "sh", "-c", "kill -KILL $$"});
  CHECK(killed.status == 137);
  const RunResult missing = RunToEnd({weir, "run", "--", "no-such-python", "train.py"});
  CHECK(missing.status == 78);
  CHECK_THAT(missing.output, Contains("cannot run no-such-python: no folder of PATH has such a program"));
  CHECK(RunToEnd({weir, "run", "--"}).status == 64);
}

TEST_CASE("the program worker heeds the overrides of weir up, and each writes a history of its own") {
  // The command of docs/concepts.md.
  const TestFolder folder;
  const std::string config = "tests/integration/digits.json", history = folder.path("h-{task}.jsonl");
  const auto up = [&](const std::string& path) {
    return RunToEnd({"cli/weir", "up", "--ps=2", "--workers=2", "--seed=7", "--set=train.epochs=1", config,
                     "--", "worker/worker", "--config=" + config, "--history=" + path});
  };
  const RunResult run = up(history);
  INFO(run.output);
  CHECK(run.status == 0);
  for (const char* task : {"worker-0", "worker-1"}) {
    CHECK_THAT(ReadWholeFile(folder.path(absl::StrCat("h-", task, ".jsonl"))), Contains(R"("op":"push")"));
  }
  // Those of a job outside of this one are not for its tasks.
  const RunResult inner =
      RunToEnd({"cli/weir", "up", "--ps=1", "--workers=1", "--set=train.epochs=1", config},
               {{"WEIR_SET", R"(["seed=9"])"}});
  INFO(inner.output);
  CHECK(inner.status == 0);
  const RunResult shared = up(folder.path("one.jsonl"));
  CHECK(shared.status != 0);
  CHECK_THAT(shared.output, Contains("another worker writes there; a path with {task} is a file of each"));
}

TEST_CASE("weir status at the port of the dashboard says which port it needs") {
  TestJob job({.ps = 1, .workers = 1, .set = {}});
  const std::string file = job.folder().path("ports");
  std::istringstream ports(job.Start("ps:0", {"--http_port=0", "--port_file=" + file}).WaitForFile(file));
  int port = 0, http_port = 0;
  ports >> port >> http_port;
  const RunResult run = RunToEnd({"cli/weir", "status", absl::StrCat("--address=127.0.0.1:", http_port)});
  INFO(run.output);
  CHECK(run.status == kExitConfig);
  CHECK_THAT(run.output, Contains("speaks HTTP, as the dashboard does"));
}

TEST_CASE("weir run refuses a wrong spec or task with 78, and says what to edit") {
  struct Case {
    Args args;
    std::string pod, says;
  };
  const std::vector<Case> cases = {
      {{"--cluster=dns:ps=weir-ps", "--task=ps:0"}, "", "--cluster:1:8: ps: must be JOB=NAME:COUNT"},
      {{kCluster, "--task=ps:2"}, "", "--task=ps:2: task: ps:2 is not in the cluster"},
      {{kCluster}, "", "Give --task=TYPE:INDEX, such as --task=ps:0, or --task=pod"},
      {{kCluster, "--task=pod"},
       "weir-ps-2",
       "raise the count of ps there for all tasks, or scale these pods"},
      {{kCluster, "--task=pod"}, "other-0", "is no task of the cluster at --cluster:1:1, whose pods are"},
  };
  for (const Case& c : cases) {
    // The programs say the same by themselves.
    for (const Args& program : {Args{"cli/weir", "run"}, {"ps_server/ps_server"}, {"worker/worker"}}) {
      Args args = program;
      args.insert(args.end(), c.args.begin(), c.args.end());
      args.push_back("--config=tests/integration/digits.json");
      const RunResult result = RunToEnd(args, {{"POD_NAME", c.pod}});
      INFO(result.output);
      CHECK(result.status == 78);
      CHECK_THAT(result.output, Contains(c.says));
    }
  }
  const RunResult unknown = RunToEnd({"cli/weir", "run", kCluster, "--task=worker:0", "--confg=a"});
  CHECK(unknown.status == 64);
  CHECK_THAT(unknown.output, Contains("(did you mean \"--config\"?)") && Contains("see `worker --help`"));
  const RunResult help = RunToEnd({"cli/weir", "run", "--help"});
  CHECK(help.status == 0);
  CHECK_THAT(help.output, Contains("--task=pod") && Contains("POD_NAME") && Contains("ps_server --help"));
}

// The words that give a command a namespace of its own; empty, with a message: this system has none for it.
Args Unshare(const std::string& what) {
  Args words = {"unshare", what};
  if (geteuid() != 0) words.push_back("--map-root-user");
  Args trial = words;
  trial.insert(trial.end(), {"--fork", "true"});
  if (const RunResult result = RunToEnd(trial); result.status != 0) {
    SaySkipped("this system gives no namespace: " + result.output);
    return {};
  }
  return words;
}

std::string ChildrenOf(const std::string& pid) {
  return ReadWholeFile("/proc/" + pid + "/task/" + pid + "/children");
}

template <typename Condition>
void WaitUntil(const std::string& what, Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + kHangLimit;
  while (!condition()) {
    INFO("waited until " << what);
    REQUIRE(std::chrono::steady_clock::now() < deadline);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

TEST_CASE("as process 1 it ends on SIGTERM, and leaves no orphan unreaped") {
  Args args = Unshare("--pid");
  if (args.empty()) return;
  const TestFolder folder;
  ReservedPort port;
  const std::string cluster =
      folder.Write("cluster.json", R"({"ps": [")" + port.address() + R"("], "worker": ["w:1"]})");
  args.insert(args.end(), {"--fork", "--kill-child", "cli/weir", "run",
                           "--config=tests/integration/digits.json", "--cluster=" + cluster, "--task=ps:0"});
  TestProcess process(args, {}, folder.path("log"));
  process.WaitForLog("listens on");
  std::string first = ChildrenOf(std::to_string(process.pid()));
  first = first.substr(0, first.find(' '));
  REQUIRE_FALSE(first.empty());
  CHECK(ChildrenOf(first).empty());

  // An orphan, which ends when the pipe is opened.
  const std::string pipe = folder.path("pipe");
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  Args enter = {"nsenter", "--target", first, "--pid"};
  if (geteuid() != 0) enter.insert(enter.end(), {"--user", "--preserve-credentials"});
  enter.insert(enter.end(), {"sh", "-c", "cat \"$0\" >/dev/null &", pipe});
  const RunResult entered = RunToEnd(enter);
  INFO(entered.output);
  REQUIRE(entered.status == 0);
  WaitUntil("process 1 has the orphan", [&] { return !ChildrenOf(first).empty(); });
  std::ofstream(pipe) << "end";
  WaitUntil("the orphan is reaped", [&] { return ChildrenOf(first).empty(); });

  REQUIRE(kill(std::stoi(first), SIGTERM) == 0);
  CHECK(process.Wait() == 143);
  CHECK_THAT(process.log(), Contains("ps:0 got signal 15"));
}

TEST_CASE("as process 1 it passes SIGTERM on to a program, which that ends") {
  Args args = Unshare("--pid");
  if (args.empty()) return;
  const TestFolder folder;
  args.insert(args.end(),
              {"--fork", "--kill-child", "cli/weir", "run", "--", "sh", "-c", "echo runs; exec sleep 600"});
  TestProcess process(args, {}, folder.path("log"));
  process.WaitForLog("runs");
  std::string first = ChildrenOf(std::to_string(process.pid()));
  first = first.substr(0, first.find(' '));
  REQUIRE_FALSE(first.empty());
  REQUIRE(kill(std::stoi(first), SIGTERM) == 0);
  CHECK(process.Wait() == 143);
}

// The hosts' names come from a file that each task has as its /etc/hosts.
TEST_CASE("a job trains from service names and pods' names alone") {
  Args prefix = Unshare("--mount");
  if (prefix.empty()) return;
  const TestFolder folder;
  const std::string hosts =
      folder.Write("hosts",
                   "127.0.0.1 localhost\n127.0.0.1 weir-ps-0.weir-ps.training.svc\n127.0.0.2 "
                   "weir-ps-1.weir-ps.training.svc\n");
  ReservedPort reserved;
  const std::string address = reserved.address();
  const std::string port = address.substr(address.find(':'));
  prefix.insert(prefix.end(), {"sh", "-c", "mount --bind \"$0\" /etc/hosts && exec \"$@\"", hosts});
  const auto args = [&](const Args& more) {
    Args all = prefix;
    all.insert(all.end(),
               {"cli/weir", "run", "--config=tests/integration/digits.json",
                "--cluster=dns:ps=weir-ps.training.svc:2" + port + ",worker=weir-worker.training.svc:2",
                "--task=pod", "--set", "server.min_shard_kib=0", "--set", "train.epochs=3"});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const std::string summary = folder.path("summary.json");
  std::vector<std::unique_ptr<TestProcess>> tasks;
  const auto start = [&](const std::string& pod, const std::string& index, const Args& more) {
    std::map<std::string, std::string> environment = {{"POD_NAME", pod}};
    if (!index.empty()) environment["JOB_COMPLETION_INDEX"] = index;
    tasks.push_back(std::make_unique<TestProcess>(args(more), environment, folder.path(pod)));
  };
  start("weir-ps-0", "", {"--summary=" + summary});
  tasks[0]->WaitForLog("listens on");
  Args status = prefix;
  status.insert(status.end(),
                {"cli/weir", "status", "--cluster=dns:ps=weir-ps.training.svc:2" + port, "--json"});
  const RunResult asked = RunToEnd(status);
  INFO(asked.output);
  CHECK(asked.status == 0);
  CHECK_THAT(asked.output, Contains("weir-ps-1.weir-ps.training.svc" + port));
  start("weir-ps-1", "", {"--bind=127.0.0.2"});
  start("weir-worker-0-abcde", "0", {});
  start("weir-worker-1-fghij", "1", {});
  for (const auto& task : tasks) {
    const int status = task->Wait();
    INFO(task->log());
    CHECK(status == 0);
  }
  CheckSummary(nlohmann::json::parse(ReadWholeFile(summary)), "sync", 2, 2, 3 * 1500);
}

}  // namespace
}  // namespace weir
