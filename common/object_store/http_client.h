#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/sync/mutex.h"

namespace weir {

struct HttpRequest {
  std::string method;
  std::string url;
  std::vector<std::string> headers;  // "name: value"
  absl::string_view body;
  // More than this in an answer is an error. Bounds the memory that a server can make us take.
  uint64_t max_answer = 64 << 20;
};

struct HttpAnswer {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;

  // "" if there is none.
  std::string header(const std::string& name) const;
};

// Sends requests that are signed with AWS Signature Version 4. Keeps connections open for later requests.
// Follows no redirect. Thread-safe; a call blocks until there is an answer.
class HttpClient {
 public:
  struct Options {
    // Empty key id: requests are not signed.
    std::string key_id, secret_key;
    std::string region, service;
    absl::Duration connect_timeout = absl::Seconds(5);
    // A transfer that makes no progress worth the name (1 KiB/s) for this time has failed.
    absl::Duration stall_timeout = absl::Seconds(20);
  };
  explicit HttpClient(Options options);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Any answer that has come whole is OK, whatever its status. Unavailable: no connection, or it was cut, or
  // stalled; the server may have done what the request asks for, or may still do so. FailedPrecondition: the
  // URL or the server's certificate is wrong.
  absl::StatusOr<HttpAnswer> Send(const HttpRequest& request);

 private:
  class Handle;

  const Options options_;
  Mutex mutex_;
  // Those that no call uses now.
  std::vector<std::unique_ptr<Handle>> idle_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
