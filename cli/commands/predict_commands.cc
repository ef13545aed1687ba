// `weir simulate` predicts the speed of a job on clusters that are not at hand; `weir advise` says what would
// make a job faster, by the summary of a run.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/commands/job_plan.h"
#include "cli/predict/advice.h"
#include "cli/predict/job_model.h"
#include "cli/predict/sweep.h"
#include "cli/predict/units.h"
#include "cli/report/format.h"
#include "cli/report/summary.h"
#include "common/base/status_macros.h"
#include "common/config/job_config.h"
#include "common/config/written_text.h"
#include "common/program/exit_codes.h"

namespace weir {
namespace {

constexpr uint32_t kMostWorkers = 65536, kMostServers = 4096;

struct SimulateOptions {
  std::string config;
  std::vector<std::string> overrides;
  std::string workers, servers = "1";
  std::string bandwidth = "0", latency = "0";
  std::string batch_time, straggler;  // "": the config's debug.*
  std::optional<double> jitter;
  std::optional<int64_t> parameters;
  std::string calibration;
  bool compare = false, json = false;
  std::string plot;
};

// Names the flag in a problem of its value.
template <typename T>
absl::StatusOr<T> Flag(const char* flag, absl::StatusOr<T> value) {
  if (value.ok()) return value;
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", value.status().message()));
}

// What all rows of a table have.
struct Simulated {
  v1::JobConfig config;
  double elements = 0;
  ExchangeCost cost = kExchangeCost;
  double bandwidth = 0, latency = 0;
  std::optional<double> batch_seconds, jitter;
  std::optional<Straggler> straggler;
  std::vector<uint32_t> workers, servers;
};

absl::Status ReadFlags(const SimulateOptions& options, Simulated* out) {
  WEIR_ASSIGN_OR_RETURN(out->servers, Flag("--servers", ParseCounts(options.servers, kMostServers)));
  WEIR_ASSIGN_OR_RETURN(out->bandwidth, Flag("--bandwidth", ParseBandwidth(options.bandwidth)));
  WEIR_ASSIGN_OR_RETURN(out->latency, Flag("--latency", ParseSeconds(options.latency)));
  if (!options.workers.empty()) {
    WEIR_ASSIGN_OR_RETURN(out->workers, Flag("--workers", ParseCounts(options.workers, kMostWorkers)));
  }
  if (!options.batch_time.empty()) {
    WEIR_ASSIGN_OR_RETURN(out->batch_seconds, Flag("--batch_time", ParseSeconds(options.batch_time)));
  }
  if (!options.straggler.empty()) {
    WEIR_ASSIGN_OR_RETURN(out->straggler, Flag("--straggler", ParseStraggler(options.straggler)));
  }
  out->jitter = options.jitter;
  return absl::OkStatus();
}

absl::StatusOr<double> FindElements(const SimulateOptions& options, const v1::JobConfig& config) {
  if (options.parameters.has_value()) return static_cast<double>(*options.parameters);
  std::string why = "its program brings the model";
  if (config.has_model()) {
    const absl::StatusOr<JobSizes> sizes = FindJobSizes(options.config, options.overrides);
    if (sizes.ok() && sizes->parameters.has_value()) return static_cast<double>(*sizes->parameters);
    why = sizes.ok() ? sizes->unknown : std::string(sizes.status().message());
  }
  return absl::InvalidArgumentError(absl::StrCat(options.config, ": how large is the model? ", why,
                                                 "; give --parameters=N, its values in all"));
}

absl::Status ReadJob(const SimulateOptions& options, Simulated* out) {
  WEIR_ASSIGN_OR_RETURN(out->config, LoadJobConfig(options.config, options.overrides));
  const v1::JobConfig& config = out->config;
  if (config.tables_size() > 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.config, ": tables: cannot be simulated, since nobody knows how many rows a batch names"));
  }
  WEIR_ASSIGN_OR_RETURN(out->elements, FindElements(options, config));
  if (out->workers.empty()) out->workers = {std::max(config.cluster().workers(), 1u)};
  const uint32_t parts = config.consistency().parts(), backups = config.consistency().backup_workers();
  if (backups >= (parts > 0 ? parts : out->workers.front())) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.config,
                     ": consistency.backup_workers: must be below the parts of a step, which are as many as "
                     "workers: got ",
                     backups, " with --workers=", out->workers.front()));
  }
  const bool takes_time = config.debug().batch_seconds() > 0 || config.debug().worker_delay() > 0;
  if (out->batch_seconds.value_or(0) == 0 && !takes_time) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.config,
                     ": how long does the gradient of a batch take? Give --batch_time=50ms (or "
                     "debug.batch_seconds); weir_worker_utilization or a run on one worker tell it"));
  }
  if (options.calibration.empty()) return absl::OkStatus();
  const std::string optimizer =
      absl::AsciiStrToLower(v1::OptimizerConfig::Kind_Name(config.optimizer().type()).substr(5));
  WEIR_ASSIGN_OR_RETURN(out->cost, ReadExchangeCost(options.calibration, optimizer));
  return absl::OkStatus();
}

