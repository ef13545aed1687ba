#include "ps_server/coordinator/job/job.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/protocol/mode_traits.h"
#include "common/protocol/part_assignment.h"

namespace weir {
namespace {

uint64_t ExamplesOf(const v1::JobConfig& config, uint64_t train_examples, uint32_t parts, uint32_t workers) {
  const v1::TrainConfig& train = config.train();
  if (train.has_steps()) {
    return train.steps() * (TraitsOf(config).commits_steps ? parts : workers) * ExamplesOfBatch(config);
  }
  if (train.has_examples()) return train.examples();
  return static_cast<uint64_t>(
      std::max(1.0, std::round(train.epochs() * static_cast<double>(train_examples))));
}

uint64_t BatchesOf(const v1::JobConfig& config, uint64_t examples) {
  const uint64_t batch = ExamplesOfBatch(config);
  return examples / batch + (examples % batch != 0);
}

// The examples of the unit that data.drop_last keeps whole: in sync a step, otherwise a batch.
uint64_t UnitOf(const v1::JobConfig& config, uint32_t parts) {
  const uint64_t batch = ExamplesOfBatch(config);
  return TraitsOf(config).commits_steps ? batch * parts : batch;
}

uint64_t DroppedOf(const v1::JobConfig& config, uint32_t parts, uint64_t examples) {
  return config.data().drop_last() ? examples % UnitOf(config, parts) : 0;
}

struct Metric {
  std::string name;
  std::optional<double> value;
  // Less is better.
  std::optional<double> cost;
};

Metric MetricOf(v1::EvaluationConfig::Metric metric, const v1::EpochEvaluation& epoch) {
  const auto metric_of = [&epoch](const char* name, bool has, double value, double sign) -> Metric {
    const std::string full = absl::StrCat(epoch.validation() ? "validation " : "test ", name);
    if (!has) return {full, std::nullopt, std::nullopt};
    return {full, value, sign * value};
  };
  switch (metric) {
    case v1::EvaluationConfig::METRIC_TEST_ACCURACY:
    case v1::EvaluationConfig::METRIC_ACCURACY:
      return metric_of("accuracy", epoch.has_test_accuracy(), epoch.test_accuracy(), -1);
    case v1::EvaluationConfig::METRIC_TEST_AUC:
    case v1::EvaluationConfig::METRIC_AUC:
      return metric_of("AUC", epoch.has_test_auc(), epoch.test_auc(), -1);
    default:
      return metric_of("loss", epoch.has_test_loss(), epoch.test_loss(), 1);
  }
}

}  // namespace

JobSize SizeOf(const v1::JobConfig& config, uint32_t workers, uint64_t train_examples, uint32_t parts) {
  JobSize size;
  size.train_examples = train_examples;
  const auto& consistency = config.consistency();
  if (!TraitsOf(config).commits_steps) {
    size.parts = workers;
  } else {
    size.parts = parts > 0 ? parts : consistency.has_parts() ? consistency.parts() : workers;
  }
  uint64_t examples = ExamplesOf(config, train_examples, size.parts, workers);
  size.dropped = DroppedOf(config, size.parts, examples);
  examples -= size.dropped;
  return Shortened(config, workers, size, examples, BatchesOf(config, examples));
}

absl::Status CheckSize(const v1::JobConfig& config, const JobSize& size) {
  if (size.batches > 0) return absl::OkStatus();
  const uint64_t unit = UnitOf(config, size.parts);
  const std::string batch = BatchInWords(config);
  return absl::InvalidArgumentError(
      absl::StrCat("data.drop_last: leaves nothing of the job, which has ", size.dropped, " examples: ",
                   unit == ExamplesOfBatch(config)
                       ? absl::StrCat("a batch has ", unit, " (", batch, ")")
                       : absl::StrCat("a step has ", unit, " (", size.parts, " parts of ", batch, ")"),
                   ". Lower ", BatchFields(config), ", or take data.drop_last out"));
}

JobSize Shortened(const v1::JobConfig& config, uint32_t workers, const JobSize& size, uint64_t examples,
                  uint64_t batches) {
  JobSize shorter = size;
  shorter.examples = examples;
  shorter.batches = batches;
  shorter.steps = StepsFor(batches, TraitsOf(config).commits_steps ? size.parts : workers);
  return shorter;
}

absl::Status CanGoOn(const v1::JobConfig& config, const v1::CheckpointManifest& from) {
  const v1::JobConfig& saved = from.job().config();
  const auto is_sync = [](const v1::JobConfig& c) { return TraitsOf(c).commits_steps; };
  std::string difference;
  const auto compare = [&](absl::string_view field, const auto& here, const auto& there) {
    if (!difference.empty() || here == there) return;
    difference = absl::StrCat(field, " is ", here, ", the checkpoint's is ", there);
  };
  const auto compare_words = [&](absl::string_view field, absl::string_view word, bool here, bool there) {
    if (!difference.empty() || here == there) return;
    difference =
        absl::StrCat(field, " is ", here ? "" : "not ", word, ", the checkpoint's ", there ? "is" : "is not");
  };
  compare("name", absl::StrCat("'", config.name(), "'"), absl::StrCat("'", saved.name(), "'"));
  compare_words("consistency.mode", "sync", is_sync(config), is_sync(saved));
  compare("seed", config.seed(), saved.seed());
  compare("data.batch_size", config.data().batch_size(), saved.data().batch_size());
  compare("local.steps", config.local().steps(), saved.local().steps());
  if (is_sync(config) && config.consistency().has_parts()) {
    compare("consistency.parts", config.consistency().parts(), from.job().parts());
  }
  if (TablesCountParts(config) != TablesCountParts(saved) && !saved.tables().empty()) {
    compare_words("consistency.tables", "async", RowsOnArrival(config), RowsOnArrival(saved));
  }
  if (difference.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "it cannot go on from the checkpoint of step ", from.step(), " in checkpoint.directory: ", difference,
      ". Its weights alone can be taken with checkpoint.init_from, in another directory"));
}

