#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/object_store/http_client.h"
#include "common/object_store/s3_settings.h"
#include "common/threads/mutex.h"

namespace weir {

// The keys with which requests to object storage are signed: those of the environment, or temporary ones that
// AWS's Security Token Service (STS) gives for a token in a file (S3Settings::WebIdentity). Temporary keys
// are replaced when three quarters of their time are over, by one caller, while others use the old ones. As
// long as these are valid, a failure to get new ones harms nobody, and is tried again. The file is read each
// time, since the token in it is replaced, too.
//
// Thread-safe.
class Credentials {
 public:
  // `http` outlives the credentials.
  Credentials(
      const S3Settings& settings, HttpClient* http,
      std::function<absl::Time()> now = [] { return absl::Now(); });

  // Blocks while there are no valid keys, and for the one caller that replaces them. Unavailable: STS did not
  // answer, or asks to try again. PermissionDenied, FailedPrecondition: the same would come again.
  absl::StatusOr<SigningKeys> Get();

  // The store calls these keys expired. True: there will be others.
  bool OnExpired(const SigningKeys& keys);

 private:
  struct Temporary {
    SigningKeys keys;
    absl::Time expires;
  };
  absl::StatusOr<Temporary> Assume() const;

  const S3Settings settings_;
  HttpClient* const http_;
  const std::function<absl::Time()> now_;

  Mutex mutex_;
  CondVar changed_;
  // Of the environment, or the newest temporary ones; these are valid until `expires_`.
  SigningKeys keys_ ABSL_GUARDED_BY(mutex_);
  absl::Time expires_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  // When a caller gets new ones.
  absl::Time renew_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool renewing_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace weir
