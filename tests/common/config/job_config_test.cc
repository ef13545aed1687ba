#include "common/config/job_config.h"

#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "catch2/catch.hpp"
#include "google/protobuf/util/message_differencer.h"

namespace weir {
namespace {

using google::protobuf::util::MessageDifferencer;

// A small valid config whose parts a case replaces.
constexpr char kBase[] = R"({
  "name": "tiny",  // a comment
  "model": {"layers": [{"type": "dense", "units": 4}, {"type": "relu"}, {"type": "dense", "units": 2}]},
  "data": {"format": "digits"}
})";

v1::JobConfig Parse(absl::string_view text, const std::vector<std::string>& overrides = {}) {
  absl::StatusOr<v1::JobConfig> config = ParseJobConfig(text, "f", overrides);
  INFO(config.status().ToString());
  REQUIRE(config.ok());
  return *std::move(config);
}

std::string Error(absl::string_view text, const std::vector<std::string>& overrides = {}) {
  absl::StatusOr<v1::JobConfig> config = ParseJobConfig(text, "f", overrides);
  if (config.ok()) return "accepted";
  return std::string(config.status().message());
}

// kBase with one more member.
std::string With(absl::string_view member) {
  return absl::StrReplaceAll(kBase, {{"\"digits\"}\n", absl::StrCat("\"digits\"},\n", member, "\n")}});
}

// kBase with other layers, on line 3 from column 13 on.
std::string WithLayers(absl::string_view layers) {
  return absl::StrCat("{\"data\": {\"format\": \"digits\"},\n \"model\":\n {\"layers\": [", layers, "]}}");
}

std::string WithData(absl::string_view data) {
  return absl::StrCat("{\"model\": {\"layers\": [{\"type\": \"dense\", \"units\": 2}]},\n\"data\": ", data,
                      "}");
}

TEST_CASE("A config is read, with the schema's defaults and those that follow from it") {
  const v1::JobConfig config = Parse(WithLayers(
      R"({"type": "conv2d", "filters": 8, "kernel": 5}, {"type": "max_pool", "kernel": 3}, {"type": "flatten"},
         {"type": "dropout", "rate": 0.5}, {"type": "dense", "units": 10, "init": "zeros", "name": "out"})"));
  CHECK(config.name() == "job");
  CHECK(config.seed() == 1);
  const auto& layers = config.model().layers();
  REQUIRE(layers.size() == 5);
  CHECK(layers[0].name() == "conv2d_0");
  CHECK(layers[0].stride() == 1);
  CHECK(layers[0].has_padding());
  CHECK(layers[0].init() == v1::LayerConfig::INIT_HE_NORMAL);
  CHECK(layers[1].name() == "max_pool_1");
  CHECK(layers[1].stride() == 3);
  CHECK_FALSE(layers[1].has_init());
  CHECK(layers[3].rate() == 0.5f);
  CHECK(layers[4].name() == "out");
  CHECK(layers[4].init() == v1::LayerConfig::INIT_ZEROS);
  CHECK(config.model().loss() == v1::ModelConfig::LOSS_SOFTMAX_CROSS_ENTROPY);
  CHECK(config.train().epochs() == 10);
  CHECK_FALSE(config.has_consistency());
}

TEST_CASE("LAMB has its own epsilon, and sync clips the mean where it is told to") {
  CHECK(Parse(R"({"optimizer": {"type": "lamb"}})").optimizer().epsilon() == 1e-6f);
  CHECK(Parse(R"({"optimizer": {"type": "lamb", "epsilon": 0.5}})").optimizer().epsilon() == 0.5f);
  const v1::JobConfig config = Parse(R"({"train": {"clip": "mean", "clip_norm": 1}})");
  CHECK(config.train().clip() == v1::TrainConfig::CLIP_MEAN);
  const auto again = ParseJobConfig(ToJson(config, true), "again");
  REQUIRE(again.ok());
  CHECK(FirstDifference(config, *again).empty());
  CHECK(Parse(R"({"train": {"clip": "push"}})").train().clip() == v1::TrainConfig::CLIP_PUSH);
}

TEST_CASE("The inner rule of local steps has an optimizer's defaults, and shows only if it is given") {
  const v1::JobConfig config = Parse(With(
      R"("local": {"steps": 10, "inner": {"type": "lion", "schedule": {"type": "cosine", "warmup_epochs": 2}}})"));
  CHECK(config.local().steps() == 10);
  CHECK(config.local().inner().beta2() == 0.99f);
  CHECK(config.local().inner().schedule().warmup_share() == 0.2);
  CHECK_FALSE(config.optimizer().has_beta2());
  CHECK(absl::StrContains(ToJson(config, true), "\"steps\": 10"));
  CHECK(Parse(With(R"("local": {"inner": {"learning_rate": 1}})")).local().steps() == 1);
  CHECK_FALSE(absl::StrContains(ToJson(Parse(kBase), true), "\"inner\""));
  // A program brings its own rule.
  CHECK(Parse(R"({"data": {"batch_size": 8}, "local": {"steps": 10}})").local().steps() == 10);
}

TEST_CASE("Lion has its own beta2, and a warm-up in epochs becomes a share") {
  const v1::JobConfig config = Parse(R"({"train": {"epochs": 20}, "optimizer": {"type": "lion",
      "schedule": {"warmup_epochs": 5}}, "tables": [
      {"name": "t", "dim": 1, "optimizer": {"schedule": {"type": "linear", "warmup_epochs": 1}}}]})");
  CHECK(config.optimizer().beta1() == 0.9f);
  CHECK(config.optimizer().beta2() == 0.99f);
  CHECK(config.optimizer().schedule().warmup_share() == 0.25);
  CHECK_FALSE(config.optimizer().schedule().has_warmup_epochs());
  CHECK(config.tables(0).optimizer().schedule().warmup_share() == 0.05);
  const auto again = ParseJobConfig(ToJson(config, true), "again");
  REQUIRE(again.ok());
  CHECK(FirstDifference(config, *again).empty());
  CHECK(Parse(R"({"optimizer": {"type": "adam"}})").optimizer().beta2() == 0.999f);
  CHECK(Parse(R"({"optimizer": {"type": "lion", "beta2": 0.5}})").optimizer().beta2() == 0.5f);
}

TEST_CASE("The job of a program that brings its model and data has neither") {
  CHECK(Error("{}") == "accepted");
  const auto config = ParseJobConfig(R"({"data": {"batch_size": 8}})", "f");
  REQUIRE(config.ok());
  CHECK(config->data().batch_size() == 8);
  CHECK(absl::StartsWith(Error(R"({"data": {"batch_size": 8}, "train": {"micro_batches": 2}})"),
                         "f:1:56: train.micro_batches: is for the program `worker`, got 2; the job has no "
                         "model"));
  CHECK(
      Error(R"({"data": {"batch_size": 8, "drop_last": true}, "train": {"examples": 7}})") ==
      "f:1:41: data.drop_last: leaves nothing of train.examples, which is 7: a batch has 8 examples; take it "
      "out");
  CHECK(Error(R"({"data": {"drop_last": true}, "train": {"examples": 63}, "consistency": {"parts": 2}})") ==
        "f:1:24: data.drop_last: leaves nothing of train.examples, which is 63: a step has 64 examples; take "
        "it "
        "out");
  CHECK(Error(R"({"data": {"batch_size": 8, "drop_last": true}, "train": {"examples": 8}})") == "accepted");
  CHECK(absl::StartsWith(Error(R"({"compute": {"precision": "bf16"}})"),
                         "f:1:27: compute.precision: is for the program `worker`, but the job has no model"));
  CHECK(absl::StartsWith(Error(R"({"debug": {"worker_delay": 0.1}})"), "f:1:28: debug.worker_delay: is for"));
  CHECK(
      absl::StartsWith(Error(R"({"debug": {"batch_seconds": 0.1}})"), "f:1:29: debug.batch_seconds: is for"));
  CHECK(Error(R"({"evaluation": {"metric": "auc", "patience": 1}})") == "accepted");
  const auto again = ParseJobConfig(ToJson(*config, true), "again");
  REQUIRE(again.ok());
  CHECK(FirstDifference(*config, *again).empty());
  // Half a description helps nobody.
  const std::string error = Error(R"({"data": {"batch_size": 8, "classes": 3}})");
  CHECK(absl::StrContains(error,
                          "f:1:1: model: is missing and must be given with data.classes: an object with"));
  CHECK(absl::StrContains(error,
                          "f:1:10: data.format: is missing and must be given with data.classes: one of"));
}