bool IsEndOf(const v1::JobConfig& config, const v1::CheckpointManifest& checkpoint) {
  const v1::CoordinatorState& job = checkpoint.job();
  if (!job.done()) return false;
  const uint32_t parts = std::max(1u, job.parts());
  const auto batches = [&](const v1::JobConfig& of) {
    const uint64_t examples = ExamplesOf(of, job.train_examples(), parts, job.workers());
    return BatchesOf(of, examples - DroppedOf(of, parts, examples));
  };
  const auto stopped = [&](const v1::JobConfig& of) {
    return !WhyStopped(of.evaluation(), {job.evaluations().begin(), job.evaluations().end()}).empty();
  };
  if (job.total_batches() == batches(config) || stopped(config)) return true;
  // A worker or train.max_seconds has ended it.
  const v1::JobConfig& saved = job.config();
  return job.total_batches() < batches(saved) && !stopped(saved) &&
         config.train().SerializeAsString() == saved.train().SerializeAsString();
}

bool IsBetter(v1::EvaluationConfig::Metric metric, const v1::EpochEvaluation& one,
              const v1::EpochEvaluation& other, double min_delta) {
  const std::optional<double> cost = MetricOf(metric, one).cost, than = MetricOf(metric, other).cost;
  if (!cost.has_value()) return false;
  return !than.has_value() || *cost < *than - min_delta;
}

std::string WhyStopped(const v1::EvaluationConfig& config, const std::vector<v1::EpochEvaluation>& epochs) {
  if (config.patience() == 0) return "";
  const v1::EpochEvaluation* best = nullptr;
  uint32_t no_better = 0;
  for (const v1::EpochEvaluation& epoch : epochs) {
    if (!epoch.has_step()) continue;  // no member could evaluate this epoch
    if (best == nullptr || IsBetter(config.metric(), epoch, *best, config.min_delta())) {
      best = &epoch;
      no_better = 0;
    } else {
      ++no_better;
    }
  }
  if (no_better < config.patience() || !epochs.back().has_step()) return "";
  const Metric metric = MetricOf(config.metric(), *best);
  return absl::StrCat(
      "after epoch ", epochs.back().epoch(), ", since ", no_better,
      no_better == 1 ? " evaluation was" : " evaluations were", " no better than that of epoch ",
      best->epoch(),
      metric.value.has_value() ? absl::StrCat(", whose ", metric.name, " was ", *metric.value) : "",
      " (evaluation.patience = ", config.patience(),
      config.min_delta() > 0 ? absl::StrCat(", min_delta = ", config.min_delta()) : "", ")");
}

}  // namespace weir
