#include "common/config/object_path.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace weir {
namespace {

constexpr absl::string_view kScheme = "s3://";

}  // namespace

std::string ObjectName::ToString() const { return absl::StrCat(kScheme, bucket, "/", key); }

bool IsObjectPath(absl::string_view path) { return absl::StartsWith(path, kScheme); }

ObjectName ObjectNameOf(absl::string_view path) {
  absl::ConsumePrefix(&path, kScheme);
  while (!path.empty() && path.back() == '/') path.remove_suffix(1);
  const size_t slash = std::min(path.find('/'), path.size());
  return {std::string(path.substr(0, slash)), std::string(path.substr(std::min(slash + 1, path.size())))};
}

absl::Status CheckObjectPath(absl::string_view path) {
  const ObjectName name = ObjectNameOf(path);
  const bool bucket = name.bucket.size() >= 3 && name.bucket.size() <= 63 &&
                      std::all_of(name.bucket.begin(), name.bucket.end(), [](unsigned char c) {
                        return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-' || c == '.';
                      });
  const std::string steps = absl::StrCat("/", name.key, "/");
  const bool key = !absl::StrContains(steps, "//") && !absl::StrContains(steps, "/./") &&
                   !absl::StrContains(steps, "/../");
  if (IsObjectPath(path) && bucket && key) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "must be s3://BUCKET/PREFIX, with a bucket of 3 to 63 small letters, digits, '-' and '.', and a prefix "
      "without empty steps, '.' and '..'; got \"",
      path, "\""));
}

}  // namespace weir
