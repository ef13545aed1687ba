#include "common/config/job_config_rules.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/config/job_config.h"
#include "common/config/job_time_rules.h"
#include "common/config/optimizer_slots.h"
#include "common/config/written_text.h"
#include "common/model/key_bucket.h"
#include "common/protocol/mode_traits.h"
#include "common/protocol/part_assignment.h"
#include "google/protobuf/descriptor.h"
#include "proto/options.pb.h"

namespace weir {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// The field by whose word other fields of the message have a meaning (used_with in proto/options.proto).
const FieldDescriptor& Selector(const Descriptor& message) {
  int i = 0;
  while (message.field(i)->cpp_type() != FieldDescriptor::CPPTYPE_ENUM) ++i;
  return *message.field(i);
}

std::string WordOf(const Message& message, const FieldDescriptor& selector) {
  return EnumWord(*message.GetReflection()->GetEnum(message, &selector));
}

// Whether the field has a meaning beside the word that the message's selector has.
bool IsUsed(const Message& message, const FieldDescriptor& field) {
  const auto& words = field.options().GetExtension(v1::limits).used_with();
  return words.empty() || std::find(words.begin(), words.end(),
                                    WordOf(message, Selector(*field.containing_type()))) != words.end();
}

bool IsSet(const Message& message, const FieldDescriptor& field) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  return field.is_repeated() ? reflection.FieldSize(message, &field) > 0
                             : reflection.HasField(message, &field);
}

