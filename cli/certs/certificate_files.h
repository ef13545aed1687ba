#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/identity.h"

namespace weir {

// A development CA: makes certificates for the processes of a job (ECDSA P-256, SHA-256). Not thread-safe.
class CertificateAuthority {
 public:
  struct Validity {
    absl::Time from, to;
  };
  // PEM.
  struct Pair {
    std::string certificate, key;
  };

  // A new CA with a key of its own. Internal: OpenSSL failed.
  static absl::StatusOr<CertificateAuthority> Create(const std::string& name, const Validity& validity);
  CertificateAuthority(CertificateAuthority&&) noexcept;
  ~CertificateAuthority();

  // The CA itself.
  absl::StatusOr<Pair> Self() const;
  // Makes a new key and its certificate, which names the identity as URI and as DNS name. The certificate
  // serves at both ends of a connection.
  absl::StatusOr<Pair> Issue(const Identity& identity, const Validity& validity) const;

 private:
  struct State;
  explicit CertificateAuthority(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

// Makes a new CA, and a certificate and a key for each identity. Writes ca.pem, ca.key, and the files of
// TlsFilesIn() into a folder that must be new or empty; only this user can read the keys.
// Errors: InvalidArgument: `job` cannot be a job's name. FailedPrecondition, AlreadyExists: the folder cannot
// be made, or is not empty.
absl::Status WriteCertificates(const std::string& directory, const std::string& job,
                               const std::vector<Identity>& identities, absl::Time now,
                               absl::Duration validity);

}  // namespace weir
