#include "common/object_store/credentials.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <pugixml.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/system/environment.h"
#include "common/telemetry/logging.h"

namespace weir {
namespace {

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
