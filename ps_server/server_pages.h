#pragma once

#include <cstdint>
#include <string>

#include "common/telemetry/metrics.h"
#include "ps_server/coordinator/coordinator.h"
#include "ps_server/parameter_server_service.h"
#include "ps_server/shard/shard.h"

// What a server's HTTP port shows beside the dashboard.
namespace weir {

// Of shard `index`. Both outlive the registry's use.
void AddServerMetrics(uint32_t index, const Shard& shard, const ParameterServerService& data_plane,
                      MetricRegistry* metrics);

// The job's ClusterStatus; empty: the coordinator is going, or did not answer within half a second.
std::string StatusJson(Coordinator& coordinator);

}  // namespace weir
