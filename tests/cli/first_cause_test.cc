#include "cli/local_cluster/first_cause.h"

#include <signal.h>

#include "catch2/catch.hpp"
#include "common/program/exit_codes.h"

namespace weir {
namespace {

using Catch::Contains;

TaskExit Code(const std::string& task, int code, double seconds = 1) {
  TaskExit exit;
  exit.task = task;
  exit.exit.code = code;
  exit.seconds = seconds;
  return exit;
}
TaskExit Signal(const std::string& task, int signal, double seconds = 1) {
  TaskExit exit;
  exit.task = task;
  exit.exit.signal = signal;
  exit.seconds = seconds;
  return exit;
}
TaskExit Ended(TaskExit exit) {
  exit.was_ended = true;
  return exit;
}

TaskExit OnHost(TaskExit exit, const std::string& host) {
  exit.host = host;
  return exit;
}

TaskExit Restarted(TaskExit exit) {
  exit.restarted = true;
  return exit;
}

std::string Cause(const std::vector<TaskExit>& exits) {
  const auto index = FirstCause(exits);
  return index.has_value() ? exits[*index].task : "";
}

TEST_CASE("what an exit means") {
  CHECK(MeaningOf(Code("worker:0", 0)) == ExitMeaning::kExpected);
  CHECK(MeaningOf(Code("ps:0", 0)) == ExitMeaning::kExpected);
  CHECK(MeaningOf(Ended(Code("ps:0", 70))) == ExitMeaning::kExpected);
  CHECK(MeaningOf(Ended(Signal("worker:0", SIGKILL))) == ExitMeaning::kExpected);

  for (const char* task : {"worker:1", "evaluator:0"}) {
    CHECK(MeaningOf(Signal(task, SIGKILL)) == ExitMeaning::kSurvivable);
    CHECK(MeaningOf(Signal(task, SIGTERM)) == ExitMeaning::kSurvivable);
    CHECK(MeaningOf(Code(task, kExitDrained)) == ExitMeaning::kSurvivable);
    CHECK(MeaningOf(Signal(task, SIGSEGV)) == ExitMeaning::kFatal);
    CHECK(MeaningOf(Code(task, kExitInternal)) == ExitMeaning::kFatal);
    CHECK(MeaningOf(Code(task, kExitPeerLost)) == ExitMeaning::kSurvivable);
  }
  CHECK(MeaningOf(Code("ps:1", kExitPeerLost)) == ExitMeaning::kFatal);
  TaskExit late = Code("worker:1", kExitInternal);
  late.job_done = true;
  CHECK(MeaningOf(late) == ExitMeaning::kSurvivable);
  CHECK(MeaningOf(Signal("ps:1", SIGKILL)) == ExitMeaning::kFatal);
  CHECK(MeaningOf(Restarted(Signal("ps:1", SIGKILL))) == ExitMeaning::kSurvivable);
  CHECK(MeaningOf(Restarted(Code("worker:1", kExitPeerLost))) == ExitMeaning::kSurvivable);
  CHECK(MeaningOf(Code("ps:1", kExitDrained)) == ExitMeaning::kFatal);
}

TEST_CASE("who is worth another start") {
  for (const int signal : {SIGKILL, SIGTERM, SIGSEGV}) CHECK(IsWorthRestart(Signal("ps:1", signal)));
  for (const int code : {kExitPeerLost, kExitDrained}) CHECK(IsWorthRestart(Code("ps:1", code)));
  for (const int code :
       std::vector<int>{kExitOk, kExitUsage, kExitInternal, kExitStorage, kExitConfig, 1, 127}) {
    CHECK_FALSE(IsWorthRestart(Code("ps:1", code)));
  }
  CHECK_FALSE(IsWorthRestart(Ended(Signal("ps:1", SIGKILL))));
}

TEST_CASE("the first cause") {
  CHECK(Cause({}) == "");
  CHECK(Cause({Code("worker:0", 0), Code("ps:0", 0)}) == "");
  CHECK(Cause({Code("worker:1", 70), Code("worker:0", 70)}) == "worker:1");
  SECTION("138 is a consequence, whichever was seen first") {
    CHECK(Cause({Code("worker:0", 138), Code("worker:1", 138), Signal("ps:1", SIGKILL)}) == "ps:1");
    CHECK(Cause({Signal("ps:1", SIGKILL), Code("worker:0", 138), Code("ps:0", 138)}) == "ps:1");
    // All workers have left: ps:0 says so, and the others hear it from there.
    CHECK(Cause({Code("worker:0", 0), Code("ps:1", 138), Code("ps:0", 138), Code("ps:2", 138)}) == "ps:0");
  }
  SECTION("training that cannot go on is a worker's, whichever was seen first") {
    CHECK(Cause({Code("ps:1", 70), Code("ps:0", 70), Code("worker:1", 70), Code("worker:0", 70)}) ==
          "worker:1");
    CHECK(Cause({Code("evaluator:0", 70), Code("worker:0", 1)}) == "worker:0");
    CHECK(Cause({Code("ps:1", 70), Code("worker:0", 138)}) == "ps:1");
    CHECK(Cause({Code("ps:1", 70), Restarted(Signal("worker:0", SIGKILL))}) == "ps:1");
    CHECK(Cause({Code("ps:1", 70), Code("ps:0", 78)}) == "ps:0");
  }
  SECTION("what cannot be stored is ps:0's, whichever was seen first") {
    CHECK(Cause({Code("worker:0", 74), Code("ps:1", 74), Code("ps:0", 74), Code("worker:1", 138)}) == "ps:0");
    CHECK(Cause({Code("worker:0", 74)}) == "worker:0");
  }
  SECTION("unless nothing else failed") {
    CHECK(Cause({Code("worker:0", 0), Code("worker:1", 138), Code("worker:2", 138)}) == "worker:1");
    CHECK(Cause({Code("worker:1", 138), Ended(Code("ps:0", 70))}) == "worker:1");
  }
  SECTION("a task that was started again explains those who lost it, but no fault of another one") {
    const TaskExit first = Restarted(Signal("ps:1", SIGKILL));
    CHECK(Cause({first}) == "ps:1");
    CHECK(Cause({first, Code("worker:0", 138)}) == "ps:1");
    CHECK(Cause({first, Code("worker:0", 70)}) == "worker:0");
    // The job had gone on after the first end.
    CHECK(Cause({first, Restarted(Signal("ps:0", SIGKILL)), Code("worker:0", 138)}) == "ps:0");
    CHECK(Cause({first, Signal("ps:1", SIGSEGV), Code("worker:0", 138)}) == "ps:1");
    CHECK(Cause({Restarted(Code("worker:1", 138)), Code("worker:0", 138)}) == "worker:0");
    CHECK(Cause({Restarted(Signal("worker:1", SIGKILL)), Code("worker:0", 138)}) == "worker:0");
  }
  SECTION("what the job survived explains a failure last") {
    CHECK(Cause({Code("worker:0", 138), Code("ps:1", 138)}) == "ps:1");
    CHECK(Cause({Signal("worker:0", SIGKILL), Code("worker:1", 138)}) == "worker:1");
    CHECK(Cause({Signal("worker:0", SIGKILL), Signal("worker:1", SIGKILL)}) == "worker:0");
  }
}

TEST_CASE("in words") {
  CHECK(DescribeExit(Code("worker:1", 70, 3.2)) ==
        "worker:1 exited with 70 (a fault of its own, or training that cannot go on) after 3.20 s");
  CHECK(DescribeExit(Code("worker:1", 3, 3.2)) == "worker:1 exited with 3 after 3.20 s");
  CHECK(DescribeExit(OnHost(Code("worker:1", 3, 3.2), "b")) == "worker:1 on b exited with 3 after 3.20 s");
  CHECK(DescribeExit(OnHost(Signal("ps:0", SIGKILL, 12), "ann@b")) ==
        "ps:0 on ann@b was killed by signal 9 (Killed) after 12.0 s");
  TaskExit lost = OnHost(Signal("ps:1", SIGKILL, 12), "b");
  lost.lost = "ssh ended with exit code 255";
  CHECK(DescribeExit(lost) == "ps:1 on b was lost with its host after 12.0 s: ssh ended with exit code 255");
  CHECK(DescribeExit(Signal("ps:0", SIGKILL, 12)) == "ps:0 was killed by signal 9 (Killed) after 12.0 s");

  TaskExit third = Signal("ps:0", SIGKILL, 12);
  third.restarts = 1;
  CHECK_THAT(DescribeExit(third), Catch::EndsWith(" after 12.0 s, started again once before"));
  third.restarts = 2;
  CHECK_THAT(DescribeExit(third), Catch::EndsWith(" after 12.0 s, started again 2 times before"));

  for (const int code : {64, 70, 74, 78, 138, 143}) CHECK(!HintFor(Code("worker:1", code)).empty());
  CHECK(HintFor(Code("worker:1", 3)).empty());
  CHECK_THAT(HintFor(Signal("worker:1", SIGKILL)),
             Contains("memory") && Contains("dmesg") && !Contains("checkpoint"));
  CHECK_THAT(HintFor(Signal("ps:1", SIGKILL)), Contains("With checkpoint.directory and --restart"));
  CHECK_THAT(HintFor(Signal("worker:1", SIGSEGV)), Contains("crashed"));
}

TEST_CASE("a program whose Python lacks a package is told about the Python, with hosts about PATH") {
  TaskExit exit = Code("worker:1", 1);
  exit.last_lines = {"  File \"train.py\", line 3, in <module>",
                     "ModuleNotFoundError: No module named 'weir'"};
  CHECK_THAT(HintFor(exit), Contains("this Python lacks the package") && !Contains("PATH"));
  CHECK_THAT(HintFor(OnHost(exit, "b")),
             Contains("the Python of this host") && Contains("a PATH of its own"));
  exit.last_lines = {"ValueError: it says ModuleNotFoundError: by itself"};
  CHECK(HintFor(exit).empty());
}

TEST_CASE("the code of the whole command") {
  CHECK(ExitCodeFor(Code("worker:1", 70)) == 70);
  CHECK(ExitCodeFor(Code("worker:1", 78)) == 78);
  CHECK(ExitCodeFor(Signal("ps:1", SIGKILL)) == kExitPeerLost);
  CHECK(ExitCodeFor(Signal("worker:1", SIGSEGV)) == kExitPeerLost);
}

}  // namespace
}  // namespace weir
