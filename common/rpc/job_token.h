#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weir {

// The secret of a job: who has it may call the job's servers. It travels with every call, in the entry
// "authorization" of the call's metadata, in plain text: it keeps the other users of a machine out, and
// nobody who can listen on the network.
//
// At least 128 bits, as hexadecimal digits. Never part of a command line, an environment variable, a log or
// an error. Thread-safe to read.
class JobToken {
 public:
  // None: the job has no secret.
  JobToken() = default;

  // A fresh one.
  static absl::StatusOr<JobToken> Random();
  // The one in this file, a line of hexadecimal digits. FailedPrecondition: there is no such file, it holds
  // something else, or others may read it. It must be a regular file of this user's or of root's (perhaps
  // behind symbolic links, as Kubernetes mounts a Secret), without access for others, and without access for
  // the group, but that the group may read what is root's.
  static absl::StatusOr<JobToken> Read(const std::string& path);
  // The same, but none where the path is empty.
  static absl::StatusOr<JobToken> ReadIfGiven(const std::string& path);
  // Makes the file, for this user alone. AlreadyExists: something bears the name.
  absl::Status Write(const std::string& path) const;

  bool empty() const { return digits_.empty(); }
  // "Bearer 0123..."
  std::string Authorization() const;
  // Whether that is this token's Authorization(). Takes as long for any of the same length. Not for none.
  bool Authorizes(absl::string_view authorization) const;

 private:
  explicit JobToken(std::string digits) : digits_(std::move(digits)) {}

  std::string digits_;
};

// What whoever calls without the token is told.
inline constexpr char kTokenMissing[] =
    "this job has a token; give --token_file=FILE with the file that its servers have";

}  // namespace weir
