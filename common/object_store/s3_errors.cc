#include "common/object_store/s3_errors.h"

#include <algorithm>
#include <iterator>
#include <pugixml.hpp>

#include "absl/strings/str_cat.h"

namespace weir {
namespace {

using Code = absl::StatusCode;

enum class What { kPasses, kRefused, kExpired, kSkewed, kOtherRegion };

// A code of S3's, or of a store that speaks S3. `status`: the HTTP status that belongs to it.
struct Known {
  const char* name;
  int status;
  What what;
  Code code;
  const char* hint;
};

constexpr char kMay[] =
    "the keys are known, but may not do this: they need the permissions that docs/recovery.md lists, on this "
    "bucket and prefix";
constexpr char kFull[] = "the store has no room";

constexpr Known kKnown[] = {
    // What passes: the store is busy, or what was sent was damaged or cut on its way.
    {"InternalError", 500, What::kPasses, Code::kUnavailable, ""},
    {"ServiceUnavailable", 503, What::kPasses, Code::kUnavailable, ""},
    {"SlowDown", 503, What::kPasses, Code::kUnavailable, ""},
    {"Throttling", 429, What::kPasses, Code::kUnavailable, ""},
    {"ThrottlingException", 429, What::kPasses, Code::kUnavailable, ""},
    {"TooManyRequests", 429, What::kPasses, Code::kUnavailable, ""},
    {"RequestLimitExceeded", 503, What::kPasses, Code::kUnavailable, ""},
    {"RequestTimeout", 400, What::kPasses, Code::kUnavailable, ""},
    {"IncompleteBody", 400, What::kPasses, Code::kUnavailable, ""},
    {"BadDigest", 400, What::kPasses, Code::kUnavailable, ""},
    {"XAmzContentSHA256Mismatch", 400, What::kPasses, Code::kUnavailable, ""},
    {"ConditionalRequestConflict", 409, What::kPasses, Code::kUnavailable, ""},
    {"OperationAborted", 409, What::kPasses, Code::kUnavailable, ""},
    {"TemporaryRedirect", 307, What::kPasses, Code::kUnavailable, ""},
    {"InsufficientStorage", 507, What::kPasses, Code::kUnavailable, kFull},
    {"XMinioStorageFull", 507, What::kPasses, Code::kUnavailable, kFull},
    // With other keys, another time or another region.
    {"ExpiredToken", 400, What::kExpired, Code::kPermissionDenied, ""},
    {"ExpiredTokenException", 400, What::kExpired, Code::kPermissionDenied, ""},
    {"TokenRefreshRequired", 400, What::kExpired, Code::kPermissionDenied, ""},
    {"RequestTimeTooSkewed", 403, What::kSkewed, Code::kUnavailable, ""},
    {"RequestExpired", 400, What::kSkewed, Code::kUnavailable, ""},
    {"RequestInTheFuture", 403, What::kSkewed, Code::kUnavailable, ""},
    {"PermanentRedirect", 301, What::kOtherRegion, Code::kFailedPrecondition, ""},
    {"AuthorizationHeaderMalformed", 400, What::kOtherRegion, Code::kFailedPrecondition, ""},
    {"IllegalLocationConstraintException", 400, What::kOtherRegion, Code::kFailedPrecondition, ""},
    {"IncorrectEndpoint", 400, What::kOtherRegion, Code::kFailedPrecondition, ""},
    // What a program reads.
    {"NoSuchKey", 404, What::kRefused, Code::kNotFound, ""},
    {"NoSuchUpload", 404, What::kRefused, Code::kNotFound, ""},
    {"PreconditionFailed", 412, What::kRefused, Code::kAborted, ""},
    // What people have to do.
    {"NoSuchBucket", 404, What::kRefused, Code::kFailedPrecondition, ""},
    {"InvalidBucketName", 400, What::kRefused, Code::kFailedPrecondition, "correct the bucket's name"},
    {"AccessDenied", 403, What::kRefused, Code::kPermissionDenied, kMay},
    {"AllAccessDisabled", 403, What::kRefused, Code::kPermissionDenied, kMay},
    {"AccountProblem", 403, What::kRefused, Code::kPermissionDenied, "ask the store's provider"},
    {"InvalidAccessKeyId", 403, What::kRefused, Code::kPermissionDenied,
     "the store does not know this key; check AWS_ACCESS_KEY_ID (and AWS_ENDPOINT_URL_S3: it may be the key "
     "of "
     "another store)"},
    {"SignatureDoesNotMatch", 403, What::kRefused, Code::kPermissionDenied,
     "check AWS_SECRET_ACCESS_KEY: it does not belong to AWS_ACCESS_KEY_ID"},
    {"InvalidToken", 400, What::kRefused, Code::kPermissionDenied,
     "check AWS_SESSION_TOKEN: it does not belong to AWS_ACCESS_KEY_ID"},
    {"InvalidObjectState", 403, What::kRefused, Code::kFailedPrecondition,
     "the object is in an archive; restore it first, or keep checkpoints out of archives (a lifecycle rule)"},
    {"NotImplemented", 501, What::kRefused, Code::kFailedPrecondition,
     "this store cannot do what Weir needs (docs/recovery.md)"},
};

const Known* Find(const std::string& code) {
  const auto known =
      std::find_if(std::begin(kKnown), std::end(kKnown), [&](const Known& one) { return code == one.name; });
  return known == std::end(kKnown) ? nullptr : known;
}

// An answer to a HEAD, or one of a proxy, has no code that is known.
Known OfStatus(int status) {
  const auto of = [status](What what, Code code, const char* hint = "") {
    return Known{"", status, what, code, hint};
  };
  if (status / 100 == 3) return of(What::kOtherRegion, Code::kFailedPrecondition);
  switch (status) {
    case 401:
    case 403:
      return of(What::kRefused, Code::kPermissionDenied,
                "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and what these keys may do");
    case 404:
      return of(What::kRefused, Code::kNotFound);
    case 408:
    case 409:
    case 429:
      return of(What::kPasses, Code::kUnavailable);
    case 412:
      return of(What::kRefused, Code::kAborted);
    case 501:
      return *Find("NotImplemented");
    default:
      return status >= 500 ? of(What::kPasses, Code::kUnavailable)
                           : of(What::kRefused, Code::kFailedPrecondition);
  }
}

std::string RegionHint(const HttpAnswer& answer, const std::string& in_body, const S3Settings& settings) {
  const std::string header = answer.header("x-amz-bucket-region");
  const std::string& region = header.empty() ? in_body : header;
  return absl::StrCat("set AWS_REGION to the bucket's region",
                      region.empty() ? "" : absl::StrCat(", ", region), "; it is '", settings.region,
                      "' now");
}

}  // namespace

absl::Time TimeOf(const HttpAnswer& answer) {
  absl::Time time;
  std::string unclear;
  if (absl::ParseTime("%a, %d %b %Y %H:%M:%S GMT", answer.header("date"), &time, &unclear)) return time;
  pugi::xml_document xml;
  xml.load_buffer(answer.body.data(), answer.body.size());
  const std::string said = xml.child("Error").child_value("ServerTime");
  return absl::ParseTime(absl::RFC3339_full, said, &time, &unclear) ? time : absl::InfinitePast();
}

S3Error ErrorIn(const HttpAnswer& answer, const std::string& method, absl::Time now,
                const S3Settings& settings, const std::string& bucket) {
  S3Error error;
  const bool success = answer.status / 100 == 2;
  pugi::xml_document xml;
  pugi::xml_node body;
  // The end of an upload may fail after the head of its answer has said 200.
  if ((!success || method == "POST") && xml.load_buffer(answer.body.data(), answer.body.size())) {
    body = xml.child("Error");
  }
  error.code = body.child_value("Code");
  if (success && error.code.empty()) return error;
  const std::string message = body.child_value("Message");
  error.text = absl::StrCat("HTTP ", answer.status, error.code.empty() ? "" : " ", error.code,
                            message.empty() ? "" : ": ", message);
  const Known* const named = Find(error.code);
  Known known = named != nullptr ? *named : OfStatus(success ? 400 : answer.status);
  // The answer to a HEAD says neither that keys have expired nor that a clock is wrong.
  const bool head = method == "HEAD" && error.code.empty();
  if (head && answer.status == 400) known.what = What::kExpired;
  if (head && answer.status == 403) {
    const absl::Time theirs = TimeOf(answer);
    const bool differs = absl::AbsDuration(now - theirs) > HttpClient::kSkewThatMatters;
    if (theirs != absl::InfinitePast() && differs) known.what = What::kSkewed;
  }
  error.may_pass = known.what == What::kPasses;
  error.expired = known.what == What::kExpired;
  error.skewed = known.what == What::kSkewed;
  std::string hint = known.hint;
  if (known.what == What::kOtherRegion) hint = RegionHint(answer, body.child_value("Region"), settings);
  if (known.what == What::kRefused && known.code == Code::kPermissionDenied &&
      settings.web_identity.has_value()) {
    hint = "check what the role of AWS_ROLE_ARN may do";
  }
  if (error.expired) {
    hint = settings.web_identity.has_value() ? "the keys of AWS_ROLE_ARN have expired"
                                             : "the temporary keys have expired; get new ones, set "
                                               "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and "
                                               "AWS_SESSION_TOKEN, and start again";
  }
  if (error.code == "NoSuchBucket") {
    hint = absl::StrCat("make bucket '", bucket, "' first, or correct its name");
  }
  error.refusal = absl::Status(known.code, hint.empty() ? "" : absl::StrCat("; ", hint));
  if (error.may_pass && !hint.empty()) absl::StrAppend(&error.text, "; ", hint);
  return error;
}

}  // namespace weir
