#include "ps_server/process/server_metrics.h"

#include <google/protobuf/util/json_util.h>

#include <atomic>
#include <chrono>
#include <limits>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/threads/mutex.h"

namespace weir {
namespace {

// The rows of the job's tables on this shard.
void AddTableMetrics(uint32_t index, const Shard& shard, MetricRegistry* metrics) {
  for (size_t i = 0; i < static_cast<size_t>(shard.tables().size()); ++i) {
    const Labels labels = {{"shard", absl::StrCat(index)},
                           {"table", shard.tables()[static_cast<int>(i)].name()}};
    const auto value_of = [&shard, i](auto Table::Stats::*field) {
      return [&shard, i, field] {
        const std::vector<Table::Stats> stats = shard.table_stats();
        return i < stats.size() ? static_cast<double>(stats[i].*field) : 0;
      };
    };
    metrics->AddCallbackGauge("weir_table_rows", "Rows of the table on this shard.", labels,
                              value_of(&Table::Stats::rows));
    metrics->AddCallbackGauge("weir_table_keys_counted", "Keys of the table that are not admitted yet.",
                              labels, value_of(&Table::Stats::counters));
    metrics->AddCallbackGauge("weir_table_bytes", "Memory of the table's rows and counts on this shard.",
                              labels, value_of(&Table::Stats::bytes));
    metrics->AddCallbackGauge("weir_table_former_bytes",
                              "Memory of what rows were in versions that readers or a checkpoint hold.",
                              labels, value_of(&Table::Stats::former_bytes));
    metrics->AddCallbackCounter("weir_table_rows_admitted_total", "Rows that were made.", labels,
                                value_of(&Table::Stats::admitted));
    metrics->AddCallbackCounter("weir_table_rows_expired_total",
                                "Rows that went without updates for too long.", labels,
                                value_of(&Table::Stats::expired));
    metrics->AddCallbackCounter("weir_table_rows_evicted_total",
                                "Rows that went because there were too many.", labels,
                                value_of(&Table::Stats::evicted));
  }
}

}  // namespace

std::optional<v1::ClusterStatus> StatusOf(Coordinator& coordinator, bool with_loss_curve) {
  // The coordinator makes the status in its order, within microseconds unless a disk delays the coordinator.
  constexpr std::chrono::milliseconds kLimit(500);
  struct Answer {
    Mutex mutex;
    CondVar cv;
    std::optional<absl::StatusOr<v1::ClusterStatus>> status ABSL_GUARDED_BY(mutex);
  };
  const auto answer = std::make_shared<Answer>();  // the answer may come after the wait has ended
  coordinator.Status(
      [answer](absl::StatusOr<v1::ClusterStatus> status) {
        MutexLock lock(answer->mutex);
        answer->status = std::move(status);
        answer->cv.NotifyAll();
      },
      with_loss_curve);
  const auto end = std::chrono::steady_clock::now() + kLimit;
  MutexLock lock(answer->mutex);
  while (!answer->status.has_value()) {
    if (!answer->cv.WaitUntil(answer->mutex, end)) return std::nullopt;
  }
  if (!(*answer->status).ok()) return std::nullopt;
  return **std::move(answer->status);
}

void AddServerMetrics(uint32_t index, const Shard& shard, const ParameterServerService& data_plane,
                      const GrpcAdmission& admission, ConnectionLimits* connections, const Tls* tls,
                      MetricRegistry* metrics) {
  const Labels labels = {{"shard", absl::StrCat(index)}};
  const Shard::Counters& counters = shard.counters();
  const auto counter = [&](const char* name, const char* help, const std::atomic<uint64_t>& value) {
    metrics->AddCallbackCounter(name, help, labels, [&value] { return static_cast<double>(value.load()); });
  };
  counter("weir_pushes_applied_total", "Pushes that became part of a version.", counters.pushes_applied);
  counter("weir_pushes_refused_total", "Pushes that were completed without an update.",
          counters.pushes_refused);
  counter("weir_pushes_dropped_total",
          "Pushes that were refused as too stale (consistency.staleness_policy).", counters.pushes_dropped);
  counter("weir_pushes_lost_total",
          "Acknowledged pushes that this shard did not know any more when it was restored.",
          counters.pushes_lost);
  counter("weir_checkpoint_files_total", "Files that this shard wrote for checkpoints.",
          counters.checkpoints_written);
  counter("weir_pushes_repeated_total", "Repeats of pushes that had been completed.",
          counters.pushes_repeated);
  counter("weir_push_bytes_total", "Gradient bytes that arrived.", counters.bytes_pushed);
  counter("weir_pull_bytes_total", "Weight bytes that were handed out.", counters.bytes_pulled);
  metrics->AddCallbackCounter("weir_exchange_messages_received_total",
                              "Messages from clients on the data plane.", labels,
                              [&data_plane] { return static_cast<double>(data_plane.messages_received()); });
  metrics->AddCallbackCounter("weir_exchange_messages_sent_total", "Messages to clients on the data plane.",
                              labels,
                              [&data_plane] { return static_cast<double>(data_plane.messages_sent()); });
  metrics->AddCallbackGauge("weir_exchange_streams", "Clients' streams on the data plane.", labels,
                            [&data_plane] { return static_cast<double>(data_plane.open_streams()); });
  for (const auto& [reason, count] : {std::pair("unauthenticated", &admission.unauthenticated()),
                                      std::pair("permission_denied", &admission.denied())}) {
    metrics->AddCallbackCounter(
        "weir_calls_refused_total", "Calls and messages that this server refused because of who sent them.",
        {labels[0], {"reason", reason}}, [count = count] { return static_cast<double>(count->load()); });
  }
  for (size_t i = 0; i < kLimits; ++i) {
    const auto limit = static_cast<Limit>(i);
    metrics->AddCallbackCounter(
        "weir_limit_reached_total", "What this server refused because clients had as much as they may have.",
        {labels[0], {"limit", std::string(NameOf(limit))}},
        [&count = admission.limits().of(limit)] { return static_cast<double>(count.load()); });
  }
  metrics->AddCallbackGauge("weir_connections", "TCP connections that are open to this server's port.",
                            labels, [connections] { return static_cast<double>(connections->open()); });
  if (tls != nullptr) {
    metrics->AddCallbackGauge("weir_certificate_expiry_timestamp_seconds",
                              "When the server's certificate ends, in seconds since 1970; NaN: it cannot be "
                              "read.",
                              labels, [tls] {
                                const absl::Time end = tls->expiry();
                                return end == absl::InfinitePast()
                                           ? std::numeric_limits<double>::quiet_NaN()
                                           : static_cast<double>(absl::ToUnixSeconds(end));
                              });
  }
  const auto gauge = [&](const char* name, const char* help, const std::atomic<uint64_t>& value) {
    metrics->AddCallbackGauge(name, help, labels, [&value] { return static_cast<double>(value.load()); });
  };
  gauge("weir_version", "Updates since version 0.", counters.version);
  gauge("weir_parked_pulls", "Pulls that wait for other workers.", counters.parked_pulls);
  counter("weir_versions_written_off_total",
          "Old versions that readers held for so long that pushes no longer wait for them.",
          counters.versions_written_off);
  metrics->AddCallbackGauge(
      "weir_longest_wait_seconds", "How long the call that waits longest has waited.", labels,
      [&counters] { return static_cast<double>(counters.longest_wait_ms.load()) / 1000; });
  metrics->AddCallbackGauge("weir_shard_bytes", "Weights of this shard.", labels,
                            [&shard] { return static_cast<double>(shard.elements()) * sizeof(float); });
  AddTableMetrics(index, shard, metrics);
}

JobMetrics::JobMetrics(Coordinator* coordinator, MetricRegistry* metrics)
    : coordinator_(coordinator),
      train_loss_(metrics->AddGauge("weir_job_train_loss", "Mean training loss over about the last epoch.")),
      test_loss_(metrics->AddGauge("weir_job_test_loss", "Test loss of the newest evaluation.")),
      test_accuracy_(metrics->AddGauge("weir_job_test_accuracy_ratio",
                                       "Test accuracy of the newest evaluation, from 0 to 1.")),
      test_auc_(metrics->AddGauge("weir_job_test_auc_ratio",
                                  "Area under the ROC curve of the newest evaluation, from 0 to 1.")),
      step_(metrics->AddGauge("weir_job_step", "Steps done. Goes back with the job.")),
      target_steps_(metrics->AddGauge("weir_job_target_steps", "Steps of the whole job.")),
      examples_(metrics->AddGauge("weir_job_examples", "Examples done. Goes back with the job.")),
      target_examples_(metrics->AddGauge("weir_job_target_examples", "Examples of the whole job.")),
      examples_per_second_(metrics->AddGauge("weir_job_examples_per_second",
                                             "Examples done a second, over the last seconds.")),
      workers_live_(metrics->AddGauge("weir_job_workers_live", "Workers that are in the job.")),
      workers_expected_(metrics->AddGauge("weir_job_workers_expected", "Workers that the job should have.")),
      utilization_(metrics->AddGauge("weir_job_worker_utilization",
                                     "Mean of weir_worker_utilization over the workers.")),
      checkpoint_age_(metrics->AddGauge(
          "weir_job_checkpoint_age_seconds",
          "Seconds since the newest checkpoint was complete, or since ps:0 was started if that is later.")) {
  metrics->AddCallbackGauges("weir_worker_utilization",
                             "Share of the last ten seconds or so in which the worker computed, from 0 to 1.",
                             [this] { return utilizations_; });
  metrics->AddCallbackGauges("weir_job_logged", "What the job's program logs, by name.",
                             [this] { return logged_; });
}

void JobMetrics::Refresh() {
  const std::optional<v1::ClusterStatus> status = StatusOf(*coordinator_, /*with_loss_curve=*/false);
  const bool answered = status.has_value();
  const auto set = [](Gauge& gauge, bool known, double value) {
    gauge.Set(known ? value : std::numeric_limits<double>::quiet_NaN());
  };
  const v1::ClusterStatus s = status.value_or(v1::ClusterStatus());
  const v1::Evaluation& evaluation = s.evaluation();
  const bool evaluated = evaluation.examples() > 0;
  set(train_loss_, s.has_train_loss(), s.train_loss());
  set(test_loss_, evaluated, evaluation.test_loss());
  set(test_accuracy_, evaluated && evaluation.test_accuracy() >= 0, evaluation.test_accuracy());
  set(test_auc_, evaluated && evaluation.has_test_auc(), evaluation.test_auc());
  set(step_, answered, static_cast<double>(s.step()));
  set(target_steps_, s.total_steps() > 0, static_cast<double>(s.total_steps()));
  set(examples_, answered, static_cast<double>(s.examples()));
  set(target_examples_, s.total_examples() > 0, static_cast<double>(s.total_examples()));
  set(examples_per_second_, answered, s.examples_per_second());
  set(workers_live_, answered, s.membership().members_size());
  set(workers_expected_, answered, s.configured_workers());
  set(utilization_, s.has_worker_utilization(), s.worker_utilization());
  utilizations_.clear();
  for (const v1::TaskStatus& task : s.tasks()) {
    const bool gone = task.phase() == v1::TASK_LEFT || task.phase() == v1::TASK_LOST;
    if (task.has_utilization() && !gone)
      utilizations_.push_back({{{"task", task.task()}}, task.utilization()});
  }
  logged_.clear();
  for (const v1::LoggedMetric& metric : s.metrics()) {
    logged_.push_back({{{"name", metric.name()}}, metric.last()});
  }
  set(checkpoint_age_, s.has_checkpoint_age_seconds(), s.checkpoint_age_seconds());
}

std::string StatusJson(Coordinator& coordinator) {
  const std::optional<v1::ClusterStatus> status = StatusOf(coordinator, /*with_loss_curve=*/true);
  std::string json;
  google::protobuf::util::JsonPrintOptions print;
  print.always_print_primitive_fields = true;
  print.preserve_proto_field_names = true;
  if (!status.has_value() || !google::protobuf::util::MessageToJsonString(*status, &json, print).ok()) {
    return "";
  }
  return json;
}

}  // namespace weir
