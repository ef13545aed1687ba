#include "common/config/text_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace weir {
namespace {

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

}  // namespace

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

}  // namespace weir
