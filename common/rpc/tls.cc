#include "common/rpc/tls.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <ctime>
#include <fstream>
#include <optional>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/config/address.h"
#include "common/config/written_text.h"
#include "common/net/tcp.h"
#include "common/program/command_line.h"
#include "common/rpc/job_token.h"
#include "common/rpc/openssl.h"
#include "common/system/unique_fd.h"
#include "common/telemetry/http_server.h"
#include "common/telemetry/logging.h"

namespace weir {
namespace {

// Far above what certificates need. Bytes.
constexpr size_t kMostBytes = 1 << 20;
constexpr absl::Duration kWarnBefore = absl::Hours(14 * 24);

absl::Status Refuse(const std::string& path, absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat(path, ": ", why));
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMostBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.empty()) return Refuse(path, "it cannot be read, or is empty");
  if (text.size() > kMostBytes) {
    return Refuse(path, absl::StrCat("it is larger than ", kMostBytes, " bytes"));
  }
  return text;
}

// At least one.
absl::StatusOr<std::vector<X509Ptr>> ReadCertificates(const std::string& path) {
  WEIR_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const BioPtr bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  std::vector<X509Ptr> certificates;
  while (X509* const certificate = PEM_read_bio_X509(bio.get(), nullptr, NoPassPhrase, nullptr)) {
    certificates.emplace_back(certificate);
  }
  const bool ended = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (certificates.empty() || !ended) return Refuse(path, "it holds no certificate in PEM, or a damaged one");
  return certificates;
}

using Steady = std::chrono::steady_clock;

// For the connection, the handshake and the first bytes together.
constexpr std::chrono::seconds kLimit{2};

// Waits until the socket is ready for `events`. False: it was not, in time.
bool WaitFor(int socket, short events, Steady::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Steady::now());
  pollfd entry{socket, events, 0};
  return left.count() > 0 && poll(&entry, 1, static_cast<int>(left.count())) == 1;
}

// Invalid: there is no connection.
UniqueFd Connect(const Address& address, Steady::time_point deadline) {
  for (const Ip& ip : ResolveSoon(address.host)) {
    const sockaddr_storage end = EndAt(ip, address.port);
    UniqueFd fd(socket(ip.family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd.valid()) continue;
    const socklen_t length = ip.family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&end), length) != 0) {
      int error = 0;
      socklen_t size = sizeof(error);
      if (errno != EINPROGRESS || !WaitFor(fd.get(), POLLOUT, deadline) ||
          getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) {
        continue;
      }
    }
    return fd;
  }
  return {};
}

// Runs `step`, SSL_connect() or a read, until it has ended. nullopt: it did not end in time.
template <typename Step>
std::optional<int> Run(SSL* ssl, int socket, Steady::time_point deadline, Step step) {
  while (true) {
    ERR_clear_error();
    const int result = step();
    if (result > 0) return result;
    const int error = SSL_get_error(ssl, result);
    if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) return result;
    if (!WaitFor(socket, error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, deadline)) return std::nullopt;
  }
}

absl::Status Refuse(uint32_t server, const std::string& address, absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat("ps:", server, " at ", address, " ", why));
}

std::string Reason() {
  const char* const text = ERR_reason_error_string(ERR_peek_last_error());
  return text == nullptr ? "it closed the connection" : text;
}

class HttpsStream final : public HttpStream {
 public:
  HttpsStream(int socket, SslContextPtr context, std::string job)
      : socket_(socket), job_(std::move(job)), context_(std::move(context)), ssl_(SSL_new(context_.get())) {
    BIO* const bio = NewSocketBio(socket).release();
    SSL_set_bio(ssl_.get(), bio, bio);
    SSL_set_accept_state(ssl_.get());
  }

  ssize_t Receive(char* bytes, size_t size) override {
    size_t got = 0;
    ERR_clear_error();
    const int ok = SSL_read_ex(ssl_.get(), bytes, size, &got);
    return Result(ok, got);
  }
  ssize_t Send(const char* bytes, size_t size) override {
    size_t sent = 0;
    ERR_clear_error();
    const int ok = SSL_write_ex(ssl_.get(), bytes, size, &sent);
    return Result(ok, sent);
  }
  void EndOutput() override {
    SSL_shutdown(ssl_.get());
    ERR_clear_error();
    shutdown(socket_, SHUT_WR);
  }
  short awaited() const override { return awaited_; }
  bool proven() const override {
    const X509Ptr certificate(SSL_get1_peer_certificate(ssl_.get()));
    if (certificate == nullptr || SSL_get_verify_result(ssl_.get()) != X509_V_OK) return false;
    const auto identity = IdentityOfCertificate(certificate.get());
    return identity.ok() && identity->job == job_;
  }