ClusterModel ModelFor(const Simulated& job, uint32_t workers, uint32_t servers) {
  ClusterModel m = ModelOfJob(job.config, job.elements, workers, servers, job.cost);
  m.worker_bandwidth = m.server_bandwidth = job.bandwidth;
  m.latency = job.latency;
  if (job.batch_seconds.has_value()) m.batch_seconds = *job.batch_seconds;
  if (job.jitter.has_value()) m.jitter = *job.jitter;
  if (job.straggler.has_value()) {
    m.slow_share = job.straggler->share;
    m.slow_factor = job.straggler->factor;
    m.factors = job.straggler->share > 0 ? std::vector<double>{} : std::vector<double>{job.straggler->factor};
  }
  return m;
}

// The job's mode, or all that --compare shows.
std::vector<std::pair<std::string, ClusterModel>> ModesOf(const ClusterModel& job, bool compare) {
  const auto name = [](const ClusterModel& m) {
    std::string text = ModeText(m);
    if (m.local_steps > 1) absl::StrAppend(&text, ", ", m.local_steps, " local steps");
    return text;
  };
  if (!compare) return {{name(job), job}};
  std::vector<std::pair<std::string, ClusterModel>> modes;
  ClusterModel m = job;
  m.local_steps = 1;
  const auto add = [&](ClusterModel::Mode mode) {
    m.mode = mode;
    modes.emplace_back(name(m), m);
  };
  if (job.mode != ClusterModel::Mode::kBounded) m.staleness = 3;
  add(ClusterModel::Mode::kSync);
  add(ClusterModel::Mode::kBounded);
  add(ClusterModel::Mode::kAsync);
  m.local_steps = job.local_steps > 1 ? job.local_steps : 100;
  add(ClusterModel::Mode::kSync);
  return modes;
}

int RunSimulate(const SimulateOptions& options) {
  Simulated job;
  if (const absl::Status flags = ReadFlags(options, &job); !flags.ok()) {
    return Refuse(kExitUsage, flags.message());
  }
  if (const absl::Status read = ReadJob(options, &job); !read.ok())
    return Refuse(kExitConfig, read.message());
  if (!options.plot.empty()) {
    if (const absl::Status plot = PrepareFile(options.plot); !plot.ok())
      return Refuse(kExitStorage, plot.message());
  }
  std::vector<SweepRow> rows;
  for (const uint32_t servers : job.servers) {
    for (const uint32_t workers : job.workers) {
      for (const auto& [mode, model] : ModesOf(ModelFor(job, workers, servers), options.compare)) {
        rows.push_back({mode, workers, servers, PredictCluster(model)});
      }
    }
  }
  if (!options.plot.empty()) {
    if (const absl::Status plot = WriteFileWhole(options.plot, SweepSvg(rows)); !plot.ok()) {
      return Refuse(kExitStorage, plot.message());
    }
  }
  const uint32_t batch = job.config.data().batch_size();
  return Print(options.json ? SweepJson(rows, batch) : SweepText(rows, batch));
}

struct AdviseOptions {
  std::string summary, batch_time;
  bool json = false;
};

