#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "client/client.h"
#include "client/memberships.h"
#include "client/preemption.h"
#include "client/task.h"
#include "common/base/status_macros.h"
#include "common/config/cluster_spec.h"
#include "common/config/job_config.h"
#include "common/config/json_document.h"
#include "common/config/written_text.h"
#include "common/cuda/cuda_device.h"
#include "common/program/command_line.h"
#include "common/program/exit_codes.h"
#include "common/protocol/job_failure.h"
#include "common/rpc/job_token.h"
#include "common/rpc/tls.h"
#include "common/system/process.h"
#include "common/telemetry/grpc_process.h"
#include "common/telemetry/logging.h"
#include "local/in_process_cluster.h"
#include "worker/check_job.h"
#include "worker/data/load_data.h"
#include "worker/dataset_gradients.h"
#include "worker/evaluation.h"
#include "worker/local_steps.h"
#include "worker/replicas.h"
#include "worker/trainer.h"

namespace weir {
namespace {

struct Flags {
  std::string config, cluster, task, token_file, device = "auto", history, summary, log_format = "text";
  TlsFiles tls;
  std::vector<std::string> set;
  bool check = false, sizes = false;
};

bool EvaluatesEpochs(const v1::JobConfig& config, const Datasets& data) {
  return data.test.has_value() && config.evaluation().every_epochs() > 0;
}

// Makes the final evaluation, or waits until another worker has.
absl::Status EvaluateAtEnd(const v1::JobConfig& config, const HeldOut& sets, Model* model, Client* client) {
  WEIR_ASSIGN_OR_RETURN(const bool evaluate, client->AwaitsEvaluation());
  return evaluate ? EvaluateEnd(config, sets, model, client) : absl::OkStatus();
}

// Does everything between joining and leaving.
absl::Status Work(const v1::JobConfig& config, bool evaluator, const Datasets& data,
                  const std::vector<std::string>& devices, Replicas* replicas, Client* client) {
  const HeldOut sets(data);
  Model* const model = &replicas->model();
  // Destroyed, and so done, before this member leaves.
  std::unique_ptr<EpochEvaluator> epochs;
  if (EvaluatesEpochs(config, data)) {
    WEIR_ASSIGN_OR_RETURN(
        epochs, EpochEvaluator::Start(
                    sets, [&] { return Replicas::Create(config, data.train, {devices[0]}); }, client));
  }
  absl::Status status;
  if (evaluator) {
    status = RunEvaluator(config, sets, model, client);
  } else {
    WEIR_ASSIGN_OR_RETURN(const auto gradients, MakeGradients(config, data.train, replicas, *client));
    status = Trainer(config, gradients.get(), client).Run();
    if (status.ok()) status = EvaluateAtEnd(config, sets, model, client);
  }
  // Who has failed says so at once, and who was fenced joins again at once: without members a job ends.
  if (!status.ok() && epochs != nullptr) epochs->Abandon();
  return status;
}

absl::StatusOr<ChosenDevices> DevicesFor(const v1::JobConfig& config, const std::string& flag,
                                         uint32_t local_rank) {
  const auto usable = [&]() -> absl::StatusOr<std::vector<int>> {
    if (Model::NeedsCpu(config.model())) {
      return absl::UnimplementedError("the model has layers that only the CPU computes");
    }
    return cuda::UsableDevices();
  };
  return ChooseDevices(flag, Replicas::PrecisionOf(config.compute()), local_rank, usable);
}

absl::Status Run(const v1::JobConfig& config, const Flags& flags,
                 const std::optional<TaskEnvironment>& environment, Preemption* preemption) {
  ClientOptions options;
  options.job_config = config.SerializeAsString();
  options.history_path = flags.history;
  options.reader = environment.has_value() && environment->task.type == "evaluator";
  WEIR_RETURN_IF_ERROR(
      SetTask(environment.has_value() ? &*environment : nullptr, flags.token_file, flags.tls, &options));
  WEIR_ASSIGN_OR_RETURN(const Datasets data, LoadData(config.data(), ".", config.model().loss()));
  WEIR_ASSIGN_OR_RETURN(const ChosenDevices devices,
                        DevicesFor(config, flags.device, LocalRank(environment)));
  WEIR_ASSIGN_OR_RETURN(const auto replicas, Replicas::Create(config, data.train, devices.names));
  WEIR_RETURN_IF_ERROR(LocalSteps::Check(config, replicas->model().spec()));
  LogInfo("computing on ", absl::StrJoin(devices.names, ", "),
          devices.reason.empty() ? "" : absl::StrCat(" (", devices.reason, ")"));
  options.evaluates = EvaluatesEpochs(config, data);
  if (!options.reader) {
    options.train_examples = static_cast<uint64_t>(data.train.size());
    options.fingerprints.push_back({"the training set's examples", data.train.Fingerprint()});
    if (data.test.has_value()) {
      options.fingerprints.push_back({"the test set's examples", data.test->Fingerprint()});
    }
    if (data.validation.has_value()) {
      options.fingerprints.push_back({"the validation set's examples", data.validation->Fingerprint()});
    }
  }

  std::unique_ptr<InProcessCluster> local;
  if (!environment.has_value()) {
    if (config.cluster().workers() > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("cluster.workers is ", config.cluster().workers(),
                       ", but without a cluster spec there is one worker, in this process; "
                       "start `weir up --workers=",
                       config.cluster().workers(), "` for more"));
    }
    InProcessCluster::Options cluster;
    cluster.config = config;
    if (flags.token_file.empty()) {
      WEIR_ASSIGN_OR_RETURN(options.token, JobToken::Random());
    }
    cluster.token = options.token;
    cluster.summary_path = flags.summary;
    WEIR_ASSIGN_OR_RETURN(local, InProcessCluster::Start(std::move(cluster)));
    options.servers = local->addresses();
  }
  const bool reader = options.reader;
  if (!reader) options.compute_seconds = [&replicas] { return replicas->compute_time().Seconds(); };
  WEIR_RETURN_IF_ERROR(WorkUntilDone(
      std::move(options), replicas->model().spec(),
      [&](Client* client) { return Work(config, reader, data, devices.names, replicas.get(), client); },
      preemption));
  return local == nullptr ? absl::OkStatus() : local->Wait();
}

int Refuse(int exit_code, absl::string_view what) {
  LogError(what);
  return exit_code;
}

// A config that cannot be taken. With --check and --sizes the text is an answer, and not a line of a log.
int RefuseConfig(const Flags& flags, absl::string_view what) {
  if (!flags.check && !flags.sizes) return Refuse(kExitConfig, what);
  std::fprintf(stderr, "%s\n", std::string(what).c_str());
  return kExitConfig;
}

// For `weir config check`: reports what would be found wrong when the job starts.
int Check(const v1::JobConfig& config, const Flags& flags) {
  const std::string& file = flags.config;
  const absl::StatusOr<JobCheck> check = CheckJob(config);
  absl::Status status = check.status();
  if (status.ok() && check->spec.has_value()) status = CheckInitFrom(config, *check->spec);
  if (status.ok() && config.has_model()) status = DevicesFor(config, flags.device, 0).status();
  if (!status.ok()) return RefuseConfig(flags, absl::StrCat(file, ": ", status.message()));
  std::printf("%s: ok (job \"%s\")\n  data: %s\n  model: %s\n", file.c_str(), config.name().c_str(),
              check->data.c_str(), check->model.c_str());
  for (const std::string& what : check->unchecked) std::printf("  not checked: %s\n", what.c_str());
  return kExitOk;
}

// For `weir manifest` and `weir config show`: what the job's sizes are, as JSON; null: what cannot be known
// here, and `unknown` says why. Fails as Check() does where the data are there and do not fit.
int PrintSizes(const v1::JobConfig& config, const Flags& flags) {
  const absl::StatusOr<JobCheck> check = CheckJob(config);
  if (!check.ok() && !absl::IsNotFound(check.status())) {
    return RefuseConfig(flags, absl::StrCat(flags.config, ": ", check.status().message()));
  }
  const auto number = [](const std::optional<int64_t>& n) {
    return n.has_value() ? absl::StrCat(*n) : "null";
  };
  const std::string unknown =
      check.ok() ? absl::StrJoin(check->unchecked, "; ") : std::string(check.status().message());
  const JobCheck& known = check.ok() ? *check : JobCheck();
  const auto parameters = known.spec.has_value() ? std::optional(known.spec->elements()) : std::nullopt;
  std::printf("{\"parameters\": %s, \"worker_bytes\": %s, \"unknown\": %s}\n", number(parameters).c_str(),
              number(known.worker_bytes).c_str(), JsonQuote(unknown).c_str());
  return kExitOk;
}

int Main(const Flags& flags) {
  const auto of_environment = OverridesOfEnvironment();
  if (!of_environment.ok()) return RefuseConfig(flags, of_environment.status().message());
  std::vector<std::string> overrides = flags.set;
  overrides.insert(overrides.end(), of_environment->begin(), of_environment->end());
  const auto config = LoadJobConfig(flags.config, overrides);
  if (!config.ok()) return RefuseConfig(flags, config.status().message());
  if (flags.check) return Check(*config, flags);
  if (!config->has_model()) {
    return RefuseConfig(
        flags,
        absl::StrCat(flags.config,
                     ": model and data are missing: the job is for a program that brings its own. Start "
                     "that program (`weir up JOB -- PROGRAM`), or give both to have `worker` train"));
  }
  if (flags.sizes) return PrintSizes(*config, flags);
  const auto environment =
      FromEnvironment(std::getenv("TF_CONFIG"), flags.cluster, flags.task, Pod::Current());
  if (!environment.ok()) return Refuse(kExitConfig, environment.status().message());
  const std::string task = environment->has_value() ? (*environment)->task.ToString() : "";
  InitLogging({*ParseLogFormat(flags.log_format), LogLevel::kInfo, task});
  PrepareGrpc();
  if (environment->has_value()) {
    if ((*environment)->task.type == "ps") {
      return Refuse(kExitConfig,
                    absl::StrCat("this is worker, but the task is ", task, "; start `ps_server` for it"));
    }
    if (!flags.summary.empty()) {
      return Refuse(
          kExitUsage,
          "--summary is for a job in one process; in a cluster ps:0 writes it (`ps_server --summary=FILE`)");
    }
  }
  const auto preemption = Preemption::Start({SIGINT, SIGTERM});
  if (!preemption.ok()) return Refuse(kExitInternal, preemption.status().message());
  const absl::Status status = Run(*config, flags, *environment, preemption->get());
  if (!status.ok()) LogError(status.message());
  return ExitCodeOf(status);
}

// OpenBLAS makes its threads while it is loaded, before main. Where the system gives it none, it sends SIGINT
// to its own process, which then looks as if Ctrl-C had ended it. Only a program has functions that run
// before its libraries are loaded.
#if defined(WEIR_ASAN) || defined(WEIR_TSAN)

[[noreturn]] void ExitWithoutOpenBlas(int code) { std::exit(code); }

#else

void OnInterrupt(int signal, siginfo_t* info, void*) {
  // Ctrl-C comes from elsewhere.
  if (info->si_code != SI_TKILL || info->si_pid != getpid()) {
    ::signal(signal, SIG_DFL);
    raise(signal);
    return;
  }
  constexpr char kText[] =
      "error: the system gives no thread to OpenBLAS: a limit of threads (pids.max of the control group, "
      "RLIMIT_NPROC) or of memory is reached; raise it, or set OPENBLAS_NUM_THREADS=1\n";
  if (write(STDERR_FILENO, kText, strlen(kText)) < 0) _exit(kExitInternal);
  _exit(kExitInternal);
}

void BeforeLibraries(int, char**, char**) {
  struct sigaction now;
  if (sigaction(SIGINT, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) return;
  struct sigaction action = {};
  action.sa_sigaction = OnInterrupt;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGINT, &action, nullptr);
}

__attribute__((section(".preinit_array"), used)) void (*const before_libraries)(int, char**,
                                                                                char**) = BeforeLibraries;

// exit() without the end of OpenBLAS, which would wait for ever for a thread of its own that has found no
// memory and tries on and on.
[[noreturn]] void ExitWithoutOpenBlas(int code) {
  std::cout.flush();
  std::fflush(nullptr);
  _exit(code);
}

#endif

}  // namespace
}  // namespace weir

