// Tasks to which the system gives no threads, or little memory.
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/program/exit_codes.h"
#include "tests/integration/processes.h"
#include "tests/skip.h"

namespace weir {
namespace {

using Catch::Contains;

// Runs the program with a limit that a shell sets: "ulimit -s 8192".
RunResult RunLimited(const std::string& limit, const std::vector<std::string>& args,
                     std::map<std::string, std::string> environment) {
  return RunToEnd(With({"sh", "-c", limit + " && exec \"$0\" \"$@\""}, args), std::move(environment));
}

// Each thread wants a stack that is larger than the address space.
constexpr const char* kNoThreads = "ulimit -s 200000000000";

TEST_CASE("a task that gets no thread says so, and ends with 70") {
  if (RunToEnd({"sh", "-c", kNoThreads}).status != 0) {
    SaySkipped("this user may not raise RLIMIT_STACK");
    return;
  }
  TestJob job({.ps = 1, .workers = 1, .set = {}});
  for (const char* task : {"ps:0", "worker:0"}) {
    const RunResult ended = RunLimited(kNoThreads, job.Args(task), {{"TF_CONFIG", job.TfConfig(task)}});
    INFO(task << ": " << ended.output);
    CHECK(ended.status == kExitInternal);
    CHECK_THAT(ended.output, Contains("the system gives no thread to "));
    CHECK_THAT(ended.output, !Contains("terminate called"));
  }
  // OpenBLAS needs no thread here.
  const RunResult alone = RunLimited(
      kNoThreads, {"worker/worker", "--config=tests/integration/digits.json", "--set", "train.epochs=1"},
      {{"OPENBLAS_NUM_THREADS", "1"}});
  INFO(alone.output);
  CHECK(alone.status == kExitInternal);
  CHECK_THAT(alone.output, Contains("the system gives no thread to wait for signals ("));
}

TEST_CASE("a job in one process with too little memory says so, and ends with 70") {
  bool refused = false;
  for (const char* mib : {"160", "220", "300", "400", "550", "700"}) {
    const RunResult ended = RunLimited(
        "ulimit -v $((" + std::string(mib) + " * 1024))",
        {"worker/worker", "--config=tests/integration/digits.json", "--set", "train.epochs=0.1"}, {});
    INFO(mib << " MiB: " << ended.output);
    // 127: the system's loader found no room for the libraries, and says so.
    CHECK((ended.status == 0 || ended.status == kExitInternal || ended.status == 127));
    if (ended.status != kExitInternal) continue;
    refused = true;
    CHECK_THAT(ended.output, Contains("memory"));
  }
  CHECK(refused);
}

}  // namespace
}  // namespace weir