int RunAdvise(const AdviseOptions& options) {
  std::optional<double> batch_seconds;
  if (!options.batch_time.empty()) {
    const absl::StatusOr<double> seconds = Flag("--batch_time", ParseSeconds(options.batch_time));
    if (!seconds.ok()) return Refuse(kExitUsage, seconds.status().message());
    if (*seconds > 0) batch_seconds = *seconds;
  }
  const absl::StatusOr<std::string> text = ReadTextFile(options.summary);
  if (!text.ok()) {
    return Refuse(kExitConfig, absl::StrCat(Printable(text.status().message()),
                                            "; `weir up --summary=FILE` writes it when the job is done"));
  }
  const absl::StatusOr<Advice> advice = Advise(*text, batch_seconds);
  if (!advice.ok()) {
    return Refuse(kExitConfig, absl::StrCat(Printable(options.summary), ": ", advice.status().message()));
  }
  return Print(options.json ? AdviceJson(*advice) : AdviceText(*advice));
}

constexpr const char* kSimulateExamples = R"(Examples:
  weir simulate job.json --workers=1000 --servers=32 --bandwidth=10Gbit --latency=100us --batch_time=50ms --straggler=4x:0.1
  weir simulate job.json --workers=4..4096 --servers=1,16,256 --batch_time=50ms --parameters=25000000 --compare --plot=speed.svg
  weir bench wire --json=wire.json && weir simulate job.json --workers=64 --batch_time=50ms --calibration=wire.json)";

constexpr const char* kAdviseExamples = R"(Examples:
  weir up --ps=2 --workers=4 configs/digits.json --summary=out.json && weir advise out.json
  weir advise out.json --json)";

}  // namespace

void AddPredictCommands(Commands& commands) {
  const auto simulate = std::make_shared<SimulateOptions>();
  CLI::App* command =
      commands.Add("simulate", "Predict a job's speed on clusters that are not at hand, without running it",
                   kSimulateExamples);
  AddConfigFile(command, &simulate->config);
  AddOverrides(command, &simulate->overrides);
  AddNamed(command, "--workers", &simulate->workers, "LIST",
           "Numbers of workers: 8, or 4,16,64, or 4..4096 for 4 and its doublings (default: the config's)");
  AddNamed(command, "--servers", &simulate->servers, "LIST",
           "Numbers of servers, as of workers (default: 1)");
  AddNamed(command, "--bandwidth", &simulate->bandwidth, "SPEED",
           "Of the link of each worker and server, each way: 10Gbit, 1.25GB (default: no limit)");
  AddNamed(command, "--latency", &simulate->latency, "TIME",
           "Of a message one way, half of a round trip: 50ms, 200us (default: 0)");
  AddNamed(command, "--batch_time", &simulate->batch_time, "TIME",
           "How long a worker computes the gradient of a batch (default: debug.batch_seconds)");
  AddNamed(command, "--straggler", &simulate->straggler, "4x|4x:0.1",
           "Worker 0 takes 4 times as long; or each batch does with a probability of 0.1");
  AddNamed(command, "--jitter", &simulate->jitter, "J",
           "Each batch takes exp(J n) times as long, n is normal")
      ->check(CLI::Range(0.0, 2.0));
  command
      ->add_option("--parameters", simulate->parameters, "Of the model, if the data are not on this machine")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  AddNamed(
      command, "--calibration", &simulate->calibration, "FILE",
      "What an exchange costs: a table of `weir bench wire --json=FILE` (default: as measured on a Xeon)");
  command->add_flag("--compare", simulate->compare,
                    "Show sync, bounded, async and local steps beside each other");
  AddNamed(command, "--plot", &simulate->plot, "FILE", "Also write a plot there, as SVG");
  command->add_flag("--json", simulate->json, "Print JSON");
  commands.OnRun(command, [simulate] { return RunSimulate(*simulate); });

  const auto advise = std::make_shared<AdviseOptions>();
  CLI::App* adviser =
      commands.Add("advise", "Say what would make a job faster, by the summary of a run", kAdviseExamples);
  AddNamed(adviser, "summary", &advise->summary, "FILE", "A file of `weir up --summary=FILE`")->required();
  AddNamed(adviser, "--batch_time", &advise->batch_time, "TIME",
           "How long a worker computes for a batch, if the summary lacks it: 50ms");
  adviser->add_flag("--json", advise->json, "Print JSON");
  commands.OnRun(adviser, [advise] { return RunAdvise(*advise); });
}

}  // namespace weir
