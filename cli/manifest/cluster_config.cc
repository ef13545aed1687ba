#include "cli/manifest/cluster_config.h"

#include <filesystem>
#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/config/job_config.h"
#include "common/config/proto_json.h"
#include "common/config/written_text.h"

namespace weir {
namespace {

// Folders of the image and of the pods that a volume must not hide, and must not lie in.
constexpr absl::string_view kTaken[] = {"/bin",   "/boot",     "/dev",     "/etc",      "/lib",
                                        "/lib64", "/opt/weir", "/proc",    "/sbin",     "/sys",
                                        "/tmp",   "/usr/bin",  "/usr/lib", "/usr/sbin", kCheckpointMount};

struct NamedPath {
  std::string field, path;
};

std::vector<NamedPath> DataPaths(const v1::DataConfig& data) {
  std::vector<NamedPath> paths;
  const auto add = [&](const char* set, const v1::DataFiles& files) {
    if (files.has_images()) paths.push_back({absl::StrCat("data.", set, ".images"), files.images()});
    if (files.has_labels()) paths.push_back({absl::StrCat("data.", set, ".labels"), files.labels()});
    if (files.has_path()) paths.push_back({absl::StrCat("data.", set, ".path"), files.path()});
  };
  if (data.format() == v1::DataConfig::FORMAT_DIGITS) return paths;
  add("train", data.train());
  add("test", data.test());
  add("validation", data.validation());
  return paths;
}

std::string Normal(const std::string& path) {
  std::string text = std::filesystem::path(path).lexically_normal();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

// Whether `path` is `folder` or lies in it; both are normal.
bool IsWithin(absl::string_view path, absl::string_view folder) {
  return path == folder || folder == "/" || absl::StartsWith(path, absl::StrCat(folder, "/"));
}

// Whether pods can mount a volume there.
void CheckMount(const std::string& field, absl::string_view what, const std::string& folder,
                ConfigProblems* problems) {
  for (const absl::string_view taken : kTaken) {
    if (!IsWithin(folder, taken) && !IsWithin(taken, folder)) continue;
    problems->Add(field, absl::StrCat(what, folder,
                                      ", where pods cannot mount a volume, since the image or the pod has ",
                                      taken, "; move them to a folder of their own, such as /data"));
    return;
  }
}

void CheckData(const v1::DataConfig& data, ConfigProblems* problems) {
  bool absolute = true;
  const std::vector<NamedPath> paths = DataPaths(data);
  for (const NamedPath& named : paths) {
    if (named.path[0] == '/') continue;
    absolute = false;
    problems->Add(named.field,
                  absl::StrCat("'", named.path,
                               "' is relative to this file's folder, which pods do not have; write the path "
                               "that the file has in a pod, such as /data",
                               // Without .. at its beginning.
                               Normal(absl::StrCat("/", named.path))));
  }
  if (paths.empty() || !absolute) return;
  CheckMount("data", "the folder of all its files is ", DataFolder(data), problems);
}

void CheckCheckpoints(const v1::CheckpointConfig& checkpoint, ConfigProblems* problems) {
  const std::string allowed = absl::StrCat(
      "write ", kCheckpointMount, "/checkpoints, on the claim that servers mount, or ", "s3://BUCKET/PREFIX");
  const auto lies_well = [](const std::string& path) {
    return IsObjectPath(path) ||
           (path[0] == '/' && Normal(path) != kCheckpointMount && IsWithin(Normal(path), kCheckpointMount));
  };
  if (!checkpoint.has_directory()) {
    problems->Add("checkpoint.directory",
                  absl::StrCat("is not set, so that a server's pod that moves to another node would end the "
                               "job; ",
                               allowed));
    return;
  }
  if (!lies_well(checkpoint.directory())) {
    problems->Add("checkpoint.directory",
                  absl::StrCat("'", checkpoint.directory(), "' is on no volume of a pod; ", allowed));
  }
  if (!checkpoint.has_init_from()) return;
  if (!lies_well(checkpoint.init_from())) {
    problems->Add("checkpoint.init_from",
                  absl::StrCat("'", checkpoint.init_from(), "' is on no volume of a pod; it must lie below ",
                               kCheckpointMount, ", or in object storage"));
  } else if (IsObjectPath(checkpoint.init_from()) != IsObjectPath(checkpoint.directory())) {
    problems->Add(
        "checkpoint.init_from",
        absl::StrCat("'", checkpoint.init_from(), "' and checkpoint.directory '", checkpoint.directory(),
                     "' are of two kinds; servers have either the claim or object storage"));
  }
}

// Finds what a worker or an evaluator would refuse on the device that it gets.
void CheckDevices(const v1::JobConfig& config, const JobPods& pods, ConfigProblems* problems) {
  const v1::ComputeConfig::Precision precision = config.compute().precision();
  if (config.compute().has_precision() && precision != v1::ComputeConfig::PRECISION_FLOAT32) {
    const std::string needs_gpu = absl::StrCat("is ", EnumWord(precision), ", which needs a GPU, ");
    if (!pods.gpu) {
      problems->Add("compute.precision",
                    absl::StrCat(needs_gpu, "but workers have none; add --gpu, or leave the field out"));
    } else if (pods.evaluator) {
      problems->Add("compute.precision",
                    absl::StrCat(needs_gpu,
                                 "but an evaluator has none; leave --evaluator out (workers evaluate at "
                                 "the ends of epochs), or the field"));
    }
  }
  for (int i = 0; i < config.model().layers_size() && pods.gpu; ++i) {
    const v1::LayerConfig::Type type = config.model().layers(i).type();
    if (!IsForCpuOnly(type)) continue;
    problems->Add(
        absl::StrCat("model.layers[", i, "]"),
        absl::StrCat("is of type ", EnumWord(type), ", which only a CPU computes; leave --gpu out"));
    return;
  }
}

}  // namespace

absl::Status CheckForCluster(const v1::JobConfig& config, const std::string& source, const JobPods& pods) {
  ConfigProblems problems;
  problems.NotePlace("", {std::make_shared<const std::string>(source), 0, 0});
  CheckData(config.data(), &problems);
  if (!pods.data.empty()) CheckMount("--data", "the program's folder is ", Normal(pods.data), &problems);
  CheckCheckpoints(config.checkpoint(), &problems);
  CheckDevices(config, pods, &problems);
  const v1::ClusterConfig& cluster = config.cluster();
  if (cluster.has_workers() && cluster.workers() != pods.workers) {
    problems.Add("cluster.workers", absl::StrCat("is ", cluster.workers(), ", but --workers=", pods.workers,
                                                 "; leave it out: pods find the number in the cluster spec"));
  }
  if (cluster.min_workers() > pods.workers) {
    problems.Add("cluster.min_workers",
                 absl::StrCat("is ", cluster.min_workers(), ", more than --workers=", pods.workers));
  }
  return problems.ToStatus();
}

bool UsesObjectStorage(const v1::JobConfig& config) { return IsObjectPath(config.checkpoint().directory()); }

std::string DataFolder(const v1::DataConfig& data) {
  std::string folder;
  for (const NamedPath& named : DataPaths(data)) {
    const std::filesystem::path parent = std::filesystem::path(Normal(named.path)).parent_path();
    if (folder.empty()) folder = parent;
    while (!IsWithin(parent.native(), folder)) folder = std::filesystem::path(folder).parent_path();
  }
  return folder;
}

}  // namespace weir
