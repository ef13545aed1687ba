#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weir {

// A file of deploy/ that a job's manifests are built on, as it was when this program was built.
struct DeployFile {
  absl::string_view path;  // "deploy/kustomize/base/servers.yaml"
  absl::string_view text;
};

absl::Span<const DeployFile> DeployFiles();

// Returns the text of the file at `path`, which must be one of DeployFiles().
absl::string_view DeployFileText(absl::string_view path);

}  // namespace weir
