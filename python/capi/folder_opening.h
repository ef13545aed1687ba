#pragma once

#include <string>

namespace weir {

// While this object lives, no other job of this process opens this folder of checkpoints: the constructor
// waits, and warns when it does. An opening continues when nobody waits for it any more (Ctrl-C), and may
// find its storage silent for a while. If it claimed the folder after the next opening has, it would end the
// job of the next opening.
class FolderOpening {
 public:
  explicit FolderOpening(std::string folder);
  FolderOpening(const FolderOpening&) = delete;
  ~FolderOpening();

 private:
  const std::string folder_;
};

}  // namespace weir
