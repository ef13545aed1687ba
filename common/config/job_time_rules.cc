#include "common/config/job_time_rules.h"

#include <cstdint>

#include "common/protocol/part_assignment.h"

namespace weir {

void CheckLength(const v1::JobConfig& config, ConfigProblems* problems) {
  const v1::TrainConfig& train = config.train();
  problems->AddIf(train.has_epochs() + train.has_examples() + train.has_steps() > 1,
                  train.has_steps() ? "train.steps" : "train.examples", "cannot be given together with ",
                  train.has_epochs() ? "train.epochs" : "train.examples", ": both say how long the job is");
  // With as many workers or parts as there may be, the job has at most 2^53 examples, which a double counts.
  const uint64_t most_steps = (uint64_t{1} << 43) / ExamplesOfBatch(config);
  problems->AddIf(train.steps() > most_steps, "train.steps", "must be at most ", most_steps, " with ",
                  BatchInWords(config), ", got ", train.steps());
}

void CheckSchedule(const v1::ScheduleConfig& schedule, const std::string& path, ConfigProblems* problems) {
  problems->AddIf(schedule.type() == v1::ScheduleConfig::SCHEDULE_EXPONENTIAL && !schedule.has_gamma(),
                  FieldPath(path, "gamma"), "is missing and must be given with type \"exponential\"");
  for (int i = 1; i < schedule.milestones_size(); ++i) {
    problems->AddIf(schedule.milestones(i) <= schedule.milestones(i - 1),
                    ElementPath(FieldPath(path, "milestones"), i),
                    "must be above the one before it, which is ", schedule.milestones(i - 1), ", got ",
                    schedule.milestones(i));
  }
  const bool steps = schedule.has_warmup_steps(), share = schedule.has_warmup_share();
  problems->AddIf(steps + share + schedule.has_warmup_epochs() > 1,
                  FieldPath(path, schedule.has_warmup_epochs() ? "warmup_epochs" : "warmup_share"),
                  "cannot be given together with ", steps ? "warmup_steps" : "warmup_share",
                  ": both say how long the warm-up is");
  problems->AddIf(schedule.has_warmup_epochs() && !steps && !share, FieldPath(path, "warmup_epochs"),
                  "must be below train.epochs, the length of the job, which must be given in epochs; got ",
                  schedule.warmup_epochs());
}

void FillWarmUps(v1::JobConfig* config) {
  const v1::TrainConfig& train = config->train();
  const bool by_epochs = !train.has_examples() && !train.has_steps();
  const auto may_fill = [&](const v1::ScheduleConfig& schedule) {
    return schedule.has_warmup_epochs() && !schedule.has_warmup_steps() && !schedule.has_warmup_share() &&
           by_epochs && schedule.warmup_epochs() < train.epochs();
  };
  const auto fill = [&](v1::ScheduleConfig* schedule) {
    schedule->set_warmup_share(schedule->warmup_epochs() / train.epochs());
    schedule->clear_warmup_epochs();
  };
  if (may_fill(config->optimizer().schedule())) fill(config->mutable_optimizer()->mutable_schedule());
  if (may_fill(config->local().inner().schedule())) {
    fill(config->mutable_local()->mutable_inner()->mutable_schedule());
  }
  for (v1::TableConfig& table : *config->mutable_tables()) {
    if (may_fill(table.optimizer().schedule())) fill(table.mutable_optimizer()->mutable_schedule());
  }
}

}  // namespace weir
