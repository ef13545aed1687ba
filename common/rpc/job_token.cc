#include "common/rpc/job_token.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/system/unique_fd.h"

namespace weir {
namespace {

constexpr size_t kRandomBytes = 32;
// 128 bits, and what fits well into a call's metadata.
constexpr size_t kMinDigits = 32, kMaxDigits = 512;
constexpr char kScheme[] = "Bearer ";

// Returns why others may use the file; "": they may not.
std::string WhyNotPrivate(int fd) {
  struct stat file;
  if (fstat(fd, &file) != 0) return strerror(errno);
  if (!S_ISREG(file.st_mode)) return "it is no regular file";
  if (file.st_uid != geteuid() && file.st_uid != 0) {
    return absl::StrCat("it is user ", file.st_uid, "'s; it must be root's, or that of user ", geteuid(),
                        ", who runs this program");
  }
  const mode_t forbidden = file.st_uid == 0 ? S_IWGRP | S_IXGRP | S_IRWXO : S_IRWXG | S_IRWXO;
  if ((file.st_mode & forbidden) == 0) return "";
  return absl::StrFormat(
      "its mode is %04o, so that others may use it; make that 0600 (a Kubernetes Secret: defaultMode 0440 "
      "with fsGroup)",
      file.st_mode & 07777);
}

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
  if (WriteAll(fd.get(), digits_ + "\n")) return absl::OkStatus();
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

absl::StatusOr<std::string> ReadPrivateFile(absl::string_view what, const std::string& path,
                                            size_t most_bytes) {
  const auto refuse = [&](absl::string_view why) {
    return absl::FailedPreconditionError(absl::StrCat(what, " ", path, ": ", why));
  };
  // Non-blocking: a pipe must be refused, not waited for.
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd.valid()) return refuse(absl::StrCat("it cannot be opened: ", strerror(errno)));
  if (const std::string why = WhyNotPrivate(fd.get()); !why.empty()) return refuse(why);
  std::string bytes(most_bytes + 1, '\0');
  size_t size = 0;
  while (size < bytes.size()) {
    const ssize_t got = read(fd.get(), &bytes[size], bytes.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return refuse(absl::StrCat("it cannot be read: ", strerror(errno)));
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  bytes.resize(size);
  return bytes;
}

}  // namespace weir
