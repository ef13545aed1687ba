#include "cli/manifest/render.h"

#include <cmath>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "common/config/job_config.h"
#include "common/config/json_document.h"
#include "common/protocol/handshake.h"

namespace weir {
namespace {

// A file of deploy/ that a job's manifests are built on, as it was when this program was built.
struct DeployFile {
  absl::string_view path;  // "deploy/kustomize/base/servers.yaml"
  absl::string_view text;
};
constexpr DeployFile kFiles[] = {
#include "deploy/files.inc"
};

// `path`: of one of kFiles.
absl::string_view FileText(absl::string_view path) {
  const auto* const found =
      absl::c_find_if(kFiles, [&](const DeployFile& file) { return file.path == path; });
  if (found == std::end(kFiles)) std::abort();  // deploy/BUILD.bazel leaves the file out
  return found->text;
}

constexpr char kTimesFile[] = "deploy/kustomize/common/job.json";
constexpr char kKustomize[] = "deploy/kustomize/";
// `kubectl apply -k` does not apply this file, so `images` does not reach it.
constexpr char kExportFile[] = "deploy/kustomize/checkpoints/export.yaml";
// The argument in this file that names the job's checkpoint.directory.
constexpr absl::string_view kExportedFolder = "/var/lib/weir/checkpoints";
// Of the servers' terminationGracePeriodSeconds, beyond cluster.server_wait_seconds: as in deploy/.
constexpr int kEndSeconds = 30;
// Exit codes of a program that ask for no other try: those of docs/exit_codes.md, Python's 1 after an
// exception among them, and containerd's 128 for a program that cannot be started.
constexpr int kLastPermanentCode = 128;

enum class Role { kServer, kWorker, kEvaluator };

// The place of a role's pods in an object.
struct Pods {
  Role role;
  absl::string_view kind, name;  // of the object
  absl::string_view spec;        // the path of the pods' spec in it
  int first_rank = 0;            // of workers: the rank of the first pod
  std::string Target() const { return absl::StrCat("{kind: ", kind, ", name: ", name, "}"); }
};

constexpr Pods kPodsOfKustomize[] = {
    {Role::kServer, "StatefulSet", "weir-ps", "/spec/template/spec"},
    {Role::kWorker, "Job", "weir-worker", "/spec/template/spec"},
    {Role::kEvaluator, "Job", "weir-evaluator", "/spec/template/spec"},
};
constexpr Pods kPodsOfJobSet[] = {
    {Role::kServer, "JobSet", "weir", "/spec/replicatedJobs/0/template/spec/template/spec"},
    {Role::kWorker, "JobSet", "weir", "/spec/replicatedJobs/1/template/spec/template/spec"},
    {Role::kEvaluator, "JobSet", "weir", "/spec/replicatedJobs/2/template/spec/template/spec"},
};
constexpr Pods kPodsOfTfJob[] = {
    {Role::kServer, "TFJob", "weir", "/spec/tfReplicaSpecs/PS/template/spec"},
    {Role::kWorker, "TFJob", "weir", "/spec/tfReplicaSpecs/Chief/template/spec"},
    {Role::kWorker, "TFJob", "weir", "/spec/tfReplicaSpecs/Worker/template/spec", /*first_rank=*/1},
    {Role::kEvaluator, "TFJob", "weir", "/spec/tfReplicaSpecs/Evaluator/template/spec"},
};

// A format: the folder of deploy/ that it begins with.
struct Format {
  absl::string_view folder;
  std::vector<Pods> pods;  // of this job
};

Format FormatOf(const ManifestJob& job) {
  Format format;
  absl::Span<const Pods> all;
  switch (job.format) {
    case ManifestFormat::kKustomize:
      format.folder = "deploy/kustomize/base";
      all = kPodsOfKustomize;
      break;
    case ManifestFormat::kJobSet:
      format.folder = "deploy/jobset";
      all = kPodsOfJobSet;
      break;
    case ManifestFormat::kTfJob:
      format.folder = "deploy/kubeflow";
      all = kPodsOfTfJob;
      break;
  }
  for (const Pods& pods : all) {
    if (pods.role == Role::kEvaluator && !job.pods.evaluator) continue;
    // The chief is a worker.
    if (absl::StrContains(pods.spec, "/Worker/") && job.pods.workers == 1) continue;
    format.pods.push_back(pods);
  }
  return format;
}

// Operations of a JSON patch (RFC 6902) on one object.
class Patch {
 public:
  explicit Patch(const Pods& pods) : target_(pods.Target()) {}
  Patch& Do(absl::string_view operation, absl::string_view path, absl::string_view value) {
    absl::StrAppend(&operations_, "      - {op: ", operation, ", path: ", path, ", value: ", value, "}\n");
    return *this;
  }
  Patch& Replace(absl::string_view path, absl::string_view value) { return Do("replace", path, value); }
  Patch& Add(absl::string_view path, absl::string_view value) { return Do("add", path, value); }
  Patch& Remove(absl::string_view path) {
    absl::StrAppend(&operations_, "      - {op: remove, path: ", path, "}\n");
    return *this;
  }
  std::string ToString() const {
    return absl::StrCat("  - target: ", target_, "\n    patch: |\n", operations_);
  }

