#include "common/config/job_work_rules.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/config/field_rules.h"
#include "common/protocol/mode_traits.h"
#include "common/protocol/part_assignment.h"
#include "google/protobuf/descriptor.h"

namespace weir {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

// `model` and `data` describe the work of the program `worker`, or neither does: a program that brings its
// own model and data gives at most data.batch_size.
void CheckWhoseWork(const v1::JobConfig& config, ConfigProblems* problems) {
  const v1::DataConfig& data = config.data();
  std::vector<const FieldDescriptor*> fields;
  data.GetReflection()->ListFields(data, &fields);
  const auto describes = [](const FieldDescriptor* field) {
    return field->name() != "batch_size" && field->name() != "drop_last";
  };
  const auto first = std::find_if(fields.begin(), fields.end(), describes);
  const absl::string_view hint =
      ". (A program that brings its own model and data leaves out model, and of data all "
      "but batch_size and drop_last)";
  const std::string given = first == fields.end() ? "" : FieldPath("data", (*first)->name());
  problems->AddIf(!given.empty() && !config.has_model(), "model", "is missing and must be given with ", given,
                  ": an object with layers, loss", hint);
  problems->AddIf(!data.has_format() && (!given.empty() || config.has_model()), "data.format",
                  "is missing and must be given with ", given.empty() ? "model" : given,
                  ": one of digits, idx, csv", hint);
}

// Fields that only the program `worker` reads, of a job that is for another program.
void CheckOnlyForWorker(const v1::JobConfig& config, ConfigProblems* problems) {
  if (config.has_model()) return;
  const bool rounds = config.compute().precision() != v1::ComputeConfig::PRECISION_FLOAT32;
  for (const auto& [field, given] : {std::pair("compute.precision", rounds),
                                     std::pair("debug.worker_delay", config.debug().worker_delay() > 0),
                                     std::pair("debug.batch_seconds", config.debug().batch_seconds() > 0)}) {
    problems->AddIf(given, field,
                    "is for the program `worker`, but the job has no model, so that it is for a program of "
                    "its own; take it out");
  }
}

void CheckModel(const v1::ModelConfig& model, ConfigProblems* problems) {
  DifferentNames names("model.layers", "layers", problems);
  for (int i = 0; i < model.layers_size(); ++i) {
    const std::string path = ElementPath("model.layers", i);
    CheckUses(model.layers(i), path, problems);
    names.Check(i, model.layers(i).name(), " (left out: type and position)");
  }
}

// idx has images and labels; csv has path.
void CheckFiles(v1::DataConfig::Format format, const v1::DataFiles& files, const std::string& path,
                ConfigProblems* problems) {
  const Descriptor& type = *files.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const bool used = (field.name() == "path") == (format == v1::DataConfig::FORMAT_CSV);
    const bool set = files.GetReflection()->HasField(files, &field);
    if (used == set) continue;
    const absl::string_view expected = format == v1::DataConfig::FORMAT_CSV ? "path" : "images and labels";
    problems->Add(
        FieldPath(path, field.name()),
        set ? absl::StrCat("is not used with this format, which takes ", expected)
            : absl::StrCat("is missing and must be given with this format, which takes ", expected));
  }
}

void CheckColumns(const v1::DataConfig& data, ConfigProblems* problems) {
  if (data.columns().empty()) return;
  DifferentNames names("data.columns", "columns", problems);
  int labels = 0, inputs = 0;
  for (int i = 0; i < data.columns_size(); ++i) {
    const v1::ColumnConfig& column = data.columns(i);
    const std::string path = ElementPath("data.columns", i);
    CheckUses(column, path, problems);
    names.Check(i, column.name());
    problems->AddIf(column.has_separator() && column.separator() == data.separator(),
                    FieldPath(path, "separator"), "is ", JsonQuote(column.separator()),
                    ", as data.separator; the two must differ");
    labels += column.type() == v1::ColumnConfig::COLUMN_LABEL;
    inputs +=
        column.type() != v1::ColumnConfig::COLUMN_LABEL && column.type() != v1::ColumnConfig::COLUMN_IGNORED;
  }
  problems->AddIf(labels != 1, "data.columns", "must have exactly one column of type \"label\", got ",
                  labels);
  problems->AddIf(inputs == 0, "data.columns",
                  "must have a column of type \"number\", \"categorical\" or \"key\", got none: an "
                  "example would be a label only");
  problems->AddIf(data.has_label_column(), "data.label_column",
                  "cannot be given together with data.columns, whose types say which one is the label");
}

void CheckData(const v1::JobConfig& config, ConfigProblems* problems) {
  const v1::DataConfig& data = config.data();
  if (!data.has_format()) return;
  CheckUses(data, "data", problems);
  const v1::ModelConfig::Loss loss = config.model().loss();
  problems->AddIf(data.has_classes() && loss != v1::ModelConfig::LOSS_SOFTMAX_CROSS_ENTROPY, "data.classes",
                  "is not used with model.loss ", JsonQuote(EnumWord(loss)), "; take it out");
  CheckColumns(data, problems);
  if (data.format() != v1::DataConfig::FORMAT_DIGITS) {
    if (data.has_train()) CheckFiles(data.format(), data.train(), "data.train", problems);
    if (data.has_test()) CheckFiles(data.format(), data.test(), "data.test", problems);
    if (data.has_validation()) CheckFiles(data.format(), data.validation(), "data.validation", problems);
  }
}

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

void CheckTrain(const v1::JobConfig& config, ConfigProblems* problems) {
  const v1::TrainConfig& train = config.train();
  if (train.micro_batches() > 1 && !config.has_model()) {
    problems->Add(
        "train.micro_batches",
        absl::StrCat("is for the program `worker`, got ", train.micro_batches(),
                     "; the job has no model, so that it is for a program of its own, which cuts its "
                     "batches itself (in PyTorch several backward() add up); take it out"));
  } else if (train.micro_batches() > config.data().batch_size()) {
    problems->Add("train.micro_batches",
                  absl::StrCat("must be at most data.batch_size, which is ", config.data().batch_size(),
                               ", got ", train.micro_batches()));
  }
  // With train.epochs the job's length follows from the data. In sync, without consistency.parts, a step has
  // at least one batch: ps:0 knows how many workers come.
  const bool parts = TraitsOf(config).works_on_parts && config.consistency().has_parts();
  const uint64_t batch = ExamplesOfBatch(config);
  const uint64_t unit = parts ? batch * config.consistency().parts() : batch;
  problems->AddIf(config.data().drop_last() && train.has_examples() && train.examples() < unit,
                  "data.drop_last", "leaves nothing of train.examples, which is ", train.examples(), ": a ",
                  parts ? "step" : "batch", " has ", unit, " examples; take it out");
  problems->AddIf(train.divergence() > 0 && train.divergence() <= 1, "train.divergence",
                  "must be above 1, or 0 for off, got ", train.divergence(),
                  ": it is how many times its lowest the loss may be");
}

}  // namespace

void CheckWork(const v1::JobConfig& config, ConfigProblems* problems) {
  CheckWhoseWork(config, problems);
  CheckOnlyForWorker(config, problems);
  CheckModel(config.model(), problems);
  CheckData(config, problems);
  CheckLength(config, problems);
  CheckTrain(config, problems);
}

void CheckSchedule(const v1::ScheduleConfig& schedule, const std::string& path, ConfigProblems* problems) {
  CheckUses(schedule, path, problems);
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
