// The job's pages on ps:0 over HTTP.
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "tests/common/telemetry/http_client.h"
#include "tests/ps_server/server_fixture.h"

namespace weir {
namespace {

using Catch::Contains;

// The value of a metric without labels; the test fails if the metric is missing.
double MetricOf(const std::string& page, const std::string& name) {
  const size_t line = page.find("\n" + name + " ");
  INFO(name);
  REQUIRE(line != std::string::npos);
  return std::stod(page.substr(line + name.size() + 2));
}

TEST_CASE("Metrics of the job on ps:0: loss, accuracy, step, examples, workers, age of the checkpoint") {
  ServerFixture f(40, 1, 2);
  f.http_port = 0;
  const char* const root = std::getenv("TEST_TMPDIR");
  f.config.mutable_checkpoint()->set_directory(std::string(root == nullptr ? "/tmp" : root) + "/pages");
  // Fields that a saved config must have.
  f.config.mutable_model()->add_layers()->set_type(v1::LayerConfig::LAYER_RELU);
  f.config.mutable_data()->set_format(v1::DataConfig::FORMAT_DIGITS);
  f.Start();
  const int port = f.cluster->server(0)->http_port();
  std::string page = HttpGetPage(port, "/metrics").body;
  for (const char* name :
       {"weir_job_train_loss", "weir_job_test_loss", "weir_job_test_accuracy_ratio",
        "weir_job_test_auc_ratio", "weir_job_target_steps", "weir_job_checkpoint_age_seconds"}) {
    CHECK(std::isnan(MetricOf(page, name)));
  }
  CHECK(MetricOf(page, "weir_job_workers_live") == 0);
  CHECK(MetricOf(page, "weir_job_workers_expected") == 2);
  CHECK_THAT(page, Contains("# TYPE weir_job_train_loss gauge"));

  f.Join();
  v1::HeartbeatRequest heartbeat;
  *heartbeat.mutable_caller() = f.caller;
  heartbeat.mutable_report()->set_examples(8);
  heartbeat.mutable_report()->set_loss_sum(20);
  v1::LoggedMetric& logged = *heartbeat.mutable_report()->add_metrics();
  logged.set_name("val/f1");
  logged.set_kind(v1::LoggedMetric::MEAN);
  logged.set_sum(6);
  logged.set_weight(8);
  v1::HeartbeatReply heard;
  REQUIRE(f.coordinator->Heartbeat(f.Context().get(), heartbeat, &heard).ok());
  v1::ReportRequest report;
  *report.mutable_caller() = f.caller;
  report.mutable_evaluation()->set_examples(10);
  report.mutable_evaluation()->set_test_loss(0.5);
  report.mutable_evaluation()->set_test_accuracy(0.75);
  report.mutable_evaluation()->set_test_auc(0.625);
  v1::ReportReply reported;
  REQUIRE(f.coordinator->Report(f.Context().get(), report, &reported).ok());
  v1::CheckpointReply saved;
  REQUIRE(f.coordinator->Checkpoint(f.Context().get(), {}, &saved).ok());

  page = HttpGetPage(port, "/metrics").body;
  CHECK(MetricOf(page, "weir_job_train_loss") == 2.5);
  CHECK_THAT(page, Contains("# TYPE weir_job_logged gauge\nweir_job_logged{name=\"val/f1\"} 0.75\n"));
  CHECK(MetricOf(page, "weir_job_test_loss") == 0.5);
  CHECK(MetricOf(page, "weir_job_test_accuracy_ratio") == 0.75);
  CHECK(MetricOf(page, "weir_job_test_auc_ratio") == 0.625);
  CHECK(MetricOf(page, "weir_job_step") == 0);
  CHECK(MetricOf(page, "weir_job_target_steps") == 500);
  CHECK(MetricOf(page, "weir_job_examples") == 0);
  CHECK(MetricOf(page, "weir_job_target_examples") == 8000);
  CHECK(MetricOf(page, "weir_job_workers_live") == 2);
  const double age = MetricOf(page, "weir_job_checkpoint_age_seconds");
  CHECK((age >= 0 && age < 20));
}

TEST_CASE("Utilization of the workers on ps:0: of each that reports and is in the job, and their mean") {
  ServerFixture f(40, 1, 3);
  f.http_port = 0;
  f.Start();
  f.Join();
  const auto metrics = [&] { return HttpGetPage(f.cluster->server(0)->http_port(), "/metrics").body; };
  CHECK(std::isnan(MetricOf(metrics(), "weir_job_worker_utilization")));
  const auto caller_of = [&](uint32_t rank) {
    v1::Caller caller = f.caller;
    caller.set_worker(f.members[rank].worker());
    caller.set_incarnation(f.members[rank].incarnation());
    return caller;
  };
  const auto beat = [&](uint32_t rank, std::optional<double> compute_seconds) {
    v1::HeartbeatRequest heartbeat;
    *heartbeat.mutable_caller() = caller_of(rank);
    if (compute_seconds.has_value()) heartbeat.mutable_report()->set_compute_seconds(*compute_seconds);
    v1::HeartbeatReply heard;
    REQUIRE(f.coordinator->Heartbeat(f.Context().get(), heartbeat, &heard).ok());
  };
  // Worker 0 computes all the time, worker 1 never, and worker 2 does not say.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  double seconds = 0;
  std::string page;
  do {
    beat(0, seconds += 100);
    beat(1, 7);
    beat(2, std::nullopt);
    page = metrics();
  } while (!(absl::StrContains(page, "weir_worker_utilization{task=\"worker:0\"}") &&
             absl::StrContains(page, "weir_worker_utilization{task=\"worker:1\"}")) &&
           std::chrono::steady_clock::now() < deadline);
  CHECK_THAT(page, Contains("\nweir_worker_utilization{task=\"worker:0\"} 1\n"
                            "weir_worker_utilization{task=\"worker:1\"} 0\n") &&
                       !Contains("task=\"worker:2\""));
  CHECK(MetricOf(page, "weir_job_worker_utilization") == 0.5);

  v1::LeaveRequest leave;
  *leave.mutable_caller() = caller_of(0);
  v1::LeaveReply left;
  REQUIRE(f.coordinator->Leave(f.Context().get(), leave, &left).ok());
  page = metrics();
  CHECK_THAT(page, !Contains("task=\"worker:0\""));
  CHECK(MetricOf(page, "weir_job_worker_utilization") == 0);
}

TEST_CASE("The status over HTTP has a curve of the loss") {
  ServerFixture f;
  f.http_port = 0;
  f.Start();
  f.Join();
  f.TrainStep();
  v1::HeartbeatRequest heartbeat;
  *heartbeat.mutable_caller() = f.caller;
  heartbeat.mutable_report()->set_examples(8);
  heartbeat.mutable_report()->set_loss_sum(20);
  v1::HeartbeatReply heard;
  REQUIRE(f.coordinator->Heartbeat(f.Context().get(), heartbeat, &heard).ok());
  nlohmann::json curve;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  do {
    const std::string page = HttpGetPage(f.cluster->server(0)->http_port(), "/status").body;
    curve = nlohmann::json::parse(page).at("loss_curve");
  } while (curve.empty() && std::chrono::steady_clock::now() < deadline);
  REQUIRE(curve.size() == 1);
  CHECK(curve[0]["train_loss"] == 2.5);
  // Callers that do not ask for the curve, as `weir up` four times a second, do not get it.
  v1::ClusterStatus status;
  REQUIRE(f.coordinator->Status(f.Context().get(), {}, &status).ok());
  CHECK(status.loss_curve_size() == 0);
}

TEST_CASE("Metrics of each table on each shard") {
  ServerFixture f(40, 1, 2);
  f.http_port = 0;
  v1::TableConfig& table = *f.config.add_tables();
  table.set_name("ads/users");
  table.set_dim(2);
  f.Start();
  const std::string page = HttpGetPage(f.cluster->server(0)->http_port(), "/metrics").body;
  for (const char* name :
       {"weir_table_rows", "weir_table_keys_counted", "weir_table_bytes", "weir_table_former_bytes",
        "weir_table_rows_expired_total", "weir_table_rows_evicted_total"}) {
    CHECK_THAT(page, Contains(std::string("\n") + name + "{shard=\"0\",table=\"ads/users\"} "));
  }
}

}  // namespace
}  // namespace weir
