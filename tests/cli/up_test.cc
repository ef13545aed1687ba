// What `weir up` does with a job: its tasks, their programs, logs and summary.
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/host.h"
#include "common/program/exit_codes.h"
#include "tests/cli/checkpointed_job.h"
#include "tests/cli/up_process.h"

namespace weir {
namespace {

using Catch::Contains;

TEST_CASE("a job from start to end") {
  Up up;
  const std::string summary = (up.dir() / "out.json").string();
  up.environment["FAKE_WORKER"] = "await worker:0 worker:1 evaluator:0 ps:0 ps:1";
  CHECK(up.Run({"--ps=2", "--workers=2", "--evaluator", "--seed=7", "--device=cuda:1", "--set",
                "train.epochs=3", "--http_port=0", "--summary=" + summary}) == 0);
  INFO(up.output());

  CHECK_THAT(up.output(), Contains("small: bounded(3), 2 servers, 2 workers"));
  CHECK_THAT(up.output(), Contains("98.32%"));
  CHECK_THAT(up.output(), Contains("dashboard: http://127.0.0.1:4243/\n"));
  const std::string json = ReadFile(summary);
  for (const char* part :
       {R"("mode": "bounded")", R"("weights_sha256": "ab12")", R"("test_loss": null)", R"("total_seconds": )",
        R"("ps:0": 0)", R"("ps:1": 0)", R"("worker:0": 0)", R"("worker:1": 0)", R"("evaluator:0": 0)"}) {
    CHECK_THAT(json, Contains(part));
  }

  for (const char* task : {"ps:0", "ps:1", "worker:0", "worker:1", "evaluator:0"}) {
    const std::string args = up.Args(task);
    CHECK_THAT(args, Contains("--config=" + (up.dir() / "job.json").string() + "\n"));
    CHECK_THAT(args, Contains("\n--set\ntrain.epochs=3\n--set\nseed=7\n--set\ncluster.workers=2\n"));
    CHECK_THAT(args, Contains("\n--token_file="));
  }
  for (const char* task : {"worker:0", "worker:1", "evaluator:0"}) {
    CHECK_THAT(up.Args(task), Contains("\n--device=cuda:1\n"));
  }
  CHECK_THAT(up.Args("ps:0"), !Contains("--device"));
  CHECK_THAT(up.Args("ps:0"), Contains("--summary=") && Contains("--http_port=0"));
  CHECK_THAT(up.Args("ps:1"), !Contains("--summary=") && !Contains("--http_port"));
  CHECK_THAT(up.Args("ps:1"),
             Contains(R"({"cluster":{"ps":["127.0.0.1:0"]},"task":{"type":"ps","index":1}})"));
  CHECK_THAT(up.Args("worker:1"),
             Contains(R"({"cluster":{"worker":{"1":"127.0.0.1:1"},"ps":["127.0.0.1:4242","127.0.0.1:4242"]},)"
                      R"("task":{"type":"worker","index":1}})"));
  CHECK_THAT(up.Args("evaluator:0"), Contains(R"({"cluster":{"ps":["127.0.0.1:4242","127.0.0.1:4242"]},)"
                                              R"("task":{"type":"evaluator","index":0}})"));
}

TEST_CASE("the config says how many workers, unless the command line does") {
  Up up;
  const std::string config = up.dir() / "job.json";
  up.environment["FAKE_WORKER"] = "await worker:0 worker:1 worker:2";
  CHECK(up.Run({"--set", "cluster.workers=3"}) == 0);
  CHECK(fs::exists(up.dir() / "worker:2.pid"));
  CHECK(!fs::exists(up.dir() / "worker:3.pid"));
}

TEST_CASE("each task's log is kept; only what matters is shown, or all of it") {
  Up up;
  up.environment["FAKE_WORKER"] =
      "echo '2026-11-21T10:26:55.123Z I worker:0 joined'; echo '2026-11-21T10:26:56.123Z W worker:0 slow'; "
      "echo raw";
  const std::string logs = up.dir() / "logs";
  CHECK(up.Run({"--log_dir=" + logs}) == 0);
  CHECK_THAT(ReadFile(logs + "/worker-0.log"), Contains("I worker:0 joined\n") && Contains("raw\n"));
  CHECK_THAT(up.output(), Contains("[worker:0] 10:26:56.123 W slow\n") && Contains("[worker:0] raw\n"));
  CHECK_THAT(up.output(), !Contains("joined"));
  CHECK(up.Run({"--log_dir=" + logs, "--verbose", "--seed=2"}) == 0);
  CHECK_THAT(up.output(), Contains("[worker:0] 10:26:55.123 I joined\n"));
}

TEST_CASE("a program that cannot be run is refused before anything starts") {
  Up up;
  std::ofstream(up.dir() / "script.py") << "print()";
  const std::string script = up.dir() / "script.py";
  for (const auto& [program, says] :
       {std::pair<std::string, std::string>{"pythn", "cannot run pythn: no folder of PATH"},
        {"./none", "cannot run ./none: there is no such file"},
        {script, "cannot run " + script + ": it is no file that may be executed"}}) {
    CHECK(up.Run({"--", program, "x.py"}) == kExitConfig);
    INFO(up.output());
    CHECK_THAT(up.output(), Contains("error: " + says));
  }
  std::ofstream("script_of_up_test.py") << "print()";
  CHECK(up.Run({"--", "script_of_up_test.py"}) == kExitConfig);
  fs::remove("script_of_up_test.py");
  CHECK_THAT(
      up.output(),
      Contains("error: cannot run script_of_up_test.py: no folder of PATH has such a program; there is "
               "a file of this name here: for a script, name its interpreter"));
  CHECK_FALSE(fs::exists(up.dir() / "ps:0.pid"));
  CHECK(up.LogFolders().empty());
}

TEST_CASE("a job that ends well leaves no folder of logs; one that does not names it") {
  Up up;
  up.environment["FAKE_WORKER"] = "echo said";
  SECTION("well") {
    CHECK(up.Run({}) == 0);
    CHECK_THAT(up.output(), !Contains("logs"));
    CHECK(up.LogFolders().empty());
  }
  SECTION("well, and they are wanted") {
    CHECK(up.Run({"--keep_logs"}) == 0);
    REQUIRE(up.LogFolders().size() == 1);
    CHECK_THAT(up.output(), Contains("logs") && Contains(up.LogFolders()[0]));
    CHECK_THAT(ReadFile(up.LogFolders()[0] + "/worker-0.log"), Contains("said\n"));
  }
  SECTION("a task fails") {
    up.environment["FAKE_WORKER"] = "echo said; exit 70";
    CHECK(up.Run({}) == kExitInternal);
    REQUIRE(up.LogFolders().size() == 1);
    CHECK_THAT(up.output(), Contains("\nlogs: " + up.LogFolders()[0] + "\n"));
    CHECK_THAT(ReadFile(up.LogFolders()[0] + "/worker-0.log"), Contains("said\n"));
  }
  SECTION("ended from outside") {
    up.environment["FAKE_WORKER"] = "forever";
    up.Start({});
    up.Await("worker:0");
    up.Signal(SIGINT);
    CHECK(up.Wait() == 128 + SIGINT);
    REQUIRE(up.LogFolders().size() == 1);
    CHECK_THAT(up.output(), Contains("\nlogs: " + up.LogFolders()[0] + "\n"));
  }
  SECTION("it does not begin") {
    CHECK(up.Run({"--resume=" + (up.dir() / "none").string()}) == kExitConfig);
    CHECK(up.LogFolders().empty());
  }
  SECTION("a demo") {
    up.demo = true;
    CHECK(up.Run({}) == 0);
    CHECK(up.LogFolders().empty());
  }
}

TEST_CASE("the status of the job is shown while it runs") {
  v1::ClusterStatus status;
  status.set_state(v1::RUNNING);
  status.set_name("small");
  status.set_mode("sync");
  status.set_step(12);
  status.set_total_steps(470);
  UpWithStatus up(status);
  up.environment["FAKE_WORKER"] = "until [ -e $STATE/go ]; do sleep 0.02; done";
  up.Start({});
  up.AwaitOutput("small sync  step 12/470");
  std::ofstream(up.dir() / "go");
  CHECK(up.Wait() == 0);
}

TEST_CASE("the programs of several workers share the cores, unless the environment says otherwise") {
  unsetenv("OMP_NUM_THREADS");
  const unsigned share = std::max(1, UsableCpus() / 2);
  for (const auto& [set, workers, says] :
       {std::tuple<std::string, int, std::string>{"", 2, std::to_string(share)},
        {"7", 2, "7"},
        {"", 1, ""}}) {
    Up up;
    if (!set.empty()) up.environment["OMP_NUM_THREADS"] = set;
    up.environment["FAKE_PS"] = "await worker:" + std::to_string(workers - 1) + "; DONE=/dev/null";
    up.environment["FAKE_WORKER"] = "echo \"threads='$OMP_NUM_THREADS'\"";
    CHECK(up.Run({"--workers=" + std::to_string(workers), "--verbose", "--", "tests/cli/fake/worker"}) == 0);
    CHECK_THAT(up.output(), Contains("[worker:0] threads='" + says + "'\n"));
  }
}

TEST_CASE("a program in Python holds back nothing that it prints, unless the environment says otherwise") {
  unsetenv("PYTHONUNBUFFERED");
  for (const auto& [set, says] :
       {std::pair<const char*, std::string>{nullptr, "1"}, {"", ""}, {"yes", "yes"}}) {
    Up up;
    if (set != nullptr) up.environment["PYTHONUNBUFFERED"] = set;
    up.environment["FAKE_PS"] = "await worker:0; DONE=/dev/null";
    up.environment["FAKE_WORKER"] = "echo \"unbuffered='$PYTHONUNBUFFERED'\"";
    CHECK(up.Run({"--verbose", "--", "tests/cli/fake/worker"}) == 0);
    CHECK_THAT(up.output(), Contains("[worker:0] unbuffered='" + says + "'\n"));
  }
}

TEST_CASE("a job of the user's own program does without the program worker") {
  Up up;
  fs::create_directory(up.dir() / "bin");
  for (const char* name : {"ps_server", "task.sh"}) {
    fs::copy(fs::absolute(fs::path("tests/cli/fake") / name), up.dir() / "bin" / name);
  }
  up.bin_dir = up.dir() / "bin";
  CHECK(up.Run({}) == kExitConfig);
  CHECK_THAT(up.output(), Contains("ps_server and worker are not there"));
  up.environment["FAKE_PS"] = "await worker:0; DONE=/dev/null";
  CHECK(up.Run({"--", "tests/cli/fake/worker"}) == 0);
  INFO(up.output());
}

TEST_CASE("what a program in Python printed before it was killed is shown with the first cause") {
  unsetenv("PYTHONUNBUFFERED");
  Up up;
  up.environment["FAKE_PS"] = "forever";
  up.Start({"--", "python3", "-c", "import os; print('batch 3'); os.kill(os.getpid(), 9)"});
  CHECK(up.Wait() == kExitPeerLost);
  CHECK_THAT(up.output(),
             Contains("worker:0 was killed by signal 9 (Killed)") && Contains("\n    batch 3\n"));
}

TEST_CASE("a summary that cannot be written is an error of storage, and is shown anyway") {
  Up up;
  CHECK(up.Run({"--ps=2", "--workers=2", "--summary=/dev/full"}) == kExitStorage);
  CHECK_THAT(up.output(), Contains("error: ") && Contains("/dev/full: No space left on device"));
  CHECK_THAT(up.output(), Contains("98.32%") && Contains("sha256 ab12"));
}

TEST_CASE("where a job starts from is checked before anything starts") {
  Up up;
  const std::string runs = up.dir() / "runs";
  SECTION("nothing to resume") {
    CHECK(up.Run({"--resume=" + runs}) == kExitConfig);
    CHECK_THAT(up.output(), Contains("checkpoint.directory: " + runs + " has nothing to resume"));
    CHECK_FALSE(fs::exists(up.dir() / "ps:0.pid"));
  }
  SECTION("weights that are not there") {
    CHECK(up.Run({"--init_from=" + runs}) == kExitConfig);
    CHECK_THAT(up.output(), Contains("checkpoint.init_from: " + runs));
    CHECK_FALSE(fs::exists(up.dir() / "ps:0.pid"));
  }
}

TEST_CASE("a path of the command line starts at the working folder, one of the config at the config's") {
  Up up;
  up.environment["FAKE_WORKER"] = "true";
  CheckpointedJob job;
  REQUIRE(job.Write((up.dir() / "runs").string()).ok());
  const std::string relative = fs::relative(up.dir() / "runs");
  CHECK(up.Run({"--resume=" + relative}) == 0);
  INFO(up.output());
  CHECK_THAT(up.output(), Contains("going on from " + up.dir().string() + "/runs/step-00000012\n"));
  CHECK_THAT(up.Args("ps:0"), Contains("checkpoint.directory=\"" + up.dir().string() + "/runs\"\n"));
  CHECK(up.Run({"--init_from=" + relative, "--seed=3"}) == 0);
  CHECK_THAT(up.output(),
             Contains("starting with the weights of " + up.dir().string() + "/runs/step-00000012\n"));
  CHECK_THAT(up.Args("worker:0"), Contains("checkpoint.init_from=\"" + up.dir().string() + "/runs\"\n"));
  // In the folder of job.json.
  CHECK(up.Run({"--set", "checkpoint.directory=runs"}) == kExitConfig);
  CHECK_THAT(up.output(),
             Contains("runs holds checkpoints of a job already, the newest of step 12; go on with"));
}

TEST_CASE("all ends well, but without a summary") {
  Up up;
  up.environment["FAKE_PS"] = "until [ -e $DONE ]; do sleep 0.02; done; exit 0";
  CHECK(up.Run({}) == kExitInternal);
  CHECK_THAT(up.output(), Contains("ps:0 left no summary"));
}

TEST_CASE("what is wrong with the set-up shows before anything starts") {
  Up up;
  SECTION("config") {
    CHECK(up.Run({"--set", "optimizer.momentum=2"}) == kExitConfig);
    CHECK_THAT(up.output(), Contains("optimizer.momentum"));
  }
  SECTION("binaries") {
    up.bin_dir = "/no/such/folder";
    CHECK(up.Run({}) == kExitConfig);
    CHECK_THAT(up.output(), Contains("/no/such/folder/ps_server"));
  }
  SECTION("summary") {
    CHECK(up.Run({"--summary=/no/such/folder/out.json"}) == kExitConfig);
    CHECK_THAT(up.output(), Contains("/no/such/folder/out.json"));
  }
  SECTION("logs") {
    CHECK(up.Run({"--log_dir=" + (up.dir() / "job.json").string()}) == kExitConfig);
    CHECK_THAT(up.output(), Contains("--log_dir"));
  }
  CHECK(!fs::exists(up.dir() / "ps:0.pid"));
}

TEST_CASE("the demo runs each mode with each seed and shows one table") {
  Up up;
  up.demo = true;
  up.environment["FAKE_WORKER"] = "printf '%s ' \"$@\" >> $STATE/$TASK.runs; echo >> $STATE/$TASK.runs";
  CHECK(up.Run({"--seed=5", "--seeds=2", "--set", "train.epochs=3"}) == 0);
  INFO(up.output());
  CHECK_THAT(up.output(), Contains("version staleness p50/max"));
  const std::string runs = ReadFile(up.dir() / "worker:3.runs");
  CHECK(std::count(runs.begin(), runs.end(), '\n') == 6);
  for (const char* mode :
       {R"({"mode": "sync"})", R"({"mode": "bounded", "staleness": 3})", R"({"mode": "async"})"}) {
    for (const char* seed : {"5", "6"}) {
      CHECK_THAT(runs, Contains(std::string("--set train.epochs=3 --set consistency=") + mode +
                                " --set seed=" + seed + " --set cluster.workers=4"));
    }
  }
}

}  // namespace
}  // namespace weir
