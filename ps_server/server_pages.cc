#include "ps_server/server_pages.h"

#include <google/protobuf/util/json_util.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"

namespace weir {

void AddServerMetrics(uint32_t index, const Shard& shard, const ParameterServerService& data_plane,
                      MetricRegistry* metrics) {
  const Labels labels = {{"shard", absl::StrCat(index)}};
  const Shard::Counters& counters = shard.counters();
  const auto counter = [&](const char* name, const char* help, const std::atomic<uint64_t>& value) {
    metrics->AddCallbackCounter(name, help, labels, [&value] { return static_cast<double>(value.load()); });
  };
  counter("weir_pushes_applied_total", "Pushes that became part of a version.", counters.pushes_applied);
  counter("weir_pushes_refused_total", "Pushes that were completed without an update.",
          counters.pushes_refused);
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
  const auto gauge = [&](const char* name, const char* help, const std::atomic<uint64_t>& value) {
    metrics->AddCallbackGauge(name, help, labels, [&value] { return static_cast<double>(value.load()); });
  };
  gauge("weir_version", "Updates since version 0.", counters.version);
  gauge("weir_parked_pulls", "Pulls that wait for other workers.", counters.parked_pulls);
  counter("weir_versions_written_off_total",
          "Old versions that readers held for so long that nobody waits for them any more.",
          counters.versions_written_off);
  metrics->AddCallbackGauge(
      "weir_longest_wait_seconds", "How long the call that waits longest has waited.", labels,
      [&counters] { return static_cast<double>(counters.longest_wait_ms.load()) / 1000; });
  metrics->AddCallbackGauge("weir_shard_bytes", "Weights of this shard.", labels,
                            [&shard] { return static_cast<double>(shard.elements()) * sizeof(float); });
}

std::string StatusJson(Coordinator& coordinator) {
  // Made in the coordinator's order, within microseconds unless a disk holds the coordinator up.
  constexpr std::chrono::milliseconds kLimit(500);
  struct Answer {
    Mutex mutex;
    CondVar cv;
    std::optional<absl::StatusOr<v1::ClusterStatus>> status ABSL_GUARDED_BY(mutex);
  };
  const auto answer = std::make_shared<Answer>();  // may come when nobody waits any more
  coordinator.Status([answer](absl::StatusOr<v1::ClusterStatus> status) {
    MutexLock lock(answer->mutex);
    answer->status = std::move(status);
    answer->cv.NotifyAll();
  });
  std::string json;
  google::protobuf::util::JsonPrintOptions print;
  print.always_print_primitive_fields = true;
  print.preserve_proto_field_names = true;
  const auto end = std::chrono::steady_clock::now() + kLimit;
  MutexLock lock(answer->mutex);
  while (!answer->status.has_value()) {
    if (!answer->cv.WaitUntil(answer->mutex, end)) return "";
  }
  const auto& status = *answer->status;
  if (!status.ok() || !google::protobuf::util::MessageToJsonString(*status, &json, print).ok()) return "";
  return json;
}

}  // namespace weir
