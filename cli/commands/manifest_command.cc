// `weir manifest`: the manifests that run a job on Kubernetes.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/commands/commands.h"
#include "cli/commands/job_plan.h"
#include "cli/manifest/cluster_config.h"
#include "cli/manifest/render.h"
#include "cli/report/format.h"
#include "common/base/status_macros.h"
#include "common/config/dns_cluster.h"
#include "common/config/job_config.h"
#include "common/config/json_document.h"
#include "common/config/server_memory.h"
#include "common/config/written_text.h"
#include "common/model/model_spec.h"
#include "common/program/exit_codes.h"
#include "common/system/file_system.h"

namespace weir {
namespace {

struct ManifestOptions {
  std::string config;
  std::vector<std::string> overrides;  // --set
  uint32_t ps = 1, workers = 1;
  bool gpu = false, evaluator = false, tls = false, force = false;
  std::string format = "kustomize";  // or "jobset", "tfjob"
  std::string out = "weir-manifest";
  std::string name_space, image, gpu_image;       // "": as the flags' help says
  std::optional<int64_t> parameters, worker_mib;  // where the data are not at hand
  std::vector<std::string> program;               // what follows --; empty: `worker`
  std::string data;                               // of the program; "": none
  std::optional<uint32_t> worker_cpus;            // for the program
};

namespace fs = std::filesystem;

// The program itself, its libraries, and messages that gRPC holds.
constexpr int64_t kProgramMib = 64;
// CUDA's libraries and the driver's part in a process.
constexpr int64_t kCudaMib = 2048;

int64_t Mib(uint64_t bytes) { return static_cast<int64_t>((bytes + (1 << 20) - 1) >> 20); }

// Nobody but its user knows what a program needs.
absl::StatusOr<JobSizes> SizesOfProgram(const ManifestOptions& options) {
  std::vector<std::string> wanted;
  if (options.image.empty()) {
    wanted.push_back(
        "--image=NAME:TAG, an image with the program, Python and Weir (docs/deploy.md, section Python "
        "programs)");
  }
  if (!options.parameters.has_value()) {
    wanted.push_back("--parameters=N, how many values all trained parameters and buffers of the model have");
  }
  if (!options.worker_mib.has_value()) {
    wanted.push_back(absl::StrCat(
        "--worker_memory_mib=N, what a worker needs, such as the maximum resident set size that "
        "`/usr/bin/time -v ",
        absl::StrJoin(options.program, " "), "` prints for the job in one process, with room to spare"));
  }
  if (wanted.empty()) return JobSizes{options.parameters, {}, ""};
  return absl::InvalidArgumentError(absl::StrCat("the config does not say what the pods of ",
                                                 options.program[0], " need\ngive ",
                                                 absl::StrJoin(wanted, "\nand ")));
}

// Finds the sizes by the data on this machine, or by the flags where the data do not tell.
absl::StatusOr<JobSizes> SizesOf(const ManifestOptions& options) {
  if (!options.program.empty()) return SizesOfProgram(options);
  const absl::StatusOr<JobSizes> found = FindJobSizes(options.config, options.overrides);
  if (absl::IsInvalidArgument(found.status())) return found.status();
  JobSizes sizes = found.ok() ? *found : JobSizes{{}, {}, std::string(found.status().message())};
  if (sizes.parameters.has_value() && options.parameters.value_or(*sizes.parameters) != *sizes.parameters) {
    return absl::InvalidArgumentError(absl::StrCat("--parameters=", *options.parameters,
                                                   ", but with the data on this machine the model has ",
                                                   *sizes.parameters, "; leave the flag out"));
  }
  if (!sizes.parameters.has_value()) sizes.parameters = options.parameters;
  std::vector<std::string> wanted;
  if (!sizes.parameters.has_value()) {
    wanted.push_back("--parameters=N, how many parameters the model has");
  }
  if (!sizes.worker_bytes.has_value() && !options.worker_mib.has_value()) {
    wanted.push_back(
        "--worker_memory_mib=N, what a worker needs: both data sets, six times the parameters' bytes, the "
        "layers' outputs for a batch, and 64 MiB");
  }
  if (!wanted.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the data on this machine do not say what pods need: ", sizes.unknown, "\ngive ",
                     absl::StrJoin(wanted, "\nand ")));
  }
  return sizes;
}

