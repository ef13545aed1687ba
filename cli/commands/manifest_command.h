#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// `weir manifest`: the manifests that run a job on Kubernetes.
namespace weir {

struct ManifestOptions {
  std::string config;
  std::vector<std::string> overrides;  // --set
  uint32_t ps = 1, workers = 1;
  bool gpu = false, evaluator = false, tls = false, force = false;
  std::string format = "kustomize";  // or "jobset", "tfjob"
  std::string out = "weir-manifest";
  std::string name_space, image, gpu_image;       // "": as the flags' help says
  std::optional<int64_t> parameters, worker_mib;  // where the data are not at hand
};

// "" if it names a version of an image, NAME:TAG or NAME@DIGEST; else what is wrong with it.
std::string CheckImage(const std::string& image);
// "" if it is a name of a namespace; else what is wrong with it.
std::string CheckNamespace(const std::string& name);

// Writes the folder and says what to do with it. Returns the process's exit code. Nothing is written unless
// everything is well.
int RunManifest(const ManifestOptions& options);

}  // namespace weir
