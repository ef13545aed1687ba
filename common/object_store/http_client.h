#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/threads/mutex.h"

namespace weir {

// Keys of AWS Signature Version 4.
struct SigningKeys {
  std::string key_id, secret_key;
  std::string session_token;  // of temporary keys; else empty
};

// The certificates of the CAs that servers' certificates may come from, a file in PEM. Empty: the system's.
struct CaBundle {
  std::string file;
  std::string variable;  // that names the file, for messages
};

struct HttpRequest {
  std::string method;
  std::string url;
  std::vector<std::string> headers;  // "name: value"
  absl::string_view body;
  // Outlives the call. nullptr: the request is not signed.
  const SigningKeys* keys = nullptr;
  // More than this in an answer is an error. Bounds the memory that a server can make us take.
  uint64_t max_answer = 64 << 20;
  // The request has failed when no byte has moved for `silence`, and when it is not over after `limit`.
  absl::Duration silence = absl::Seconds(20);
  absl::Duration limit = absl::Minutes(1);
  // Not sent again by the library itself, as it does if a connection that was kept open turns out to be cut.
  bool once = false;
};

struct HttpAnswer {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;

  // "" if there is none.
  std::string header(const std::string& name) const;
};

// RFC 3986, as signatures need it: all but letters, digits, "-_.~" and what is kept.
std::string PercentEncode(absl::string_view text, absl::string_view keep = "");

// Sends requests, signed with AWS Signature Version 4 if they have keys. Keeps connections open for later
// requests. Follows no redirect. Thread-safe; a call blocks until there is an answer.
class HttpClient {
 public:
  struct Options {
    // The signatures' scope.
    std::string region, service;
    absl::Duration connect_timeout = absl::Seconds(5);
    CaBundle ca = {};
  };
  explicit HttpClient(Options options);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Any answer that has come whole is OK, whatever its status. Unavailable: no connection, or it was cut, or
  // took too long; the server may have done what the request asks for, or may still do so.
  // FailedPrecondition: the URL or the server's certificate is wrong; says which CAs are trusted.
  absl::StatusOr<HttpAnswer> Send(const HttpRequest& request);

  // How far a server's clock is ahead of this machine's: signatures bear the server's time from now on.
  void SetClock(absl::Duration ahead);
  // The time that signatures bear.
  absl::Time Now() const;
  // Below this a server accepts the signature of a wrong clock.
  static constexpr absl::Duration kSkewThatMatters = absl::Minutes(5);

  // From so much later on all requests fail, those under way within a second.
  void EndWithin(absl::Duration time);
  bool ended() const;
  // Sleeps, but not beyond the end.
  void Sleep(absl::Duration time);

 private:
  class Handle;

  const Options options_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::chrono::steady_clock::time_point end_ ABSL_GUARDED_BY(mutex_) =
      std::chrono::steady_clock::time_point::max();
  // As SetClock(). Zero: libcurl takes the machine's time.
  absl::Duration ahead_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();
  // The handles that no call uses now.
  std::vector<std::unique_ptr<Handle>> idle_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
