#pragma once

#include <sys/types.h>

#include <utility>

#include "absl/status/statusor.h"

namespace weir {

// The receiving end of a benchmark of uploads, in a process of its own, which ends with this object. The
// process takes requests as S3 does, reads their bodies, keeps nothing, and answers success at once. Each
// list shows one folder, `folder`, and no object.
class HttpSink {
 public:
  // Requires: the caller has started no thread yet.
  static absl::StatusOr<HttpSink> Start(const char* folder);
  HttpSink(HttpSink&& other) noexcept : process_(std::exchange(other.process_, 0)), port_(other.port_) {}
  ~HttpSink();

  int port() const { return port_; }

 private:
  HttpSink(pid_t process, int port) : process_(process), port_(port) {}

  pid_t process_;
  int port_;
};

}  // namespace weir