 private:
  // The handshake is part of the first call: to receive, TLS may have to send first.
  ssize_t Result(int ok, size_t bytes) {
    awaited_ = 0;
    if (ok == 1) return static_cast<ssize_t>(bytes);
    const int error = SSL_get_error(ssl_.get(), ok);
    ERR_clear_error();
    if (error == SSL_ERROR_ZERO_RETURN) return 0;
    awaited_ = error == SSL_ERROR_WANT_READ ? POLLIN : error == SSL_ERROR_WANT_WRITE ? POLLOUT : 0;
    errno = awaited_ != 0 ? EAGAIN : EPROTO;
    return -1;
  }

  const int socket_;
  const std::string job_;
  const SslContextPtr context_;
  const SslPtr ssl_;
  short awaited_ = 0;
};

}  // namespace

void AddTlsFlags(CLI::App* app, TlsFiles* files) {
  const auto add = [app](const char* flag, std::string* path, const char* help, const char* variable) {
    FileOrVariable(app->add_option(flag, *path, help), variable);
  };
  add("--tls_ca", &files->ca, "TLS: the certificates of the CAs that the job's certificates come from",
      kTlsCaVariable);
  add("--tls_certificate", &files->certificate, "TLS: this process's certificate", kTlsCertificateVariable);
  add("--tls_key", &files->key, "TLS: the private key of --tls_certificate", kTlsKeyVariable);
}

absl::StatusOr<Identity> IdentityOfCertificate(X509* certificate) {
  const GeneralNamesPtr names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::vector<std::string> uris, dns_names;
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI && name->type != GEN_DNS) continue;
    const ASN1_IA5STRING* const text =
        name->type == GEN_URI ? name->d.uniformResourceIdentifier : name->d.dNSName;
    (name->type == GEN_URI ? uris : dns_names)
        .emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                      static_cast<size_t>(ASN1_STRING_length(text)));
  }
  return IdentityOf(uris, dns_names);
}