TEST_CASE("Each field problem is named with its place, its path, what was seen and what is allowed") {
  struct Case {
    std::string text;
    std::string expected;
  };
  const std::vector<Case> cases = {
      {"[1]",
       "f:1:1: must be an object with name, seed, model, data, train, consistency, optimizer, cluster, "
       "compute, evaluation, server, debug, wire, checkpoint, tables, local; got a list"},
      {With(R"("sed": 7)"),
       "f:5:1: sed: unknown field (did you mean \"seed\"?); allowed here: name, seed, model"},
      {With(R"("zzz": 7)"), "f:5:1: zzz: unknown field; allowed here: name, seed"},
      {With(R"("optimizer": {"lr": 0.1})"),
       "f:5:15: optimizer.lr: unknown field (did you mean \"learning_rate\"?); allowed here: type, "
       "learning_rate"},
      {With(R"("name": "again")"), "f:5:1: key \"name\" is already there, at f:2:3"},
      {With(R"("seed": "7")"), "f:5:9: seed: must be a whole number at least 0, got \"7\""},
      {With(R"("seed": -1)"), "f:5:9: seed: must be a whole number at least 0, got -1"},
      {With(R"("seed": 1.5)"), "f:5:9: seed: must be a whole number at least 0, got 1.5"},
      {With(R"("seed": 18446744073709551616)"),
       "f:5:9: seed: must be a whole number at least 0, got 18446744073709551616"},
      {With(R"("seed": null)"), "f:5:9: seed: must be a whole number at least 0, got null"},
      {With(R"("train": {"epochs": 0})"), "f:5:21: train.epochs: must be a number in (0, 1e+09], got 0"},
      {With(R"("train": {"epochs": true})"),
       "f:5:21: train.epochs: must be a number in (0, 1e+09], got true"},
      {With(R"("train": {"clip_norm": 1e39})"),
       "f:5:24: train.clip_norm: must be a number at least 0, got 1e39"},
      {With(R"("train": {"clip_norm": 1e999})"), "f:5:24: number overflow"},
      {With(R"("train": {"clip_norm": NaN})"), "f:5:24: invalid literal; near NaN"},
      {With(R"("train": {"divergence": 1})"),
       "f:5:25: train.divergence: must be above 1, or 0 for off, got 1: it is how many times its lowest the "
       "loss may be"},
      {With(R"("train": [])"),
       "f:5:10: train: must be an object with epochs, examples, clip_norm, micro_batches, "
       "divergence, steps, max_seconds, clip_value, clip; got a list"},
      {With(R"("optimizer": {"type": "momentum", "momentum": 1})"),
       "f:5:47: optimizer.momentum: must be a number in [0, 1), got 1"},
      // 1 - 1e-12 is 1 as a float.
      {With(R"("optimizer": {"type": "momentum", "momentum": 0.999999999999})"),
       "f:5:47: optimizer.momentum: must be a number in [0, 1), got 0.999999999999"},
      {With(R"("optimizer": {"type": "adam", "epsilon": 1e-60})"),
       "f:5:42: optimizer.epsilon: must be a number in (0, 1], got 1e-60"},
      {With(R"("optimizer": {"type": "Adam"})"),
       "f:5:23: optimizer.type: must be one of sgd, momentum, nesterov, "
       "adagrad, rmsprop, adam, adamw, lion, lamb, got \"Adam\""},
      {With(R"("optimizer": {"type": "unspecified"})"), "f:5:23: optimizer.type: must be one of sgd, "},
      {With(R"("optimizer": {"type": 6})"), "f:5:23: optimizer.type: must be one of sgd, "},
      {With(R"("optimizer": {"groups": [{"match": "*"}, {"match": ""}]})"),
       "f:5:52: optimizer.groups[1].match: must be a string of 1 byte or more, got \"\""},
      {With(R"("optimizer": {"groups": [{"frozen": true}]})"),
       "f:5:26: optimizer.groups[0].match: is missing and must be given"},
      {With(R"("optimizer": {"groups": {}})"), "f:5:25: optimizer.groups: must be a list, got an object"},
      {With(R"("optimizer": {"groups": [7]})"),
       "f:5:26: optimizer.groups[0]: must be an object with match, learning_rate_factor, weight_decay, "
       "frozen, clip_weights, l2; got 7"},
      {With(R"("optimizer": {"clip_weights": -0.01})"),
       "f:5:31: optimizer.clip_weights: must be a number in [0, 1e+30], got -0.01"},
      {With(R"("optimizer": {"groups": [{"match": "*", "clip_weights": 1e31}]})"),
       "f:5:57: optimizer.groups[0].clip_weights: must be a number in [0, 1e+30], got 1e31"},
      {With(R"("cluster": {"workers": 0})"),
       "f:5:24: cluster.workers: must be a whole number in [1, 1024], got 0"},
      {With(R"("cluster": {"workers": 4294967296})"),
       "f:5:24: cluster.workers: must be a whole number in [1, 1024], got 4294967296"},
      {With(R"("wire": {"chunk_kib": 128})"),
       "f:5:23: wire.chunk_kib: must be a whole number in [256, 1024], got 128"},
      {With(R"("wire": {"congestion_control": ""})"),
       "f:5:32: wire.congestion_control: must be a string of 1 to 15 bytes, got \"\""},
      {With(R"("wire": {"dtype": "fp16"})"),
       "f:5:19: wire.dtype: must be one of f32, bf16, int8, int4, bit1, topk, got \"fp16\""},
      {With(R"("wire": {"dtype": "int8"})"),
       "f:5:19: wire.dtype: must be f32 or bf16, got \"int8\", which only pushes can have; set "
       "wire.push_dtype "
       "instead"},
      {With(R"("wire": {"error_feedback": true})"),
       "f:5:28: wire.error_feedback: must be false unless wire.push_dtype is int8, int4, bit1 or topk; "
       "take it out"},
      {With(R"("wire": {"pull_dtype": "topk"})"),
       "f:5:24: wire.pull_dtype: must be f32 or bf16, got \"topk\": weights do not travel so; set "
       "wire.push_dtype instead"},
      {With(R"("wire": {"push_dtype": "int8", "push_share": 0.01})"),
       "f:5:46: wire.push_share: is for wire.push_dtype \"topk\" alone; take it out, or set "
       "wire.push_dtype to topk"},
      {With(R"("wire": {"push_dtype": "topk", "push_share": 0.6})"),
       "f:5:46: wire.push_share: must be a number in [2e-04, 0.5], got 0.6"},
      {With(R"("server": {"apply": "streaming"})"),
       "f:5:21: server.apply: must be one of streamed, staged, got \"streaming\""},
      {With(R"("checkpoint": {"directory": ""})"),
       "f:5:29: checkpoint.directory: must be a string of 1 byte or more, got \"\""},
      {With(R"("checkpoint": {"directory": "x", "keep": 0})"),
       "f:5:42: checkpoint.keep: must be a whole number in [1, 1000], got 0"},
      {With(R"("checkpoint": {"directory": "x", "every_seconds": -1})"),
       "f:5:51: checkpoint.every_seconds: must be a number in [0, 86400], got -1"},
      {With(R"("consistency": {"parts": 4, "backup_workers": 1024})"),
       "f:5:47: consistency.backup_workers: must be a whole number in [0, 1023], got 1024"},
      {With(R"("consistency": {"on_nonfinite": "ignore"})"),
       "f:5:33: consistency.on_nonfinite: must be one of reject, skip_worker, stop, got \"ignore\""},
      {With(R"("debug": {"delayed_worker": 4294967296})"),
       "f:5:29: debug.delayed_worker: must be a whole number in [0, 4294967295], got 4294967296"},
      {WithLayers(""), "f:3:13: model.layers: must have 1 to 1000 elements, has 0"},
      {WithLayers(R"({"units": 3})"),
       "f:3:14: model.layers[0].type: is missing and must be given: one of dense, conv2d"},
      {WithLayers(R"({"type": "dens"})"),
       "f:3:23: model.layers[0].type: must be one of dense, conv2d, max_pool, "},
      {R"({"data": {"format": "digits"}})",
       "f:1:1: model: is missing and must be given with data.format: an object with layers, loss. (A program "
       "that "
       "brings its own model and data leaves out model, and of data all but batch_size and drop_last)"},
      {WithData("{}"),
       "f:2:9: data.format: is missing and must be given with model: one of digits, idx, csv. (A program"},
      {WithData(R"({"format": "csv", "header": 1})"), "f:2:37: data.header: must be true or false, got 1"},
      {WithData(R"({"format": "csv", "label_column": -2147483649})"),
       "f:2:43: data.label_column: must be a whole number in [-2147483648, 2147483647], got -2147483649"},
      {WithData(R"({"format": "csv", "train": {"path": 1}})"),
       "f:2:45: data.train.path: must be a string, got 1"},
      {WithData(R"({"format": "csv", "train": {"path": ""}})"),
       "f:2:45: data.train.path: must be a string of 1 byte or more"},
      {WithData(R"({"format": "digits", "scale": "big"})"),
       "f:2:39: data.scale: must be a finite number, got \"big\""},
  };
  for (const Case& c : cases) {
    INFO(c.text);
    const std::string error = Error(c.text);
    INFO(error);
    CHECK(absl::StartsWith(error, c.expected));
    CHECK_FALSE(absl::StrContains(error, "\n"));
  }
}

