#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/object_store/http_client.h"
#include "common/threads/mutex.h"

namespace weir {

// How object storage is reached, as AWS tools have it in the environment. A plain value.
struct S3Settings {
  // "http://127.0.0.1:9000", without a slash at its end. Empty: Amazon's own, one host name a bucket.
  std::string endpoint;
  std::string region;
  SigningKeys keys;
  // How temporary keys are got instead, as a Kubernetes service account has it: for a token in a file, and a
  // role. `endpoint` is that of AWS's Security Token Service (STS).
  struct WebIdentity {
    std::string token_file, role_arn, session_name, endpoint;
  };
  std::optional<WebIdentity> web_identity;
  CaBundle ca = {};

  // AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN; or, without these keys,
  // AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN, AWS_ROLE_SESSION_NAME (weir), AWS_ENDPOINT_URL_STS.
  // AWS_REGION or AWS_DEFAULT_REGION (us-east-1), AWS_ENDPOINT_URL_S3. AWS_ENDPOINT_URL stands for both
  // endpoints. AWS_CA_BUNDLE, or else REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE, SSL_CERT_FILE. Blanks and line ends
  // around a value are no part of it (written_text.h). FailedPrecondition names the variable that is missing
  // or wrong. Neither files of credentials nor a machine's metadata service are asked.
  using Variable = std::function<std::optional<std::string>(const char* name)>;
  static absl::StatusOr<S3Settings> FromEnvironment(const Variable& variable);
  // Of this process.
  static absl::StatusOr<S3Settings> FromEnvironment();

  // "http://127.0.0.1:9000/BUCKET" or "https://BUCKET.s3.REGION.amazonaws.com".
  std::string BucketUrl(const std::string& bucket) const;
};

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
