#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/rpc/tls.h"
#include "common/telemetry/metrics.h"
#include "ps_server/coordinator/coordinator.h"
#include "ps_server/grpc/client_limits.h"
#include "ps_server/grpc/grpc_admission.h"
#include "ps_server/grpc/parameter_server_service.h"
#include "ps_server/shard/shard.h"

// The metrics of a server and of its job, which docs/metrics.md describes, and the job's status for the
// dashboard.
namespace weir {

// The metrics of shard `index`. Null for `tls`: there is no certificate. All arguments must outlive the
// registry's use of them.
void AddServerMetrics(uint32_t index, const Shard& shard, const ParameterServerService& data_plane,
                      const GrpcAdmission& admission, ConnectionLimits* connections, const Tls* tls,
                      MetricRegistry* metrics);

// ps:0: the metrics of the job, as of the last Refresh(), which asks the coordinator. A value is NaN if it is
// not known, or if the coordinator did not answer in time. One thread at a time.
class JobMetrics {
 public:
  // Both must outlive this object.
  JobMetrics(Coordinator* coordinator, MetricRegistry* metrics);
  void Refresh();

 private:
  Coordinator* const coordinator_;
  Gauge &train_loss_, &test_loss_, &test_accuracy_, &test_auc_, &step_, &target_steps_, &examples_,
      &target_examples_, &examples_per_second_, &workers_live_, &workers_expected_, &utilization_,
      &checkpoint_age_;
  // Of each worker that has one, and of each name. Used by the thread of Refresh(), which also makes the
  // page.
  std::vector<std::pair<Labels, double>> utilizations_, logged_;
};

// The job's status. nullopt: the coordinator is stopping, or did not answer within half a second.
std::optional<v1::ClusterStatus> StatusOf(Coordinator& coordinator, bool with_loss_curve = false);
// The job's ClusterStatus with its loss curve, as JSON. Empty: the coordinator is stopping, or did not answer
// within half a second.
std::string StatusJson(Coordinator& coordinator);

// The dashboard: a page that shows /status and refreshes it every second. Uses no external resources.
absl::string_view DashboardPage();

}  // namespace weir
