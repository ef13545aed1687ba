// What each answer of object storage means, and what people are told to do.
#include "common/object_store/s3_errors.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "catch2/catch.hpp"

namespace weir {
namespace {

using Catch::Contains;
using Code = absl::StatusCode;

constexpr absl::Time kNow = absl::FromUnixSeconds(1'700'000'000);

HttpAnswer Answer(int status, const std::string& code, const std::string& more = "") {
  HttpAnswer answer;
  answer.status = status;
  if (!code.empty()) {
    answer.body = absl::StrCat("<Error><Code>", code, "</Code><Message>because</Message>", more, "</Error>");
  }
  return answer;
}

S3Error ErrorOf(const HttpAnswer& answer, const std::string& method = "GET") {
  S3Settings settings;
  settings.region = "us-east-1";
  return ErrorIn(answer, method, kNow, settings, "runs");
}

TEST_CASE("What may pass, and what does not") {
  struct Case {
    int status;
    const char* code;
    bool may_pass;
    Code refusal;
    const char* hint;
  };
  for (const Case& c : std::initializer_list<Case>{
           {503, "SlowDown", true, Code::kUnavailable, ""},
           {500, "InternalError", true, Code::kUnavailable, ""},
           {503, "ServiceUnavailable", true, Code::kUnavailable, ""},
           {400, "RequestTimeout", true, Code::kUnavailable, ""},
           {400, "IncompleteBody", true, Code::kUnavailable, ""},
           {409, "ConditionalRequestConflict", true, Code::kUnavailable, ""},
           {409, "OperationAborted", true, Code::kUnavailable, ""},
           {429, "TooManyRequests", true, Code::kUnavailable, ""},
           {507, "XMinioStorageFull", true, Code::kUnavailable, ""},
           {502, "", true, Code::kUnavailable, ""},
           {429, "", true, Code::kUnavailable, ""},
           {404, "NoSuchKey", false, Code::kNotFound, ""},
           {412, "PreconditionFailed", false, Code::kAborted, ""},
           {404, "", false, Code::kNotFound, ""},
           {404, "NoSuchBucket", false, Code::kFailedPrecondition, "make bucket 'runs' first"},
           {403, "AccessDenied", false, Code::kPermissionDenied, "the permissions"},
           {403, "InvalidAccessKeyId", false, Code::kPermissionDenied, "check AWS_ACCESS_KEY_ID"},
           {403, "SignatureDoesNotMatch", false, Code::kPermissionDenied, "check AWS_SECRET_ACCESS_KEY"},
           {400, "InvalidToken", false, Code::kPermissionDenied, "check AWS_SESSION_TOKEN"},
           {403, "InvalidObjectState", false, Code::kFailedPrecondition, "archive"},
           {501, "NotImplemented", false, Code::kFailedPrecondition, "cannot do what Weir needs"},
           {403, "", false, Code::kPermissionDenied, "what these keys may do"},
           {400, "NeverHeardOf", false, Code::kFailedPrecondition, ""},
       }) {
    CAPTURE(c.status, c.code);
    const S3Error error = ErrorOf(Answer(c.status, c.code));
    CHECK(error.may_pass == c.may_pass);
    CHECK_FALSE(error.expired);
    CHECK_FALSE(error.skewed);
    CHECK(error.refusal.code() == c.refusal);
    CHECK_THAT(std::string(error.refusal.message()) + error.text, Contains(c.hint));
    CHECK_THAT(error.text, Contains(absl::StrCat("HTTP ", c.status)) && Contains(c.code));
  }
  CHECK(ErrorOf(Answer(200, "")).code.empty());
  CHECK(ErrorOf(Answer(200, "InternalError"), "POST").may_pass);
  CHECK_THAT(ErrorOf(Answer(507, "XMinioStorageFull")).text, Contains("has no room"));
}

TEST_CASE("Keys that have expired") {
  for (const char* code : {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"}) {
    const S3Error error = ErrorOf(Answer(400, code));
    CHECK(error.expired);
    CHECK(error.refusal.code() == Code::kPermissionDenied);
    CHECK_THAT(std::string(error.refusal.message()),
               Contains("set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and"));
  }
  CHECK(ErrorOf(Answer(400, ""), "HEAD").expired);
}

TEST_CASE("Another region is named, wherever the answer says it") {
  HttpAnswer by_header = Answer(301, "PermanentRedirect");
  by_header.headers["x-amz-bucket-region"] = "eu-west-1";
  for (const HttpAnswer& answer :
       {by_header, Answer(400, "AuthorizationHeaderMalformed", "<Region>eu-west-1</Region>")}) {
    const S3Error error = ErrorOf(answer);
    CHECK(error.refusal.code() == Code::kFailedPrecondition);
    CHECK(error.refusal.message() ==
          "; set AWS_REGION to the bucket's region, eu-west-1; it is 'us-east-1' now");
  }
}

TEST_CASE("A clock that is wrong is no wrong key") {
  HttpAnswer answer = Answer(403, "RequestTimeTooSkewed", "<ServerTime>2023-11-14T23:13:20Z</ServerTime>");
  CHECK(ErrorOf(answer).skewed);
  CHECK(TimeOf(answer) == kNow + absl::Hours(1));
  answer.headers["date"] = "Tue, 14 Nov 2023 22:13:20 GMT";
  CHECK(TimeOf(answer) == kNow);
  CHECK(TimeOf(Answer(403, "RequestTimeTooSkewed")) == absl::InfinitePast());
  // To a HEAD there is the header alone.
  HttpAnswer head = Answer(403, "");
  head.headers["date"] = "Tue, 14 Nov 2023 22:13:20 GMT";
  CHECK_FALSE(ErrorOf(head, "HEAD").skewed);
  CHECK(ErrorOf(head, "HEAD").refusal.code() == Code::kPermissionDenied);
  head.headers["date"] = "Tue, 14 Nov 2023 20:13:20 GMT";
  CHECK(ErrorOf(head, "HEAD").skewed);
}

}  // namespace
}  // namespace weir
