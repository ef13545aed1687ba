#include "common/config/job_config_rules.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/config/field_rules.h"
#include "common/config/job_config.h"
#include "common/config/job_work_rules.h"
#include "common/config/optimizer_slots.h"
#include "common/config/written_text.h"
#include "common/model/key_bucket.h"
#include "common/protocol/mode_traits.h"
#include "google/protobuf/descriptor.h"

namespace weir {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

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
  const std::string word = JsonQuote(EnumWord(evaluation.metric()));
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

bool IsSparse(const v1::WireConfig& wire) { return wire.push_dtype() == v1::WireConfig::TYPE_TOPK; }

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
                  "must be false unless wire.push_dtype is int8, int4, bit1 or topk; take it out");
  problems->AddIf(wire.has_push_share() && !IsSparse(wire), "wire.push_share",
                  "is for wire.push_dtype \"topk\" alone; take it out, or set wire.push_dtype to topk");
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
  CheckWork(config, problems);
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
  if (field.containing_type() == v1::WireConfig::descriptor() && field.name() == "push_share") {
    return IsSparse(static_cast<const v1::WireConfig&>(message));
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
    if (!layer.has_name()) layer.set_name(absl::StrCat(EnumWord(layer.type()), "_", i));
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