absl::Status CheckProgram(const ManifestOptions& options, const v1::JobConfig& config) {
  const auto refuse = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(options.config, ": ", what));
  };
  if (!options.program.empty() && config.has_model()) {
    return refuse("model: is given, but a program brings its own; leave model out, or the program");
  }
  if (!options.program.empty()) return absl::OkStatus();
  if (!config.has_model()) {
    return refuse(
        "model and data are missing: the job is for a program that brings its own. Name the program "
        "(`weir manifest JOB --image=NAME:TAG -- PROGRAM ARGS`), or give both to have `worker` train");
  }
  if (options.data.empty() && !options.worker_cpus.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--data and --worker_cpus are for a program after --; for `worker` the config has "
      "data and compute.threads");
}

absl::StatusOr<ManifestJob> MakeJob(const ManifestOptions& options) {
  ManifestJob job;
  WEIR_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(options.config));
  WEIR_ASSIGN_OR_RETURN(job.config, ParseJobConfig(text, options.config, options.overrides));
  WEIR_RETURN_IF_ERROR(CheckProgram(options, job.config));
  job.pods = {options.ps, options.workers, options.evaluator, options.gpu, options.data};
  WEIR_RETURN_IF_ERROR(CheckForCluster(job.config, options.config, job.pods));
  WEIR_RETURN_IF_ERROR(SetTimesOfPods(&job.config));
  WEIR_ASSIGN_OR_RETURN(const JobSizes sizes, SizesOf(options));
  job.source = fs::path(options.config).filename();
  job.format = options.format == "tfjob"    ? ManifestFormat::kTfJob
               : options.format == "jobset" ? ManifestFormat::kJobSet
                                            : ManifestFormat::kKustomize;
  job.tls = options.tls;
  job.name_space = options.name_space;
  job.image = options.image;
  job.gpu_image = options.gpu_image;
  job.data_folder = DataFolder(job.config.data());
  job.worker_cpus = job.config.compute().threads();
  if (!options.program.empty()) {
    if (job.gpu_image.empty()) job.gpu_image = options.image;
    job.data_folder = options.data;
    job.worker_cpus = options.worker_cpus.value_or(1);
    job.program = options.program;
    job.overrides = options.overrides;
    const v1::ClusterConfig& cluster = job.config.cluster();
    job.overrides.push_back(absl::StrCat("cluster.start_seconds=", JsonNumber(cluster.start_seconds())));
    job.overrides.push_back(
        absl::StrCat("cluster.server_wait_seconds=", JsonNumber(cluster.server_wait_seconds())));
  }
  job.server_mib = Mib(ServerBytes(job.config, options.workers, *sizes.parameters, options.ps)) + kProgramMib;
  if (options.worker_mib.has_value()) {
    job.worker_mib = job.evaluator_mib = *options.worker_mib;
    return job;
  }
  const uint64_t chunks =
      uint64_t{options.ps} * job.config.wire().chunks_in_flight() * job.config.wire().chunk_kib() * 1024;
  job.evaluator_mib = Mib(static_cast<uint64_t>(*sizes.worker_bytes) + chunks) + kProgramMib;
  job.worker_mib = job.evaluator_mib + (options.gpu ? kCudaMib : 0);
  return job;
}

absl::Status CheckFolder(const ManifestOptions& options) {
  std::error_code problem;
  const fs::file_status status = fs::status(options.out, problem);
  if (!fs::exists(status) || options.force) return absl::OkStatus();
  if (!fs::is_directory(status)) {
    return absl::InvalidArgumentError(absl::StrCat("--out=", options.out, " is no folder"));
  }
  if (fs::is_empty(options.out, problem) && !problem) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--out=", options.out,
                   " is not empty; name a new folder, or write over its files with "
                   "--force"));
}

absl::Status Write(const std::string& folder, const std::map<std::string, std::string>& files) {
  for (const auto& [name, text] : files) {
    const fs::path path = fs::path(folder) / name;
    std::error_code problem;
    fs::create_directories(path.parent_path(), problem);
    if (problem) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot make the folder ", path.parent_path().native(), ": ", problem.message()));
    }
    WEIR_RETURN_IF_ERROR(FileSystem::Posix().WriteFile(path, text));
  }
  return absl::OkStatus();
}