namespace {

absl::Time ToTime(const ASN1_TIME* time) {
  std::tm fields{};
  if (ASN1_TIME_to_tm(time, &fields) != 1) return absl::InfinitePast();
  return absl::FromTM(fields, absl::UTCTimeZone());
}

absl::StatusOr<CertificateInfo> Describe(const std::string& path, X509* certificate) {
  const absl::StatusOr<Identity> identity = IdentityOfCertificate(certificate);
  if (!identity.ok()) return Refuse(path, absl::StrCat("the certificate ", identity.status().message()));
  return CertificateInfo{*identity, ToTime(X509_get0_notBefore(certificate)),
                         ToTime(X509_get0_notAfter(certificate))};
}

// Whether the certificate is valid now, for both ends of a connection, and comes from one of the CAs.
absl::Status CheckChain(const TlsFiles& files, const std::vector<X509Ptr>& chain,
                        const std::vector<X509Ptr>& cas) {
  const X509StorePtr store(X509_STORE_new());
  for (const X509Ptr& ca : cas) X509_STORE_add_cert(store.get(), ca.get());
  const X509StackPtr intermediate(sk_X509_new_null());
  for (size_t i = 1; i < chain.size(); ++i) sk_X509_push(intermediate.get(), chain[i].get());
  for (const int purpose : {X509_PURPOSE_SSL_SERVER, X509_PURPOSE_SSL_CLIENT}) {
    const X509StoreContextPtr context(X509_STORE_CTX_new());
    X509_STORE_CTX_init(context.get(), store.get(), chain[0].get(), intermediate.get());
    X509_STORE_CTX_set_purpose(context.get(), purpose);
    if (X509_verify_cert(context.get()) == 1) continue;
    const int error = X509_STORE_CTX_get_error(context.get());
    ERR_clear_error();
    const auto window =
        absl::StrCat(" (valid from ", absl::FormatTime(ToTime(X509_get0_notBefore(chain[0].get()))), " to ",
                     absl::FormatTime(ToTime(X509_get0_notAfter(chain[0].get()))), ")");
    const bool dates = error == X509_V_ERR_CERT_HAS_EXPIRED || error == X509_V_ERR_CERT_NOT_YET_VALID;
    return Refuse(files.certificate,
                  absl::StrCat("the certificate is not accepted with the CAs of ", files.ca, ": ",
                               X509_verify_cert_error_string(error), dates ? window : ""));
  }
  return absl::OkStatus();
}

absl::Status CheckKey(const TlsFiles& files, X509* certificate) {
  WEIR_ASSIGN_OR_RETURN(const std::string text, ReadPrivateFile("the key file", files.key, kMostBytes));
  const BioPtr bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  const PrivateKeyPtr key(PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassPhrase, nullptr));
  const bool matches = key != nullptr && X509_check_private_key(certificate, key.get()) == 1;
  ERR_clear_error();
  if (key == nullptr) return Refuse(files.key, "it holds no private key in PEM without a pass phrase");
  if (!matches) return Refuse(files.key, absl::StrCat("it is not the key of ", files.certificate));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CertificateInfo> ReadCertificate(const std::string& path) {
  WEIR_ASSIGN_OR_RETURN(const std::vector<X509Ptr> certificates, ReadCertificates(path));
  return Describe(path, certificates[0].get());
}

absl::Time EndOfCertificate(const std::string& pem) {
  const BioPtr bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  const X509Ptr certificate(PEM_read_bio_X509(bio.get(), nullptr, NoPassPhrase, nullptr));
  ERR_clear_error();
  return certificate == nullptr ? absl::InfinitePast() : ToTime(X509_get0_notAfter(certificate.get()));
}

TlsFiles TlsFilesOfEnvironment() {
  return {EnvironmentValue(kTlsCaVariable), EnvironmentValue(kTlsCertificateVariable),
          EnvironmentValue(kTlsKeyVariable)};
}

TlsFiles TlsFilesIn(const std::string& directory, const Identity& identity) {
  // The first label of the DNS name: "worker-0".
  const std::string dns = identity.ToDns();
  const std::string name = absl::StrCat(directory, "/", dns.substr(0, dns.find('.')));
  return {absl::StrCat(directory, "/ca.pem"), absl::StrCat(name, ".pem"), absl::StrCat(name, ".key")};
}

std::vector<std::string> FlagsOf(const TlsFiles& files) {
  return {absl::StrCat("--tls_ca=", files.ca), absl::StrCat("--tls_certificate=", files.certificate),
          absl::StrCat("--tls_key=", files.key)};
}

absl::StatusOr<std::shared_ptr<const Tls>> Tls::ReadIfGiven(TlsFiles files) {
  if (files.ca.empty() && files.certificate.empty() && files.key.empty()) return nullptr;
  // Nothing of OpenSSL's is freed at exit: gRPC's threads may still open a connection when main() has
  // returned. Counts only before OpenSSL is first used.
  OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
  if (files.ca.empty() || files.certificate.empty() || files.key.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("TLS needs all of ", kTlsFlags, "; ",
                                                      files.ca.empty()            ? "--tls_ca"
                                                      : files.certificate.empty() ? "--tls_certificate"
                                                                                  : "--tls_key",
                                                      " is missing"));
  }
  WEIR_ASSIGN_OR_RETURN(const std::vector<X509Ptr> cas, ReadCertificates(files.ca));
  WEIR_ASSIGN_OR_RETURN(const std::vector<X509Ptr> chain, ReadCertificates(files.certificate));
  WEIR_RETURN_IF_ERROR(CheckKey(files, chain[0].get()));
  WEIR_RETURN_IF_ERROR(CheckChain(files, chain, cas));
  WEIR_ASSIGN_OR_RETURN(CertificateInfo info, Describe(files.certificate, chain[0].get()));
  return std::shared_ptr<const Tls>(new Tls(std::move(files), std::move(info.identity)));
}

absl::Status Tls::CheckIs(Role role, uint32_t index) const {
  const Identity needed{identity_.job, role, index};
  if (identity_ == needed) return absl::OkStatus();
  return Refuse(files_.certificate, absl::StrCat("the certificate is that of ", identity_.ToUri(),
                                                 "; this process needs that of ", needed.ToUri()));
}

absl::Time Tls::expiry() const {
  const absl::StatusOr<CertificateInfo> info = ReadCertificate(files_.certificate);
  return info.ok() ? info->not_after : absl::InfinitePast();
}