int main(int argc, char** argv) {
  weir::EndOnExhaustion();
  weir::KeepFreedMemory();
  weir::Flags flags;
  CLI::App app(
      "One worker, chief or evaluator of a Weir job. Without a cluster spec the whole job runs in this "
      "process.",
      "worker");
  app.add_option("--config", flags.config, "The job's config (JSON)")->type_name("FILE")->required();
  app.add_option("--set", flags.set, "Override a field of the config: a.b.c=value")->allow_extra_args(false);
  app.add_option("--cluster", flags.cluster,
                 "Cluster spec (a file), or dns:JOB=NAME:COUNT[:PORT],... for pods; instead of TF_CONFIG's")
      ->type_name("FILE");
  app.add_option(
      "--task", flags.task,
      "This task: worker:INDEX, chief:0 or evaluator:0, or pod for the task in the pod's name; instead of "
      "TF_CONFIG's");
  weir::FileOrVariable(
      app.add_option("--token_file", flags.token_file, "The job's token, if its servers have one"),
      "WEIR_TOKEN_FILE");
  weir::AddTlsFlags(&app, &flags.tls);
  app.add_option("--device", flags.device,
                 "Where to compute: auto (a GPU if there is one), cpu, cuda:N; cuda:0,cuda:1 for replicas")
      ->check(
          [](const std::string& text) { return std::string(weir::ParseDevices(text).status().message()); })
      ->capture_default_str();
  app.add_option(
         "--history", flags.history,
         "Log every answer of the servers there, as lines of JSON; {task} in the path becomes worker-0")
      ->type_name("FILE");
  app.add_option("--summary", flags.summary, "Without a cluster: write the job's summary (JSON) there")
      ->type_name("FILE");
  app.add_flag("--check", flags.check,
               "Instead of working, check whether the data's files are there and the model fits them");
  app.add_flag("--sizes", flags.sizes,
               "Instead of working, print as JSON how many parameters the model has, and a worker's memory");
  app.add_option("--log_format", flags.log_format, "Format of a line of the log")
      ->check(CLI::IsMember({"text", "json"}));
  if (const std::optional<int> exit = weir::ReadCommandLine(app, argc, argv)) return *exit;
  weir::ExitWithoutOpenBlas(weir::Main(flags));
}
