#include "common/object_store/s3_settings.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <pugixml.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/config/written_text.h"
#include "common/telemetry/logging.h"

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

// Of the time for which keys are valid.
constexpr double kRenewAfter = 0.75;
// After a failure.
constexpr absl::Duration kAgain = absl::Seconds(10);
constexpr absl::Duration kLimit = absl::Seconds(10);
constexpr uint64_t kMaxAnswer = 1 << 20;

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::string token = ValueIn(text);
  if (!file.is_open() || token.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("AWS_WEB_IDENTITY_TOKEN_FILE: ", path, " cannot be read, or is empty"));
  }
  WEIR_RETURN_IF_ERROR(CheckOneWord(absl::StrCat("AWS_WEB_IDENTITY_TOKEN_FILE: ", path), token));
  return token;
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

Credentials::Credentials(const S3Settings& settings, HttpClient* http, std::function<absl::Time()> now)
    : settings_(settings), http_(http), now_(std::move(now)) {
  if (settings_.web_identity.has_value()) return;
  keys_ = settings_.keys;
  expires_ = renew_at_ = absl::InfiniteFuture();
}

absl::StatusOr<SigningKeys> Credentials::Get() {
  {
    MutexLock lock(mutex_);
    while (true) {
      const absl::Time now = now_();
      if (now < renew_at_ || (renewing_ && now < expires_)) return keys_;
      if (!renewing_) break;
      changed_.Wait(mutex_);
    }
    renewing_ = true;
  }
  absl::StatusOr<Temporary> assumed = Assume();
  MutexLock lock(mutex_);
  renewing_ = false;
  changed_.NotifyAll();
  const absl::Time now = now_();
  if (assumed.ok()) {
    keys_ = std::move(assumed->keys);
    expires_ = assumed->expires;
    renew_at_ = now + kRenewAfter * (expires_ - now);
    return keys_;
  }
  if (now >= expires_) return assumed.status();
  LogWarning(assumed.status().message(), "; the keys that there are stay valid until ",
             absl::FormatTime(expires_, absl::UTCTimeZone()));
  renew_at_ = std::min(now + kAgain, expires_);
  return keys_;
}

bool Credentials::OnExpired(const SigningKeys& keys) {
  if (!settings_.web_identity.has_value()) return false;
  MutexLock lock(mutex_);
  if (keys.key_id == keys_.key_id) expires_ = renew_at_ = absl::InfinitePast();
  return true;
}

absl::StatusOr<Credentials::Temporary> Credentials::Assume() const {
  const S3Settings::WebIdentity& identity = *settings_.web_identity;
  const absl::StatusOr<std::string> token = ReadToken(identity.token_file);
  if (!token.ok()) return token.status();
  const std::string body = absl::StrCat(
      "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=", PercentEncode(identity.role_arn),
      "&RoleSessionName=", PercentEncode(identity.session_name), "&WebIdentityToken=", PercentEncode(*token));
  HttpRequest request;
  request.method = "POST";
  request.url = absl::StrCat(identity.endpoint, "/");
  request.headers = {"content-type: application/x-www-form-urlencoded"};
  request.body = body;
  request.max_answer = kMaxAnswer;
  request.limit = kLimit;
  const std::string what =
      absl::StrCat("no keys for role ", identity.role_arn, " from ", identity.endpoint, ": ");
  const absl::StatusOr<HttpAnswer> answer = http_->Send(request);
  if (!answer.ok())
    return absl::Status(answer.status().code(), absl::StrCat(what, answer.status().message()));

  pugi::xml_document xml;
  xml.load_buffer(answer->body.data(), answer->body.size());
  if (answer->status / 100 != 2) {
    const pugi::xml_node error = xml.child("ErrorResponse").child("Error");
    const std::string code = error.child_value("Code");
    const std::string why =
        absl::StrCat(what, "HTTP ", answer->status, " ", code, ": ", error.child_value("Message"));
    // The identity provider did not answer STS, or there were too many calls.
    const bool may_pass = answer->status >= 500 || answer->status == 429 || code == "IDPCommunicationError" ||
                          code == "Throttling";
    if (may_pass) return absl::UnavailableError(why);
    return absl::PermissionDeniedError(absl::StrCat(why, "; check AWS_ROLE_ARN, the token in ",
                                                    identity.token_file, " and whom the role trusts"));
  }
  const pugi::xml_node found = xml.child("AssumeRoleWithWebIdentityResponse")
                                   .child("AssumeRoleWithWebIdentityResult")
                                   .child("Credentials");
  Temporary assumed;
  assumed.keys = {found.child_value("AccessKeyId"), found.child_value("SecretAccessKey"),
                  found.child_value("SessionToken")};
  std::string unclear;
  if (assumed.keys.key_id.empty() || assumed.keys.secret_key.empty() ||
      !absl::ParseTime(absl::RFC3339_full, found.child_value("Expiration"), &assumed.expires, &unclear)) {
    return absl::UnavailableError(
        absl::StrCat(what, "the answer has no keys, or does not say when they expire"));
  }
  return assumed;
}

}  // namespace weir
