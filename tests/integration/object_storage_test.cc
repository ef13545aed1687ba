// Jobs of real processes whose checkpoints lie in object storage.
#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/program/exit_codes.h"
#include "tests/cli/weir_process.h"
#include "tests/common/object_store/s3_server.h"
#include "tests/integration/recovery_run.h"
#include "tests/integration/sync_run.h"

namespace weir {
namespace {

using Catch::Contains;

// 101 steps of 4 parts, the last one short.
constexpr char kExamples[] = "train.examples=3213";

// All processes that a test starts reach this server.
S3Server& Server() {
  static S3Server* const server = [] {
    auto* const s3 = new S3Server;
    for (const auto& [name, value] : s3->environment()) setenv(name.c_str(), value.c_str(), 1);
    return s3;
  }();
  return *server;
}

std::string Directory(const std::string& name) { return absl::StrCat("s3://", S3Server::kBucket, "/", name); }

TEST_CASE("servers are killed and restored from object storage that fails now and then: no bit differs") {
  Server().SetFaults("seed=1&rate=0.05&kinds=500,503,cut,lost,truncated,slow");
  const TestFolder folder;
  RecoveryRun::Options options;
  options.config = folder.Write("job.json", DigitsJobText());
  options.directory = Directory("killed");
  // Delayed, so that the job is still young when the kills come.
  options.set = {kExamples, "debug.worker_delay=0.03", "checkpoint.every_steps=5", "checkpoint.keep=2"};
  RecoveryRun run(options);
  run.WaitForStep(12);
  run.Kill("ps:1");
  run.Restart("ps:1");
  run.WaitForStep(30);
  run.Kill("ps:0");
  run.Restart("ps:0");
  run.WaitForStep(50);
  const nlohmann::json summary = run.WaitForEnd();
  CHECK(summary["steps"] == SerialDigits({kExamples}).steps);
  CHECK(summary["weights_sha256"] == SerialDigits({kExamples}).weights_sha256);
  CHECK_THAT(run.job()["ps:0"].log(), Contains("took over " + options.directory));
  Server().SetFaults("");

  // What a user does with it then.
  const std::string last = summary["checkpoint"];
  CHECK_THAT(last, Contains(options.directory + "/step-"));
  const WeirResult list = Weir({"checkpoint", "list", options.directory});
  INFO(list.output);
  CHECK(list.code == kExitOk);
  CHECK_THAT(list.output, Contains("complete") && !Contains("damaged"));
  for (const std::string& path : {options.directory, last}) {
    const WeirResult verified = Weir({"checkpoint", "verify", path});
    INFO(verified.output);
    CHECK(verified.code == kExitOk);
    CHECK_THAT(verified.output, Contains(last) && Contains(": ok (step 101, 2 files, "));
  }
  const std::string exported = folder.path("weights.safetensors");
  CHECK(Weir({"export", options.directory, exported}).code == kExitOk);
  CHECK(!ReadWholeFile(exported).empty());

  // Another job starts with its weights, on one server.
  TestJob::Options next;
  next.ps = next.workers = 1;
  next.config = options.config;
  next.set = {kExamples, "checkpoint.init_from=\"" + last + "\"",
              "checkpoint.directory=\"" + Directory("next") + "\""};
  TestJob job(next);
  job.StartAll();
  job.ExpectAllExit(0);
  CHECK(job.Summary()["weights_sha256"] != summary["weights_sha256"]);
  CHECK_THAT(job["ps:0"].log(), Contains("step-00000101"));
}

// ps:0 of a job, which fails: exit code and log.
RunResult Fail(const std::vector<std::string>& set, std::map<std::string, std::string> environment = {}) {
  TestJob::Options options;
  options.ps = options.workers = 1;
  options.set = set;
  const TestJob job(options);
  environment["TF_CONFIG"] = job.TfConfig("ps:0");
  return RunToEnd(job.Args("ps:0"), environment);
}

TEST_CASE("object storage that cannot be used is refused at the start, with what to do") {
  Server().SetFaults("");
  const std::string there = "checkpoint.directory=\"" + Directory("refused") + "\"";
  struct Case {
    std::vector<std::string> set;
    std::map<std::string, std::string> environment;
    std::string says;
  };
  const Case cases[] = {
      {{"checkpoint.directory=\"s3://weir-test\""}, {}, "must be s3://BUCKET/PREFIX"},
      {{"checkpoint.directory=\"gs://weir-test/x\""}, {}, "begins with gs:"},
      {{there}, {{"AWS_ACCESS_KEY_ID", ""}}, "the environment has no AWS_ACCESS_KEY_ID"},
      {{there}, {{"AWS_SECRET_ACCESS_KEY", "wrong"}}, "HTTP 403 SignatureDoesNotMatch"},
      {{there}, {{"AWS_ENDPOINT_URL", "nonsense"}}, "AWS_ENDPOINT_URL must begin with http:// or https://"},
      {{"checkpoint.directory=\"s3://no-such-bucket/x\""}, {}, "make bucket 'no-such-bucket' first"},
      {{there, "checkpoint.init_from=\"" + Directory("nothing") + "\""},
       {},
       "there is no complete checkpoint in"},
      {{there, "consistency.mode=\"async\"", "server.durability=\"log\""},
       {},
       "server.durability: is \"log\", which needs a checkpoint.directory on a disk"},
  };
  for (const Case& c : cases) {
    const RunResult result = Fail(c.set, c.environment);
    INFO(result.output);
    CHECK(result.status == kExitConfig);
    CHECK_THAT(result.output, Contains(c.says));
  }
}

TEST_CASE("while object storage is silent training goes on, and SIGTERM ends every server in time") {
  Server().SetFaults("");
  const TestFolder folder;
  RecoveryRun::Options options;
  options.config = folder.Write("job.json", DigitsJobText());
  options.directory = Directory("silent");
  options.set = {kExamples, "debug.worker_delay=0.1", "checkpoint.every_seconds=1",
                 "cluster.server_wait_seconds=2"};
  RecoveryRun run(options);
  run.job()["ps:0"].WaitForLog("saved " + options.directory);
  Server().SetFaults("rate=1&kinds=stalled");
  const Stopwatch silent;
  const uint64_t step = run.WaitForStep(1).step();
  run.WaitForStep(step + 30);
  // No step waits for a request, which is given up after 20 s of silence at the earliest.
  CHECK(silent.Elapsed() < Seconds(18));
  CHECK_THAT(Server().Counts(), Contains("stalled"));
  const Stopwatch ending;
  run.job()["ps:0"].Signal(SIGTERM);
  run.job()["ps:1"].Signal(SIGTERM);
  run.job().ExpectExit("ps:0", kExitDrained);
  run.job().ExpectExit("ps:1", kExitDrained);
  // A pod's grace period is server_wait_seconds and 10 s more.
  CHECK(ending.Elapsed() < Seconds(2) + kEndLimit);
  CHECK_THAT(run.job()["ps:0"].log(), Contains("saving the job, since ps:0 got signal 15"));

  // A server that starts has nothing to save.
  TestJob::Options next;
  next.ps = next.workers = 1;
  next.set = {"checkpoint.directory=\"" + Directory("start") + "\""};
  TestJob job(next);
  Server().SetFaults("rate=1&kinds=stalled");
  job.Start("ps:0");
  const Stopwatch starting;
  while (!Contains("stalled").match(Server().Counts())) {
    REQUIRE(starting.Elapsed() < kHangLimit);
    REQUIRE_FALSE(job["ps:0"].Ended());
  }
  const Stopwatch gone;
  job["ps:0"].Signal(SIGTERM);
  job.ExpectExit("ps:0", kExitDrained);
  CHECK(gone.Elapsed() < Seconds(15));
  CHECK_THAT(job["ps:0"].log(), Contains("ps:0 got signal 15 while it started"));
  Server().SetFaults("");
}

TEST_CASE("a job goes on from object storage, and a user is told what cannot be read there") {
  Server().SetFaults("");
  const TestFolder folder;
  const std::string config = folder.Write("job.json", DigitsJobText());
  const std::string there = Directory("resumed"), nothing = Directory("nothing");
  const auto up = [&](std::vector<std::string> more) {
    std::vector<std::string> args = {"up", "--ps=1", "--workers=1", config};
    args.insert(args.end(), more.begin(), more.end());
    return Weir(args);
  };
  const std::string save = "--set=checkpoint.directory=\"" + there + "\"";
  const WeirResult first = up({save, "--set=train.examples=640"});
  INFO(first.output);
  REQUIRE(first.code == kExitOk);
  const WeirResult again = up({save, "--set=train.examples=640"});
  INFO(again.output);
  CHECK(again.code == kExitConfig);
  CHECK_THAT(again.output,
             Contains(there + " holds checkpoints of a job already") && Contains("--resume=" + there));
  const WeirResult resumed = up({"--resume=" + there, "--set=train.examples=960"});
  INFO(resumed.output);
  CHECK(resumed.code == kExitOk);
  CHECK_THAT(resumed.output, Contains("going on from " + there + "/step-00000020."));
  const WeirResult other = up({"--set=checkpoint.init_from=\"" + there + "\"", "--set=train.examples=640"});
  INFO(other.output);
  CHECK(other.code == kExitOk);
  CHECK_THAT(other.output, Contains("starting with the weights of " + there + "/step-00000030."));

  // Sets a variable of the environment while it lives.
  struct Variable {
    Variable(const char* name, const char* value) : name(name), before(std::getenv(name)) {
      setenv(name, value, 1);
    }
    ~Variable() { setenv(name, before.c_str(), 1); }
    const char* const name;
    const std::string before;
  };
  const auto all_say = [&](const std::string& path, const std::string& says) {
    const std::vector<std::vector<std::string>> commands = {
        {"checkpoint", "list", path},
        {"checkpoint", "verify", path},
        {"export", path, folder.path("out.safetensors")},
        {"up", config, "--resume=" + path},
        {"up", config, "--set=checkpoint.init_from=\"" + path + "\""}};
    for (const auto& command : commands) {
      const WeirResult result = Weir(command);
      INFO(command[0] << " " << command[1] << ": " << result.output);
      CHECK(result.code == kExitConfig);
      CHECK_THAT(result.output, Contains(says));
    }
  };
  CHECK_THAT(Weir({"checkpoint", "list", nothing}).output, Contains(nothing + ": no checkpoints are there"));
  CHECK_THAT(Weir({"checkpoint", "verify", nothing}).output,
             Contains("there is no complete checkpoint in " + nothing));
  CHECK_THAT(up({"--resume=" + nothing}).output, Contains(nothing + " has nothing to resume"));
  all_say("s3://no-such-bucket/x", "make bucket 'no-such-bucket' first, or correct its name");
  all_say("s3://weir-test", "must be s3://BUCKET/PREFIX");
  {
    const Variable no_keys("AWS_ACCESS_KEY_ID", "");
    all_say(there, "object storage (s3://): no credentials: the environment has no AWS_ACCESS_KEY_ID");
  }
  {
    const Variable wrong("AWS_SECRET_ACCESS_KEY", "wrong");
    all_say(there, "AWS_SECRET_ACCESS_KEY");
  }
  {
    const Variable nobody("AWS_ENDPOINT_URL", "http://127.0.0.1:1");
    const WeirResult result = Weir({"checkpoint", "verify", there});
    INFO(result.output);
    CHECK(result.code == kExitPeerLost);
    CHECK_THAT(result.output, Contains("no answer from http://127.0.0.1:1/weir-test: "));
  }
}

TEST_CASE("of two ps:0 on one folder of object storage the second gives way to the first, which runs") {
  Server().SetFaults("");
  TestJob::Options options;
  options.ps = options.workers = 1;
  options.set = {"checkpoint.directory=\"" + Directory("two") + "\""};
  TestJob a(options), b(options);
  a.Start("ps:0").WaitForLog("listens on");
  b.Start("ps:0");
  b.ExpectExit("ps:0", kExitConfig);
  CHECK_THAT(b["ps:0"].log(), Contains("is in use by another ps:0, process "));
}

}  // namespace
}  // namespace weir
