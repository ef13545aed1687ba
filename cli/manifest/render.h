#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cli/manifest/cluster_config.h"
#include "proto/job_config.pb.h"

namespace weir {

enum class ManifestFormat { kKustomize, kJobSet, kTfJob };

// The properties of a job that its manifests add to deploy/. A plain value.
struct ManifestJob {
  v1::JobConfig config;  // has passed CheckForCluster(), with SetTimesOfPods()
  std::string source;    // the config's file, for a comment
  ManifestFormat format = ManifestFormat::kKustomize;
  JobPods pods;
  bool tls = false;                                           // with the component mtls
  std::string name_space;                                     // "": kubectl's current namespace
  std::string image, gpu_image;                               // NAME:TAG or NAME@sha256:...; "": deploy/'s
  int64_t server_mib = 0, worker_mib = 0, evaluator_mib = 0;  // memory: request and limit
  uint32_t worker_cpus = 1;                                   // of a worker and the evaluator: request
  std::string data_folder;                                    // where they mount weir-data; "": nowhere
  // The words of the program that they run instead of `worker` (empty: `worker`), and the overrides that make
  // `config` from the job's config that the program has itself.
  std::vector<std::string> program, overrides;
};

// A warning for users of a manifest without TLS.
inline constexpr absl::string_view kPlainText =
    "no TLS: the job's token, weights and gradients travel between pods in the clear; `weir manifest --tls` "
    "encrypts them";

// Sets the times that pods need (deploy/kustomize/common/job.json) in fields that `config` does not set.
absl::Status SetTimesOfPods(v1::JobConfig* config);

// Returns the files of a folder that `kubectl apply -k` applies without any other folder: path below the
// folder -> content. They are files of deploy/, the job's config, and a kustomization.yaml that adapts the
// files to the config. A pure function.
std::map<std::string, std::string> RenderManifest(const ManifestJob& job);

}  // namespace weir
