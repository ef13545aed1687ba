#include "ps_server/coordinator/job/job_size.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/protocol/mode_traits.h"
#include "common/protocol/part_assignment.h"
#include "ps_server/coordinator/job/best_epoch.h"

namespace weir {
namespace {

uint64_t ExamplesOf(const v1::JobConfig& config, uint64_t train_examples) {
  const v1::TrainConfig& train = config.train();
  if (train.has_examples()) return train.examples();
  return static_cast<uint64_t>(
      std::max(1.0, std::round(train.epochs() * static_cast<double>(train_examples))));
}

uint64_t BatchesOf(const v1::JobConfig& config, uint64_t examples) {
  const uint64_t batch = config.data().batch_size();
  return examples / batch + (examples % batch != 0);
}

// The examples of the unit that data.drop_last keeps whole: in sync a step, otherwise a batch.
uint64_t UnitOf(const v1::JobConfig& config, uint32_t parts) {
  const uint64_t batch = config.data().batch_size();
  return TraitsOf(config).commits_steps ? batch * parts : batch;
}

uint64_t DroppedOf(const v1::JobConfig& config, uint32_t parts, uint64_t examples) {
  return config.data().drop_last() ? examples % UnitOf(config, parts) : 0;
}

}  // namespace

JobSize SizeOf(const v1::JobConfig& config, uint32_t workers, uint64_t train_examples, uint32_t parts) {
  JobSize size;
  size.train_examples = train_examples;
  const auto& consistency = config.consistency();
  size.parts = parts > 0 ? parts : consistency.has_parts() ? consistency.parts() : workers;
  uint64_t examples = ExamplesOf(config, train_examples);
  size.dropped = DroppedOf(config, size.parts, examples);
  examples -= size.dropped;
  return Shortened(config, workers, size, examples, BatchesOf(config, examples));
}

absl::Status CheckSize(const v1::JobConfig& config, const JobSize& size) {
  if (size.batches > 0) return absl::OkStatus();
  const uint64_t unit = UnitOf(config, size.parts);
  const uint32_t batch = config.data().batch_size();
  return absl::InvalidArgumentError(absl::StrCat(
      "data.drop_last: leaves nothing of the job, which has ", size.dropped, " examples: ",
      unit == batch
          ? absl::StrCat("a batch has ", batch, " (data.batch_size)")
          : absl::StrCat("a step has ", unit, " (", size.parts, " parts of data.batch_size ", batch, ")"),
      ". Lower data.batch_size, or take data.drop_last out"));
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
  if (config.name() != saved.name()) {
    difference = absl::StrCat("name is '", config.name(), "', the checkpoint's is '", saved.name(), "'");
  } else if (is_sync(config) != is_sync(saved)) {
    difference = absl::StrCat("consistency.mode is ", is_sync(config) ? "sync" : "not sync",
                              ", the checkpoint's ", is_sync(saved) ? "is" : "is not");
  } else if (config.seed() != saved.seed()) {
    difference = absl::StrCat("seed is ", config.seed(), ", the checkpoint's is ", saved.seed());
  } else if (config.data().batch_size() != saved.data().batch_size()) {
    difference = absl::StrCat("data.batch_size is ", config.data().batch_size(), ", the checkpoint's is ",
                              saved.data().batch_size());
  } else if (is_sync(config) && config.consistency().has_parts() &&
             config.consistency().parts() != from.job().parts()) {
    difference = absl::StrCat("consistency.parts is ", config.consistency().parts(), ", the checkpoint's is ",
                              from.job().parts());
  } else if (TablesCountParts(config) != TablesCountParts(saved) && !saved.tables().empty()) {
    difference = absl::StrCat("consistency.tables is ", RowsOnArrival(config) ? "async" : "not async",
                              ", the checkpoint's ", RowsOnArrival(saved) ? "is" : "is not");
  }
  if (difference.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "it cannot go on from the checkpoint of step ", from.step(), " in checkpoint.directory: ", difference,
      ". Its weights alone can be taken with checkpoint.init_from, in another directory"));
}

bool IsEndOf(const v1::JobConfig& config, const v1::CheckpointManifest& checkpoint) {
  const v1::CoordinatorState& job = checkpoint.job();
  if (!job.done()) return false;
  const uint64_t examples = ExamplesOf(config, job.train_examples());
  const uint64_t dropped = DroppedOf(config, std::max(1u, job.parts()), examples);
  return job.total_batches() == BatchesOf(config, examples - dropped) ||
         !WhyStopped(config.evaluation(), {job.evaluations().begin(), job.evaluations().end()}).empty();
}

}  // namespace weir
