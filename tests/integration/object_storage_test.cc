// Jobs of real processes whose checkpoints lie in object storage.
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
      {{"checkpoint.directory=\"gs://weir-test/x\""}, {}, "checkpoint.directory: must be s3://BUCKET/PREFIX"},
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
