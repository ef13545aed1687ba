// Jobs of real processes with TLS: they train, they refuse what is not theirs, and their certificates are
// replaced under way.
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "catch2/catch.hpp"
#include "common/program/exit_codes.h"
#include "nlohmann/json.hpp"
#include "tests/common/grpc_generic_call.h"
#include "tests/common/telemetry/https_client.h"
#include "tests/common/test_certificates.h"
#include "tests/integration/processes.h"

namespace weir {
namespace {

using Catch::Contains;
using Catch::StartsWith;

// The limit for a clear end. Sanitized binaries are slower.
constexpr Seconds kClearEnd = kEndLimit / 2;

const std::vector<std::string> kLong = {"train.epochs=1000", "wire.transport=tcp"};

Identity IdentityOf(const std::string& task) {
  const size_t colon = task.find(':');
  const std::string type = task.substr(0, colon);
  if (type == "evaluator") return {"j", Role::kReader, 0};
  return {"j", type == "ps" ? Role::kServer : Role::kWorker,
          static_cast<uint32_t>(std::stoul(task.substr(colon + 1)))};
}

// The files of a task lie under its own name, so that they can be replaced.
TlsFiles FilesOf(const TestCertificates& ca, const std::string& task) {
  return ca.Issue(IdentityOf(task), IdentityOf(task).ToDns());
}

void StartAll(TestJob& job, const TestCertificates& ca) {
  job.UseTls(ca.IssueTls({"j", Role::kReader, 0}));
  for (const std::string& task : job.tasks()) job.Start(task, FlagsOf(FilesOf(ca, task)));
}

std::string FolderOf(const TestJob& job) { return job.folder().path("."); }

RunResult Status(const TestJob& job, const std::vector<std::string>& flags) {
  return RunToEnd(With({"cli/weir", "status", "--address=" + job.address("ps:0")}, flags));
}

TEST_CASE("a job with certificates trains, without a token, and says that it is encrypted") {
  TestJob job({.evaluator = true, .set = {"train.epochs=2", "wire.transport=tcp"}});
  const TestCertificates ca(FolderOf(job), "ca");
  StartAll(job, ca);
  job.ExpectAllExit(kExitOk);
  CHECK(job.Summary()["tls"] == true);
  CHECK_THAT(job["ps:0"].log(), !Contains("has no token"));
  // No line for each connection.
  CHECK_THAT(job["ps:1"].log(), !Contains("gRPC: "));
}

TEST_CASE("workers on a server's host use its local transports beside TLS") {
  TestJob job({.set = {"train.epochs=2", "wire.transport=shared_memory"}});
  const TestCertificates ca(FolderOf(job), "ca");
  StartAll(job, ca);
  job.ExpectAllExit(kExitOk);
  CHECK_THAT(job["worker:0"].log(), !Contains("no shared memory"));
}

TEST_CASE("weir up --tls makes certificates for its job, and takes them away at the end") {
  const TestFolder folder;
  // What an earlier command needed is not for the tasks of this job.
  const std::map<std::string, std::string> exported = {{"WEIR_TLS_CA", "/no/ca.pem"},
                                                       {"WEIR_TLS_CERTIFICATE", "/no/reader.pem"},
                                                       {"WEIR_TLS_KEY", "/no/reader.key"}};
  const auto summary_of = [&](const std::vector<std::string>& more) {
    const std::string path = folder.path("summary.json");
    const RunResult up =
        RunToEnd(With({"cli/weir", "up", "--ps=2", "--workers=2", "--evaluator", "configs/digits.json",
                       "--set=train.epochs=3", "--set=wire.transport=tcp", "--log_dir=" + folder.path("logs"),
                       "--summary=" + path},
                      more),
                 exported);
    INFO(up.output);
    REQUIRE(up.status == kExitOk);
    return nlohmann::json::parse(ReadWholeFile(path));
  };
  const nlohmann::json encrypted = summary_of({"--tls"}), plain = summary_of({});
  CHECK(encrypted["tls"] == true);
  CHECK(plain["tls"] == false);
  CHECK(encrypted["weights_sha256"] == plain["weights_sha256"]);
  CHECK_FALSE(std::filesystem::exists(folder.path("logs/certs")));
}

TEST_CASE("who does not belong ends at once with the reason, and the job goes on") {
  TestJob job({.set = kLong});
  const TestCertificates ca(FolderOf(job), "ca"), other(FolderOf(job), "other");
  StartAll(job, ca);
  job.WaitForPushes(1);
  const absl::Time now = absl::Now();
  const Identity mine = IdentityOf("worker:1");
  const TlsFiles strange = other.Issue(mine, "strange");
  const std::string both = job.folder().Write("both.pem", ca.ca_pem() + other.ca_pem());
  struct Mistake {
    std::vector<std::string> flags;
    std::string reason;
  };
  const std::vector<Mistake> mistakes = {
      {{}, "demands TLS"},
      {FlagsOf(strange), "do not prove"},
      {FlagsOf({both, strange.certificate, strange.key}), "does not accept the certificate"},
      {FlagsOf(ca.Issue(mine, "old", {now - absl::Hours(2), now - absl::Hours(1)})), "has expired"},
      {FlagsOf(ca.Issue(mine, "early", {now + absl::Hours(1), now + absl::Hours(2)})), "is not yet valid"},
      {FlagsOf(ca.Issue(IdentityOf("worker:0"), "zero")), "this process needs that of spiffe://j/worker/1"},
      {FlagsOf(ca.Issue({"k", Role::kWorker, 1}, "otherjob")), "expected is spiffe://k/ps/0"},
  };
  for (const Mistake& mistake : mistakes) {
    INFO(mistake.reason);
    const Stopwatch stopwatch;
    const RunResult worker =
        RunToEnd(With(job.Args("worker:1"), mistake.flags), {{"TF_CONFIG", job.TfConfig("worker:1")}});
    CHECK(worker.status == kExitConfig);
    CHECK_THAT(worker.output, Contains(mistake.reason));
    CHECK(stopwatch.Elapsed() < kClearEnd);
  }
  CHECK(Status(job, {}).status == kExitConfig);
  CHECK_THAT(Status(job, {}).output, Contains("demands TLS"));
  const RunResult status = Status(job, FlagsOf(ca.Issue({"j", Role::kReader, 0}, "reader")));
  CHECK(status.status == kExitOk);
  CHECK_THAT(status.output, Contains("TLS 1.3 over TCP"));
  const RunResult take = RunToEnd(With({"cli/weir", "checkpoint", "take", "--address=" + job.address("ps:0")},
                                       FlagsOf(ca.Issue({"j", Role::kReader, 0}, "reader"))));
  CHECK(take.status == kExitConfig);
  CHECK_THAT(take.output, Contains("spiffe://j/reader may not call weir.v1.Coordinator/Checkpoint"));
  CHECK_THAT(job["ps:0"].log(), Contains("refused a call of weir.v1.Coordinator/Checkpoint"));
  const uint64_t pushes = job.WaitForStatus("a push", [](const auto& s) { return s.pushes() > 0; }).pushes();
  job.WaitForPushes(pushes + 1);
}

TEST_CASE("with TLS a task of a job without it ends with the reason") {
  TestJob job({.set = kLong});
  const TestCertificates ca(FolderOf(job), "ca");
  job.Start("ps:0");
  job["ps:0"].WaitForLog("listens on");
  for (const std::string task : {"worker:0", "ps:1"}) {
    const Stopwatch stopwatch;
    job.Start(task, FlagsOf(FilesOf(ca, task)));
    job.ExpectExit(task, kExitConfig);
    CHECK_THAT(job[task].log(), Contains("does not speak TLS"));
    CHECK(stopwatch.Elapsed() < kClearEnd);
  }
  // And the reverse.
  job.Start("ps:0", FlagsOf(FilesOf(ca, "ps:0")));
  const Stopwatch stopwatch;
  job.Start("ps:1");
  job.ExpectExit("ps:1", kExitConfig);
  CHECK_THAT(job["ps:1"].log(), Contains("demands TLS"));
  CHECK(stopwatch.Elapsed() < kClearEnd);
}

TEST_CASE("certificates and the CA are replaced under way, and no step is lost") {
  const std::vector<std::string> set = {"train.epochs=60", "wire.transport=tcp"};
  std::string weights;
  uint64_t steps = 0;
  {
    TestJob job({.set = set});
    job.StartAll();
    job.ExpectAllExit(kExitOk);
    weights = job.Summary()["weights_sha256"];
    steps = job.Summary()["steps"];
  }
  TestJob job({.set = set});
  const TestCertificates before(FolderOf(job), "before"), after(FolderOf(job), "after");
  // One bundle of CAs for all tasks, and a pair of files for each.
  const std::string bundle = job.folder().Write("bundle.pem", before.ca_pem());
  std::map<std::string, TlsFiles> files;
  for (const std::string& task : job.tasks()) {
    files[task] = FilesOf(before, task);
    files[task].ca = bundle;
    job.Start(task, FlagsOf(files[task]));
  }
  const TlsFiles watcher = before.Issue({"j", Role::kReader, 0}, "watcher");
  job.UseTls(Tls::ReadIfGiven({bundle, watcher.certificate, watcher.key}).value());
  job.WaitForPushes(20);
  const auto replace = [](const std::string& from, const std::string& to) {
    REQUIRE(std::rename(from.c_str(), to.c_str()) == 0);
  };
  // First every task trusts both CAs; then each gets a certificate of the new one; then the old CA goes.
  replace(job.folder().Write("next.pem", before.ca_pem() + after.ca_pem()), bundle);
  const auto connects = [&](const TestCertificates& ca) {
    const TlsFiles reader = ca.Issue({"j", Role::kReader, 0}, "reader");
    return Status(job, FlagsOf({bundle, reader.certificate, reader.key})).status;
  };
  const auto becomes = [&](const TestCertificates& ca, int status) {
    const Stopwatch stopwatch;
    int seen = connects(ca);
    while (seen != status && stopwatch.Elapsed() < kHangLimit) seen = connects(ca);
    return seen == status;
  };
  REQUIRE(becomes(after, kExitOk));
  for (const std::string& task : job.tasks()) {
    const TlsFiles next = FilesOf(after, task);
    replace(next.certificate, files[task].certificate);
    replace(next.key, files[task].key);
  }
  REQUIRE(becomes(after, kExitOk));
  replace(job.folder().Write("next.pem", after.ca_pem()), bundle);
  REQUIRE(becomes(before, kExitConfig));
  REQUIRE(becomes(after, kExitOk));
  REQUIRE_FALSE(job["worker:0"].Ended());
  REQUIRE_FALSE(job["worker:1"].Ended());
  // The job was running all the time; a worker that comes again finds its way with its new certificate.
  job["worker:1"].Signal(SIGKILL);
  job["worker:1"].Wait();
  job.Start("worker:1", FlagsOf(files["worker:1"]));
  job.ExpectExit("worker:0", kExitOk);
  job.ExpectExit("worker:1", kExitOk);
  job.ExpectExit("ps:0", kExitOk);
  CHECK(job.Summary()["weights_sha256"] == weights);
  CHECK(job.Summary()["steps"] == steps);
}

TEST_CASE("with TLS a server listens beyond loopback, and shows pages to certificates of the job alone") {
  TestJob job({.set = kLong});
  const TestCertificates ca(FolderOf(job), "ca");
  const RunResult refused =
      RunToEnd(With(job.Args("ps:0"), {"--bind=0.0.0.0"}), {{"TF_CONFIG", job.TfConfig("ps:0")}});
  CHECK(refused.status == kExitConfig);
  CHECK_THAT(refused.output, Contains("weir certs init") && Contains("--insecure_plaintext"));
  const std::string ports = job.folder().path("ports");
  job.Start("ps:0",
            With(FlagsOf(FilesOf(ca, "ps:0")), {"--bind=0.0.0.0", "--http_port=0", "--port_file=" + ports}));
  std::istringstream lines(job["ps:0"].WaitForFile(ports));
  int grpc_port = 0, http_port = 0;
  lines >> grpc_port >> http_port;
  REQUIRE(http_port > 0);
  CHECK(HttpGetPage(http_port, "/healthz").status == 200);
  CHECK(HttpGetPage(http_port, "/readyz").status != 404);
  const auto reader = ca.IssueTls({"j", Role::kReader, 0});
  for (const std::string page : {"/metrics", "/status", "/"}) {
    INFO(page);
    CHECK(HttpGetPage(http_port, page).status == 401);
    CHECK_THAT(HttpsGet(http_port, page, nullptr), StartsWith("HTTP/1.1 401"));
    CHECK_THAT(HttpsGet(http_port, page, reader.get()), StartsWith("HTTP/1.1 200"));
  }
}

// Of ps:0, which was started.
int PortOnceItListens(TestJob& job) {
  job["ps:0"].WaitForLog("listens on");
  const std::string address = job.address("ps:0");
  return std::stoi(address.substr(address.rfind(':') + 1));
}

TEST_CASE("connections whose handshake fails do not fill the log") {
  TestJob job({.set = kLong});
  const TestCertificates ca(FolderOf(job), "ca");
  job.Start("ps:0", FlagsOf(FilesOf(ca, "ps:0")));
  const int port = PortOnceItListens(job);
  for (int i = 0; i < 20; ++i) HttpGet(port, "/");
  const std::string log = job["ps:0"].log(), failed = "Handshake failed";
  const size_t first = log.find(failed);
  REQUIRE(first != std::string::npos);
  CHECK(log.find(failed, first + 1) == std::string::npos);
}

grpc::StatusCode CallInTheClear(int port, const std::string& method, const std::string& message = "") {
  grpc::GenericStub stub(
      grpc::CreateChannel("127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kHangLimit);
  grpc::ByteBuffer reply;
  return CallWithOneMessage(stub, context, method, message, &reply).error_code();
}

TEST_CASE("texts of a stranger that are not UTF-8 do not fill the log") {
  TestJob job({.set = kLong});
  job.Start("ps:0");
  const int port = PortOnceItListens(job);
  // HealthCheckRequest.service
  for (int i = 0; i < 20; ++i) CallInTheClear(port, "grpc.health.v1.Health/Check", "\x0a\x01\xff");
  const std::string log = job["ps:0"].log(), invalid = "UTF-8";
  const size_t first = log.find(invalid);
  REQUIRE(first != std::string::npos);
  CHECK(log.find(invalid, log.find('\n', first)) == std::string::npos);
}

TEST_CASE(
    "probes without a certificate have a port for health alone; other pages are for who has the token") {
  TestJob job({.set = kLong});
  const TestCertificates ca(FolderOf(job), "ca");
  const std::string ports = job.folder().path("ports"), secret(32, 'a');
  const std::string token = job.folder().Write("http_token", secret + "\n");
  REQUIRE(chmod(token.c_str(), 0600) == 0);
  job.Start("ps:0",
            With(FlagsOf(FilesOf(ca, "ps:0")), {"--bind=0.0.0.0", "--http_port=0", "--health_port=0",
                                                "--http_token_file=" + token, "--port_file=" + ports}));
  std::istringstream lines(job["ps:0"].WaitForFile(ports));
  int grpc_port = 0, http_port = 0, health_port = 0;
  lines >> grpc_port >> http_port >> health_port;
  REQUIRE(health_port > 0);
  CHECK(HttpGetPage(health_port, "/healthz").status == 200);
  CHECK(HttpGetPage(health_port, "/readyz").status == 200);
  CHECK(HttpGetPage(http_port, "/healthz").status == 200);
  const auto with = [&](const std::string& page, const std::string& authorization) {
    return HttpExchange(http_port,
                        "GET " + page + " HTTP/1.1\r\nauthorization: " + authorization + "\r\n\r\n");
  };
  for (const std::string page : {"/metrics", "/status", "/"}) {
    INFO(page);
    CHECK(HttpGetPage(health_port, page).status == 404);
    CHECK(HttpGetPage(http_port, page).status == 401);
    CHECK_THAT(with(page, "Bearer " + std::string(32, 'b')), StartsWith("HTTP/1.1 401"));
    CHECK_THAT(with(page, "Basic " + absl::Base64Escape("anybody:" + std::string(32, 'b'))),
               StartsWith("HTTP/1.1 401"));
    CHECK_THAT(with(page, "Bearer " + secret), StartsWith("HTTP/1.1 200"));
    CHECK_THAT(with(page, "Basic " + absl::Base64Escape("anybody:" + secret)), StartsWith("HTTP/1.1 200"));
  }
  CHECK(CallInTheClear(health_port, "grpc.health.v1.Health/Check") == grpc::StatusCode::OK);
  CHECK(CallInTheClear(health_port, "weir.v1.Coordinator/Status") == grpc::StatusCode::UNIMPLEMENTED);
}

TEST_CASE("`weir certs` makes files with which a cluster starts, and explains them") {
  TestJob job({.ps = 1, .workers = 1, .set = {"train.epochs=1", "wire.transport=tcp"}});
  const std::string certs = job.folder().path("certs");
  const std::string spec = job.folder().Write("spec.json", job.ClusterJson());
  const std::vector<std::string> init = {"cli/weir",       "certs",   "init",     certs,
                                         "--spec=" + spec, "--job=j", "--days=10"};
  const RunResult made = RunToEnd(init);
  INFO(made.output);
  REQUIRE(made.status == kExitOk);
  CHECK_THAT(RunToEnd(init).output, Contains("is not empty"));
  const RunResult check = RunToEnd({"cli/weir", "certs", "check", certs + "/worker-0.pem"});
  CHECK(check.status == kExitOk);
  CHECK_THAT(check.output, Contains("spiffe://j/worker/0") && Contains("ends in   9 days"));
  CHECK(RunToEnd({"cli/weir", "certs", "check", certs + "/ca.pem"}).status == kExitConfig);
  for (const std::string& task : job.tasks()) {
    const std::string pair = certs + "/" + (task == "ps:0" ? "ps-0" : "worker-0");
    job.Start(task, FlagsOf({certs + "/ca.pem", pair + ".pem", pair + ".key"}));
  }
  job.ExpectAllExit(kExitOk);
  // It ends within two weeks.
  CHECK_THAT(job["ps:0"].log(), Contains("replace the file"));
  CHECK_THAT(job["worker:0"].log(), Contains("replace the file"));
}

}  // namespace
}  // namespace weir