// Checks which fields one message has beside the word of its selector.
void CheckUses(const Message& message, const std::string& path, ConfigProblems* problems) {
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    const v1::FieldLimits& limits = field.options().GetExtension(v1::limits);
    if (limits.used_with().empty()) continue;
    const FieldDescriptor& selector = Selector(*message.GetDescriptor());
    const std::string word = WordOf(message, selector);
    const bool set = IsSet(message, field);
    const bool used = IsUsed(message, field);
    problems->AddIf(set && !used, FieldPath(path, field.name()), "is not used with ", selector.name(), " \"",
                    word, "\", only with ", absl::StrJoin(limits.used_with(), ", "), "; take it out (--set ",
                    FieldPath(path, field.name()), "=null) or change ", FieldPath(path, selector.name()));
    problems->AddIf(!set && used && limits.required(), FieldPath(path, field.name()),
                    "is missing and must be given with ", selector.name(), " \"", word, "\"");
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

// The names of a list's entries, which must differ.
class DifferentNames {
 public:
  // what: "layers".
  DifferentNames(const char* list, const char* what, ConfigProblems* problems)
      : list_(list), what_(what), problems_(problems) {}

  // `hint` ends the message.
  void Check(int i, const std::string& name, const char* hint = "") {
    const auto [first, inserted] = positions_.emplace(name, i);
    if (inserted) return;
    problems_->Add(FieldPath(ElementPath(list_, i), "name"),
                   absl::StrCat("is ", JsonQuote(name), ", as that of ", ElementPath(list_, first->second),
                                "; ", what_, " must have different names", hint));
  }

 private:
  const char* const list_;
  const char* const what_;
  ConfigProblems* const problems_;
  std::map<std::string, int> positions_;
};

void CheckModel(const v1::ModelConfig& model, ConfigProblems* problems) {
  DifferentNames names("model.layers", "layers", problems);
  for (int i = 0; i < model.layers_size(); ++i) {
    const std::string path = ElementPath("model.layers", i);
    CheckUses(model.layers(i), path, problems);
    names.Check(i, model.layers(i).name(), " (left out: type and position)");
  }
}

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

std::string LossWord(v1::ModelConfig::Loss loss) {
  return EnumWord(*v1::ModelConfig::Loss_descriptor()->FindValueByNumber(loss));
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
                  "is not used with model.loss ", JsonQuote(LossWord(loss)), "; take it out");
  CheckColumns(data, problems);
  if (data.format() != v1::DataConfig::FORMAT_DIGITS) {
    if (data.has_train()) CheckFiles(data.format(), data.train(), "data.train", problems);
    if (data.has_test()) CheckFiles(data.format(), data.test(), "data.test", problems);
    if (data.has_validation()) CheckFiles(data.format(), data.validation(), "data.validation", problems);
  }
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

// Rules for which the servers need norms over the whole model, before a step is committed.
void CheckNorms(const v1::JobConfig& config, ConfigProblems* problems) {
  const bool sync = TraitsOf(config).commits_steps;
  problems->AddIf(config.optimizer().type() == v1::OptimizerConfig::KIND_LAMB && !sync, "optimizer.type",
                  "is \"lamb\", which is for consistency.mode \"sync\": the norms by which it scales a step "
                  "are over all servers, and only there do all apply the same step; use \"adamw\"");
  if (config.train().clip() != v1::TrainConfig::CLIP_MEAN) return;
  problems->AddIf(!sync, "train.clip",
                  "is \"mean\", which is for consistency.mode \"sync\": in other modes each push is an "
                  "update of its own, and there is no mean; take it out");
  problems->AddIf(config.train().clip_norm() == 0, "train.clip",
                  "needs train.clip_norm, which says how large the norm may be");
  problems->AddIf(config.tables_size() > 0, "train.clip",
                  "is \"mean\", which clips no rows, and the job has `tables`; use \"push\", which clips "
                  "rows and tensors together");
}

void CheckWorkers(const v1::JobConfig& config, ConfigProblems* problems) {
  const v1::ClusterConfig& cluster = config.cluster();
  problems->AddIf(cluster.has_workers() && cluster.min_workers() > cluster.workers(), "cluster.min_workers",
                  "must be at most cluster.workers, which is ", cluster.workers(), ", got ",
                  cluster.min_workers());
  const v1::DebugConfig& debug = config.debug();
  problems->AddIf(debug.has_delayed_worker() && !debug.has_worker_delay() && debug.slow_factor() == 1,
                  "debug.delayed_worker",
                  "needs debug.worker_delay or debug.slow_factor, which say how slow it is");
  for (const auto& [field, given] : {std::pair("debug.slow_factor", debug.slow_factor() != 1),
                                     std::pair("debug.slow_share", debug.slow_share() > 0),
                                     std::pair("debug.jitter", debug.jitter() > 0)}) {
    problems->AddIf(given && debug.batch_seconds() == 0, field,
                    "needs debug.batch_seconds, the time that it is a factor of");
  }
  problems->AddIf(debug.slow_factor() != 1 && !debug.has_delayed_worker() && debug.slow_share() == 0,
                  "debug.slow_factor",
                  "needs debug.delayed_worker or debug.slow_share, which say what is slow");
  problems->AddIf(debug.slow_share() > 0 && debug.slow_factor() == 1, "debug.slow_share",
                  "needs debug.slow_factor, which says how slow these batches are");
  problems->AddIf(
      debug.has_delayed_worker() && cluster.has_workers() && debug.delayed_worker() >= cluster.workers(),
      "debug.delayed_worker", "must be below cluster.workers, which is ", cluster.workers(), ", got ",
      debug.delayed_worker());
}

void CheckConsistency(const v1::JobConfig& config, ConfigProblems* problems) {
  const v1::ConsistencyConfig& consistency = config.consistency();
  CheckUses(consistency, "consistency", problems);
  CheckUses(consistency.staleness_policy(), "consistency.staleness_policy", problems);
  problems->AddIf(
      consistency.prefetch() && consistency.has_staleness() && consistency.staleness() == 0,
      "consistency.prefetch",
      "needs a consistency.staleness of at least 1: with 0 a worker's next pull must hold its last "
      "push, and cannot be answered before it");
  problems->AddIf(RowsOnArrival(config) && config.tables_size() == 0, "consistency.tables",
                  "is \"async\", but the job has no `tables`; take it out");
  // With neither parts nor workers given, the number of parts is not known yet.
  const bool has_parts = consistency.has_parts();
  if (!TraitsOf(consistency.mode()).works_on_parts) return;
  if (!has_parts && !config.cluster().has_workers()) return;
  const uint32_t parts = has_parts ? consistency.parts() : config.cluster().workers();
  problems->AddIf(consistency.backup_workers() >= parts, "consistency.backup_workers", "must be below ",
                  has_parts ? "consistency.parts" : "cluster.workers", ", which is ", parts, ", got ",
                  consistency.backup_workers());
}

// True for fields that have a meaning only if checkpoints are taken.
bool NeedsDirectory(const FieldDescriptor& field) {
  return field.name() != "directory" && field.name() != "init_from";
}

void CheckCheckpoint(const v1::CheckpointConfig& checkpoint, ConfigProblems* problems) {
  std::vector<const FieldDescriptor*> fields;
  checkpoint.GetReflection()->ListFields(checkpoint, &fields);
  for (const FieldDescriptor* field : fields) {
    problems->AddIf(!checkpoint.has_directory() && NeedsDirectory(*field),
                    FieldPath("checkpoint", field->name()),
                    "needs checkpoint.directory, the folder where checkpoints go");
  }
  for (const auto& [name, path] :
       {std::pair("directory", checkpoint.directory()), std::pair("init_from", checkpoint.init_from())}) {
    if (!IsObjectPath(path)) continue;
    if (const absl::Status status = CheckObjectPath(path); !status.ok()) {
      problems->Add(FieldPath("checkpoint", name), std::string(status.message()));
    }
  }
  constexpr double kShortest = 0.1;
  problems->AddIf(checkpoint.every_seconds() > 0 && checkpoint.every_seconds() < kShortest,
                  "checkpoint.every_seconds", "must be 0 (not by time) or at least ", kShortest, ", got ",
                  checkpoint.every_seconds());
}

void CheckEvaluation(const v1::JobConfig& config, ConfigProblems* problems) {
  const v1::EvaluationConfig& evaluation = config.evaluation();
  for (const auto& [name, set] :
       {std::pair("keep_best", evaluation.keep_best()), std::pair("patience", evaluation.patience() > 0)}) {
    problems->AddIf(set && evaluation.every_epochs() == 0, FieldPath("evaluation", name),
                    "needs evaluations of epochs, and evaluation.every_epochs is 0");
  }
  problems->AddIf(evaluation.keep_best() && !config.checkpoint().has_directory(), "evaluation.keep_best",
                  "needs checkpoint.directory, the folder where checkpoints go");
  problems->AddIf(evaluation.has_metric() && !evaluation.keep_best() && evaluation.patience() == 0,
                  "evaluation.metric",
                  "is for evaluation.keep_best and evaluation.patience, of which neither is given");
  problems->AddIf(evaluation.has_min_delta() && evaluation.patience() == 0, "evaluation.min_delta",
                  "is for evaluation.patience, which is not given");
  problems->AddIf(config.data().has_validation() && evaluation.every_epochs() == 0, "data.validation",
                  "is evaluated at epochs' ends, and evaluation.every_epochs is 0; take it out");
  // A program with a model of its own has what its function returns.
  if (!config.has_model()) return;
  const v1::ModelConfig::Loss loss = config.model().loss();
  const std::string word =
      JsonQuote(EnumWord(*v1::EvaluationConfig::Metric_descriptor()->FindValueByNumber(evaluation.metric())));
  problems->AddIf(absl::StrContains(word, "auc") && loss != v1::ModelConfig::LOSS_SIGMOID_CROSS_ENTROPY,
                  "evaluation.metric", "is ", word,
                  ", which only model.loss \"sigmoid_cross_entropy\" has; use \"loss\"");
  problems->AddIf(absl::StrContains(word, "accuracy") && loss == v1::ModelConfig::LOSS_MEAN_SQUARED_ERROR,
                  "evaluation.metric", "is ", word,
                  ", which model.loss \"mean_squared_error\" does not have; use \"loss\"");
}

void CheckServer(const v1::JobConfig& config, ConfigProblems* problems) {
  const v1::ServerConfig& server = config.server();
  if (server.durability() != v1::ServerConfig::DURABILITY_LOG) return;
  problems->AddIf(
      !TraitsOf(config).applies_alone, "server.durability",
      "is \"log\", which is for consistency.mode \"bounded\" and \"async\": in sync no acknowledged "
      "push is ever lost, since all servers go back to one checkpoint and the steps after it are "
      "done again; take it out");
  problems->AddIf(!config.checkpoint().has_directory(), "server.durability",
                  "is \"log\", which needs checkpoint.directory, the folder where the log goes");
  problems->AddIf(IsObjectPath(config.checkpoint().directory()), "server.durability",
                  "is \"log\", which needs a checkpoint.directory on a disk: the log lies beside the "
                  "checkpoints, is synced with each push, and cannot be written to object storage (s3://). "
                  "Take one of the two out");
  problems->AddIf(
      server.has_apply() && server.apply() == v1::ServerConfig::APPLY_STREAMED, "server.apply",
      "is \"streamed\", but with server.durability \"log\" a push is received whole and logged before "
      "it is applied; take it out");
}

void CheckTable(const v1::TableConfig& table, const std::string& path, ConfigProblems* problems) {
  const auto allowed = [](char c) { return absl::ascii_isalnum(c) || absl::StrContains("_-./", c); };
  problems->AddIf(!std::all_of(table.name().begin(), table.name().end(), allowed), FieldPath(path, "name"),
                  "must have letters, digits, _, -, . and / only, got ", JsonQuote(table.name()));
  problems->AddIf(table.max_rows() > 0 && table.max_rows() < kKeyBuckets, FieldPath(path, "max_rows"),
                  "must be 0 (any number) or at least ", kKeyBuckets, ", a row for each bucket of keys, got ",
                  table.max_rows());
  problems->AddIf(table.init().type() != v1::TableInit::KIND_CONSTANT && table.init().value() < 0,
                  FieldPath(path, "init.value"),
                  "must be at least 0, since it is the width of a distribution, got ", table.init().value());
  const v1::TableOptimizer& optimizer = table.optimizer();
  CheckUses(optimizer, FieldPath(path, "optimizer"), problems);
  CheckUses(optimizer.schedule(), FieldPath(path, "optimizer.schedule"), problems);
  CheckSchedule(optimizer.schedule(), FieldPath(path, "optimizer.schedule"), problems);
  if (optimizer.type() != v1::TableOptimizer::KIND_FTRL) return;
  const double warmup = std::max<double>(1, static_cast<double>(optimizer.schedule().warmup_steps()));
  problems->AddIf(static_cast<float>(optimizer.learning_rate() / warmup) <= 0,
                  FieldPath(path, "optimizer.learning_rate"),
                  "must be above 0 with type \"ftrl\", which divides by it, got ", optimizer.learning_rate(),
                  warmup > 1 ? absl::StrCat(" / warmup_steps ", warmup) : "");
  problems->AddIf(optimizer.schedule().type() != v1::ScheduleConfig::SCHEDULE_CONSTANT,
                  FieldPath(path, "optimizer.schedule.type"),
                  "must be \"constant\" with type \"ftrl\", which lowers the rate of each value itself and "
                  "divides by the learning rate");
}

void CheckTables(const v1::JobConfig& config, ConfigProblems* problems) {
  DifferentNames names("tables", "tables", problems);
  for (int i = 0; i < config.tables_size(); ++i) {
    CheckTable(config.tables(i), ElementPath("tables", i), problems);
    names.Check(i, config.tables(i).name());
  }
}

void CheckOptimizer(const v1::OptimizerConfig& optimizer, const std::string& path, ConfigProblems* problems) {
  CheckUses(optimizer, path, problems);
  CheckUses(optimizer.schedule(), FieldPath(path, "schedule"), problems);
  CheckSchedule(optimizer.schedule(), FieldPath(path, "schedule"), problems);
}

void CheckLocal(const v1::JobConfig& config, ConfigProblems* problems) {
  const v1::LocalConfig& local = config.local();
  problems->AddIf(local.steps() > 1 && config.tables_size() > 0, "local.steps", "must be 1, got ",
                  local.steps(),
                  ": the job has `tables`, and the rows of a worker's own steps are not in its weights");
  problems->AddIf(local.has_inner() && local.steps() == 1 && config.tables_size() > 0, "local.inner",
                  "steps no rows, and the job has `tables`; take it out");
  problems->AddIf(local.steps() > 1 && config.has_model() && !local.has_inner(), "local.inner",
                  "is missing and must be given with local.steps ", local.steps(),
                  ": the rule of a worker's own steps, as {\"type\": \"sgd\", \"learning_rate\": 0.1}");
  problems->AddIf(local.keep_state() && local.steps() == 1 && !local.has_inner(), "local.keep_state",
                  "is true, but a worker takes no steps of its own, whose rule would have a state; set "
                  "local.steps, or take it out");
  if (!local.has_inner()) return;
  problems->AddIf(local.keep_state() && OptimizerSlots(local.inner()).empty(), "local.keep_state",
                  "is true, but local.inner.type \"sgd\" has no state; take it out");
  problems->AddIf(!config.has_model(), "local.inner",
                  "is for the program `worker`, but the job has no model: a program of one's own brings its "
                  "inner rule; take it out");
  problems->AddIf(local.inner().type() == v1::OptimizerConfig::KIND_LAMB, "local.inner.type",
                  "is \"lamb\", which only the servers apply; use \"adamw\"");
  CheckOptimizer(local.inner(), "local.inner", problems);
}

void CheckWireTypes(const v1::JobConfig& config, ConfigProblems* problems) {
  const v1::WireConfig& wire = config.wire();
  const auto word = [](v1::WireConfig::Type type) {
    return EnumWord(*v1::WireConfig::Type_descriptor()->FindValueByNumber(type));
  };
  const auto quantised = [](v1::WireConfig::Type type) {
    v1::WireConfig pushes;
    pushes.set_push_dtype(type);
    return QuantisesPushes(pushes);
  };
  problems->AddIf(quantised(wire.dtype()), "wire.dtype", "must be f32 or bf16, got \"", word(wire.dtype()),
                  "\", which only pushes can have; set wire.push_dtype instead");
  problems->AddIf(quantised(wire.pull_dtype()), "wire.pull_dtype", "must be f32 or bf16, got \"",
                  word(wire.pull_dtype()), "\": weights do not travel so; set wire.push_dtype instead");
  problems->AddIf(QuantisesPushes(wire) && config.tables_size() > 0, "wire.push_dtype",
                  "must be f32 or bf16 in a job with tables, got \"", word(wire.push_dtype()),
                  "\": rows do not travel in blocks");
  problems->AddIf(wire.error_feedback() && !QuantisesPushes(wire), "wire.error_feedback",
                  "must be false unless wire.push_dtype is int8, int4 or bit1; take it out");
}

void CheckWire(const v1::WireConfig& wire, ConfigProblems* problems) {
  problems->AddIf(wire.chunk_kib() % 256 != 0, "wire.chunk_kib", "must be a multiple of 256, got ",
                  wire.chunk_kib());
  const std::string& name = wire.congestion_control();
  const auto plausible = [](char c) { return absl::ascii_isalnum(c) || c == '_' || c == '-'; };
  problems->AddIf(!std::all_of(name.begin(), name.end(), plausible), "wire.congestion_control",
                  "must be \"auto\" or a name of letters, digits, _ and -, as \"cubic\", got ",
                  JsonQuote(name));
}

}  // namespace

