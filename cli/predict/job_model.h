#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "cli/predict/cluster_model.h"
#include "common/codec/value_codec.h"
#include "proto/job_config.pb.h"
#include "proto/parameter_server.pb.h"

namespace weir {

// The costs of an exchange at each end, on machines that are not overloaded.
struct ExchangeCost {
  ClusterModel::End server, worker;
};

// As `weir bench wire` measured it over TCP with sgd, on two cores of an Intel Xeon (2026-11-29).
inline constexpr ExchangeCost kExchangeCost = {{16e-6, 0.24e-9}, {18e-6, 0.23e-9}};

// Reads what `weir bench wire --json=FILE` has written: the CPU time of both ends, of the contestant "weir
// tcp". The optimizer's cells count if there are any, else all. InvalidArgument: the file is no such table,
// or has fewer than two sizes.
absl::StatusOr<ExchangeCost> ReadExchangeCost(const std::string& path, const std::string& optimizer);

// The bytes of so many values of a type on the wire, in whole blocks if it is quantised.
double WireBytes(WireType type, double elements);

// The cluster of a job: mode, parts and local steps of the config, the bytes of a model with so many
// elements, and the compute times that `debug` emulates. Links have no limit.
ClusterModel ModelOfJob(const v1::JobConfig& config, double elements, uint32_t workers, uint32_t servers,
                        const ExchangeCost& cost);

// "sync", "bounded(3)", "async".
std::string ModeText(const ClusterModel& model);

}  // namespace weir
