#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/object_store/http_client.h"
#include "common/object_store/s3_settings.h"

namespace weir {

// The meaning of an answer of object storage that is no success.
struct S3Error {
  // The answer's own code, "NoSuchKey"; empty: it has none, as that to a HEAD.
  std::string code;
  // HTTP status, code and message.
  std::string text;

  // The request may succeed later, as it is.
  bool may_pass = false;
  // Only with other keys: they have expired.
  bool expired = false;
  // Only once the request bears the store's time.
  bool skewed = false;
  // For an error that does not pass: its code, and what to do, "; ..." or nothing.
  absl::Status refusal;
};

// Empty code after success: the answer is no error; an error may come after a head that said 200. `now`: the
// time that the request bore.
S3Error ErrorIn(const HttpAnswer& answer, const std::string& method, absl::Time now,
                const S3Settings& settings, const std::string& bucket);
// The store's time when it answered. InfinitePast: it does not say.
absl::Time TimeOf(const HttpAnswer& answer);

}  // namespace weir