void CheckJobConfigRules(const v1::JobConfig& config, ConfigProblems* problems) {
  CheckWhoseWork(config, problems);
  CheckOnlyForWorker(config, problems);
  CheckModel(config.model(), problems);
  CheckData(config, problems);
  CheckLength(config, problems);
  CheckTrain(config, problems);
  CheckNorms(config, problems);
  CheckConsistency(config, problems);
  CheckOptimizer(config.optimizer(), "optimizer", problems);
  CheckLocal(config, problems);
  CheckWorkers(config, problems);
  CheckWire(config.wire(), problems);
  CheckWireTypes(config, problems);
  CheckCheckpoint(config.checkpoint(), problems);
  CheckEvaluation(config, problems);
  CheckServer(config, problems);
  CheckTables(config, problems);
}

bool FieldApplies(const Message& message, const FieldDescriptor& field) {
  // A job without a model is for a program that brings its own.
  if (field.message_type() == v1::ModelConfig::descriptor()) return false;
  // Without an inner rule a worker pushes gradients, or takes steps by a rule of its program.
  if (field.containing_type() == v1::LocalConfig::descriptor() && field.name() == "inner") return false;
  if (field.containing_type() == v1::TrainConfig::descriptor() && field.name() == "epochs") {
    const auto& train = static_cast<const v1::TrainConfig&>(message);
    return !train.has_examples() && !train.has_steps();
  }
  if (field.containing_type() == v1::DataConfig::descriptor() && field.name() == "label_column" &&
      static_cast<const v1::DataConfig&>(message).columns_size() > 0) {
    return false;
  }
  if (field.containing_type() == v1::CheckpointConfig::descriptor() && NeedsDirectory(field)) {
    return static_cast<const v1::CheckpointConfig&>(message).has_directory();
  }
  if (field.containing_type() == v1::EvaluationConfig::descriptor()) {
    const auto& evaluation = static_cast<const v1::EvaluationConfig&>(message);
    if (field.name() == "metric") return evaluation.keep_best() || evaluation.patience() > 0;
    if (field.name() == "min_delta") return evaluation.patience() > 0;
  }
  if (field.containing_type() == v1::ServerConfig::descriptor() && field.name() == "apply") {
    return static_cast<const v1::ServerConfig&>(message).durability() != v1::ServerConfig::DURABILITY_LOG;
  }
  if (field.containing_type() == v1::ScheduleConfig::descriptor() && field.name() == "warmup_steps") {
    return !static_cast<const v1::ScheduleConfig&>(message).has_warmup_share();
  }
  return IsUsed(message, field);
}

