#include "cli/predict/advice.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/predict/job_model.h"
#include "cli/report/format.h"
#include "cli/report/summary.h"
#include "client/tensors/wire_options.h"
#include "common/base/status_macros.h"
#include "common/config/job_config.h"
#include "nlohmann/json.hpp"

namespace weir {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kLeastGain = 1.05;
// Workers whose speeds differ by less are alike: a summary's utilization is of ten seconds.
constexpr double kAlike = 0.15;

// A run of a job, as its summary has it.
struct Run {
  std::string config_json;
  v1::JobConfig config;
  JobSummary summary;
  double elements = 0;
  double batches_per_second = 0;
  double computing = 0;
  double batch_seconds = 0;     // the median over workers
  std::vector<double> factors;  // of each worker; empty: all are alike
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The time that each worker computes for a batch, from the share of time in which it computed.
absl::Status ReadComputing(const Json& root, std::optional<double> batch_seconds, Run* run) {
  const JobSummary& s = run->summary;
  const bool sync = s.mode == "sync";
  const double steps = run->config.local().steps();
  std::vector<double> shares, seconds;
  const Json workers = root.value("by_worker", Json::object());
  for (const Json& worker : workers) {
    const Json share = worker.value("utilization", Json()), clock = worker.value("clock", Json());
    if (!share.is_number() || (!sync && !clock.is_number())) continue;
    const double batches =
        sync ? static_cast<double>(s.steps) * s.parts.value_or(s.workers) / s.workers : clock.get<double>();
    if (!(share > 0) || !(batches > 0)) continue;
    shares.push_back(share);
    seconds.push_back(shares.back() * s.wall_seconds / batches / steps);
  }
  if (batch_seconds.has_value()) {
    run->batch_seconds = *batch_seconds;
    run->computing = std::min(1.0, *batch_seconds * run->batches_per_second / s.workers);
    return absl::OkStatus();
  }
  if (shares.empty()) {
    return absl::InvalidArgumentError(
        "field by_worker has no utilization of a worker: the job's program does not report when it computes "
        "(docs/metrics.md), or its run was shorter than a second. Measure how long a batch computes, and "
        "give "
        "--batch_time=50ms");
  }
  run->batch_seconds = Median(seconds);
  double sum = 0;
  for (const double share : shares) sum += share;
  run->computing = sum / static_cast<double>(shares.size());
  const auto [least, most] = std::minmax_element(seconds.begin(), seconds.end());
  if (*most > (1 + kAlike) * *least) {
    for (const double of : seconds) run->factors.push_back(of / run->batch_seconds);
    run->factors.resize(s.workers, 1);
  }
  return absl::OkStatus();
}

absl::StatusOr<Run> ReadRun(const std::string& text, std::optional<double> batch_seconds) {
  Run run;
  WEIR_ASSIGN_OR_RETURN(run.summary, ParseSummary(text));
  const JobSummary& s = run.summary;
  if (!s.failure.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the job failed (", Printable(s.failure), "): advice needs a run that ended well"));
  }
  if (s.bytes_pushed == 0 || s.pushes == 0 || s.steps == 0 || !(s.examples_per_second > 0) ||
      !(s.wall_seconds > 0) || s.workers == 0 || s.ps == 0) {
    return absl::InvalidArgumentError("this run trained nothing: advice needs one that did");
  }
  const Json root = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!root.contains("config")) return absl::InvalidArgumentError("field config: is missing");
  run.config_json = root["config"].dump();
  WEIR_ASSIGN_OR_RETURN(run.config, ParseJobConfig(run.config_json, "config"));
  run.elements = static_cast<double>(s.bytes_pushed) / static_cast<double>(s.pushes) /
                 WireBytes(WireOptions::From(run.config.wire()).push_type(), 1);
  run.batches_per_second = s.examples_per_second / run.config.data().batch_size();
  WEIR_RETURN_IF_ERROR(ReadComputing(root, batch_seconds, &run));
  return run;
}

// The model whose speed is the run's. What `debug` emulates is in the measured times.
class Fitted {
 public:
  explicit Fitted(const Run& run) : run_(run) {
    const double measured = run.batches_per_second;
    if (IsClose()) return;
    // Where nobody waits for others, only the exchange can take the rest of the time.
    if (run.summary.mode != "async") {
      Search(&jitter_, 0, 1.5, measured);
      if (IsClose()) return;
    }
    Search(&cost_, 1, 1e4, measured);
  }

