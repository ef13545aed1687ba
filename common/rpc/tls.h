#pragma once

#include <openssl/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/identity.h"

namespace CLI {
class App;
}  // namespace CLI

namespace weir {

class HttpStream;

// Where a process finds what it needs for TLS. PEM files; other programs may replace them at any time.
struct TlsFiles {
  std::string ca;           // the CAs whose certificates are accepted
  std::string certificate;  // this process's, and the intermediate ones up to a CA
  std::string key;          // the certificate's private key, for this user alone (ReadPrivateFile)
};

// The environment's variables for these files, and what they name.
inline constexpr char kTlsCaVariable[] = "WEIR_TLS_CA";
inline constexpr char kTlsCertificateVariable[] = "WEIR_TLS_CERTIFICATE";
inline constexpr char kTlsKeyVariable[] = "WEIR_TLS_KEY";
TlsFiles TlsFilesOfEnvironment();

// The files of the process with this identity in a folder of `weir certs init`: ca.pem, worker-0.pem,
// worker-0.key.
TlsFiles TlsFilesIn(const std::string& directory, const Identity& identity);

// The flags of a program with these files.
std::vector<std::string> FlagsOf(const TlsFiles& files);
// Adds the flags that name a process's files for TLS. Each may come from the environment, too.
void AddTlsFlags(CLI::App* app, TlsFiles* files);

// The flags that name these files, for messages.
inline constexpr char kTlsFlags[] = "--tls_ca=FILE --tls_certificate=FILE --tls_key=FILE";

struct CertificateInfo {
  Identity identity;
  absl::Time not_before, not_after;
};

// As IdentityOf(), for an OpenSSL certificate.
absl::StatusOr<Identity> IdentityOfCertificate(X509* certificate);

// Reads the first certificate of a PEM file.
// Errors: FailedPrecondition: there is no such file, it holds no certificate, or the certificate has no
// identity.
absl::StatusOr<CertificateInfo> ReadCertificate(const std::string& path);

// When this certificate, in PEM, ends. InfinitePast(): the text is not a certificate.
absl::Time EndOfCertificate(const std::string& pem);

// A process's part in its job's mutual TLS. Immutable; the files may change under it.
class Tls {
 public:
  // Null if no file is named.
  // Errors: FailedPrecondition, naming the file: a file is not named or cannot be read; the key is not the
  // certificate's, or others may read it. FailedPrecondition, too: the certificate is not valid now, is not
  // signed by one of the CAs, may not be used on both ends of a connection, or has no identity.
  static absl::StatusOr<std::shared_ptr<const Tls>> ReadIfGiven(TlsFiles files);

  const TlsFiles& files() const { return files_; }
  // Who this process is.
  const Identity& identity() const { return identity_; }
  // Errors: FailedPrecondition: the process is somebody else; the message says which certificate is needed.
  absl::Status CheckIs(Role role, uint32_t index) const;
  // When the certificate that is in the file now ends; InfinitePast(): it cannot be read.
  absl::Time expiry() const;

 private:
  Tls(TlsFiles files, Identity identity) : files_(std::move(files)), identity_(std::move(identity)) {}

  const TlsFiles files_;
  const Identity identity_;
};

// Warns in the log if the certificate ends within two weeks.
void WarnIfExpiring(const Tls& tls, absl::Time now);

// Why connections to ps:`server` at `address` cannot succeed because of TLS: gRPC itself says little more
// than that a connection was closed. Makes a connection of its own, and takes at most a few seconds.
// OK: nothing is known to be wrong, perhaps because nothing listens.
// Errors: FailedPrecondition: this process has TLS (`tls`) and what listens there has not, or the reverse; or
// one end does not accept the other's certificate, or its version of TLS.
absl::Status ProbeTls(const std::string& address, uint32_t server, const Tls* tls);

// The server's end of TLS 1.3 on a connection of HTTP that was accepted and has received nothing yet. A
// client need not have a certificate; one with a certificate of this process's job, whatever its role, is
// proven. The files of `tls` are read anew for each connection. Null: they are half replaced just now. The
// socket must outlive the stream.
std::unique_ptr<HttpStream> AcceptHttps(int socket, const Tls& tls);

}  // namespace weir
