#include "cli/commands/job_plan.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "cli/installation/installation.h"
#include "cli/report/format.h"
#include "cli/report/summary.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/config/job_config.h"
#include "common/config/json_document.h"
#include "common/config/written_text.h"
#include "common/object_store/object_file_system.h"
#include "common/program/exit_codes.h"

namespace weir {
namespace {

// Makes an override of a field from a path of the command line. That path starts at the working folder; a
// field's path would start at the config's.
std::string PathOverride(absl::string_view field, const std::string& path) {
  return absl::StrCat(
      field, "=",
      JsonQuote(IsObjectPath(path) ? path : std::filesystem::absolute(path).lexically_normal().string()));
}

absl::Status CheckProgram(const JobCluster::Options& options, const v1::JobConfig& config) {
  if (options.program.empty()) {
    if (config.has_model()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        options.config,
        ": model and data are missing: the job is for a program that brings its own. Name the program (`weir "
        "up JOB -- PROGRAM ARGS`), or give both to have `worker` train"));
  }
  if (options.device != "auto") {
    return absl::InvalidArgumentError(absl::StrCat("--device is for `worker`; ", options.program[0],
                                                   " chooses its device itself; take it out"));
  }
  // The hosts look for it themselves.
  return options.hosts.empty() ? CheckCanRun(options.program[0]) : absl::OkStatus();
}

// Reads --hosts, and names the folder and the config as the hosts see them.
absl::Status PlanHosts(const UpOptions& options, JobCluster::Options* cluster) {
  if (options.hosts.empty()) return absl::OkStatus();
  if (!options.bin_dir.empty()) {
    return absl::InvalidArgumentError(
        "--bin_dir is for this machine; with --hosts name the program weir there: --weir=PATH");
  }
  WEIR_ASSIGN_OR_RETURN(cluster->hosts, ReadHosts(options.hosts));
  const std::filesystem::path here = std::filesystem::current_path();
  if (cluster->access.directory.empty()) cluster->access.directory = here.string();
  // Below the working folder, a path that is right on every host.
  const std::filesystem::path config =
      std::filesystem::absolute(cluster->config).lexically_normal().lexically_relative(here);
  if (!config.empty() && *config.begin() != "..") cluster->config = config.string();
  return absl::OkStatus();
}

absl::Status Refuse(absl::string_view field, const std::string& path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("checkpoint.", field, ": ", path, what));
}