TEST_CASE("How values travel and are applied") {
  const v1::JobConfig defaults = Parse(kBase);
  CHECK(defaults.wire().transport() == v1::WireConfig::TRANSPORT_AUTO);
  CHECK(defaults.wire().dtype() == v1::WireConfig::TYPE_F32);
  CHECK_FALSE(defaults.wire().has_push_dtype());
  CHECK(defaults.wire().chunk_kib() == 512);
  CHECK(defaults.wire().congestion_control() == "auto");
  CHECK(defaults.server().apply() == v1::ServerConfig::APPLY_STREAMED);
  const v1::JobConfig config = Parse(With(
      R"("wire": {"transport": "shared_memory", "push_dtype": "bf16", "chunk_kib": 768, "chunks_in_flight": 64,
           "congestion_control": "My_CC-2"}, "server": {"apply": "staged", "io_threads": 2})"));
  CHECK(config.wire().transport() == v1::WireConfig::TRANSPORT_SHARED_MEMORY);
  CHECK(config.wire().push_dtype() == v1::WireConfig::TYPE_BF16);
  CHECK(config.wire().chunk_kib() == 768);
  CHECK(config.wire().congestion_control() == "My_CC-2");
  CHECK(config.server().apply() == v1::ServerConfig::APPLY_STAGED);
}

TEST_CASE("Checkpoints and backup workers") {
  const v1::JobConfig defaults = Parse(With(R"("checkpoint": {"directory": "runs/7"})"));
  CHECK(defaults.checkpoint().directory() == "runs/7");
  CHECK(defaults.checkpoint().every_steps() == 0);
  CHECK(defaults.checkpoint().every_seconds() == 0);
  CHECK(defaults.checkpoint().keep() == 3);
  CHECK(defaults.consistency().backup_workers() == 0);
  CHECK(defaults.consistency().on_nonfinite() == v1::ConsistencyConfig::ON_NONFINITE_STOP);
  CHECK(Parse(With(R"("consistency": {"mode": "async", "on_nonfinite": "skip_worker"})"))
            .consistency()
            .on_nonfinite() == v1::ConsistencyConfig::ON_NONFINITE_SKIP_WORKER);
  // `init_from` alone needs no folder of the job's own.
  CHECK(Parse(With(R"("checkpoint": {"init_from": "runs/6"})")).checkpoint().init_from() == "runs/6");
  CHECK(Parse(With(R"("checkpoint": {"directory": "x", "every_seconds": 0, "every_steps": 7, "keep": 1})"))
            .checkpoint()
            .every_steps() == 7);
  CHECK(Parse(With(R"("consistency": {"parts": 4, "backup_workers": 3})")).consistency().backup_workers() ==
        3);
  // The number of parts is known only with the cluster.
  CHECK(Parse(With(R"("consistency": {"backup_workers": 9})")).consistency().backup_workers() == 9);
  CHECK(Parse(With(R"("consistency": {"parts": 1, "backup_workers": 0})")).consistency().parts() == 1);
}

TEST_CASE("A config may say where its schema is, for editors") {
  CHECK(ParseJobConfig(R"({"$schema": "job.schema.json", "seed": 7})", "f")->seed() == 7);
  const auto number = ParseJobConfig(R"({"$schema": 1})", "f");
  CHECK(absl::StrContains(number.status().message(), "f:1:2: $schema: unknown field"));
}

