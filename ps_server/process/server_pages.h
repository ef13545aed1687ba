#pragma once

#include <cstdint>
#include <string>

#include "common/telemetry/metrics.h"
#include "ps_server/coordinator/coordinator.h"
#include "ps_server/grpc/parameter_server_service.h"
#include "ps_server/shard/shard.h"

// What a server's HTTP port shows beside the dashboard. What each metric says: docs/metrics.md.
namespace weir {

// Of shard `index`. Both outlive the registry's use.
void AddServerMetrics(uint32_t index, const Shard& shard, const ParameterServerService& data_plane,
                      MetricRegistry* metrics);

// ps:0: those of the job. They are as of the last Refresh(), which asks the coordinator; what is not known,
// or where it does not answer in time, is NaN. One thread at a time.
class JobMetrics {
 public:
  // Both outlive this.
  JobMetrics(Coordinator* coordinator, MetricRegistry* metrics);
  void Refresh();

 private:
  Coordinator* const coordinator_;
  Gauge &train_loss_, &test_loss_, &test_accuracy_, &step_, &target_steps_, &examples_, &target_examples_,
      &examples_per_second_, &workers_live_, &workers_expected_, &checkpoint_age_;
};

// The job's ClusterStatus, with its loss curve; empty: the coordinator is going, or did not answer within
// half a second.
std::string StatusJson(Coordinator& coordinator);

}  // namespace weir