void FillContextDefaults(v1::JobConfig* config) {
  FillWarmUps(config);
  // As published; the other optimizers' default is too slow for a sign.
  const auto lacks_beta2 = [](const v1::OptimizerConfig& optimizer) {
    return optimizer.type() == v1::OptimizerConfig::KIND_LION && !optimizer.has_beta2();
  };
  if (lacks_beta2(config->optimizer())) config->mutable_optimizer()->set_beta2(0.99f);
  if (lacks_beta2(config->local().inner())) config->mutable_local()->mutable_inner()->set_beta2(0.99f);
  // As most implementations have it; the paper gives none.
  if (config->optimizer().type() == v1::OptimizerConfig::KIND_LAMB && !config->optimizer().has_epsilon()) {
    config->mutable_optimizer()->set_epsilon(1e-6f);
  }
  for (int i = 0; i < config->data().columns_size(); ++i) {
    v1::ColumnConfig& column = *config->mutable_data()->mutable_columns(i);
    if (column.type() == v1::ColumnConfig::COLUMN_CATEGORICAL && !column.has_vocabulary()) {
      column.set_vocabulary(column.name());
    }
  }
  for (int i = 0; i < config->model().layers_size(); ++i) {
    v1::LayerConfig& layer = *config->mutable_model()->mutable_layers(i);
    const auto& type = *v1::LayerConfig::Type_descriptor()->FindValueByNumber(layer.type());
    if (!layer.has_name()) layer.set_name(absl::StrCat(EnumWord(type), "_", i));
    const bool conv = layer.type() == v1::LayerConfig::LAYER_CONV2D;
    if (conv && !layer.has_stride()) layer.set_stride(1);
    if (conv && !layer.has_padding()) layer.set_padding(0);
    if (layer.type() == v1::LayerConfig::LAYER_MAX_POOL && layer.has_kernel() && !layer.has_stride()) {
      layer.set_stride(layer.kernel());
    }
    const bool cross = layer.type() == v1::LayerConfig::LAYER_CROSS;
    if ((conv || cross || layer.type() == v1::LayerConfig::LAYER_DENSE) && !layer.has_init()) {
      layer.set_init(cross ? v1::LayerConfig::INIT_GLOROT_UNIFORM : v1::LayerConfig::INIT_HE_NORMAL);
    }
  }
}

}  // namespace weir
