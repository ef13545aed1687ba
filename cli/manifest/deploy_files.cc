#include "cli/manifest/deploy_files.h"

#include <cstdlib>

namespace weir {
namespace {

constexpr DeployFile kFiles[] = {
#include "deploy/files.inc"
};

}  // namespace

absl::Span<const DeployFile> DeployFiles() { return kFiles; }

absl::string_view DeployFileText(absl::string_view path) {
  for (const DeployFile& file : kFiles) {
    if (file.path == path) return file.text;
  }
  std::abort();  // deploy/BUILD.bazel leaves out a file that this program names
}

}  // namespace weir
