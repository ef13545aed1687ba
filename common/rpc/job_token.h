#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weir {

// The secret of a job: a process that has it may call the job's servers. It travels with every call, in the
// entry "authorization" of the call's metadata, in plain text. So it keeps the other users of a machine out,
// but not those who can listen on the network.
//
// At least 128 bits, as hexadecimal digits. Never part of a command line, an environment variable, a log or
// an error.
//
// Thread safety: const functions are thread-safe.
class JobToken {
 public:
  // No token: the job has no secret.
  JobToken() = default;

  // A fresh token.
  static absl::StatusOr<JobToken> Random();
  // Reads the token in this file, a line of hexadecimal digits.
  // Errors: FailedPrecondition: there is no such file, it holds something else, or others may read it
  // (ReadPrivateFile).
  static absl::StatusOr<JobToken> Read(const std::string& path);
  // Read(), but no token if the path is empty.
  static absl::StatusOr<JobToken> ReadIfGiven(const std::string& path);
  // Makes the file, for this user alone.
  // Errors: AlreadyExists: the name is taken.
  absl::Status Write(const std::string& path) const;

  bool empty() const { return digits_.empty(); }
  // "Bearer 0123..."
  std::string Authorization() const;
  // Returns whether that is this token's Authorization(); false for no token. Any text of one length takes
  // equally long.
  bool Authorizes(absl::string_view authorization) const;
  // Authorizes() for the header "Authorization" of HTTP, in which browsers send the token as the password of
  // a user ("Basic", RFC 7617).
  bool AuthorizesHttp(absl::string_view authorization) const;

 private:
  explicit JobToken(std::string digits) : digits_(std::move(digits)) {}

  std::string digits_;
};

// Reads a file that holds a secret, or the first `most_bytes` + 1 of it if it is larger. It must be a regular
// file of this user's or of root's, perhaps behind symbolic links, as Kubernetes mounts a Secret. Neither
// others nor the group may have access, except that the group may read a file of root's.
// Errors: FailedPrecondition: there is no such file, it cannot be read, or others may use it; the message
// begins with `what` ("the token file") and the path.
absl::StatusOr<std::string> ReadPrivateFile(absl::string_view what, const std::string& path,
                                            size_t most_bytes);

}  // namespace weir
