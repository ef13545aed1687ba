#include "common/config/written_path.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/config/json_document.h"

namespace weir {
namespace {

constexpr absl::string_view kFile = "file://";

absl::Status Refused(absl::string_view path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(JsonQuote(path), " ", what));
}

// "gs" of "gs://x" and of "gs:/x"; "": it has none.
absl::string_view SchemeOf(absl::string_view path) {
  const size_t end = path.find(":/");
  if (end == absl::string_view::npos || end == 0 || !absl::ascii_isalpha(path[0])) return "";
  const absl::string_view scheme = path.substr(0, end);
  const bool valid = std::all_of(scheme.begin(), scheme.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '+' || c == '-' || c == '.';
  });
  return valid ? scheme : "";
}

absl::StatusOr<std::string> WithoutScheme(absl::string_view path) {
  if (IsObjectPath(path)) return std::string(path);
  const absl::string_view scheme = SchemeOf(path);
  if (scheme.empty()) return std::string(path);
  if (!absl::StartsWith(path, kFile)) {
    return Refused(path, absl::StrCat("begins with ", scheme,
                                      ":, which is not known; a path is one of this machine, "
                                      "file:///PATH, or s3://BUCKET/PREFIX (checkpoints)"));
  }
  absl::string_view rest = path.substr(kFile.size());
  absl::ConsumePrefix(&rest, "localhost");
  if (!absl::StartsWith(rest, "/")) {
    return Refused(path, "names a host; write file:///PATH, or the path alone");
  }
  if (absl::StrContains(rest, '%'))
    return Refused(path, "has a % in it; write the path itself, without file://");
  return std::string(rest);
}

constexpr absl::string_view kScheme = "s3://";

}  // namespace

absl::StatusOr<std::string> CheckedPath(absl::string_view path) {
  WEIR_ASSIGN_OR_RETURN(std::string checked, WithoutScheme(path));
  for (size_t at = checked.find('$'); at != std::string::npos; at = checked.find('$', at + 1)) {
    const absl::string_view rest = absl::string_view(checked).substr(at + 1);
    if (rest.empty() || (!absl::ascii_isalpha(rest[0]) && !absl::StrContains("_{(", rest[0]))) continue;
    const auto end = std::find_if(rest.begin() + 1, rest.end(),
                                  [](unsigned char c) { return !absl::ascii_isalnum(c) && c != '_'; });
    const bool closed = end != rest.end() && (*end == '}' || *end == ')');
    return Refused(
        path, absl::StrCat("has ", absl::string_view(checked).substr(at, end - rest.begin() + 1 + closed),
                           " in it, which only a shell replaces; write its value, or ~/ for the home "
                           "folder"));
  }
  if (checked[0] == '~' && checked.size() > 1 && checked[1] != '/') {
    const std::string user = checked.substr(0, checked.find('/'));
    return Refused(path, absl::StrCat("begins with ", user,
                                      ", which only a shell replaces; write the path of that home "
                                      "folder, or ./",
                                      user, " for a folder of that name"));
  }
  return checked;
}

absl::StatusOr<std::string> ExpandedPath(absl::string_view path) {
  WEIR_ASSIGN_OR_RETURN(std::string checked, CheckedPath(path));
  if (checked != "~" && !absl::StartsWith(checked, "~/")) return checked;
  const char* const home = std::getenv("HOME");
  if (home == nullptr || home[0] != '/') {
    return Refused(path,
                   "begins with ~, and HOME does not say where the home folder is; write the path itself");
  }
  return absl::StrCat(home, checked.substr(1));
}

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
