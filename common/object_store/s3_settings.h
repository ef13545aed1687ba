#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/object_store/http_client.h"

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
  // around a value are no part of it (environment.h). FailedPrecondition names the variable that is missing
  // or wrong. Neither files of credentials nor a machine's metadata service are asked.
  using Variable = std::function<std::optional<std::string>(const char* name)>;
  static absl::StatusOr<S3Settings> FromEnvironment(const Variable& variable);
  // Of this process.
  static absl::StatusOr<S3Settings> FromEnvironment();

  // "http://127.0.0.1:9000/BUCKET" or "https://BUCKET.s3.REGION.amazonaws.com".
  std::string BucketUrl(const std::string& bucket) const;
};

}  // namespace weir