  // `batch`: examples of a batch, over the run's.
  double Speed(const v1::JobConfig& config, uint32_t servers, double batch = 1) const {
    ExchangeCost cost = kExchangeCost;
    for (ClusterModel::End* const end : {&cost.server, &cost.worker}) {
      end->seconds *= cost_;
      end->seconds_per_byte *= cost_;
    }
    ClusterModel m = ModelOfJob(config, run_.elements, run_.summary.workers, servers, cost);
    // The mean over batches is the measured one.
    m.batch_seconds = batch * run_.batch_seconds / std::exp(jitter_ * jitter_ / 2);
    m.factors = run_.factors;
    m.jitter = jitter_;
    m.slow_share = m.delay = 0;
    return PredictCluster(m).batches_per_second;
  }

  double jitter() const { return jitter_; }
  bool costs_more() const { return cost_ > 1; }

 private:
  // A search for the last percents would end anywhere: beside one slow worker, jitter hardly counts.
  bool IsClose() const { return Speed(run_.config, run_.summary.ps) <= 1.03 * run_.batches_per_second; }
  // Speed falls as *value rises.
  void Search(double* value, double low, double high, double measured) {
    for (int i = 0; i < 12; ++i) {
      *value = (low + high) / 2;
      (Speed(run_.config, run_.summary.ps) > measured ? low : high) = *value;
    }
  }

  const Run& run_;
  double jitter_ = 0;
  double cost_ = 1;  // of an exchange, over kExchangeCost
};

// A change of the config or of the servers that may help.
struct Candidate {
  std::string field;  // "FIELD=VALUE"; "": servers
  std::string meaning;
  uint32_t servers = 0;
  double batch = 1;
};

std::vector<Candidate> Candidates(const Run& run) {
  const v1::JobConfig& config = run.config;
  const JobSummary& s = run.summary;
  std::vector<Candidate> out;
  const auto set = [&](const std::string& field, const std::string& meaning, double batch = 1) {
    out.push_back({field, meaning, s.ps, batch});
  };
  const uint32_t parts = s.parts.value_or(s.workers);
  const std::string stale =
      s.mode == "sync" ? absl::StrCat(
                             "accuracy may change: each push is an update, of older weights; begin with the "
                             "learning rate / ",
                             parts)
                       : "accuracy may change: gradients are of older weights";
  if (s.mode != "async") {
    set(R"(consistency={"mode":"async"})", absl::StrCat("no worker waits for another; ", stale));
  }
  if (s.mode == "sync") {
    const uint32_t backups = config.consistency().backup_workers();
    set(R"(consistency={"mode":"bounded","staleness":3})",
        absl::StrCat("workers wait only for one that is more than 3 clocks behind; ", stale));
    if (parts > backups + 2) {
      set(absl::StrCat("consistency.backup_workers=", backups + 1),
          "a step commits without its last part; runs no longer repeat bit for bit, and a slow worker's "
          "examples count less");
    }
    set(absl::StrCat("consistency.parts=", 4 * parts),
        "a step has 4 times the batches: fewer commits and waits; the learning rate may need to change");
  } else if (s.mode == "bounded") {
    const uint32_t wider = 2 * config.consistency().staleness() + 1;
    set(absl::StrCat("consistency.staleness=", wider), absl::StrCat("a wider bound; ", stale));
    if (config.consistency().staleness() > 0 && !config.consistency().prefetch()) {
      set("consistency.prefetch=true", "the exchange hides behind computing; weights are a clock older");
    }
  }
  const uint32_t more = config.local().steps() == 1 ? 8 : 4 * config.local().steps();
  set(absl::StrCat("local.steps=", more),
      absl::StrCat("a push stands for ", more,
                   " batches; accuracy may change: the optimizer's rates then are the outer rule's"));
  const uint32_t batch = 4 * config.data().batch_size();
  set(absl::StrCat("data.batch_size=", batch),
      "4 times the examples of a push, if computing them takes 4 times as long; fewer updates of an epoch",
      4);
  if (config.wire().dtype() == v1::WireConfig::TYPE_F32) {
    set("wire.dtype=bf16", "half the bytes both ways; values are rounded on the wire");
  }
  out.push_back(
      {"", "half of the model on each server, if these have cores and links of their own", 2 * s.ps, 1});
  return out;
}

}  // namespace

