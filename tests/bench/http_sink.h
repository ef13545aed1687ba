#pragma once

#include <sys/types.h>

#include <utility>

#include "absl/status/statusor.h"

namespace weir {

// The receiving end of a benchmark of uploads, in a process of its own: takes requests as S3 does, reads
// their bodies, keeps nothing, and answers at once that all went well. Each list shows one folder, `folder`,
// and no object is ever there. Ends with this object.
class HttpSink {
 public:
  // Before the caller starts any thread.
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
