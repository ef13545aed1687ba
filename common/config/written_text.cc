#include "common/config/written_text.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
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

constexpr size_t kMaxBytes = 16 << 20;

absl::Status Failure(int error, const std::string& path) {
  const std::string message = absl::StrCat(path, ": cannot be read: ", std::strerror(error));
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(message);
    case EACCES:
      return absl::PermissionDeniedError(message);
    default:
      return absl::InvalidArgumentError(message);
  }
}

constexpr size_t kMaxWord = 64;  // longer ones are no slips of the pen

// Levenshtein's distance, where two neighbours that have changed places count as one slip.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<std::vector<size_t>> rows(a.size() + 1, std::vector<size_t>(b.size() + 1));
  std::iota(rows[0].begin(), rows[0].end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    rows[i][0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = rows[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      rows[i][j] = std::min({replaced, rows[i - 1][j] + 1, rows[i][j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        rows[i][j] = std::min(rows[i][j], rows[i - 2][j - 2] + 1);
      }
    }
  }
  return rows.back().back();
}

constexpr size_t kMostReplicas = 64;

absl::Status RefuseDevices(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("the device '", text, "' ", why,
                   "; there are auto, cpu and cuda:N (N = 0, 1, ...), and for replicas in one worker lists "
                   "as cuda:0,cuda:1"));
}

// Whether `word` has the first letters of the candidate's words: "lr" of "learning_rate".
bool AreInitials(absl::string_view word, absl::string_view candidate) {
  std::string initials;
  for (const absl::string_view part : absl::StrSplit(candidate, '_', absl::SkipEmpty())) initials += part[0];
  return word == initials;
}

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

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (file == nullptr) return Failure(errno, path);
  std::string text;
  char buffer[16384];
  while (const size_t n = std::fread(buffer, 1, sizeof(buffer), file.get())) {
    text.append(buffer, n);
    if (text.size() > kMaxBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": is larger than the ", kMaxBytes >> 20, " MiB that a config may have"));
    }
  }
  if (std::ferror(file.get())) return Failure(errno, path);
  return text;
}

std::string ValueIn(absl::string_view text) { return std::string(absl::StripAsciiWhitespace(text)); }

std::string EnvironmentValue(const char* variable) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? "" : ValueIn(value);
}

absl::Status CheckOneWord(absl::string_view name, absl::string_view value) {
  const auto bad = std::find_if_not(
      value.begin(), value.end(), [](char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)); });
  if (bad == value.end()) return absl::OkStatus();
  const auto c = static_cast<unsigned char>(*bad);
  return absl::FailedPreconditionError(absl::StrCat(name, ": its character ", bad - value.begin() + 1, " of ",
                                                    value.size(), " is ",
                                                    absl::ascii_isspace(c)   ? "a blank or a line end"
                                                    : absl::ascii_iscntrl(c) ? "a control character"
                                                                             : "not an ASCII character",
                                                    ", which cannot be in it"));
}

std::string DidYouMean(absl::string_view word, const std::vector<std::string>& candidates) {
  if (word.size() < 2 || word.size() > kMaxWord) return "";
  const std::string* best = nullptr;
  size_t best_distance = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    // "num_workers" may mean "workers", and the other way round.
    const bool contained = word.size() > 3 && (absl::StrContains(candidate, word) ||
                                               (candidate.size() > 3 && absl::StrContains(word, candidate)));
    const size_t distance = AreInitials(word, candidate) ? 0 : contained ? 1 : EditDistance(word, candidate);
    if (distance < best_distance) {
      best = &candidate;
      best_distance = distance;
    }
  }
  return best == nullptr ? "" : absl::StrCat(" (did you mean \"", *best, "\"?)");
}

std::optional<int> CudaIndex(absl::string_view device) {
  int index = 0;
  const bool is_cuda = absl::ConsumePrefix(&device, "cuda:") && absl::SimpleAtoi(device, &index) &&
                       index >= 0 && index < 1024 && absl::StrCat(index) == device;
  return is_cuda ? std::optional(index) : std::nullopt;
}

absl::StatusOr<std::vector<std::string>> ParseDevices(absl::string_view text) {
  std::vector<std::string> devices = absl::StrSplit(text, ',');
  if (devices.size() > kMostReplicas) {
    return RefuseDevices(
        text, absl::StrCat("lists ", devices.size(), " replicas, ", kMostReplicas, " is the most"));
  }
  for (const std::string& device : devices) {
    if (device == "auto") {
      if (devices.size() > 1) return RefuseDevices(text, "has auto in a list, where it stands alone");
    } else if (device != "cpu" && !CudaIndex(device).has_value()) {
      return RefuseDevices(text, "is not known");
    }
    if ((device == "cpu") != (devices[0] == "cpu")) {
      return RefuseDevices(
          text, "mixes kinds; the replicas of a worker are equal shares, so give them equal devices");
    }
  }
  return devices;
}

}  // namespace weir
