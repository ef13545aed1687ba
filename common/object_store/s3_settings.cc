#include "common/object_store/s3_settings.h"

#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace weir {
namespace {

absl::Status Refuse(absl::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat("object storage (s3://): ", what));
}

}  // namespace

absl::StatusOr<S3Settings> S3Settings::FromEnvironment(const Variable& variable) {
  const auto first = [&](std::initializer_list<const char*> names) -> std::string {
    for (const char* name : names) {
      const std::optional<std::string> value = variable(name);
      if (value.has_value() && !value->empty()) return *value;
    }
    return "";
  };
  S3Settings settings;
  settings.key_id = first({"AWS_ACCESS_KEY_ID"});
  settings.secret_key = first({"AWS_SECRET_ACCESS_KEY"});
  settings.session_token = first({"AWS_SESSION_TOKEN"});
  settings.region = first({"AWS_REGION", "AWS_DEFAULT_REGION"});
  settings.endpoint = first({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"});
  if (settings.key_id.empty() || settings.secret_key.empty()) {
    return Refuse(absl::StrCat("no credentials: the environment has no ",
                               settings.key_id.empty() ? "AWS_ACCESS_KEY_ID" : "AWS_SECRET_ACCESS_KEY",
                               "; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN for "
                               "temporary keys) for every server"));
  }
  if (settings.region.empty()) settings.region = "us-east-1";
  if (settings.region.find_first_of(":/ ") != std::string::npos) {
    return Refuse(
        absl::StrCat("AWS_REGION must be a region's name, as us-east-1, got '", settings.region, "'"));
  }
  std::string& endpoint = settings.endpoint;
  while (!endpoint.empty() && endpoint.back() == '/') endpoint.pop_back();
  if (!endpoint.empty() && !absl::StartsWith(endpoint, "http://") &&
      !absl::StartsWith(endpoint, "https://")) {
    return Refuse(absl::StrCat("AWS_ENDPOINT_URL must begin with http:// or https://, got '", endpoint, "'"));
  }
  return settings;
}

absl::StatusOr<S3Settings> S3Settings::FromEnvironment() {
  return FromEnvironment([](const char* name) -> std::optional<std::string> {
    const char* const value = std::getenv(name);
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  });
}

std::string S3Settings::BucketUrl(const std::string& bucket) const {
  if (!endpoint.empty()) return absl::StrCat(endpoint, "/", bucket);
  // A certificate of Amazon's covers one label, so a bucket with dots in its name is part of the path.
  if (absl::StrContains(bucket, ".")) return absl::StrCat("https://s3.", region, ".amazonaws.com/", bucket);
  return absl::StrCat("https://", bucket, ".s3.", region, ".amazonaws.com");
}

}  // namespace weir
