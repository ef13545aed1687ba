#include "cli/certs/certificate_files.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "cli/certs/certificate_authority.h"
#include "common/base/status_macros.h"
#include "common/rpc/tls.h"
#include "common/system/unique_fd.h"

namespace weir {
namespace {

// Clocks of machines differ a little.
constexpr absl::Duration kBackdated = absl::Minutes(5);

absl::Status WriteNew(const std::string& path, const std::string& bytes, mode_t mode) {
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", path));
  if (write(fd.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size())) {
    return absl::OkStatus();
  }
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
}

absl::Status WritePair(const std::string& certificate, const std::string& key,
                       const CertificateAuthority::Pair& pair) {
  WEIR_RETURN_IF_ERROR(WriteNew(certificate, pair.certificate, 0644));
  return WriteNew(key, pair.key, 0600);
}

}  // namespace

absl::Status WriteCertificates(const std::string& directory, const std::string& job,
                               const std::vector<Identity>& identities, absl::Time now,
                               absl::Duration validity) {
  WEIR_RETURN_IF_ERROR(CheckJobName(job));
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot make the folder ", directory, ": ", error.message()));
  }
  if (!std::filesystem::is_empty(directory, error) || error) {
    return absl::AlreadyExistsError(absl::StrCat(directory, " is not empty; name a new folder"));
  }
  const CertificateAuthority::Validity valid{now - kBackdated, now + validity};
  WEIR_ASSIGN_OR_RETURN(const CertificateAuthority ca,
                        CertificateAuthority::Create(absl::StrCat("development CA of ", job), valid));
  WEIR_ASSIGN_OR_RETURN(const CertificateAuthority::Pair self, ca.Self());
  WEIR_RETURN_IF_ERROR(
      WritePair(absl::StrCat(directory, "/ca.pem"), absl::StrCat(directory, "/ca.key"), self));
  for (const Identity& identity : identities) {
    WEIR_ASSIGN_OR_RETURN(const CertificateAuthority::Pair pair, ca.Issue(identity, valid));
    const TlsFiles files = TlsFilesIn(directory, identity);
    WEIR_RETURN_IF_ERROR(WritePair(files.certificate, files.key, pair));
  }
  return absl::OkStatus();
}

}  // namespace weir
