#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace weir {

// How object storage is reached, as AWS tools have it in the environment. A plain value.
struct S3Settings {
  // "http://127.0.0.1:9000", without a slash at its end. Empty: Amazon's own, one host name a bucket.
  std::string endpoint;
  std::string region;
  std::string key_id, secret_key;
  std::string session_token;  // of temporary keys; else empty

  // AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (both needed), AWS_SESSION_TOKEN, AWS_REGION or
  // AWS_DEFAULT_REGION (us-east-1), AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL. FailedPrecondition names the
  // variable that is missing or wrong. Neither files of credentials nor a machine's metadata service are
  // asked.
  using Variable = std::function<std::optional<std::string>(const char* name)>;
  static absl::StatusOr<S3Settings> FromEnvironment(const Variable& variable);
  // Of this process.
  static absl::StatusOr<S3Settings> FromEnvironment();

  // "http://127.0.0.1:9000/BUCKET" or "https://BUCKET.s3.REGION.amazonaws.com".
  std::string BucketUrl(const std::string& bucket) const;
};

}  // namespace weir