// These steps serve all formats, since a certificate has a task's rank and none of its DNS names.
std::string CertificateSteps(const ManifestJob& job, absl::string_view kubectl) {
  return absl::StrCat(
      "  weir certs init certs --spec=dns:ps=weir-ps:", job.pods.servers,
      ",worker=weir-worker:", job.pods.workers, "   # and keep certs/ca.key on this machine\n  ", kubectl,
      " create configmap weir-ca --from-file=certs/ca.pem\n", "  for role in ps worker",
      job.pods.evaluator ? " reader" : "", "; do\n    ", kubectl,
      " create secret generic \"weir-tls-$role\" $(printf -- '--from-file=%s ' certs/$role*)\n"
      "  done\n");
}

std::string NextSteps(const ManifestOptions& options, const ManifestJob& job) {
  const std::string kubectl =
      job.name_space.empty() ? "kubectl" : absl::StrCat("kubectl -n ", job.name_space);
  const std::string out = Printable(options.out);
  std::string text = "What the job needs first, once in its namespace (docs/deploy.md):\n";
  if (!job.name_space.empty()) absl::StrAppend(&text, "  kubectl create namespace ", job.name_space, "\n");
  absl::StrAppend(&text, "  ", kubectl,
                  " create secret generic weir-token --from-literal=token=\"$(openssl rand -hex 32)\"\n");
  if (UsesObjectStorage(job.config)) {
    absl::StrAppend(&text, "  ", kubectl,
                    " create secret generic weir-object-storage "
                    "--from-literal=AWS_ACCESS_KEY_ID=... --from-literal=AWS_SECRET_ACCESS_KEY=...\n");
  } else {
    absl::StrAppend(&text, "  ", kubectl, " apply -f ", out, "/deploy/kustomize/checkpoints/claim.yaml\n");
  }
  if (job.tls) absl::StrAppend(&text, CertificateSteps(job, kubectl));
  if (!job.data_folder.empty()) {
    absl::StrAppend(&text, "  a claim weir-data whose files are those of ", Printable(job.data_folder), "\n");
  }
  return absl::StrCat(text, "Then:\n  kubectl apply -k ", out, "\n");
}

// "1 server with 88 MiB, 4 workers with 2115 MiB each and an evaluator with 67 MiB"
std::string PodsText(const ManifestJob& job) {
  const auto some = [](uint32_t count, absl::string_view one, int64_t mib) {
    return absl::StrCat(Counted(count, one), " with ", mib, " MiB", count == 1 ? "" : " each");
  };
  return absl::StrCat(
      some(job.pods.servers, "server", job.server_mib), job.pods.evaluator ? ", " : " and ",
      some(job.pods.workers, "worker", job.worker_mib),
      job.pods.evaluator ? absl::StrCat(" and an evaluator with ", job.evaluator_mib, " MiB") : "");
}

std::string CheckImage(const std::string& image) {
  std::string wanted = absl::StrCat("must be NAME:TAG or NAME@sha256:DIGEST, got '", image, "'");
  for (const char c : image) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) &&
        std::string("._-/:@").find(c) == std::string::npos) {
      return wanted;
    }
  }
  if (const size_t at = image.find('@'); at != std::string::npos) {
    const std::string digest = image.substr(at + 1);
    const bool good = at > 0 && digest.rfind("sha256:", 0) == 0 && digest.size() == 7 + 64 &&
                      digest.find_first_not_of("0123456789abcdef", 7) == std::string::npos;
    return good ? "" : wanted;
  }
  const size_t colon = image.rfind(':');
  // A colon before a slash is a registry's port.
  if (colon == std::string::npos || colon == 0 || image.find('/', colon) != std::string::npos ||
      colon + 1 == image.size()) {
    return wanted;
  }
  if (image.substr(colon + 1) == "latest") {
    return absl::StrCat("'", image, "' is another image tomorrow; give a version as its tag");
  }
  return "";
}

std::string CheckNamespace(const std::string& name) {
  bool good = !name.empty() && name.size() <= 63 && name.front() != '-' && name.back() != '-';
  for (const char c : name) {
    good = good && (absl::ascii_islower(static_cast<unsigned char>(c)) ||
                    absl::ascii_isdigit(static_cast<unsigned char>(c)) || c == '-');
  }
  return good ? "" : absl::StrCat("must be up to 63 lower-case letters, digits and -, got '", name, "'");
}