TEST_CASE("Impossible combinations are refused with their paths") {
  struct Case {
    std::string text;
    std::string expected;
  };
  const std::vector<Case> cases = {
      {With(R"("consistency": {"mode": "bounded"})"),
       "f:5:16: consistency.staleness: is missing and must be given with mode \"bounded\""},
      {With(R"("consistency": {"mode": "async", "staleness": 2})"),
       "f:5:47: consistency.staleness: is not used with mode \"async\", only with bounded; take it out "
       "(--set consistency.staleness=null) or change consistency.mode"},
      {With(R"("consistency": {"mode": "async", "tables": "async"}, "tables": [{"name": "t", "dim": 1}])"),
       "f:5:44: consistency.tables: is not used with mode \"async\", only with sync, bounded"},
      {With(R"("consistency": {"tables": "async"})"),
       "f:5:27: consistency.tables: is \"async\", but the job has no `tables`; take it out"},
      {With(R"("consistency": {"mode": "sync", "staleness_policy": {"type": "scale"}})"),
       "f:5:53: consistency.staleness_policy: is not used with mode \"sync\", only with bounded, async; take "
       "it out"},
      {With(R"("consistency": {"mode": "async", "staleness_policy": {"type": "drop"}})"),
       "f:5:54: consistency.staleness_policy.limit: is missing and must be given with type \"drop\""},
      {With(R"("consistency": {"mode": "async", "staleness_policy": {"type": "scale", "limit": 3}})"),
       "f:5:81: consistency.staleness_policy.limit: is not used with type \"scale\", only with drop"},
      {With(R"("consistency": {"staleness": 2})"),
       "f:5:30: consistency.staleness: is not used with mode \"sync\", only with bounded"},
      {With(R"("consistency": {"prefetch": true, "mode": "async"})"),
       "f:5:29: consistency.prefetch: is not used with mode \"async\", only with bounded"},
      {With(R"("consistency": {"prefetch": true, "mode": "bounded", "staleness": 0})"),
       "f:5:29: consistency.prefetch: needs a consistency.staleness of at least 1"},
      {With(R"("consistency": {"mode": "bounded", "staleness": 0, "parts": 4})"),
       "f:5:61: consistency.parts: is not used with mode \"bounded\", only with sync"},
      {With(R"("consistency": {"mode": "bounded", "staleness": 0, "backup_workers": 0})"),
       "f:5:70: consistency.backup_workers: is not used with mode \"bounded\", only with sync"},
      {With(R"("consistency": {"mode": "async", "backup_workers": 1})"),
       "f:5:52: consistency.backup_workers: is not used with mode \"async\""},
      {With(R"("consistency": {"parts": 4, "backup_workers": 4}, "cluster": {"workers": 8})"),
       "f:5:47: consistency.backup_workers: must be below consistency.parts, which is 4, got 4"},
      {With(R"("consistency": {"backup_workers": 3}, "cluster": {"workers": 2})"),
       "f:5:35: consistency.backup_workers: must be below cluster.workers, which is 2, got 3"},
      {With(R"("local": {"steps": 2})"),
       "f:5:10: local.inner: is missing and must be given with local.steps 2: the rule of a worker's own "
       "steps, as {\"type\": \"sgd\", \"learning_rate\": 0.1}"},
      {With(R"("local": {"steps": 2, "inner": {}}, "tables": [{"name": "t", "dim": 1}])"),
       "f:5:20: local.steps: must be 1, got 2: the job has `tables`"},
      {With(R"("local": {"inner": {}}, "tables": [{"name": "t", "dim": 1}])"),
       "f:5:20: local.inner: steps no rows, and the job has `tables`; take it out"},
      {R"({"local": {"steps": 2, "inner": {}}})",
       "f:1:33: local.inner: is for the program `worker`, but the job has no model: a program of one's own "
       "brings its inner rule; take it out"},
      {With(R"("local": {"keep_state": true})"),
       "f:5:25: local.keep_state: is true, but a worker takes no steps of its own, whose rule would have a "
       "state; set local.steps, or take it out"},
      {R"({"local": {"keep_state": true}})",
       "f:1:26: local.keep_state: is true, but a worker takes no steps"},
      {With(R"("local": {"steps": 2, "inner": {}, "keep_state": true})"),
       "f:5:50: local.keep_state: is true, but local.inner.type \"sgd\" has no state; take it out"},
      {With(R"("local": {"inner": {"type": "lamb"}})"),
       "f:5:29: local.inner.type: is \"lamb\", which only the servers apply; use \"adamw\""},
      {With(R"("local": {"inner": {"type": "adam", "momentum": 0.5}})"),
       "f:5:49: local.inner.momentum: is not used with type \"adam\", only with momentum, nesterov"},
      {With(R"("local": {"inner": {"schedule": {"type": "exponential"}}})"),
       "f:5:33: local.inner.schedule.gamma: is missing and must be given with type \"exponential\""},
      {With(R"("train": {"steps": 8000000000000}, "local": {"steps": 10, "inner": {}})"),
       "f:5:20: train.steps: must be at most 27487790694 with data.batch_size 32 x local.steps 10, got "
       "8000000000000"},
      {With(R"("checkpoint": {"every_steps": 5})"),
       "f:5:31: checkpoint.every_steps: needs checkpoint.directory, the folder where checkpoints go"},
      {With(R"("checkpoint": {"every_seconds": 5, "init_from": "x"})"),
       "f:5:33: checkpoint.every_seconds: needs checkpoint.directory"},
      {With(R"("checkpoint": {"keep": 5})"), "f:5:24: checkpoint.keep: needs checkpoint.directory"},
      {With(R"("checkpoint": {"directory": "x", "every_seconds": 0.05})"),
       "f:5:51: checkpoint.every_seconds: must be 0 (not by time) or at least 0.1, got 0.05"},
      {With(R"("evaluation": {"keep_best": true})"),
       "f:5:29: evaluation.keep_best: needs checkpoint.directory, the folder where checkpoints go"},
      {With(R"("evaluation": {"every_epochs": 0, "patience": 3})"),
       "f:5:47: evaluation.patience: needs evaluations of epochs, and evaluation.every_epochs is 0"},
      {With(R"("evaluation": {"metric": "test_loss"})"),
       "f:5:26: evaluation.metric: is for evaluation.keep_best and evaluation.patience"},
      {With(R"("evaluation": {"min_delta": 0.1})"),
       "f:5:29: evaluation.min_delta: is for evaluation.patience, which is not given"},
      {With(R"("evaluation": {"patience": 1000})"),
       "f:5:28: evaluation.patience: must be a whole number in [0, 999], got 1000"},
      {With(R"("checkpoint": {"directory": "s3://bucket"})"),
       "f:5:29: checkpoint.directory: must be s3://BUCKET/PREFIX"},
      {With(R"("checkpoint": {"init_from": "gs://bucket/runs"})"),
       "f:5:29: checkpoint.init_from: \"gs://bucket/runs\" begins with gs:, which is not known"},
      {With(R"("checkpoint": {"directory": "$SCRATCH/runs"})"),
       "f:5:29: checkpoint.directory: \"$SCRATCH/runs\" has $SCRATCH in it, which only a shell replaces"},
      {With(R"("checkpoint": {"directory": "~ann/runs"})"),
       "f:5:29: checkpoint.directory: \"~ann/runs\" begins with ~ann, which only a shell replaces"},
      {WithData(R"({"format": "csv", "train": {"path": "s3://bucket/x"}, "test": {"path": "x"}})"),
       "f:2:45: data.train.path: \"s3://bucket/x\" is in object storage, which is for checkpoints"},
      {With(
           R"("server": {"durability": "log"}, "consistency": {"mode": "async"}, "checkpoint": {"directory": "s3://b-1/x"})"),
       "f:5:26: server.durability: is \"log\", which needs a checkpoint.directory on a disk"},
      {With(R"("server": {"durability": "log"}, "consistency": {"mode": "async"})"),
       "f:5:26: server.durability: is \"log\", which needs checkpoint.directory"},
      {With(R"("server": {"durability": "log"}, "checkpoint": {"directory": "x"})"),
       "f:5:26: server.durability: is \"log\", which is for consistency.mode \"bounded\" and \"async\""},
      {With(
           R"("server": {"durability": "log", "apply": "streamed"}, "consistency": {"mode": "async"}, "checkpoint": {"directory": "x"})"),
       "f:5:42: server.apply: is \"streamed\", but with server.durability \"log\""},
      {With(R"("train": {"epochs": 1, "examples": 5})"),
       "f:5:36: train.examples: cannot be given together with train.epochs"},
      {With(R"("train": {"micro_batches": 33})"),
       "f:5:28: train.micro_batches: must be at most data.batch_size, which is 32, got 33"},
      {With(R"("wire": {"chunk_kib": 300})"), "f:5:23: wire.chunk_kib: must be a multiple of 256, got 300"},
      {With(R"("wire": {"congestion_control": "cubic; reno"})"),
       "f:5:32: wire.congestion_control: must be \"auto\" or a name of letters, digits, _ and -, as "
       "\"cubic\", "
       "got \"cubic; reno\""},
      {With(R"("cluster": {"workers": 2, "min_workers": 3})"),
       "f:5:42: cluster.min_workers: must be at most cluster.workers, which is 2, got 3"},
      {With(R"("debug": {"delayed_worker": 0})"),
       "f:5:29: debug.delayed_worker: needs debug.worker_delay or debug.slow_factor"},
      {With(R"("debug": {"batch_seconds": 0.1, "slow_factor": 4})"),
       "f:5:48: debug.slow_factor: needs debug.delayed_worker or debug.slow_share"},
      {With(R"("debug": {"batch_seconds": 0.1, "slow_share": 0.1})"),
       "f:5:47: debug.slow_share: needs debug.slow_factor"},
      {With(R"("debug": {"slow_factor": 4, "delayed_worker": 0})"),
       "f:5:26: debug.slow_factor: needs debug.batch_seconds"},
      {With(R"("debug": {"jitter": 0.1})"), "f:5:21: debug.jitter: needs debug.batch_seconds"},
      {With(R"("cluster": {"workers": 2}, "debug": {"worker_delay": 0.1, "delayed_worker": 2})"),
       "f:5:77: debug.delayed_worker: must be below cluster.workers, which is 2, got 2"},
      {With(R"("optimizer": {"type": "adam", "momentum": 0.9})"),
       "f:5:43: optimizer.momentum: is not used with type \"adam\", only with momentum, nesterov"},
      {With(R"("optimizer": {"beta1": 0.9})"),
       "f:5:24: optimizer.beta1: is not used with type \"sgd\", only with adam, adamw, lion, lamb"},
      {With(R"("optimizer": {"type": "adagrad", "decay": 0.9})"), "f:5:43: optimizer.decay: is not used"},
      {With(R"("optimizer": {"type": "nesterov", "epsilon": 0.1})"),
       "f:5:46: optimizer.epsilon: is not used"},
      {With(R"("optimizer": {"schedule": {"type": "step"}})"),
       "f:5:27: optimizer.schedule.step_size: is missing and must be given with type \"step\""},
      {With(R"("optimizer": {"schedule": {"type": "cosine", "gamma": 0.5}})"),
       "f:5:55: optimizer.schedule.gamma: is not used with type \"cosine\", only with step, "
       "exponential, multi_step"},
      {With(R"("optimizer": {"type": "lamb", "amsgrad": true})"),
       "f:5:42: optimizer.amsgrad: is not used with type \"lamb\", only with adam, adamw"},
      {With(R"("optimizer": {"type": "lamb"}, "consistency": {"mode": "async"})"),
       "f:5:23: optimizer.type: is \"lamb\", which is for consistency.mode \"sync\": the norms by which it "
       "scales a step are over all servers, and only there do all apply the same step; use \"adamw\""},
      {With(
           R"("train": {"clip": "mean", "clip_norm": 1}, "consistency": {"mode": "bounded", "staleness": 1})"),
       "f:5:19: train.clip: is \"mean\", which is for consistency.mode \"sync\": in other modes each push is "
       "an update of its own, and there is no mean; take it out"},
      {With(R"("train": {"clip": "mean"})"),
       "f:5:19: train.clip: needs train.clip_norm, which says how large the norm may be"},
      {With(R"("train": {"clip": "mean", "clip_norm": 1}, "tables": [{"name": "t", "dim": 2}])"),
       "f:5:19: train.clip: is \"mean\", which clips no rows, and the job has `tables`; use \"push\", which "
       "clips rows and tensors together"},
      {With(R"("optimizer": {"amsgrad": true})"),
       "f:5:26: optimizer.amsgrad: is not used with type \"sgd\", only with adam, adamw"},
      {With(R"("optimizer": {"schedule": {"type": "exponential"}})"),
       "f:5:27: optimizer.schedule.gamma: is missing and must be given with type \"exponential\""},
      {With(R"("optimizer": {"schedule": {"type": "multi_step"}})"),
       "f:5:27: optimizer.schedule.milestones: is missing and must be given with type \"multi_step\""},
      {With(R"("optimizer": {"schedule": {"type": "multi_step", "milestones": [5, 9, 9]}})"),
       "f:5:71: optimizer.schedule.milestones[2]: must be above the one before it, which is 9, got 9"},
      {With(R"("optimizer": {"schedule": {"type": "linear", "power": 2}})"),
       "f:5:55: optimizer.schedule.power: is not used with type \"linear\", only with polynomial"},
      {With(R"("optimizer": {"schedule": {"type": "cosine", "peak_share": 0.5}})"),
       "f:5:60: optimizer.schedule.peak_share: is not used with type \"cosine\", only with one_cycle"},
      {With(R"("optimizer": {"schedule": {"warmup_steps": 5, "warmup_share": 0.1}})"),
       "f:5:63: optimizer.schedule.warmup_share: cannot be given together with warmup_steps: both say how "
       "long the warm-up is"},
      {With(R"("optimizer": {"schedule": {"warmup_share": 0.1, "warmup_epochs": 2}})"),
       "f:5:66: optimizer.schedule.warmup_epochs: cannot be given together with warmup_share"},
      {With(R"("optimizer": {"schedule": {"warmup_epochs": 10}})"),
       "f:5:45: optimizer.schedule.warmup_epochs: must be below train.epochs, the length of the job, which "
       "must be given in epochs; got 10"},
      {With(R"("optimizer": {"schedule": {"warmup_epochs": 1}}, "train": {"steps": 20})"),
       "f:5:45: optimizer.schedule.warmup_epochs: must be below train.epochs"},
      {With(R"("train": {"epochs": 1, "steps": 20})"),
       "f:5:33: train.steps: cannot be given together with train.epochs: both say how long the job is"},
      {With(R"("train": {"examples": 1, "steps": 20})"),
       "f:5:35: train.steps: cannot be given together with train.examples: both say how long the job is"},
      {With(R"("train": {"steps": 274877906945})"),
       "f:5:20: train.steps: must be at most 274877906944 with data.batch_size 32, got 274877906945"},
      {With(R"("optimizer": {"schedule": {"total_steps": 5}})"),
       "f:5:43: optimizer.schedule.total_steps: is not used"},
      {With(R"("optimizer": {"schedule": {"type": "step", "step_size": 5, "final_factor": 0.5}})"),
       "f:5:76: optimizer.schedule.final_factor: is not used"},
      {WithLayers(R"({"type": "dense"})"),
       "f:3:14: model.layers[0].units: is missing and must be given with type \"dense\""},
      {WithLayers(R"({"type": "conv2d", "kernel": 3})"), "f:3:14: model.layers[0].filters: is missing"},
      {WithLayers(R"({"type": "conv2d", "filters": 3})"), "f:3:14: model.layers[0].kernel: is missing"},
      {WithLayers(R"({"type": "max_pool"})"), "f:3:14: model.layers[0].kernel: is missing"},
      {WithLayers(R"({"type": "dropout"})"), "f:3:14: model.layers[0].rate: is missing"},
      {WithLayers(R"({"type": "relu", "units": 3})"),
       "f:3:40: model.layers[0].units: is not used with type \"relu\", only with dense; take it out "
       "(--set model.layers[0].units=null) or change model.layers[0].type"},
      {WithLayers(R"({"type": "max_pool", "kernel": 2, "padding": 1})"),
       "f:3:59: model.layers[0].padding: is not used"},
      {WithLayers(R"({"type": "flatten", "init": "zeros"})"), "f:3:42: model.layers[0].init: is not used"},
      {WithLayers(R"({"type": "relu", "name": "a"}, {"type": "tanh", "name": "a"})"),
       "f:3:70: model.layers[1].name: is \"a\", as that of model.layers[0]; layers must have different "
       "names"},
      {WithLayers(R"({"type": "relu", "name": "relu_1"}, {"type": "relu"})"),
       "f:3:50: model.layers[1].name: is \"relu_1\", as that of model.layers[0]"},
      {WithData(R"({"format": "digits", "train": {"path": "x"}})"),
       "f:2:39: data.train: is not used with format \"digits\", only with idx, csv"},
      {WithData(R"({"format": "digits", "label_column": 0})"),
       "f:2:46: data.label_column: is not used with format \"digits\", only with csv"},
      {WithData(R"({"format": "csv", "test": {"path": "x"}})"),
       "f:2:9: data.train: is missing and must be given with format \"csv\""},
      {WithData(R"({"format": "csv", "train": {"path": "x"}, "test": {}})"),
       "f:2:59: data.test.path: is missing and must be given with this format, which takes path"},
      {WithData(R"({"format": "idx", "train": {"images": "x"}, "test": {"images": "a", "labels": "b"}})"),
       "f:2:36: data.train.labels: is missing and must be given with this format, which takes images and "
       "labels"},
      {WithData(R"({"format": "idx", "train": {"images": "x", "labels": "y", "path": "z"},
                    "test": {"images": "a", "labels": "b"}})"),
       "f:2:75: data.train.path: is not used with this format, which takes images and labels"},
      {WithData(R"({"format": "idx", "header": true, "train": {"images": "x", "labels": "y"},
                    "test": {"images": "a", "labels": "b"}})"),
       "f:2:37: data.header: is not used with format \"idx\", only with csv"},
      {WithData(R"({"format": "digits", "classes": 10})"),
       "f:2:41: data.classes: is not used with format \"digits\", only with idx, csv"},
  };
  for (const Case& c : cases) {
    INFO(c.text);
    const std::string error = Error(c.text);
    INFO(error);
    CHECK(absl::StartsWith(error, c.expected));
    CHECK_FALSE(absl::StrContains(error, "\n"));
  }
}

TEST_CASE("Impossible columns, layers and metrics of sparse features are refused with their paths") {
  struct Case {
    std::string text;
    std::string expected;
  };
  const std::vector<Case> cases = {
      {With(R"("evaluation": {"metric": "test_auc", "patience": 1})"),
       "evaluation.metric: is \"test_auc\", which only model.loss \"sigmoid_cross_entropy\" has"},
      {WithData(R"({"format": "digits", "validation": {"path": "x"}})"),
       "data.validation: is not used with format \"digits\", only with idx, csv"},
      {With(R"("evaluation": {"metric": "auc", "patience": 1})"),
       "evaluation.metric: is \"auc\", which only model.loss \"sigmoid_cross_entropy\" has; use \"loss\""},
      {WithData(
           R"({"format": "csv", "train": {"path": "x"}, "test": {"path": "y"}, "validation": {"path": "z", "images": "z"}})"),
       "data.validation.images: is not used with this format, which takes path"},
      {WithData(R"({"format": "digits", "columns": [{"name": "y", "type": "label"}, {"name": "n"}]})"),
       "data.columns: is not used with format \"digits\", only with csv"},
      {WithData(R"({"format": "csv", "train": {"path": "x"}, "test": {"path": "y"}, "columns": [
                    {"name": "y", "type": "label"}, {"name": "z", "type": "label"}, {"name": "n"}]})"),
       "data.columns: must have exactly one column of type \"label\", got 2"},
      {WithData(R"({"format": "csv", "train": {"path": "x"}, "test": {"path": "y"}, "columns": [
                    {"name": "y", "type": "label"}, {"name": "z", "type": "ignored"}]})"),
       "data.columns: must have a column of type \"number\", \"categorical\" or \"key\", got none"},
      {WithData(
           R"({"format": "csv", "train": {"path": "x"}, "test": {"path": "y"}, "label_column": 0, "columns": [
                    {"name": "y", "type": "label"}, {"name": "n"}]})"),
       "data.label_column: cannot be given together with data.columns"},
      {WithData(R"({"format": "csv", "train": {"path": "x"}, "test": {"path": "y"}, "columns": [
                    {"name": "y", "type": "label"}, {"name": "n"}, {"name": "n", "type": "key"}]})"),
       "data.columns[2].name: is \"n\", as that of data.columns[1]; columns must have different names"},
      {WithData(R"({"format": "csv", "train": {"path": "x"}, "test": {"path": "y"}, "columns": [
                    {"name": "y", "type": "label"}, {"name": "n", "separator": "|"}]})"),
       "data.columns[1].separator: is not used with type \"number\", only with categorical, key"},
      {WithData(
           R"({"format": "csv", "train": {"path": "x"}, "test": {"path": "y"}, "separator": "|", "columns": [
                    {"name": "y", "type": "label"}, {"name": "k", "type": "key", "separator": "|"}]})"),
       "data.columns[1].separator: is \"|\", as data.separator; the two must differ"},
      {WithLayers(R"({"type": "embedding", "table": "t"})"),
       "model.layers[0].column: is missing and must be given with type \"embedding\""},
      {WithLayers(R"({"type": "relu", "pooling": "sum"})"),
       "model.layers[0].pooling: is not used with type \"relu\", only with embedding"},
  };
  for (const Case& c : cases) {
    INFO(c.text);
    const std::string error = Error(c.text);
    INFO(error);
    CHECK(absl::StrContains(error, absl::StrCat(": ", c.expected)));
    CHECK_FALSE(absl::StrContains(error, "\n"));
  }
}

