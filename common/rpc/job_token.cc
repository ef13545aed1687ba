#include "common/rpc/job_token.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/rpc/private_file.h"
#include "common/system/unique_fd.h"

namespace weir {
namespace {

constexpr size_t kRandomBytes = 32;
// 128 bits, and what fits well into a call's metadata.
constexpr size_t kMinDigits = 32, kMaxDigits = 512;
constexpr char kScheme[] = "Bearer ";

}  // namespace

absl::StatusOr<JobToken> JobToken::Random() {
  std::string bytes(kRandomBytes, '\0');
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return absl::ErrnoToStatus(errno, "no random bytes for a token");
  }
  return JobToken(absl::BytesToHexString(bytes));
}

absl::StatusOr<JobToken> JobToken::Read(const std::string& path) {
  // Room for the end of the line.
  const absl::StatusOr<std::string> text = ReadPrivateFile("the token file", path, kMaxDigits + 2);
  if (!text.ok()) return text.status();
  const absl::string_view digits = absl::StripTrailingAsciiWhitespace(*text);
  if (digits.size() < kMinDigits || digits.size() > kMaxDigits ||
      !std::all_of(digits.begin(), digits.end(), absl::ascii_isxdigit)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the token file ", path, ": it must hold ", kMinDigits, " to ", kMaxDigits,
                     " hexadecimal digits and nothing else; `openssl rand -hex 32` makes some"));
  }
  return JobToken(std::string(digits));
}

absl::StatusOr<JobToken> JobToken::ReadIfGiven(const std::string& path) {
  return path.empty() ? JobToken() : Read(path);
}

absl::Status JobToken::Write(const std::string& path) const {
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, absl::StrCat("cannot make the token file ", path));
  const std::string line = digits_ + "\n";
  if (write(fd.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size())) return absl::OkStatus();
  const absl::Status status = absl::ErrnoToStatus(errno, absl::StrCat("cannot write the token file ", path));
  unlink(path.c_str());
  return status;
}

std::string JobToken::Authorization() const { return absl::StrCat(kScheme, digits_); }

bool JobToken::Authorizes(absl::string_view authorization) const {
  const std::string expected = Authorization();
  if (empty() || authorization.size() != expected.size()) return false;
  // Volatile, so that no compiler stops at the first difference.
  volatile unsigned char difference = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference = difference | static_cast<unsigned char>(expected[i] ^ authorization[i]);
  }
  return difference == 0;
}

bool JobToken::AuthorizesHttp(absl::string_view authorization) const {
  if (!absl::ConsumePrefix(&authorization, "Basic ")) return Authorizes(authorization);
  std::string user_and_password;
  if (!absl::Base64Unescape(authorization, &user_and_password)) return false;
  const size_t colon = user_and_password.find(':');
  return colon != std::string::npos && Authorizes(kScheme + user_and_password.substr(colon + 1));
}

}  // namespace weir
