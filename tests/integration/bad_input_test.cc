// Bad input of every kind against one running cluster. Each input gives the documented exit code (or error)
// and a message that says what is wrong, and the cluster trains to the end.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "client/client.h"
#include "common/config/job_config.h"
#include "common/model/partition.h"
#include "common/model/wire_model.h"
#include "common/program/exit_codes.h"
#include "tests/integration/bad_input_processes.h"
#include "tests/integration/grpc_raw_caller.h"
#include "tests/integration/processes.h"
#include "worker/compute/compute_backend.h"
#include "worker/data/load_data.h"
#include "worker/model/model.h"

namespace weir {
namespace {

using Catch::Contains;

// ---- programs that use the client library, or none

struct Program {
  Program(const TestJob& job, const BadInputFiles& files) : config(*LoadJobConfig(files.config, {})) {
    const auto backend = MakeComputeBackend({"cpu"});
    model = (*Model::Create(config.model(), {3}, 2, 8, backend->get()))->spec();
    options.servers = job.ps_addresses();
    options.job_config = config.SerializeAsString();
    options.train_examples = kBadInputExamples;
    const auto data = LoadData(config.data(), "", config.model().loss());
    options.fingerprints = {{"the training set's examples", data->train.Fingerprint()}};
    weights.resize(model.elements());
    gradient.resize(model.elements(), 0.01f);
  }

  std::vector<MutableTensor> Weights() { return TensorsOf(model, absl::MakeSpan(weights)); }
  std::vector<ConstTensor> Gradient() const { return TensorsOf(model, absl::MakeConstSpan(gradient)); }