// The folder can be written to or, if it is not there, be made.
absl::Status CheckWritable(const std::string& directory) {
  if (IsObjectPath(directory)) return absl::OkStatus();
  std::filesystem::path there = directory;
  std::error_code error;
  while (!std::filesystem::exists(there, error) && there != there.parent_path()) there = there.parent_path();
  if (!std::filesystem::is_directory(there, error)) {
    return Refuse("directory", directory, absl::StrCat(": ", there.string(), " is not a folder"));
  }
  if (access(there.c_str(), W_OK | X_OK) != 0) {
    return Refuse("directory", directory,
                  absl::StrCat(": cannot write to ", there.string(), ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> FindResumed(const std::string& directory) {
  const auto found = LatestComplete(AnyStorage(), directory);
  if (found.ok()) return absl::StrCat("going on from ", Printable(found->folder));
  if (!absl::IsNotFound(found.status())) {
    return Refuse("directory", directory, absl::StrCat(": ", found.status().message()));
  }
  // A log of an earlier version of Weir, which took no checkpoint before the first push, begins with version
  // 0.
  WEIR_ASSIGN_OR_RETURN(const bool log, HoldsLog(AnyStorage(), directory));
  if (log)
    return absl::StrCat("going on from the log in ", Printable(directory), ", which begins with version 0");
  if (ResolveCheckpoint(AnyStorage(), directory).ok()) {
    return Refuse("directory", directory,
                  " is one checkpoint; --resume takes the folder that it is in, where the next ones go");
  }
  return Refuse("directory", directory, absl::StrCat(" has nothing to resume: ", found.status().message()));
}

absl::Status CheckNew(const std::string& directory) {
  const auto there = FindCheckpoints(AnyStorage(), directory);
  if (!there.ok()) return Refuse("directory", directory, absl::StrCat(": ", there.status().message()));
  const auto newest =
      std::find_if(there->rbegin(), there->rend(), [](const auto& c) { return c.has_manifest; });
  std::string what;
  if (newest != there->rend()) {
    what =
        absl::StrCat(" holds checkpoints of a job already, the newest of step ", FormatCount(newest->step));
  } else {
    WEIR_ASSIGN_OR_RETURN(const bool log, HoldsLog(AnyStorage(), directory));
    if (!log) return absl::OkStatus();
    what = " holds a log of a job's pushes already";
  }
  return Refuse(
      "directory", directory,
      absl::StrCat(what, "; go on with that job (--resume=", directory, ") or name another folder"));
}

std::optional<int64_t> Number(const JsonValue& sizes, absl::string_view key) {
  const JsonMember* const member = sizes.Find(key);
  if (member == nullptr || member->value.kind != JsonValue::Kind::kUnsigned) return std::nullopt;
  return static_cast<int64_t>(member->value.natural);
}

}  // namespace

absl::StatusOr<UpConfig> ConfigOfUp(const UpOptions& options, const std::vector<Host>& hosts) {
  UpConfig up;
  up.overrides = options.cluster.overrides;
  if (!options.resume.empty()) {
    up.overrides.push_back(PathOverride("checkpoint.directory", options.resume));
  }
  if (!options.init_from.empty()) {
    up.overrides.push_back(PathOverride("checkpoint.init_from", options.init_from));
  }
  if (options.seed.has_value()) up.overrides.push_back(absl::StrCat("seed=", *options.seed));
  if (options.workers.has_value()) up.overrides.push_back(absl::StrCat("cluster.workers=", *options.workers));
  WEIR_ASSIGN_OR_RETURN(up.config, LoadJobConfig(options.cluster.config, up.overrides));
  if (up.config.cluster().has_workers()) return up;
  const int workers = hosts.empty() ? 1 : CountSlots(hosts);
  up.overrides.push_back(absl::StrCat("cluster.workers=", workers));
  absl::StatusOr<v1::JobConfig> with_default = LoadJobConfig(options.cluster.config, up.overrides);
  if (!with_default.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(with_default.status().message(), "\n`weir up` starts ",
                                                   Counted(workers, "worker"),
                                                   ", unless cluster.workers or --workers=N says how many"));
  }
  up.config = *std::move(with_default);
  return up;
}

absl::StatusOr<JobPlan> PlanJob(const UpOptions& options, Console& console) {
  JobPlan plan;
  JobCluster::Options& cluster = plan.cluster = options.cluster;
  WEIR_RETURN_IF_ERROR(PlanHosts(options, &cluster));
  WEIR_ASSIGN_OR_RETURN(UpConfig up, ConfigOfUp(options, cluster.hosts));
  cluster.overrides = std::move(up.overrides);
  const v1::JobConfig& config = up.config;
  WEIR_RETURN_IF_ERROR(CheckProgram(cluster, config));
  plan.name = config.name();
  cluster.workers = static_cast<int>(config.cluster().workers());
  plan.saves = config.checkpoint().has_directory();
  plan.lease = absl::Seconds(config.cluster().lease_seconds());
  // A job that is resumed has begun already.
  plan.needed_workers = !options.resume.empty()              ? 1
                        : config.cluster().has_min_workers() ? config.cluster().min_workers()
                                                             : static_cast<size_t>(cluster.workers);
  plan.skips_workers = config.consistency().on_nonfinite() == v1::ConsistencyConfig::ON_NONFINITE_SKIP_WORKER;
  WEIR_ASSIGN_OR_RETURN(const std::string from, FindStart(config.checkpoint(), !options.resume.empty()));
  if (!from.empty()) console.Line(from);
  if (cluster.hosts.empty()) {
    WEIR_ASSIGN_OR_RETURN(cluster.binaries, FindBinaries(options.bin_dir, cluster.program.empty()));
  } else {
    if (plan.saves && !IsObjectPath(config.checkpoint().directory())) {
      cluster.shared_folder = config.checkpoint().directory();
    }
    WEIR_ASSIGN_OR_RETURN(cluster.worker_hosts, PlaceWorkers(cluster.hosts, cluster.workers));
    if (!cluster.tls)
      console.Line("without --tls, the token and the weights travel between hosts in plain text");
  }
  // Fails now, not after hours of training.
  if (!options.summary.empty()) WEIR_RETURN_IF_ERROR(PrepareFile(options.summary));
  cluster.console = &console;
  plan.restart = options.restart;
  return plan;
}

absl::StatusOr<std::string> FindStart(const v1::CheckpointConfig& checkpoint, bool resume) {
  if (checkpoint.has_directory()) WEIR_RETURN_IF_ERROR(CheckWritable(checkpoint.directory()));
  if (resume) return FindResumed(checkpoint.directory());
  if (checkpoint.has_directory()) WEIR_RETURN_IF_ERROR(CheckNew(checkpoint.directory()));
  if (!checkpoint.has_init_from()) return "";
  const auto found = ResolveCheckpoint(AnyStorage(), checkpoint.init_from());
  if (!found.ok()) {
    return Refuse("init_from", checkpoint.init_from(), absl::StrCat(": ", found.status().message()));
  }
  return absl::StrCat("starting with the weights of ", Printable(found->folder));
}

absl::StatusOr<JobSizes> FindJobSizes(const std::string& config, const std::vector<std::string>& overrides) {
  WEIR_ASSIGN_OR_RETURN(const std::string worker, FindProgram("worker", "worker"));
  WEIR_ASSIGN_OR_RETURN(const CommandResult result, RunOnConfig(worker, "--sizes", config, overrides));
  const absl::string_view output = absl::StripAsciiWhitespace(result.output);
  if (result.exit.status() == kExitConfig) return absl::InvalidArgumentError(output);
  if (!result.exit.ok()) {
    return absl::InternalError(absl::StrCat(worker, " --sizes: ", result.exit.ToString(), ": ", output));
  }
  WEIR_ASSIGN_OR_RETURN(const JsonValue root, ParseJson(output, absl::StrCat(worker, " --sizes")));
  JobSizes sizes;
  sizes.parameters = Number(root, "parameters");
  sizes.worker_bytes = Number(root, "worker_bytes");
  if (const JsonMember* unknown = root.Find("unknown")) sizes.unknown = unknown->value.text;
  return sizes;
}

}  // namespace weir