 private:
  std::string target_, operations_;
};

std::string Quoted(int64_t number) { return absl::StrCat("\"", number, "\""); }

// Words of a command line as a YAML list. Kubernetes reads $(NAME) in arguments as a variable, and $$ as $.
std::string Words(const std::vector<std::string>& words) {
  return absl::StrCat(
      "[",
      absl::StrJoin(words, ", ",
                    [](std::string* out, const std::string& word) { absl::StrAppend(out, JsonQuote(word)); }),
      "]");
}

std::string WithoutVariables(const std::string& word) { return absl::StrReplaceAll(word, {{"$", "$$"}}); }

// The cluster spec of all tasks; "": TF_CONFIG has it.
std::string ClusterFlag(const ManifestJob& job) {
  switch (job.format) {
    case ManifestFormat::kKustomize:
      return "--cluster=dns:ps=weir-ps:$(WEIR_SERVERS),worker=weir-worker:$(WEIR_WORKERS)";
    case ManifestFormat::kJobSet:
      return absl::StrCat("--cluster=dns:ps=weir-ps-0-*.weir:", job.pods.servers,
                          ",worker=weir-worker-0-*.weir:", job.pods.workers);
    case ManifestFormat::kTfJob:
      return "";
  }
  return "";
}

// Has pods run the job's program instead of `worker`.
void AddProgram(const ManifestJob& job, const Pods& pods, Patch* patch) {
  const std::string container = absl::StrCat(pods.spec, "/containers/0");
  std::vector<std::string> args;
  if (const std::string cluster = ClusterFlag(job); !cluster.empty()) {
    args = {cluster, pods.role == Role::kEvaluator ? "--task=evaluator:0" : "--task=pod"};
  }
  for (const std::string& set : job.overrides) args.push_back(WithoutVariables(absl::StrCat("--set=", set)));
  args.push_back("--");
  for (const std::string& word : job.program) args.push_back(WithoutVariables(word));
  const std::string variables = absl::StrCat(container, "/env/-");
  patch->Replace(absl::StrCat(container, "/args"), Words(args))
      .Add(variables, "{name: PYTHONUNBUFFERED, value: \"1\"}")
      // Else a process has a thread for each core of its node.
      .Add(variables, absl::StrCat("{name: OMP_NUM_THREADS, value: ", Quoted(job.worker_cpus), "}"))
      // Processes that load data pass it through shared memory, of which a container has 64 MiB by itself.
      .Add(absl::StrCat(pods.spec, "/volumes/-"), "{name: shm, emptyDir: {medium: Memory}}")
      .Add(absl::StrCat(container, "/volumeMounts/-"), "{name: shm, mountPath: /dev/shm}");
  if (job.format == ManifestFormat::kTfJob) return;  // its operator takes codes up to 127 as permanent
  std::vector<int> codes(kLastPermanentCode);
  std::iota(codes.begin(), codes.end(), 1);
  patch->Replace(absl::StrCat(absl::StripSuffix(pods.spec, "/template/spec"),
                              "/podFailurePolicy/rules/0/onExitCodes/values"),
                 absl::StrCat("[", absl::StrJoin(codes, ", "), "]"));
}

// Adds what every pod of the role gets.
std::string PatchOfPods(const ManifestJob& job, const Pods& pods) {
  const std::string container = absl::StrCat(pods.spec, "/containers/0");
  const bool serves = pods.role == Role::kServer;
  const std::string memory = absl::StrCat(serves                       ? job.server_mib
                                          : pods.role == Role::kWorker ? job.worker_mib
                                                                       : job.evaluator_mib,
                                          "Mi");
  Patch patch(pods);
  patch.Replace(absl::StrCat(container, "/resources/requests/memory"), memory)
      .Replace(absl::StrCat(container, "/resources/limits/memory"), memory);
  // The user's image may have an entry point of its own.
  if (!job.program.empty()) patch.Add(absl::StrCat(container, "/command"), Words({"weir", "run"}));
  if (serves) {
    const double wait = std::ceil(job.config.cluster().server_wait_seconds());
    patch.Replace(absl::StrCat(pods.spec, "/terminationGracePeriodSeconds"),
                  absl::StrCat(static_cast<int>(wait) + kEndSeconds));
    return patch.ToString();
  }
  patch.Replace(absl::StrCat(container, "/resources/requests/cpu"), Quoted(job.worker_cpus));
  if (!job.program.empty()) AddProgram(job, pods, &patch);
  if (job.tls && pods.first_rank > 0) {
    patch.Add(absl::StrCat(pods.spec, "/initContainers/0/env/-"),
              absl::StrCat("{name: WEIR_FIRST_RANK, value: ", Quoted(pods.first_rank), "}"));
  }
  if (!job.data_folder.empty()) {
    patch
        .Add(absl::StrCat(pods.spec, "/volumes/-"),
             "{name: data, persistentVolumeClaim: {claimName: weir-data, readOnly: true}}")
        .Add(absl::StrCat(container, "/volumeMounts/-"),
             absl::StrCat("{name: data, mountPath: ", JsonQuote(job.data_folder), ", readOnly: true}"));
  }
  return patch.ToString();
}

// The size of a job, and which pods it does without, where size.yaml does not say it.
std::string PatchesOfSize(const ManifestJob& job, const Format& format) {
  switch (job.format) {
    case ManifestFormat::kKustomize:
      if (job.pods.evaluator) return "";
      return absl::StrCat("  - patch: |\n      {apiVersion: batch/v1, kind: Job, metadata: ",
                          "{name: weir-evaluator}, $patch: delete}\n");
    case ManifestFormat::kJobSet: {
      Patch patch(format.pods[0]);
      for (const Pods& pods : format.pods) {
        if (pods.role != Role::kServer && !job.program.empty()) continue;  // AddProgram() has written it
        patch.Replace(absl::StrCat(pods.spec, "/containers/0/args/1"), JsonQuote(ClusterFlag(job)));
      }
      for (const auto& [index, count] : {std::pair(0, job.pods.servers), std::pair(1, job.pods.workers)}) {
        for (const char* field : {"completions", "parallelism"}) {
          patch.Replace(absl::StrCat("/spec/replicatedJobs/", index, "/template/spec/", field),
                        absl::StrCat(count));
        }
      }
      if (!job.pods.evaluator) patch.Remove("/spec/replicatedJobs/2");
      return patch.ToString();
    }
    case ManifestFormat::kTfJob: {
      Patch patch(format.pods[0]);
      patch.Replace("/spec/tfReplicaSpecs/PS/replicas", absl::StrCat(job.pods.servers));
      if (job.pods.workers > 1) {
        patch.Replace("/spec/tfReplicaSpecs/Worker/replicas", absl::StrCat(job.pods.workers - 1));
      } else {
        patch.Remove("/spec/tfReplicaSpecs/Worker");
      }
      if (!job.pods.evaluator) patch.Remove("/spec/tfReplicaSpecs/Evaluator");
      return patch.ToString();
    }
  }
  return "";
}

// What the target of a patch, such as "{kind: StatefulSet|Job, name: weir-ps}", says for `key`; nothing: any.
std::vector<absl::string_view> Wanted(absl::string_view target, absl::string_view key) {
  const std::string begin = absl::StrCat(key, ": ");
  const size_t at = target.find(begin);
  if (at == absl::string_view::npos) return {};
  const absl::string_view rest = target.substr(at + begin.size());
  return absl::StrSplit(rest.substr(0, rest.find_first_of(",}")), '|');
}

bool IsFor(absl::string_view target, const Pods& pods) {
  const auto says = [&](absl::string_view key, absl::string_view value) {
    const std::vector<absl::string_view> wanted = Wanted(target, key);
    return wanted.empty() || absl::c_linear_search(wanted, value);
  };
  return says("kind", pods.kind) && says("name", pods.name);
}

// Adapts a component of deploy/kustomize to the objects of this format. Each patch of the component is for
// the pods of some roles, and is written once for each of the format's pods of these roles.
std::string ComponentFor(const Format& format, absl::string_view text) {
  constexpr absl::string_view kPatches = "patches:\n", kTarget = "  - target: ";
  const size_t begin = text.find(kPatches);
  if (begin == absl::string_view::npos) return std::string(text);
  const size_t end = begin + kPatches.size();
  std::string adapted(text.substr(0, end));
  std::vector<absl::string_view> patches = absl::StrSplit(text.substr(end), kTarget);
  for (size_t i = 1; i < patches.size(); ++i) {
    const size_t line = patches[i].find('\n');
    const absl::string_view target = patches[i].substr(0, line);
    // Without the comment on the next patch.
    const absl::string_view patch = patches[i].substr(line, patches[i].find("\n  #") - line);
    bool known = false;
    for (const Pods& from : kPodsOfKustomize) {
      if (!IsFor(target, from)) continue;
      known = true;
      for (const Pods& to : format.pods) {
        if (to.role != from.role) continue;
        absl::StrAppend(&adapted, kTarget, to.Target(),
                        absl::StrReplaceAll(patch, {{absl::StrCat("path: ", from.spec, "/"),
                                                     absl::StrCat("path: ", to.spec, "/")}}));
        if (adapted.back() != '\n') adapted += '\n';
      }
    }
    if (!known) std::abort();  // the component is for pods that no format has
  }
  return adapted;
}

// An entry of `images`; "": deploy/'s own image.
std::string ImageEntry(absl::string_view name, absl::string_view image) {
  if (image.empty()) return "";
  std::string entry = absl::StrCat("  - name: ", name, "\n");
  if (const size_t at = image.find('@'); at != absl::string_view::npos) {
    return absl::StrCat(entry, "    newName: ", image.substr(0, at), "\n    digest: ", image.substr(at + 1),
                        "\n");
  }
  const size_t colon = image.rfind(':');
  return absl::StrCat(entry, "    newName: ", image.substr(0, colon),
                      "\n    newTag: ", JsonQuote(image.substr(colon + 1)), "\n");
}

// The pod that exports the weights, for this job.
std::string ExportFor(const ManifestJob& job, absl::string_view text) {
  const std::string directory = WithoutVariables(job.config.checkpoint().directory());
  std::string adapted = absl::StrReplaceAll(
      text, {{absl::StrCat("- ", kExportedFolder, "\n"), absl::StrCat("- ", JsonQuote(directory), "\n")}});
  if (job.image.empty()) return adapted;
  return absl::StrReplaceAll(adapted,
                             {{absl::StrCat("image: weir:", kVersion), absl::StrCat("image: ", job.image)}});
}

}  // namespace

absl::Status SetTimesOfPods(v1::JobConfig* config) {
  WEIR_ASSIGN_OR_RETURN(const v1::JobConfig shipped, ParseJobConfig(FileText(kTimesFile), kTimesFile));
  v1::ClusterConfig* const cluster = config->mutable_cluster();
  if (!cluster->has_start_seconds()) cluster->set_start_seconds(shipped.cluster().start_seconds());
  if (!cluster->has_server_wait_seconds()) {
    cluster->set_server_wait_seconds(shipped.cluster().server_wait_seconds());
  }
  return absl::OkStatus();
}

std::map<std::string, std::string> RenderManifest(const ManifestJob& job) {
  const Format format = FormatOf(job);
  const bool plain = job.format == ManifestFormat::kKustomize;
  std::vector<std::string> components;
  if (plain) components.push_back("size");
  if (job.pods.gpu) components.push_back("gpu");
  if (UsesObjectStorage(job.config)) components.push_back("object-storage");
  if (job.tls) components.push_back("mtls");

  std::vector<std::string> folders = {std::string(format.folder), absl::StrCat(kKustomize, "common")};
  if (!UsesObjectStorage(job.config)) folders.push_back(absl::StrCat(kKustomize, "checkpoints"));
  std::string component_list;
  for (const std::string& component : components) {
    folders.push_back(absl::StrCat(kKustomize, "components/", component));
    absl::StrAppend(&component_list, "  - ", folders.back(), "\n");
  }
  std::map<std::string, std::string> files;
  for (const DeployFile& file : kFiles) {
    for (const std::string& folder : folders) {
      if (!absl::StartsWith(file.path, absl::StrCat(folder, "/"))) continue;
      const bool adapts = !plain && absl::StartsWith(folder, absl::StrCat(kKustomize, "components/"));
      files[std::string(file.path)] = adapts ? ComponentFor(format, file.text) : std::string(file.text);
    }
  }

  if (const auto found = files.find(kExportFile); found != files.end()) {
    found->second = ExportFor(job, found->second);
  }
  files["job.json"] =
      absl::StrCat("// Of ", job.source, ", for pods.\n", ToJson(job.config, /*with_defaults=*/false));
  if (plain) {
    files["size.yaml"] =
        absl::StrReplaceAll(FileText("deploy/kustomize/overlays/dev/size.yaml"),
                            {{"servers: \"1\"", absl::StrCat("servers: ", Quoted(job.pods.servers))},
                             {"workers: \"2\"", absl::StrCat("workers: ", Quoted(job.pods.workers))}});
  }

  std::string& text = files["kustomization.yaml"];
  if (!job.tls) absl::StrAppend(&text, "# Warning: ", kPlainText, ".\n");
  absl::StrAppend(&text, "# Made by `weir manifest` of Weir ", kVersion,
                  ". Everything in deploy/ is Weir's; the job's own is here, and in job.json",
                  plain ? " and size.yaml" : "", ".\n",
                  "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n");
  if (!job.name_space.empty()) absl::StrAppend(&text, "namespace: ", JsonQuote(job.name_space), "\n");
  absl::StrAppend(&text, "resources:\n  - ", format.folder, "\n", plain ? "  - size.yaml\n" : "");
  if (!component_list.empty()) absl::StrAppend(&text, "components:\n", component_list);
  const std::string images =
      absl::StrCat(ImageEntry("weir", job.image), ImageEntry("weir-gpu", job.gpu_image));
  if (!images.empty()) absl::StrAppend(&text, "images:\n", images);
  absl::StrAppend(&text,
                  "configMapGenerator:\n  - name: weir-job\n    behavior: replace\n    files:\n"
                  "      - job.json\n    options: {immutable: true}\npatches:\n");
  for (const Pods& pods : format.pods) absl::StrAppend(&text, PatchOfPods(job, pods));
  // Last, so that the indexes of the items before stay valid.
  absl::StrAppend(&text, PatchesOfSize(job, format));
  return files;
}

}  // namespace weir