  v1::JobConfig config;
  ModelSpec model;
  ClientOptions options;
  std::vector<float> weights, gradient;
};

void CheckError(const absl::Status& status, absl::StatusCode code, const std::vector<std::string>& message) {
  CHECK(status.code() == code);
  for (const std::string& part : message) CHECK_THAT(std::string(status.message()), Contains(part));
}

// Another model, data set or rank under the job's own config.
void CheckBadJoins(const Program& good) {
  Program bad = good;
  bad.options.task = "worker:1";
  bad.options.rank = 1;
  ModelSpec model = good.model;
  model.tensors[0].shape = {3, 8};
  CheckError(Client::Join(bad.options, model).status(), absl::StatusCode::kFailedPrecondition,
             {"the model of worker:1 differs from that of the job", "hidden/weight"});
  bad.options.train_examples = 399;
  CheckError(Client::Join(bad.options, good.model).status(), absl::StatusCode::kFailedPrecondition,
             {"the training set of worker:1 has 399 examples; that of the job has 400"});
  bad.options.train_examples = kBadInputExamples;
  bad.options.fingerprints[0].value = "others";
  CheckError(Client::Join(bad.options, good.model).status(), absl::StatusCode::kFailedPrecondition,
             {"the training set's examples: worker:1 has others, and worker:0"});
  bad.options.fingerprints = good.options.fingerprints;
  bad.options.rank = 7;
  CheckError(Client::Join(bad.options, good.model).status(), absl::StatusCode::kInvalidArgument,
             {"worker:1 has rank 7; the job has 2 workers"});
  bad.options.rank = 1;
  bad.options.servers.pop_back();
  CheckError(Client::Join(bad.options, good.model).status(), absl::StatusCode::kFailedPrecondition,
             {"lists 1 servers; that of ps:0 lists 2"});
}

// Gradients that the client refuses. In the end a good one is applied. Returns the weights that it was
// computed from.
PullResult CheckBadGradients(Program& program, Client* client) {
  const auto work = client->NextWork();
  REQUIRE(work.ok());
  REQUIRE(work->has_value());
  const auto pull = client->Pull((*work)->clock, program.Weights());
  REQUIRE(pull.Get().ok());
  const PullResult base = *pull.Get();
  const auto push = [&](std::vector<ConstTensor> gradient) {
    return client->Push(**work, base, std::move(gradient)).Get().status();
  };
  std::vector<ConstTensor> gradient = program.Gradient();
  gradient[0].name = "nobody";
  CheckError(push(gradient), absl::StatusCode::kInvalidArgument, {"the model has no tensor 'nobody'"});
  gradient = program.Gradient();
  gradient[1].values = gradient[1].values.subspan(0, 3);
  CheckError(push(gradient), absl::StatusCode::kInvalidArgument,
             {"tensor 'hidden/bias' is given with 3 values", "has 16"});
  gradient = program.Gradient();
  gradient.pop_back();
  CheckError(push(gradient), absl::StatusCode::kInvalidArgument, {"tensor 'out/bias' is missing"});

  const auto good = client->Push(**work, base, program.Gradient()).Get();
  REQUIRE(good.ok());
  CHECK(good->applied);
  return base;
}

// Messages that Weir's own client never sends.
void CheckRawMessages(const Program& program, const PullResult& base) {
  const std::string& coordinator = program.options.servers[0];
  v1::JoinRequest join;
  join.set_role(v1::WORKER);
  join.set_task("worker:1");
  join.set_rank(1);
  join.set_instance(1234);
  join.set_model(ToProto(program.model).SerializeAsString());
  join.set_job_config(program.options.job_config);
  join.set_train_examples(kBadInputExamples);
  for (const std::string& server : program.options.servers) join.add_ps_addresses(server);

  v1::JoinRequest bad = join;
  bad.set_role(static_cast<v1::Role>(77));
  CheckError(RawJoin(coordinator, bad).status(), absl::StatusCode::kInvalidArgument, {"role: 77"});
  bad = join;
  bad.set_job_config("no proto");
  CheckError(RawJoin(coordinator, bad).status(), absl::StatusCode::kInvalidArgument,
             {"job_config does not parse"});
  bad = join;
  v1::Model model = ToProto(program.model);
  model.mutable_tensors(0)->set_shape(0, -1);
  bad.set_model(model.SerializeAsString());
  CheckError(RawJoin(coordinator, bad).status(), absl::StatusCode::kInvalidArgument, {"hidden/weight"});

  const auto joined = RawJoin(coordinator, join);
  INFO(joined.status());
  REQUIRE(joined.ok());
  v1::PushRequest push;
  push.mutable_caller()->set_worker(joined->worker());
  push.mutable_caller()->set_incarnation(joined->incarnation());
  push.mutable_caller()->set_epoch(joined->membership().epoch());
  push.mutable_caller()->set_model_hash(program.model.Hash());
  push.set_clock(joined->start_clock());
  push.set_examples(8);
  push.mutable_base()->set_incarnation(base.incarnations[0]);
  push.mutable_base()->set_count(base.versions[0]);
  const auto elements = static_cast<uint64_t>(Partition(program.model.elements(), 2).shard_elements(0));
  push.set_elements(elements);
  const std::string gradient(elements * sizeof(float), '\0');
  const auto refused = [&](const v1::PushRequest& header, const std::string& bytes,
                           const std::string& message, uint64_t first = 0) {
    CheckError(RawPush(coordinator, header, bytes, first).status(), absl::StatusCode::kInvalidArgument,
               {message});
  };
  v1::PushRequest wrong = push;
  wrong.mutable_caller()->set_model_hash(1);
  refused(wrong, gradient, "a different model");
  wrong = push;
  wrong.set_elements(elements + 1);
  refused(wrong, gradient, "elements");
  wrong = push;
  wrong.set_elements(uint64_t{1} << 62);
  refused(wrong, gradient, "elements");
  refused(v1::PushRequest(), gradient, "a different model");
  const std::string chunk = "a chunk of ";
  refused(push, gradient.substr(1), chunk);
  refused(push, gradient + "1234", chunk);
  refused(push, gradient, chunk, uint64_t{0} - 4);
  refused(push, gradient.substr(0, 4),
          chunk + "4 bytes at position 0 of a push of " + std::to_string(elements));
  refused(push, gradient + std::string(2 << 20, '\0'), "a chunk holds at most");
  CheckError(RawPush(coordinator, push, std::string(5 << 20, '\0')).status(),
             absl::StatusCode::kResourceExhausted, {"larger than max"});

  // Values that are not finite are an outcome, and the push counts as completed.
  auto reply = RawPush(coordinator, push, "\xff\xff\xff\x7f" + gradient.substr(4));
  REQUIRE(reply.ok());
  CHECK(reply->outcome() == v1::REFUSED);
  CHECK_THAT(reply->reason(), Contains("hidden/weight[0] is NaN"));
  // A gradient of a version from an unknown incarnation of the shard is stale.
  wrong = push;
  wrong.set_clock(push.clock() + 1);
  wrong.mutable_base()->set_incarnation(base.incarnations[0] + 1);
  reply = RawPush(coordinator, wrong, gradient);
  REQUIRE(reply.ok());
  CHECK(reply->outcome() == v1::STALE_VERSION);
  // A caller that is not a member changes nothing.
  wrong = push;
  wrong.mutable_caller()->set_incarnation(joined->incarnation() + 1000);
  reply = RawPush(coordinator, wrong, gradient);
  REQUIRE(reply.ok());
  CHECK(reply->outcome() == v1::FENCED);

  v1::LeaveRequest leave;
  *leave.mutable_caller() = push.caller();
  // `done` instead of a reason: a job whose every worker gave up ends.
  leave.set_done(true);
  CHECK(RawLeave(coordinator, leave).ok());
}

TEST_CASE("bad input gives the documented exit code and message, and the cluster trains on to the end") {
  const BadInputFiles files;
  TestJob job({.config = files.config, .set = {}});
  job.Start("ps:0");
  job.Start("ps:1");
  Program program(job, files);
  // This client is worker:0 and keeps the job running until all bad input has come.
  auto client = Client::Join(program.options, program.model);
  INFO(client.status());
  REQUIRE(client.ok());
  // The same task twice. The second one is refused after it has waited for two leases for the first one to
  // go.
  TestProcess second(job.Args("worker:0"), {{"TF_CONFIG", job.TfConfig("worker:0")}},
                     job.folder().path("second.log"));

  const auto still_running = [&] {
    const v1::ClusterStatus status = job.WaitForStatus("an answer", [](const auto&) { return true; });
    CHECK(status.state() == v1::RUNNING);
    CHECK_FALSE(job["ps:1"].Ended());
  };
  for (const BadProcess& bad : BadProcesses()) {
    const RunResult run = Run(bad, files, job);
    INFO(bad.what << " (" << bad.program << ") said:\n" << run.output);
    CHECK(run.status == bad.exit_code);
    for (const std::string& part : bad.message) CHECK_THAT(run.output, Contains(part));
  }
  still_running();
  CheckBadJoins(program);
  still_running();
  const PullResult base = CheckBadGradients(program, client->get());
  still_running();
  CheckRawMessages(program, base);
  still_running();
  CHECK(second.Wait() == kExitConfig);
  CHECK_THAT(second.log(), Contains("another live process is worker:0; is the same task index used twice?"));

  // The same cluster now completes its job. If the client left first, the job might end before the worker has
  // joined.
  job.Start("worker:1");
  job.WaitForStatus("worker:1 joined again", [](const v1::ClusterStatus& status) {
    const auto& members = status.membership().members();
    return std::any_of(members.begin(), members.end(), [](const auto& m) { return m.task() == "worker:1"; });
  });
  CHECK((*client)->Leave().ok());
  job.ExpectAllExit(0);
  CheckSummary(job.Summary(), "async", 2, 2, kBadInputExamples * kBadInputEpochs);
  CHECK(job.Summary()["test_accuracy"] > 0.9);
}

TEST_CASE("a port that another program has is refused and named") {
  ReservedPort taken, free;
  taken.Listen();
  const auto serve = [](const std::string& address, const std::vector<std::string>& more_args) {
    std::vector<std::string> args = {"ps_server/ps_server", "--config=configs/digits.json"};
    args.insert(args.end(), more_args.begin(), more_args.end());
    return RunToEnd(args, {{"TF_CONFIG", R"({"cluster": {"ps": [")" + address +
                                             R"("]}, "task": {"type": "ps", "index": 0}})"}});
  };
  const RunResult grpc = serve(taken.address(), {});
  CHECK(grpc.status == kExitConfig);
  CHECK_THAT(grpc.output, Contains("ps:0 cannot listen on " + taken.address()));

  const std::string port = taken.address().substr(taken.address().find(':') + 1);
  const RunResult http = serve(free.address(), {"--http_port=" + port});
  INFO(http.output);
  CHECK(http.status == kExitConfig);
  CHECK_THAT(http.output, Contains(taken.address()));
}

}  // namespace
}  // namespace weir