TEST_CASE("Tables are read, with the schema's defaults") {
  const v1::JobConfig config = Parse(R"({"tables": [
      {"name": "ads/users-1.0_b", "dim": 64, "max_rows": 65536, "expire_after_steps": 10,
       "init": {"type": "uniform", "value": 0.5},
       "optimizer": {"type": "ftrl", "learning_rate": 0.1, "l1": 1, "schedule": {"warmup_steps": 10}}},
      {"name": "items", "dim": 1, "optimizer": {"type": "adamw", "weight_decay": 0.1, "learning_rate": 0,
       "schedule": {"type": "cosine"}}}]})");
  REQUIRE(config.tables_size() == 2);
  CHECK(config.tables(0).init().type() == v1::TableInit::KIND_UNIFORM);
  CHECK(config.tables(0).optimizer().beta() == 1);
  CHECK(config.tables(1).init().type() == v1::TableInit::KIND_NORMAL);
  CHECK(config.tables(1).init().value() == 0.01f);
  CHECK(config.tables(1).admit_after() == 0);
  CHECK(Parse(R"({"tables": [{"name": "t", "dim": 1}]})").tables(0).optimizer().type() ==
        v1::TableOptimizer::KIND_ROWWISE_ADAGRAD);
}

TEST_CASE("Impossible tables are refused with their paths") {
  struct Case {
    std::string tables, expected;
  };
  const std::vector<Case> cases = {
      {R"({"dim": 1})", "tables[0].name: is missing"},
      {R"({"name": "t"})", "tables[0].dim: is missing"},
      {R"({"name": "t", "dim": 16385})", "tables[0].dim: must be"},
      {R"({"name": "a b", "dim": 1})",
       "tables[0].name: must have letters, digits, _, -, . and / only, got \"a b\""},
      {R"({"name": "t", "dim": 1}, {"name": "u", "dim": 1}, {"name": "t", "dim": 2})",
       "tables[2].name: is \"t\", as that of tables[0]; tables must have different names"},
      {R"({"name": "t", "dim": 1, "max_rows": 65535})",
       "tables[0].max_rows: must be 0 (any number) or at least 65536, a row for each bucket of keys, got "
       "65535"},
      {R"({"name": "t", "dim": 1, "init": {"value": -1}})",
       "tables[0].init.value: must be at least 0, since it is the width of a distribution, got -1"},
      {R"({"name": "t", "dim": 1, "optimizer": {"momentum": 0.5}})",
       "tables[0].optimizer.momentum: is not used with type \"rowwise_adagrad\", only with momentum"},
      {R"({"name": "t", "dim": 1, "optimizer": {"type": "sgd", "beta1": 0.5}})",
       "tables[0].optimizer.beta1: is not used with type \"sgd\", only with adam, adamw"},
      {R"({"name": "t", "dim": 1, "optimizer": {"type": "momentum", "epsilon": 0.5}})",
       "tables[0].optimizer.epsilon: is not used with type \"momentum\""},
      {R"({"name": "t", "dim": 1, "optimizer": {"type": "adam", "l2": 1}})",
       "tables[0].optimizer.l2: is not used with type \"adam\", only with ftrl"},
      {R"({"name": "t", "dim": 1, "optimizer": {"type": "ftrl", "weight_decay": 0.5}})",
       "tables[0].optimizer.weight_decay: is not used with type \"ftrl\""},
      {R"({"name": "t", "dim": 1, "optimizer": {"type": "ftrl", "learning_rate": 0}})",
       "tables[0].optimizer.learning_rate: must be above 0 with type \"ftrl\", which divides by it, got 0"},
      {R"({"name": "t", "dim": 1, "optimizer": {"type": "ftrl", "schedule": {"type": "cosine"}}})",
       "tables[0].optimizer.schedule.type: must be \"constant\" with type \"ftrl\""},
      {R"({"name": "t", "dim": 1, "optimizer": {"schedule": {"type": "step"}}})",
       "tables[0].optimizer.schedule.step_size: is missing and must be given with type \"step\""},
  };
  for (const Case& c : cases) {
    INFO(c.tables);
    const std::string error = Error(absl::StrCat("{\"tables\": [", c.tables, "]}"));
    CHECK_THAT(error, Catch::Contains(c.expected));
    CHECK_FALSE(absl::StrContains(error, "\n"));
  }
}

