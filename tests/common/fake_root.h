#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace weir {

// A machine's /proc and /sys, as files beneath a folder. One at a time.
class FakeRoot {
 public:
  FakeRoot() { std::filesystem::remove_all(dir_); }

  void Write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(dir_ + path).parent_path());
    std::ofstream(dir_ + path) << text;
  }
  const std::string& path() const { return dir_; }

 private:
  const std::string dir_ = std::string(std::getenv("TEST_TMPDIR")) + "/root";
};

}  // namespace weir
