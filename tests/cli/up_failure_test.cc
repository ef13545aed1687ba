// What `weir up` does when tasks fail or are killed, and when it is ended itself.
#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "catch2/catch.hpp"
#include "common/program/exit_codes.h"
#include "tests/cli/up_process.h"

namespace weir {
namespace {

using Catch::Contains;

TEST_CASE("a worker's program that ends well without joining is named at once") {
  v1::ClusterStatus status;
  status.set_state(v1::STARTING);
  UpWithStatus up(status);
  up.environment["FAKE_PS"] = "forever";
  up.environment["FAKE_WORKER"] = "[ $TASK = worker:1 ] && { await worker:0; echo bye; exit 0; }; forever";
  CHECK(up.Run({"--workers=2"}) == kExitInternal);
  CHECK_THAT(up.output(),
             Contains("error: the program of worker:1 ended after ") &&
                 Contains(" without joining the job; the last lines of worker:1:\n    bye\nhint: ") &&
                 Contains("weir.torch.Optimizer"));
}

TEST_CASE("a signal ends `weir up` while it connects with hosts, not once connecting has failed") {
  Up up;
  up.bin_dir = "";
  const fs::path ssh = up.dir() / "ssh";
  std::ofstream(ssh) << "echo $$ >ssh.new; mv ssh.new " << (up.dir() / "ssh.pid") << "; exec sleep 1000\n";
  up.Start({"--hosts=a,b", "--ssh=sh " + ssh.string(), "--log_dir=" + (up.dir() / "logs").string()});
  const pid_t pid = up.Await("ssh");
  up.Signal(SIGINT);
  CHECK(up.Wait() == 130);
  CHECK_THAT(up.output(), Contains("SIGINT: ended while it waited for hosts"));
  CHECK(IsSoonGone(pid));
  CHECK_FALSE(fs::exists(up.dir() / "logs" / "token"));
}

TEST_CASE("a job that cannot begin without a worker that was killed ends at once and names it") {
  v1::ClusterStatus status;
  status.set_state(v1::STARTING);
  status.set_name("small");
  UpWithStatus up(status);
  up.environment["FAKE_PS"] = "forever";
  up.environment["FAKE_WORKER"] = "[ $TASK = worker:1 ] && { await worker:0 worker:2; kill -9 $$; }; forever";
  SECTION("all are needed") {
    CHECK(up.Run({"--workers=3"}) == kExitPeerLost);
    CHECK_THAT(up.output(), Catch::StartsWith("error: worker:1 was killed by signal 9 (Killed) after ") &&
                                Contains("; the job had not begun, and cannot with fewer than 3 workers"));
    CHECK_THAT(up.output(), !Contains("goes on without it"));
  }
  SECTION("the others are enough") {
    up.Start({"--workers=3", "--set", "cluster.min_workers=2"});
    up.AwaitOutput("warning: worker:1 was killed by signal 9 (Killed) after ");
    CHECK_THAT(up.output(), Contains("the job goes on without it"));
    up.Signal(SIGTERM);
    CHECK(up.Wait() == 143);
  }
  SECTION("it is started again") {
    up.environment["FAKE_WORKER"] =
        "[ $TASK = worker:1 ] && { await worker:0 worker:2; [ $START -lt 2 ] && kill -9 $$; }; forever";
    SECTION("often enough") {
      up.Start({"--workers=3", "--restart"});
      up.AwaitFile("worker:1.2.pid");
      up.Signal(SIGTERM);
      CHECK(up.Wait() == 143);
    }
    SECTION("and no more") {
      CHECK(up.Run({"--workers=3", "--restart=1"}) == kExitPeerLost);
      CHECK_THAT(up.output(), Contains("error: worker:1 was killed by signal 9 (Killed) after ") &&
                                  Contains("; the job had not begun"));
    }
  }
}

TEST_CASE("a task fails: it is named first, with its last lines and a hint, and the others are ended") {
  Up up;
  up.environment["FAKE_PS"] = "trap 'touch $STATE/$TASK.term; exit 143' TERM; forever";
  up.environment["FAKE_WORKER"] =
      "[ $TASK = worker:1 ] || forever; await ps:0 ps:1 worker:0; for i in {1..12}; do echo line $i; done; "
      "exit 70";
  const std::string summary = up.dir() / "out.json";
  std::ofstream(summary) << "of an earlier job";
  CHECK(up.Run({"--ps=2", "--workers=2", "--summary=" + summary}) == kExitInternal);
  const std::string output = up.output();
  INFO(output);
  CHECK_THAT(
      output,
      Catch::StartsWith(
          "error: worker:1 exited with 70 (a fault of its own, or training that cannot go on) after "));
  CHECK_THAT(output, Contains("    line 3\n") && Contains("    line 12\n") && !Contains("    line 2\n"));
  CHECK_THAT(output, Contains("hint: ") && Contains("logs: " + up.dir().string()));
  CHECK(fs::exists(up.dir() / "ps:0.term"));
  CHECK(fs::exists(up.dir() / "ps:1.term"));
  CHECK(!fs::exists(summary));
  for (const char* task : {"ps:0", "ps:1", "worker:0", "worker:1"}) CHECK(IsGone(up.Await(task)));
}

// What ps:0 writes of a job that has failed.
std::string SummaryOfFailure(const std::string& failure) {
  return R"({"mode": "async", "ps": 2, "workers": 1, "steps": 470, "pushes": 940, "examples": 30080,)"
         R"("wall_seconds": 2.5, "examples_per_second": 12032, "train_loss": 0.0123, "test_accuracy": 0.9811,)"
         R"("test_loss": null, "version_staleness": {"p50": 1, "p99": 3, "max": 4}, "lead": {"p50": 1, "max": 4},)"
         R"("bytes_pushed": 1000000, "bytes_pulled": 2000000, "weights_sha256": "cd34",)"
         R"("checkpoint": "/runs/7/step-00000400", "recoveries": 0, "lost_pushes": 0, "pushes_refused": 0,)"
         R"("failure": ")" +
         failure + "\"}";
}

TEST_CASE(
    "a job that cannot be saved says why, is not started again, and its summary is shown, not written") {
  Up up;
  up.environment["FAKE_PS"] =
      "[ $TASK = ps:1 ] && forever; until [ -e $DONE ]; do sleep 0.02; done; "
      "echo \"$FAKE_SUMMARY\" > $SUMMARY; echo storage failed: no room; exit 74";
  up.environment["FAKE_SUMMARY"] = SummaryOfFailure("storage failed: no room");
  up.environment["FAKE_WORKER"] =
      "await ps:0 ps:1; touch $DONE; while kill -0 $(cat $STATE/ps:0.pid); do :; done 2>/dev/null; exit 74";
  const std::string summary = up.dir() / "out.json";
  CHECK(up.Run({"--ps=2", "--summary=" + summary, "--restart", "--set", "checkpoint.directory=runs"}) ==
        kExitStorage);
  CHECK_THAT(up.output(),
             Contains("error: ps:0 exited with 74 (what the job has to leave could not be written)") &&
                 Contains("    storage failed: no room\n") && Contains("hint: make room"));
  CHECK_THAT(up.output(), Contains("98.11%") && Contains("/runs/7/step-00000400") &&
                              Contains("failed            storage failed: no room\n"));
  CHECK_THAT(up.output(), !Contains("started again"));
  CHECK(!fs::exists(summary));
}

TEST_CASE("a killed server is the first cause, not those that lost it") {
  Up up;
  up.environment["FAKE_PS"] = "[ $TASK = ps:1 ] || forever; await worker:0 worker:1; kill -9 $$";
  // `weir` may see these exits before their cause.
  up.environment["FAKE_WORKER"] =
      "await ps:1; while kill -0 $(cat $STATE/ps:1.pid); do :; done 2>/dev/null; echo lost it; exit 138";
  CHECK(up.Run({"--ps=2", "--workers=2"}) == kExitPeerLost);
  CHECK_THAT(up.output(), Catch::StartsWith("error: ps:1 was killed by signal 9 (Killed) after "));
  CHECK_THAT(up.output(), !Contains("lost it"));
}

TEST_CASE("a worker whose gradient was not finite is the first cause, though a server ends before it") {
  Up up;
  up.environment["FAKE_PS"] = "await worker:0; [ $TASK = ps:0 ] && forever; exit 70";
  up.environment["FAKE_WORKER"] =
      "await ps:1; while kill -0 $(cat $STATE/ps:1.pid); do sleep 0.02; done; echo 'the gradient is NaN'; "
      "exit 70";
  CHECK(up.Run({"--ps=2"}) == kExitInternal);
  CHECK_THAT(up.output(),
             Contains("error: worker:0 exited with 70") && Contains("    the gradient is NaN\n"));
}

TEST_CASE("a killed worker is a warning, as long as another one finishes") {
  Up up;
  const std::string summary = up.dir() / "out.json";
  up.environment["FAKE_WORKER"] =
      "[ $TASK = worker:0 ] && kill -9 $$; until [ -e $STATE/go ]; do sleep 0.02; done";
  up.Start({"--workers=2", "--summary=" + summary});
  up.AwaitOutput("warning: worker:0 was killed by signal 9 (Killed) after ");
  CHECK_THAT(up.output(), Contains("; the job goes on without it"));
  std::ofstream(up.dir() / "go");
  CHECK(up.Wait() == 0);
  CHECK_THAT(ReadFile(summary), Contains(R"("worker:0": 137)") && Contains(R"("worker:1": 0)"));
}

TEST_CASE("a worker that lost the others is a warning, as long as another one finishes") {
  v1::ClusterStatus status;
  status.set_state(v1::RUNNING);
  UpWithStatus up(status);
  up.environment["FAKE_WORKER"] =
      "[ $TASK = worker:0 ] && { await worker:1; exit 138; }; until [ -e $STATE/go ]; do sleep 0.02; done";
  up.Start({"--workers=2"});
  up.AwaitOutput("warning: worker:0 exited with 138 (a peer was lost) after ");
  CHECK_THAT(up.output(), Contains("; the job goes on without it"));
  std::ofstream(up.dir() / "go");
  CHECK(up.Wait() == 0);
}

TEST_CASE("workers that lost the servers end the job when none is left") {
  Up up;
  up.environment["FAKE_PS"] = "forever";
  up.environment["FAKE_WORKER"] = "await worker:0 worker:1; exit 138";
  CHECK(up.Run({"--workers=2"}) == kExitPeerLost);
  CHECK_THAT(up.output(),
             Contains("error: worker:") && Contains(" exited with 138 (a peer was lost) after "));
}

TEST_CASE("a finished job stays finished, whatever becomes of who missed its end") {
  Up up;
  const std::string summary = up.dir() / "out.json";
  // ps:0 has ended when worker:1 looks for it.
  const std::string gone =
      "await ps:0; while kill -0 $(cat $STATE/ps:0.pid); do sleep 0.02; done 2>/dev/null; ";
  SECTION("it loses them") {
    const std::string code = GENERATE("138", "70");
    up.environment["FAKE_WORKER"] =
        "[ $TASK = worker:0 ] && await worker:1; [ $TASK = worker:0 ] || { " + gone + "exit " + code + "; }";
    CHECK(up.Run({"--workers=2", "--restart", "--set", "checkpoint.directory=runs",
                  "--summary=" + summary}) == 0);
    CHECK_THAT(up.output(),
               Contains("warning: worker:1 exited with " + code) && Contains("; the job is done anyway"));
    CHECK_THAT(ReadFile(summary), Contains("\"worker:1\": " + code));
    CHECK(!fs::exists(up.dir() / "worker:1.1.pid"));
  }
  SECTION("it does not notice") {
    up.environment["FAKE_WORKER"] = "[ $TASK = worker:0 ] && await worker:1; [ $TASK = worker:0 ] || forever";
    CHECK(up.Run({"--workers=2", "--summary=" + summary}) == 0);
    CHECK_THAT(up.output(), Contains("warning: worker:1 still runs 5s after the job's end; ended"));
    CHECK_THAT(ReadFile(summary), Contains("\"worker:0\": 0"));
  }
  CHECK_THAT(up.output(), Contains("98.32%"));
}

TEST_CASE("a worker is killed while the other one finishes") {
  Up up;
  // Both exits come at about the same time.
  up.environment["FAKE_WORKER"] =
      "[ $TASK = worker:0 ] && { await worker:1; kill -9 $$; }; await worker:0; "
      "while kill -0 $(cat $STATE/worker:0.pid); do :; done 2>/dev/null";
  CHECK(up.Run({"--workers=2"}) == 0);
  CHECK_THAT(up.output(), Contains("warning: worker:0 was killed"));
}

// The first `times` processes of a task end by `$how`, later ones go on with the rest of the script.
std::string Dies(const std::string& task, int times, const std::string& how) {
  return "if [ $TASK = " + task + " ] && [ $START -lt " + std::to_string(times) + " ]; then " + how +
         "; fi; ";
}

TEST_CASE("a killed server of a job with checkpoints is started again, on its port") {
  Up up;
  const std::string summary = up.dir() / "out.json";
  up.environment["FAKE_PS"] = Dies("ps:1", 2, "await worker:0 worker:1; kill -9 $$");
  up.environment["FAKE_WORKER"] = "until [ -e $STATE/ps:1.2.pid ]; do sleep 0.02; done";
  CHECK(up.Run({"--ps=2", "--workers=2", "--restart", "--set", "checkpoint.directory=runs",
                "--summary=" + summary}) == 0);
  INFO(up.output());
  CHECK_THAT(up.output(), Contains("warning: ps:1 was killed by signal 9 (Killed) after ") &&
                              Contains("; started again (1 of 3)\n") &&
                              Contains("; started again (2 of 3)\n"));
  CHECK_THAT(up.output(), Contains("1 server came back; started again: ps:1 (2 times)") &&
                              Contains("checkpoint        /runs/7/step-00000470"));
  CHECK_THAT(ReadFile(summary), Contains("\"restarts\": {\n    \"ps:1\": 2\n  }") && Contains("\"ps:1\": 0"));
  // The restarted task gets the same flags.
  const std::string before = ReadFile(up.dir() / "ps:1.0.args");
  const std::string after = ReadFile(up.dir() / "ps:1.1.args");
  const size_t cluster = before.find("{\"cluster\"");
  CHECK(before.substr(0, cluster) == after.substr(0, cluster));
  CHECK_THAT(before, Contains(R"({"ps":["127.0.0.1:0"]})"));
  CHECK_THAT(after, Contains(R"({"ps":["127.0.0.1:4242"]})"));
}

TEST_CASE("a worker is started again; what it is told stays as it is") {
  Up up;
  up.environment["FAKE_WORKER"] =
      Dies("worker:0", 1, "exit 138") +
      "[ $TASK = worker:0 ] || until [ -e $STATE/worker:0.1.pid ]; do sleep 0.02; done";
  CHECK(up.Run({"--workers=2", "--restart=1"}) == 0);
  CHECK_THAT(up.output(), Contains("warning: worker:0 ended with exit code 138 after ") &&
                              Contains("; started again (1 of 1)\n"));
  CHECK(ReadFile(up.dir() / "worker:0.0.args") == ReadFile(up.dir() / "worker:0.1.args"));
}

TEST_CASE("a task that dies too often, or in a way that another try would not mend, ends the job") {
  Up up;
  SECTION("too often") {
    up.environment["FAKE_PS"] =
        Dies("ps:1", 9, "await worker:0; echo last of $START; kill -9 $$") + "forever";
    up.environment["FAKE_WORKER"] = "forever";
    CHECK(up.Run({"--ps=2", "--restart=2", "--set", "checkpoint.directory=runs"}) == kExitPeerLost);
    CHECK_THAT(up.output(), Contains("error: ps:1 was killed by signal 9 (Killed) after ") &&
                                Contains(", started again 2 times before; the last lines of ps:1:\n") &&
                                Contains("    last of 2\n"));
    CHECK_FALSE(fs::exists(up.dir() / "ps:1.3.pid"));
  }
  SECTION("for good") {
    up.environment["FAKE_PS"] = "forever";
    up.environment["FAKE_WORKER"] = "[ $TASK = worker:1 ] && exit 70; forever";
    CHECK(up.Run({"--workers=2", "--restart"}) == kExitInternal);
    CHECK_FALSE(fs::exists(up.dir() / "worker:1.1.pid"));
  }
  SECTION("a server, without checkpoints") {
    up.environment["FAKE_PS"] = "await worker:0; kill -9 $$";
    up.environment["FAKE_WORKER"] = "forever";
    CHECK(up.Run({"--restart"}) == kExitPeerLost);
    CHECK_THAT(up.output(), Contains("error: ps:0 was killed by signal 9 (Killed)"));
    CHECK_FALSE(fs::exists(up.dir() / "ps:0.1.pid"));
  }
  SECTION("one that others did not get over") {
    up.environment["FAKE_PS"] = Dies("ps:1", 1, "await worker:0; echo the first; kill -9 $$") + "forever";
    up.environment["FAKE_WORKER"] = "until [ -e $STATE/ps:1.1.pid ]; do sleep 0.02; done; exit 138";
    CHECK(up.Run({"--ps=2", "--restart=1", "--set", "checkpoint.directory=runs"}) == kExitPeerLost);
    CHECK_THAT(up.output(),
               Contains("error: ps:1 was killed by signal 9 (Killed) after ") &&
                   Contains("; started again, but the job did not recover; the last lines of ps:1:\n"
                            "    the first\n"));
  }
}

TEST_CASE("a signal has a job with checkpoints save itself before it ends") {
  Up up;
  up.environment["FAKE_PS"] =
      "[ $TASK = ps:0 ] || trap '[ -e $STATE/saved ] && exit 143; touch $STATE/early; exit 1' TERM; "
      "[ $TASK = ps:1 ] || trap 'echo \"$FAKE_SUMMARY\" > $SUMMARY; touch $STATE/saved; exit 143' TERM; "
      "forever";
  const std::string on = "ps:0 got SIGTERM; started again, the job goes on from /runs/7/step-00000400";
  up.environment["FAKE_SUMMARY"] = SummaryOfFailure(on);
  up.environment["FAKE_WORKER"] =
      "trap '[ -e $STATE/saved ] || touch $STATE/early; exit 143' TERM; touch $STATE/ready; forever";
  up.Start({"--ps=2", "--set", "checkpoint.directory=runs"});
  up.AwaitFile("ready");
  up.Signal(SIGTERM);
  CHECK(up.Wait() == 143);
  CHECK(fs::exists(up.dir() / "saved"));
  CHECK_FALSE(fs::exists(up.dir() / "early"));
  CHECK_THAT(up.output(), Contains("SIGTERM: saving a checkpoint, for --resume, and ending 3 tasks") &&
                              Contains("\n" + on + "\nlogs: "));
  for (const char* task : {"ps:0", "ps:1", "worker:0"}) CHECK(IsGone(up.Await(task)));
}

TEST_CASE("a worker that is skipped does not end the job, and is not started again") {
  Up up;
  up.environment["FAKE_WORKER"] =
      "if [ $TASK = worker:1 ]; then echo training diverged; exit 70; fi; await worker:1; sleep 0.3";
  const std::string skip = "consistency.on_nonfinite=skip_worker";
  CHECK(up.Run({"--workers=2", "--restart", "--set", skip}) == 0);
  CHECK_THAT(up.output(),
             Contains("warning: worker:1 exited with 70") && Contains("; the job goes on without it"));
  CHECK(!fs::exists(up.dir() / "worker:1.1.pid"));
  // The last worker ends the job.
  up.environment["FAKE_PS"] = "await worker:1; sleep 0.1; echo training diverged; exit 70";
  up.environment["FAKE_WORKER"] = "exit 70";
  CHECK(up.Run({"--workers=2", "--restart", "--set", skip, "--set", "seed=2"}) == kExitInternal);
}

TEST_CASE("no worker is left, even if an evaluator is") {
  Up up;
  up.environment["FAKE_WORKER"] = "[ $TASK = evaluator:0 ] && forever; kill -9 $$";
  CHECK(up.Run({"--workers=2", "--evaluator"}) == kExitPeerLost);
  CHECK_THAT(up.output(), Contains("error: worker:") && Contains("was killed by signal 9 (Killed)"));
}

TEST_CASE("a server ends before it has a port") {
  Up up;
  up.environment["SILENT"] = "1";
  up.environment["FAKE_PS"] = "[ $TASK = ps:0 ] && forever; echo no such model; exit 78";
  CHECK(up.Run({"--ps=2"}) == kExitConfig);
  CHECK_THAT(up.output(), Contains("error: ps:1 exited with 78 (bad config, data or address)") &&
                              Contains("    no such model\n"));
  CHECK(!fs::exists(up.dir() / "worker:0.pid"));
}

TEST_CASE("Ctrl-C and SIGTERM end all tasks") {
  const auto [signal, code] = GENERATE(std::pair(SIGINT, 130), std::pair(SIGTERM, 143));
  Up up;
  up.environment["FAKE_PS"] = "forever";
  up.environment["FAKE_WORKER"] = "trap 'touch $STATE/term; exit 143' TERM; touch $STATE/ready; forever";
  up.Start({});
  up.AwaitFile("ready");
  up.Signal(signal);
  CHECK(up.Wait() == code);
  CHECK(fs::exists(up.dir() / "term"));
  CHECK_THAT(up.output(), !Contains("error"));
  for (const char* task : {"ps:0", "worker:0"}) CHECK(IsGone(up.Await(task)));
}

TEST_CASE("a signal that was ignored at the start is taken neither by `weir` nor by its tasks") {
  const auto [signal, name] =
      GENERATE(std::pair(SIGHUP, "HUP"), std::pair(SIGINT, "INT"), std::pair(SIGTERM, "TERM"));
  Up up;
  up.ignored = name;
  up.environment["FAKE_PS"] = "await worker:0";
  up.environment["FAKE_WORKER"] =
      "grep SigIgn /proc/self/status >$STATE/ready.new; mv $STATE/ready.new $STATE/ready; await go";
  up.Start({});
  const std::string ignored = up.AwaitFile("ready");
  up.Signal(signal);
  std::ofstream(up.dir() / "go.pid");
  CHECK(up.Wait() == 0);
  CHECK_THAT(up.output(), !Contains("SIG"));
  const uint64_t mask = std::stoull(ignored.substr(ignored.rfind('\t') + 1), nullptr, 16);
  CHECK((mask & (uint64_t{1} << (signal - 1))) != 0);
}

TEST_CASE("a task has the signals unblocked that `weir` blocks for itself") {
  Up up;
  up.environment["FAKE_WORKER"] = "echo $(grep SigBlk /proc/self/status); await ps:0";
  CHECK(up.Run({"--verbose"}) == 0);
  CHECK_THAT(up.output(), Contains("[worker:0] SigBlk: 0000000000000000\n"));
}

TEST_CASE("a second Ctrl-C kills at once") {
  Up up;
  up.environment["FAKE_PS"] = "forever";
  up.environment["FAKE_WORKER"] = "trap 'touch $STATE/term' TERM; touch $STATE/ready; forever";
  up.Start({});
  up.AwaitFile("ready");
  up.Signal(SIGINT);
  up.AwaitFile("term");
  const auto begin = std::chrono::steady_clock::now();
  up.Signal(SIGINT);
  CHECK(up.Wait() == 130);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(8));
  CHECK(IsGone(up.Await("worker:0")));
}

TEST_CASE("tasks die with `weir`, whatever happens to it") {
  Up up;
  up.environment["FAKE_PS"] = "forever";
  up.environment["FAKE_WORKER"] = "forever";
  up.Start({});
  const pid_t server = up.Await("ps:0");
  const pid_t worker = up.Await("worker:0");
  up.Signal(SIGKILL);
  CHECK(up.Wait() == 128 + SIGKILL);
  CHECK(IsSoonGone(server));
  CHECK(IsSoonGone(worker));
}

}  // namespace
}  // namespace weir