TEST_CASE("All problems are told at once") {
  const std::string error = Error(With(R"("seed": -1, "tran": {}, "compute": {"threads": 0})"));
  CHECK(std::vector<std::string>(absl::StrSplit(error, '\n')).size() == 3);
  std::string groups;
  for (int i = 0; i < 50; ++i) absl::StrAppend(&groups, i == 0 ? "" : ", ", "{}");
  const std::string many = Error(With(absl::StrCat("\"optimizer\": {\"groups\": [", groups, "]}")));
  CHECK(std::vector<std::string>(absl::StrSplit(many, '\n')).size() == 21);
  CHECK(absl::EndsWith(many, "\nand 30 more"));
}

TEST_CASE("Overrides win over the file and are checked like it") {
  const v1::JobConfig config =
      Parse(With(R"("optimizer": {"type": "momentum", "momentum": 7})"),
            {"seed=9", "name=two words", "model.layers[0].units=64", "model.layers.2.name=out",
             "optimizer.momentum=0.5", "consistency.mode=bounded", "consistency.staleness=3",
             "optimizer.groups=[{\"match\": \"*/bias\"}]", "cluster.workers=2", "cluster.workers=3",
             "data.scale=1e-2"});
  CHECK(config.seed() == 9);
  CHECK(config.name() == "two words");
  CHECK(config.model().layers(0).units() == 64);
  CHECK(config.model().layers(2).name() == "out");
  CHECK(config.optimizer().momentum() == 0.5f);
  CHECK(config.consistency().mode() == v1::ConsistencyConfig::MODE_BOUNDED);
  CHECK(config.consistency().staleness() == 3);
  CHECK(config.optimizer().groups(0).match() == "*/bias");
  CHECK(config.cluster().workers() == 3);
  CHECK(config.data().scale() == 0.01f);
}

