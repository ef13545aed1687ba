#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace weir {

// A fresh folder for Unix sockets, removed with this object. Not below TEST_TMPDIR, whose path may be longer
// than the 107 characters of a socket's path.
class SocketFolder {
 public:
  SocketFolder() {
    if (mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~SocketFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  SocketFolder(const SocketFolder&) = delete;
  SocketFolder& operator=(const SocketFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/weir-XXXXXX";
};

}  // namespace weir
