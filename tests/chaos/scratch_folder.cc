#include "tests/chaos/scratch_folder.h"

#include <stdlib.h>

#include "absl/strings/str_cat.h"

namespace weir {

std::string MakeScratchFolder(const std::string& prefix) {
  const char* parent = getenv("TEST_TMPDIR");
  if (parent == nullptr) parent = getenv("TMPDIR");
  std::string folder = absl::StrCat(parent == nullptr ? "/tmp" : parent, "/", prefix, "-XXXXXX");
  return mkdtemp(folder.data()) == nullptr ? "" : folder;
}

}  // namespace weir