int RunManifest(const ManifestOptions& options) {
  const absl::StatusOr<ManifestJob> job = MakeJob(options);
  if (!job.ok()) return Refuse(kExitConfig, job.status().message());
  if (const absl::Status status = CheckFolder(options); !status.ok())
    return Refuse(kExitConfig, status.message());
  const absl::Status status = Write(options.out, RenderManifest(*job));
  if (!status.ok())
    return Refuse(absl::IsResourceExhausted(status) ? kExitStorage : kExitConfig, status.message());
  std::printf("%s: job \"%s\", %s\n%s", Printable(options.out).c_str(), Printable(job->config.name()).c_str(),
              PodsText(*job).c_str(), NextSteps(options, *job).c_str());
  std::fflush(stdout);
  if (!job->tls) std::fprintf(stderr, "warning: %s\n", std::string(kPlainText).c_str());
  return kExitOk;
}

constexpr const char* kManifestExamples = R"(Examples:
  weir manifest job.json --ps=4 --workers=16
  weir manifest job.json --ps=4 --workers=16 --format=tfjob --evaluator --namespace=training --out=my-job
  weir manifest job.json --workers=8 --gpu --image=registry.example.com/weir:0.1.0 --gpu_image=registry.example.com/weir-gpu:0.1.0
  weir manifest configs/digits.json --workers=4 --set checkpoint.directory=/var/lib/weir/checkpoints
  weir manifest job.json --workers=4 --image=registry.example.com/my:1 --parameters=5000000 --worker_memory_mib=2000 -- python train.py

The folder holds all that `kubectl apply -k` needs. Paths in the config are those of pods: data files lie in one folder, where pods mount the claim weir-data, and checkpoint.directory lies below /var/lib/weir, or is s3://BUCKET/PREFIX. What follows -- is a program that workers run instead of `worker`. More: docs/deploy.md)";

}  // namespace

void AddManifestCommand(Commands& commands) {
  const auto options = std::make_shared<ManifestOptions>();
  CLI::App* command =
      commands.Add("manifest", "Write the Kubernetes manifests of a job into a folder", kManifestExamples);
  AddConfigFile(command, &options->config);
  AddCount(command, "--ps", &options->ps, kMostTasks, "Servers");
  AddCount(command, "--workers", &options->workers, kMostTasks, "Workers");
  command->add_flag("--evaluator", options->evaluator,
                    "Add a task that evaluates the test set every so often");
  command->add_flag("--gpu", options->gpu, "Each worker computes on an NVIDIA GPU");
  command->add_flag("--tls", options->tls,
                    "All connections of the job have mutual TLS, with certificates of weir certs init");
  command->add_option("--format", options->format, "What to write")
      ->check(CLI::IsMember({"kustomize", "jobset", "tfjob"}))
      ->capture_default_str();
  AddNamed(command, "--out", &options->out, "DIR", "The folder, new or empty")->capture_default_str();
  command->add_flag("--force", options->force, "Write over the files of a folder that is not empty");
  AddNamed(command, "--namespace", &options->name_space, "NAME", "Where the job runs (default: kubectl's)")
      ->check(CheckNamespace);
  AddNamed(command, "--image", &options->image, "NAME:TAG", "Of all tasks (default: weir:VERSION)")
      ->check(CheckImage);
  AddNamed(command, "--gpu_image", &options->gpu_image, "NAME:TAG",
           "Of workers with --gpu (default: weir-gpu:VERSION; of a program that of --image)")
      ->check(CheckImage);
  command
      ->add_option("--parameters", options->parameters,
                   "Of the model, where the data are not on this machine")
      ->check(CLI::Range(int64_t{1}, kMaxElements));
  command
      ->add_option("--worker_memory_mib", options->worker_mib,
                   "MiB for each worker, instead of what follows from the data on this machine")
      ->check(CLI::Range(1, 1 << 30));
  AddNamed(command, "--data", &options->data, "DIR", "Of a program: where its pods mount the claim weir-data")
      ->check(
          [](const std::string& path) { return path.substr(0, 1) == "/" ? "" : "must be an absolute path"; });
  command
      ->add_option("--worker_cpus", options->worker_cpus,
                   "Of a program: CPUs for each worker, and its OMP_NUM_THREADS (default: 1)")
      ->check(CLI::Range(1, 1024));
  AddOverrides(command, &options->overrides);
  commands.OnRunWithProgram(command, &options->program, [options] { return RunManifest(*options); });
}

}  // namespace weir
