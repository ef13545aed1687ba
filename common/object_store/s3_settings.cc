#include "common/object_store/s3_settings.h"

#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/system/environment.h"

namespace weir {
namespace {

absl::Status Refuse(absl::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat("object storage (s3://): ", what));
}

// The first of these variables that has a value; empty: none has.
std::string First(const S3Settings::Variable& variable, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const std::optional<std::string> value = variable(name);
    if (value.has_value() && !ValueIn(*value).empty()) return ValueIn(*value);
  }
  return "";
}

// The variable of one service goes before that of all. Empty: Amazon's own.
absl::StatusOr<std::string> EndpointOf(const S3Settings::Variable& variable, const char* own) {
  std::string endpoint = First(variable, {own, "AWS_ENDPOINT_URL"});
  while (!endpoint.empty() && endpoint.back() == '/') endpoint.pop_back();
  if (endpoint.empty() || absl::StartsWith(endpoint, "http://") || absl::StartsWith(endpoint, "https://")) {
    return endpoint;
  }
  const char* const name = First(variable, {own}).empty() ? "AWS_ENDPOINT_URL" : own;
  return Refuse(absl::StrCat(name, " must begin with http:// or https://, got '", endpoint, "'"));
}

// A path may have blanks in it; all else is one word.
absl::Status CheckWords(const S3Settings::Variable& variable) {
  for (const char* name : {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION",
                           "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3",
                           "AWS_ENDPOINT_URL_STS", "AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME"}) {
    if (const absl::Status word = CheckOneWord(name, First(variable, {name})); !word.ok()) {
      return Refuse(word.message());
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<CaBundle> CaOf(const S3Settings::Variable& variable) {
  for (const char* name : {"AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"}) {
    const std::string file = First(variable, {name});
    if (file.empty()) continue;
    if (std::ifstream(file).peek() != std::ifstream::traits_type::eof()) return CaBundle{file, name};
    return Refuse(absl::StrCat(name, ": ", file, " cannot be read, or is empty; it must be a file with the ",
                               "certificates of CAs, in PEM"));
  }
  return CaBundle();
}

}  // namespace

absl::StatusOr<S3Settings> S3Settings::FromEnvironment(const Variable& variable) {
  WEIR_RETURN_IF_ERROR(CheckWords(variable));
  const auto first = [&](std::initializer_list<const char*> names) { return First(variable, names); };
  S3Settings settings;
  WEIR_ASSIGN_OR_RETURN(settings.ca, CaOf(variable));
  settings.keys = {first({"AWS_ACCESS_KEY_ID"}), first({"AWS_SECRET_ACCESS_KEY"}),
                   first({"AWS_SESSION_TOKEN"})};
  settings.region = first({"AWS_REGION", "AWS_DEFAULT_REGION"});
  if (settings.region.empty()) settings.region = "us-east-1";
  if (settings.region.find_first_of(":/ ") != std::string::npos) {
    return Refuse(
        absl::StrCat("AWS_REGION must be a region's name, as us-east-1, got '", settings.region, "'"));
  }
  WEIR_ASSIGN_OR_RETURN(settings.endpoint, EndpointOf(variable, "AWS_ENDPOINT_URL_S3"));
  const bool no_id = settings.keys.key_id.empty(), no_secret = settings.keys.secret_key.empty();
  if (!no_id && !no_secret) return settings;
  WebIdentity identity;
  identity.token_file = first({"AWS_WEB_IDENTITY_TOKEN_FILE"});
  identity.role_arn = first({"AWS_ROLE_ARN"});
  if (!no_id || !no_secret || identity.token_file.empty()) {
    return Refuse(absl::StrCat("no credentials: the environment has no ",
                               no_id ? "AWS_ACCESS_KEY_ID" : "AWS_SECRET_ACCESS_KEY",
                               "; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN for "
                               "temporary keys), or AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN, for every "
                               "server"));
  }
  if (identity.role_arn.empty()) {
    return Refuse("AWS_WEB_IDENTITY_TOKEN_FILE needs AWS_ROLE_ARN, which the environment does not have");
  }
  identity.session_name = first({"AWS_ROLE_SESSION_NAME"});
  if (identity.session_name.empty()) identity.session_name = "weir";
  WEIR_ASSIGN_OR_RETURN(identity.endpoint, EndpointOf(variable, "AWS_ENDPOINT_URL_STS"));
  if (identity.endpoint.empty())
    identity.endpoint = absl::StrCat("https://sts.", settings.region, ".amazonaws.com");
  settings.web_identity = std::move(identity);
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
