#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace weir {

// A tmpfs of a few MB that only this process and its children see, and that can be filled to the last byte.
// For one thread; the process must have no other thread at Mount().
class SmallDisk {
 public:
  // Takes the process into mount and user namespaces of its own. PermissionDenied, Unimplemented and others:
  // this system does not allow it.
  static absl::Status EnterNamespace();

  // Mounts the disk on `folder`, which exists. Call EnterNamespace() before.
  static absl::Status Mount(const std::string& folder);
  static void Unmount(const std::string& folder);
  // Fills the disk, but for this many bytes (a multiple of 4096).
  static absl::Status Fill(const std::string& folder, uint64_t spare = 0);
  static void Free(const std::string& folder);
};

}  // namespace weir
