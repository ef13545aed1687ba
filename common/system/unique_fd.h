#pragma once

#include <errno.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/string_view.h"

namespace weir {

// An owned file descriptor; -1: none.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd() { Close(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Close() {
    if (valid()) close(Release());
  }

 private:
  int fd_ = -1;
};

// Writes all of `text`, however often a signal interrupts it. False: errno says why it stopped.
inline bool WriteAll(int fd, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t wrote = write(fd, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return false;
    text.remove_prefix(static_cast<size_t>(wrote));
  }
  return true;
}

}  // namespace weir
