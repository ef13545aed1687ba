#include "cli/predict/job_model.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/tensors/wire_options.h"
#include "common/base/status_macros.h"
#include "common/codec/value_codec.h"
#include "common/config/server_memory.h"
#include "common/config/written_text.h"
#include "nlohmann/json.hpp"

namespace weir {
namespace {

using Json = nlohmann::json;

// What an exchange of so many bytes, both ways, cost.
struct Sample {
  double bytes, seconds;
};

// The line with the least relative errors, with neither of its two numbers below 0.
ClusterModel::End Fit(const std::vector<Sample>& samples) {
  double w = 0, wx = 0, wxx = 0, wy = 0, wxy = 0;
  for (const auto& [x, y] : samples) {
    const double weight = 1 / (y * y);
    w += weight;
    wx += weight * x;
    wxx += weight * x * x;
    wy += weight * y;
    wxy += weight * x * y;
  }
  const double slope = std::max(0.0, (w * wxy - wx * wy) / (w * wxx - wx * wx));
  const double fixed = (wy - slope * wx) / w;
  if (fixed < 0) return {0, wxy / wxx};
  return {fixed, slope};
}

bool IsAboveZero(const Json& cell, const char* field) {
  const auto at = cell.find(field);
  return at != cell.end() && at->is_number() && at->get<double>() > 0;
}

}  // namespace

absl::StatusOr<ExchangeCost> ReadExchangeCost(const std::string& path, const std::string& optimizer) {
  WEIR_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  const Json table = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const absl::Status wrong = absl::InvalidArgumentError(absl::StrCat(
      path, ": is no table of `weir bench wire --json=FILE` with two sizes or more of \"weir tcp\""));
  if (!table.is_object() || !table.contains("cells") || !table["cells"].is_array()) return wrong;
  std::vector<Sample> server, worker;
  const auto take = [&](const std::string& of) {
    std::set<double> sizes;
    for (const Json& cell : table["cells"]) {
      if (!cell.is_object() || cell.value("contestant", Json()) != "weir tcp") continue;
      if (!of.empty() && cell.value("optimizer", Json()) != of) continue;
      if (!IsAboveZero(cell, "bytes") || !IsAboveZero(cell, "servers") ||
          !IsAboveZero(cell, "server_cpu_seconds_per_gb") ||
          !IsAboveZero(cell, "client_cpu_seconds_per_gb")) {
        continue;
      }
      const double bytes = 2 * cell["bytes"].get<double>(), gb = bytes * 1e-9;
      const auto servers = cell["servers"].get<double>();
      sizes.insert(bytes);
      server.push_back({bytes / servers, gb * cell["server_cpu_seconds_per_gb"].get<double>() / servers});
      worker.push_back({bytes, gb * cell["client_cpu_seconds_per_gb"].get<double>()});
    }
    return sizes.size() >= 2;
  };
  if (!take(optimizer)) {
    server.clear();
    worker.clear();
    if (!take("")) return wrong;
  }
  return ExchangeCost{Fit(server), Fit(worker)};
}

double WireBytes(WireType type, double elements) {
  const uint64_t block = BlockValuesOf(type.dtype);
  return elements / static_cast<double>(block) * static_cast<double>(EncodedBytes(type, block));
}

ClusterModel ModelOfJob(const v1::JobConfig& config, double elements, uint32_t workers, uint32_t servers,
                        const ExchangeCost& cost) {
  ClusterModel m;
  const v1::ConsistencyConfig& consistency = config.consistency();
  m.mode = consistency.mode() == v1::ConsistencyConfig::MODE_SYNC      ? ClusterModel::Mode::kSync
           : consistency.mode() == v1::ConsistencyConfig::MODE_BOUNDED ? ClusterModel::Mode::kBounded
                                                                       : ClusterModel::Mode::kAsync;
  m.staleness = consistency.staleness();
  m.prefetch = consistency.prefetch();
  m.parts = consistency.parts();
  m.backup_workers = consistency.backup_workers();
  m.local_steps = config.local().steps();
  m.workers = workers;
  m.servers = ServersWithPart(config, static_cast<int64_t>(std::max(elements, 1.0)), servers);
  // docs/concepts.md, "Norms over all servers".
  const v1::TrainConfig& train = config.train();
  const bool norms = train.clip() == v1::TrainConfig::CLIP_MEAN && train.clip_norm() > 0;
  const bool lamb = config.optimizer().type() == v1::OptimizerConfig::KIND_LAMB;
  if (m.servers > 1) m.commit_rounds = 1 + norms + lamb;
  const WireOptions wire = WireOptions::From(config.wire());
  m.push_bytes = WireBytes(wire.push_type(), elements);
  m.pull_bytes = WireBytes(wire.pull_dtype, elements);
  m.server = cost.server;
  m.worker = cost.worker;
  const v1::DebugConfig& debug = config.debug();
  m.batch_seconds = debug.batch_seconds();
  m.jitter = debug.jitter();
  m.delay = debug.worker_delay();
  if (debug.has_delayed_worker()) m.delayed_worker = debug.delayed_worker();
  if (debug.slow_share() > 0) {
    m.slow_share = debug.slow_share();
    m.slow_factor = debug.slow_factor();
  } else if (debug.has_delayed_worker() && debug.slow_factor() > 1) {
    m.factors.assign(std::max(workers, debug.delayed_worker() + 1), 1);
    m.factors[debug.delayed_worker()] = debug.slow_factor();
  }
  m.seed = config.seed();
  return m;
}

std::string ModeText(const ClusterModel& model) {
  switch (model.mode) {
    case ClusterModel::Mode::kSync:
      return "sync";
    case ClusterModel::Mode::kBounded:
      return absl::StrCat("bounded(", model.staleness, ")");
    case ClusterModel::Mode::kAsync:
      break;
  }
  return "async";
}

}  // namespace weir