void WarnIfExpiring(const Tls& tls, absl::Time now) {
  const absl::Time end = tls.expiry();
  const std::string& path = tls.files().certificate;
  if (end == absl::InfinitePast()) {
    LogWarning("the certificate ", path, " cannot be read any more; new connections will fail");
  } else if (end <= now) {
    LogWarning("the certificate ", path, " has expired (", absl::FormatTime(end, absl::UTCTimeZone()),
               "); new connections fail until the file has a new one");
  } else if (end - now <= kWarnBefore) {
    LogWarning("the certificate ", path, " ends on ", absl::FormatTime(end, absl::UTCTimeZone()),
               "; replace the file, the process takes the new one up by itself");
  }
}

absl::Status ProbeTls(const std::string& address, uint32_t server, const Tls* tls) {
  const absl::StatusOr<Address> to = ParseAddress(address);
  if (!to.ok() || to->is_unix()) return absl::OkStatus();
  const Steady::time_point deadline = Steady::now() + kLimit;
  const UniqueFd fd = Connect(*to, deadline);
  if (!fd.valid()) return absl::OkStatus();
  // As gRPC's.
  const SslContextPtr context = MakeSslContext(TLS_client_method(), tls);
  if (context == nullptr) return absl::OkStatus();
  const SslPtr ssl(SSL_new(context.get()));
  BIO* const bio = NewSocketBio(fd.get()).release();
  SSL_set_bio(ssl.get(), bio, bio);
  const unsigned char http2[] = {2, 'h', '2'};
  SSL_set_alpn_protos(ssl.get(), http2, sizeof(http2));
  const std::optional<int> connected =
      Run(ssl.get(), fd.get(), deadline, [&] { return SSL_connect(ssl.get()); });
  if (tls == nullptr) {
    if (connected != 1) return absl::OkStatus();
    return Refuse(server, address,
                  absl::StrCat("demands TLS, and this process has no certificate; give ", kTlsFlags,
                               " (`weir certs init` makes such files)"));
  }
  if (!connected.has_value()) return absl::OkStatus();
  const Identity expected{tls->identity().job, Role::kServer, server};
  if (connected != 1) {
    const int reason = ERR_GET_REASON(ERR_peek_last_error());
    const long verified = SSL_get_verify_result(ssl.get());
    if (verified != X509_V_OK) {
      return Refuse(server, address,
                    absl::StrCat("has a certificate that the CAs of ", tls->files().ca,
                                 " do not prove: ", X509_verify_cert_error_string(verified)));
    }
    if (reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_HTTP_REQUEST ||
        reason == SSL_R_PACKET_LENGTH_TOO_LONG) {
      return Refuse(server, address,
                    absl::StrCat("does not speak TLS, and this process does; give it ", kTlsFlags,
                                 " too, or take them away here"));
    }
    // A server that is ending closes connections, too.
    if (reason == 0) return absl::OkStatus();
    return Refuse(server, address, absl::StrCat("speaks no TLS 1.3 with this process: ", Reason()));
  }
  const X509Ptr certificate(SSL_get1_peer_certificate(ssl.get()));
  const absl::StatusOr<Identity> found = IdentityOfCertificate(certificate.get());
  if (!found.ok() || !(*found == expected)) {
    return Refuse(server, address,
                  absl::StrCat("has a certificate that ",
                               found.ok() ? absl::StrCat("is that of ", found->ToUri())
                                          : std::string(found.status().message()),
                               "; expected is ", expected.ToUri()));
  }
  // In TLS 1.3 the server judges this process's certificate after this end of the handshake. If it accepts
  // the certificate, it speaks HTTP/2 at once.
  char first = 0;
  const std::optional<int> got =
      Run(ssl.get(), fd.get(), deadline, [&] { return SSL_read(ssl.get(), &first, 1); });
  if (!got.has_value() || *got > 0) return absl::OkStatus();
  return Refuse(server, address,
                absl::StrCat("does not accept the certificate ", tls->files().certificate, " (",
                             tls->identity().ToUri(), "): ", Reason(), "; do its CAs (--tls_ca) prove it?"));
}

std::unique_ptr<HttpStream> AcceptHttps(int socket, const Tls& tls) {
  SslContextPtr context = MakeSslContext(TLS_server_method(), &tls);
  ERR_clear_error();
  if (context == nullptr) return nullptr;
  // A connection has one request, so there is nothing to resume.
  SSL_CTX_set_num_tickets(context.get(), 0);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  // A retried write may come from another place in memory.
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  return std::make_unique<HttpsStream>(socket, std::move(context), tls.identity().job);
}

}  // namespace weir
