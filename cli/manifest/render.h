#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "cli/manifest/cluster_config.h"
#include "proto/job_config.pb.h"

namespace weir {

enum class ManifestFormat { kKustomize, kJobSet, kTfJob };

// What the manifests of a job say beyond deploy/. A plain value.
struct ManifestJob {
  v1::JobConfig config;  // has passed CheckForCluster(), with SetTimesOfPods()
  std::string source;    // the config's file, for a comment
  ManifestFormat format = ManifestFormat::kKustomize;
  JobPods pods;
  bool tls = false;              // with the component mtls
  std::string name_space;        // "": the one that kubectl is set to
  std::string image, gpu_image;  // NAME:TAG or NAME@sha256:...; "": those of deploy/
  int64_t server_mib = 0, worker_mib = 0, evaluator_mib = 0;  // memory: request and limit
};

// Path below the folder -> content, of a folder for `kubectl apply -k` that needs no other: files of deploy/,
// the job's config, and a kustomization.yaml that fits the former to the latter. Pure.
std::map<std::string, std::string> RenderManifest(const ManifestJob& job);

}  // namespace weir
