#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weir {

// The files of deploy/ that a job's manifests rest on, as they were when this program was built.
struct DeployFile {
  absl::string_view path;  // "deploy/kustomize/base/servers.yaml"
  absl::string_view text;
};

absl::Span<const DeployFile> DeployFiles();

// The text of one of them, which must be there.
absl::string_view DeployFileText(absl::string_view path);

}  // namespace weir