absl::StatusOr<Advice> Advise(const std::string& summary, std::optional<double> batch_seconds) {
  WEIR_ASSIGN_OR_RETURN(const Run run, ReadRun(summary, batch_seconds));
  const JobSummary& s = run.summary;
  const Fitted fitted(run);
  Advice advice;
  advice.job = absl::StrCat(ModeText(ModelOfJob(run.config, run.elements, s.workers, s.ps, kExchangeCost)),
                            ", ", Counted(s.workers, "worker"), ", ", Counted(s.ps, "server"));
  advice.measured = run.batches_per_second;
  advice.predicted = fitted.Speed(run.config, s.ps);
  advice.computing = run.computing;
  advice.batch_seconds = run.batch_seconds;
  for (const double factor : run.factors) advice.slowest = std::max(advice.slowest, factor);
  advice.jitter = fitted.jitter();
  for (const Candidate& candidate : Candidates(run)) {
    Advice::Change change{1, absl::StrCat("--ps=", candidate.servers), candidate.meaning};
    v1::JobConfig config = run.config;
    if (!candidate.field.empty()) {
      absl::StatusOr<v1::JobConfig> changed = ParseJobConfig(run.config_json, "config", {candidate.field});
      if (!changed.ok()) continue;  // this job cannot have it
      config = *std::move(changed);
      const bool quoted = candidate.field.find('{') != std::string::npos;
      change.flag = absl::StrCat("--set ", quoted ? "'" : "", candidate.field, quoted ? "'" : "");
    }
    change.gain = fitted.Speed(config, candidate.servers, candidate.batch) / advice.predicted;
    if (change.gain >= kLeastGain) advice.changes.push_back(std::move(change));
  }
  std::stable_sort(advice.changes.begin(), advice.changes.end(),
                   [](const auto& a, const auto& b) { return a.gain > b.gain; });
  advice.unknown = {
      "accuracy: a faster mode may need more examples; compare runs to one accuracy",
      "the time of evaluations and checkpoints, which counts as waiting here",
      "cores and links that tasks share: then more servers or workers gain less than predicted",
  };
  if (fitted.jitter() > 0) {
    advice.unknown.push_back(
        "why workers waited: what computing and exchange do not explain counts as batches of uneven length");
  }
  if (fitted.costs_more()) {
    advice.unknown.push_back(
        "why exchanges took longer than on idle machines: servers or links may be busy with something else");
  }
  if (batch_seconds.has_value()) {
    advice.unknown.push_back("whether one worker is slower than others: --batch_time is the same for all");
  }
  if (s.wall_seconds < 10) advice.unknown.push_back("how a longer run goes: this one took less than 10 s");
  if (run.config.tables_size() > 0) advice.unknown.push_back("the rows of embedding tables: their keys vary");
  return advice;
}

std::string AdviceText(const Advice& advice) {
  std::string out = absl::StrCat(advice.job, ": ", FormatRate(advice.measured), " batches/s; the model says ",
                                 FormatRate(advice.predicted), "\n");
  absl::StrAppend(&out, "workers compute ", FormatPercent(std::min(1.0, advice.computing)), " of the time, ",
                  FormatSeconds(advice.batch_seconds), " a batch");
  if (advice.slowest > 1)
    absl::StrAppendFormat(&out, "; the slowest worker takes %.1f times as long", advice.slowest);
  out += "\n\n";
  if (advice.changes.empty()) out += "nothing to gain: no single change makes the job 5% faster\n";
  for (const Advice::Change& change : advice.changes) {
    absl::StrAppendFormat(&out, "%5.2fx  %s  %s\n", change.gain, change.flag, change.meaning);
  }
  out += "\nnot known:\n";
  for (const std::string& unknown : advice.unknown) absl::StrAppend(&out, "  ", unknown, "\n");
  return out;
}

std::string AdviceJson(const Advice& advice) {
  Json changes = Json::array();
  for (const Advice::Change& change : advice.changes) {
    changes.push_back({{"gain", change.gain}, {"flag", change.flag}, {"meaning", change.meaning}});
  }
  const Json out = {{"job", advice.job},
                    {"batches_per_second", advice.measured},
                    {"predicted_batches_per_second", advice.predicted},
                    {"utilization", advice.computing},
                    {"batch_seconds", advice.batch_seconds},
                    {"slowest_worker", advice.slowest},
                    {"jitter", advice.jitter},
                    {"changes", changes},
                    {"not_known", advice.unknown}};
  return out.dump(2) + "\n";
}

}  // namespace weir