TEST_CASE("An override of null takes a field out") {
  const std::string text = With(R"("optimizer": {"type": "momentum", "momentum": 0.5})");
  CHECK(absl::StartsWith(Error(text, {"optimizer.type=adam"}),
                         "f:5:47: optimizer.momentum: is not used with type \"adam\""));
  const v1::JobConfig config = Parse(text, {"optimizer.type=adam", "optimizer.momentum=null"});
  CHECK_FALSE(config.optimizer().has_momentum());
  CHECK(Parse(kBase, {"train=null", "seed=null"}).seed() == 1);
}

TEST_CASE("A bad override is named") {
  struct Case {
    std::string override;
    std::string expected;
  };
  const std::vector<Case> cases = {
      {"", "--set : must be PATH=VALUE"},
      {"seed", "--set seed: must be PATH=VALUE"},
      {"=1", "--set =1: must be PATH=VALUE"},
      {"a..b=1", "--set a..b=1: must be PATH=VALUE"},
      {"a[0=1", "--set a[0=1: must be PATH=VALUE"},
      {"model.layers[3].units=1",
       "--set model.layers[3].units=1: \"3\" is no element of the list, which has 3 elements"},
      {"model.layers[-1].units=1", "--set model.layers[-1].units=1: \"-1\" is no element of the list"},
      {"model.layers.units=1", "--set model.layers.units=1: \"units\" is no element of the list"},
      {"model.layers[0]=null",
       "--set model.layers[0]=null: null takes a field out, but not an element of a list"},
      {"name.x=1", "--set name.x=1: \"x\" is looked for in \"tiny\", which has no fields"},
      {"optimiser.type=sgd",
       "--set optimiser.type=sgd: optimiser: unknown field (did you mean \"optimizer\"?)"},
      {"optimizer.learning_rate=fast",
       "--set optimizer.learning_rate=fast: optimizer.learning_rate: must be a number in [-1e+06, 1e+06], "
       "got \"fast\""},
      {"optimizer={\"type\": \"sdg\"}",
       "--set optimizer={\"type\": \"sdg\"}: optimizer.type: must be one of sgd"},
      {"model.layers[1].type=dense",
       "f:3:55: model.layers[1].units: is missing and must be given with type \"dense\""},
      {"consistency.staleness=3",
       "--set consistency.staleness=3: consistency.staleness: is not used with mode \"sync\""},
      {"model=null", "f:1:1: model: is missing and must be given"},
      {"seed=", "--set seed=: seed: must be a whole number at least 0, got \"\""},
  };
  for (const Case& c : cases) {
    INFO(c.override);
    const std::string error = Error(kBase, {c.override});
    INFO(error);
    CHECK(absl::StartsWith(error, c.expected));
  }
}

