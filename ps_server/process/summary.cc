#include "ps_server/process/summary.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/config/job_config.h"
#include "common/protocol/handshake.h"

namespace weir {
namespace {

// Unknown values are null.
template <typename T>
nlohmann::ordered_json IfKnown(bool known, const T& value) {
  return known ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
}

// Where there is a validation set, test_... of an epoch are its results.
nlohmann::ordered_json JsonOf(const v1::EpochEvaluation& entry) {
  return {{"epoch", entry.epoch()},
          {"step", IfKnown(entry.has_step(), entry.step())},
          {"test_loss", IfKnown(entry.has_test_loss(), entry.test_loss())},
          {"test_accuracy", IfKnown(entry.has_test_accuracy(), entry.test_accuracy())},
          {"test_auc", IfKnown(entry.has_test_auc(), entry.test_auc())},
          {"validation", entry.validation()}};
}

// By task, of its last membership.
nlohmann::ordered_json ByWorker(const v1::ClusterStatus& status) {
  auto out = nlohmann::ordered_json::object();
  for (const v1::TaskStatus& task : status.tasks()) {
    if (!absl::StartsWith(task.task(), "worker:") || task.phase() == v1::TASK_WAITING) continue;
    out[task.task()] = {{"utilization", IfKnown(task.has_utilization(), task.utilization())},
                        {"clock", IfKnown(task.clock() > 0, task.clock())}};
  }
  return out;
}

// The path that is written first: a temporary file, or the path itself if it is no regular file (/dev/stdout,
// a pipe).
std::string TargetOf(const std::string& path) {
  struct stat there;
  const bool special = lstat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode);
  return special ? path : path + ".tmp";
}

}  // namespace

std::string SummaryJson(const v1::ClusterStatus& status, const v1::JobConfig& config) {
  nlohmann::ordered_json out;
  out["name"] = status.name();
  out["version"] = kVersion;
  out["seed"] = config.seed();
  out["mode"] = status.mode();
  const bool bounded = config.consistency().mode() == v1::ConsistencyConfig::MODE_BOUNDED;
  out["staleness_bound"] = IfKnown(bounded, status.staleness_bound());
  const v1::ConsistencyConfig& consistency = config.consistency();
  out["parts"] = IfKnown(consistency.mode() == v1::ConsistencyConfig::MODE_SYNC,
                         consistency.has_parts() ? consistency.parts() : status.configured_workers());
  out["tables"] = IfKnown(config.tables_size() > 0, status.tables_async() ? "async" : status.mode());
  out["ps"] = status.num_shards();
  out["workers"] = status.configured_workers();
  out["steps"] = status.step();
  out["pushes"] = status.pushes();
  out["examples"] = status.examples();
  out["wall_seconds"] = status.seconds();
  out["examples_per_second"] = status.examples_per_second();
  out["train_loss"] = IfKnown(status.has_train_loss(), status.train_loss());
  const v1::Evaluation& evaluation = status.evaluation();
  const bool evaluated = evaluation.final() && evaluation.examples() > 0;
  out["test_accuracy"] = IfKnown(evaluated && evaluation.test_accuracy() >= 0, evaluation.test_accuracy());
  out["test_auc"] = IfKnown(evaluated && evaluation.has_test_auc(), evaluation.test_auc());
  out["test_loss"] = IfKnown(evaluated, evaluation.test_loss());
  auto& evaluations = out["evaluations"] = nlohmann::ordered_json::array();
  for (const v1::EpochEvaluation& entry : status.evaluations()) evaluations.push_back(JsonOf(entry));
  out["best"] = nullptr;
  if (status.has_best()) {
    out["best"] = JsonOf(status.best().evaluation());
    out["best"]["checkpoint"] = status.best_checkpoint();
  }
  out["metrics"] = nlohmann::ordered_json::object();
  for (const v1::LoggedMetric& metric : status.metrics()) out["metrics"][metric.name()] = metric.last();
  out["stopped_early"] = IfKnown(!status.stopped_early().empty(), status.stopped_early());
  const v1::Distribution& staleness = status.version_staleness();
  out["version_staleness"] = {{"p50", staleness.p50()}, {"p99", staleness.p99()}, {"max", staleness.max()}};
  out["lead"] = {{"p50", status.lead().p50()}, {"max", status.lead().max()}};
  out["by_worker"] = ByWorker(status);
  out["bytes_pushed"] = status.bytes_pushed();
  out["bytes_pulled"] = status.bytes_pulled();
  out["weights_sha256"] = IfKnown(!evaluation.weights_sha256().empty(), evaluation.weights_sha256());
  out["tables_sha256"] = IfKnown(!status.tables_sha256().empty(), status.tables_sha256());
  out["checkpoint"] = status.checkpoint();
  out["recoveries"] = status.recoveries();
  out["lost_pushes"] = status.lost_pushes();
  out["pushes_refused"] = status.pushes_refused();
  out["tls"] = status.tls();
  if (!status.failure().empty()) out["failure"] = status.failure();
  out["config"] = nlohmann::ordered_json::parse(ToJson(config, /*with_defaults=*/true));
  return out.dump(2) + "\n";
}

std::string SummaryLine(const v1::ClusterStatus& status, const v1::JobConfig& config) {
  nlohmann::ordered_json line = nlohmann::ordered_json::parse(SummaryJson(status, config));
  line.erase("config");
  return line.dump();
}

absl::Status CheckSummaryPath(const std::string& path) {
  const std::string target = TargetOf(path);
  // A path that is no regular file is not opened for a test, because another process may be reading from it.
  const bool works =
      target == path ? access(path.c_str(), W_OK) == 0 : std::ofstream(target, std::ios::trunc).is_open();
  if (!works) {
    return absl::FailedPreconditionError(
        absl::StrCat("--summary=", path, " could not be written: ", std::strerror(errno)));
  }
  if (target != path) std::remove(target.c_str());
  return absl::OkStatus();
}

absl::Status WriteSummary(const v1::ClusterStatus& status, const v1::JobConfig& config,
                          const std::string& path) {
  const std::string target = TargetOf(path);
  std::ofstream file(target, std::ios::trunc);
  file << SummaryJson(status, config);
  file.close();
  if (file && (target == path || std::rename(target.c_str(), path.c_str()) == 0)) return absl::OkStatus();
  const int error = errno;
  if (target != path) std::remove(target.c_str());
  return absl::UnavailableError(
      absl::StrCat("the summary could not be written to ", path, ": ", std::strerror(error)));
}

}  // namespace weir