TEST_CASE("The effective config parses back to the same") {
  const std::vector<std::string> texts = {
      kBase,
      With(
          R"("optimizer": {"type": "adam", "learning_rate": 0.1, "schedule": {"type": "step", "step_size": 5},
                             "groups": [{"match": "*", "frozen": true}]}, "seed": 18446744073709551615)"),
      With(R"("train": {"examples": 1000}, "consistency": {"mode": "bounded", "staleness": 0},
              "optimizer": {"type": "rmsprop", "learning_rate": 3.4e-7, "schedule": {"type": "cosine"}})"),
      With(R"("name": "\u0001\"\\ü")").replace(0, With("").find("\"model\""), "{\n\n"),
      WithLayers(R"({"type": "conv2d", "filters": 8, "kernel": 5}, {"type": "dense", "units": 3})"),
      WithData(R"({"format": "csv", "train": {"path": "x"}, "test": {"path": "y"}, "label_column": -3})"),
      With(R"("checkpoint": {"directory": "x", "every_seconds": 0.5}, "consistency": {"backup_workers": 1})"),
      With(R"("checkpoint": {"init_from": "y"})"),
      WithData(
          R"({"format": "csv", "train": {"path": "x"}, "test": {"path": "y"}, "separator": "\t", "columns": [
                   {"name": "y", "type": "label"}, {"name": "n"}, {"name": "k", "type": "key", "separator": "|"},
                   {"name": "c", "type": "categorical"}]})"),
      WithLayers(R"({"type": "embedding", "name": "e", "table": "t", "column": "c", "pooling": "mean"},
                    {"type": "concat", "inputs": ["e", "features"]}, {"type": "cross"},
                    {"type": "factorization_machine", "inputs": ["e", "e"]})"),
      R"({"tables": [{"name": "a", "dim": 2, "optimizer": {"type": "adamw"}}, {"name": "b", "dim": 3}]})",
  };
  for (const std::string& text : texts) {
    const v1::JobConfig config = Parse(text);
    for (const bool with_defaults : {false, true}) {
      const std::string json = ToJson(config, with_defaults);
      INFO(json);
      const v1::JobConfig again = Parse(json);
      CHECK(MessageDifferencer::Equivalent(config, again));
      CHECK(FirstDifference(config, again) == "");
      if (!with_defaults) CHECK(MessageDifferencer::Equals(config, again));
      CHECK(ToJson(again, true) == ToJson(config, true));
    }
  }
}

TEST_CASE("The effective config is readable and has what applies") {
  const std::string json = ToJson(Parse(With(R"("optimizer": {"type": "adam"})")), true);
  CHECK(absl::StartsWith(json, R"({
  "name": "tiny",
  "seed": 1,
  "model": {
    "layers": [
      {"type": "dense", "name": "dense_0", "units": 4, "init": "he_normal"},
      {"type": "relu", "name": "relu_1"},
      {"type": "dense", "name": "dense_2", "units": 2, "init": "he_normal"}
    ],
    "loss": "softmax_cross_entropy"
  },
  "data": {
    "format": "digits",
    "batch_size": 32,
    "drop_last": false
  },
  "train": {
    "epochs": 10,
)"));
  CHECK(absl::StrContains(json, R"("beta2": 0.999,)"));
  CHECK(absl::StrContains(json, R"("mode": "sync")"));
  for (const char* absent :
       {"momentum", "staleness", "label_column", "gamma", "\"workers\"", "scale", "examples", "checkpoint"}) {
    INFO(absent);
    CHECK_FALSE(absl::StrContains(json, absent));
  }
  CHECK_FALSE(absl::StrContains(ToJson(Parse(With(R"("train": {"examples": 5})")), true), "\"epochs\""));
}

TEST_CASE("The first difference of two configs is named") {
  const v1::JobConfig base = Parse(kBase);
  struct Case {
    std::string override;
    std::string expected;
  };
  const std::vector<Case> cases = {
      {"seed=1", ""},
      {"optimizer.learning_rate=0.01", ""},
      {"model.layers[0].name=dense_0", ""},
      {"debug.worker_delay=0.5", ""},
      {"optimizer.learning_rate=0.1", "optimizer.learning_rate: expected 0.01, got 0.1"},
      {"optimizer.type=adam", "optimizer.type: expected \"sgd\", got \"adam\""},
      {"model.layers[2].units=3", "model.layers[2].units: expected 2, got 3"},
      {"model.layers=[{\"type\": \"dense\", \"units\": 4}]", "model.layers: expected 3 elements, got 1"},
      {"cluster.workers=4", "cluster.workers: expected none, got 4"},
      {"consistency={\"mode\": \"bounded\", \"staleness\": 0}",
       "consistency.mode: expected \"sync\", got \"bounded\""},
      {"optimizer.groups=[{\"match\": \"*\"}]", "optimizer.groups: expected 0 elements, got 1"},
  };
  for (const Case& c : cases) {
    INFO(c.override);
    CHECK(FirstDifference(base, Parse(kBase, {c.override})) == c.expected);
  }
  const std::vector<Case> saving = {
      {"checkpoint.directory=elsewhere", ""},
      {"checkpoint.init_from=elsewhere", ""},
      {"checkpoint.init_from=null", "checkpoint.init_from: expected \"y\", got none"},
      {"checkpoint.every_seconds=2", "checkpoint.every_seconds: expected 1, got 2"},
      {"checkpoint.every_steps=2", "checkpoint.every_steps: expected 0, got 2"},
      {"checkpoint.keep=2", "checkpoint.keep: expected 3, got 2"},
      {"checkpoint={\"init_from\": \"y\"}", "checkpoint.directory: expected \"x\", got none"},
      {"consistency.backup_workers=1", "consistency.backup_workers: expected 0, got 1"},
  };
  const std::string saves = With(R"("checkpoint": {"directory": "x", "every_seconds": 1, "init_from": "y"})");
  for (const Case& c : saving) {
    INFO(c.override);
    CHECK(FirstDifference(Parse(saves), Parse(saves, {c.override})) == c.expected);
  }
  const std::string csv = WithData(R"({"format": "csv", "train": {"path": "x"}, "test": {"path": "y"}})");
  CHECK(FirstDifference(Parse(csv), Parse(csv, {"data.train.path=z"})) == "");
}

TEST_CASE("Mutated configs and overrides never crash, and what is accepted can be shown") {
  const std::string text = With(
      R"("optimizer": {"type": "adam", "learning_rate": 0.1, "groups": [{"match": "*/bias"}]}, "train": {"epochs": 2},
         "consistency": {"mode": "bounded", "staleness": 3}, "cluster": {"workers": 4, "min_workers": 2})");
  const std::vector<std::string> words = {"null", "true", "-1",   "0",         "1e300",
                                          "[]",   "{}",   "\"\"", "\"dense\"", "4294967296"};
  std::mt19937_64 random(11);
  const auto below = [&random](size_t n) { return static_cast<size_t>(random() % n); };
  int accepted = 0;
  int wrong = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string mutated = text;
    std::vector<std::string> overrides;
    for (size_t edits = 1 + below(2); edits > 0; --edits) {
      const size_t at = below(mutated.size());
      switch (below(4)) {
        case 0:
          mutated[at] = static_cast<char>(random());
          break;
        case 1:
          mutated.erase(at, 1 + below(10));
          break;
        case 2: {  // another value in place of one
          const size_t colon = mutated.find(": ", at);
          if (colon == std::string::npos) break;
          const size_t end = mutated.find_first_of(",}]", colon);
          mutated.replace(colon + 2, end == std::string::npos ? 0 : end - colon - 2,
                          words[below(words.size())]);
          break;
        }
        case 3:
          overrides.push_back(text.substr(below(text.size()), below(20)) + "=" + words[below(words.size())]);
          break;
      }
      if (mutated.empty()) mutated = "{}";
    }
    const absl::StatusOr<v1::JobConfig> config = ParseJobConfig(mutated, "f", overrides);
    if (!config.ok()) {
      wrong += config.status().code() != absl::StatusCode::kInvalidArgument;
      continue;
    }
    ++accepted;
    const absl::StatusOr<v1::JobConfig> again = ParseJobConfig(ToJson(*config, true), "again");
    wrong += !again.ok() || !FirstDifference(*config, *again).empty();
  }
  CHECK(wrong == 0);
  CHECK(accepted > 300);
}

}  // namespace
}  // namespace weir
