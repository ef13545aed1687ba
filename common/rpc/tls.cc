#include "common/rpc/tls.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/config/written_text.h"
#include "common/rpc/job_token.h"
#include "common/rpc/openssl.h"
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

}  // namespace

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

}  // namespace weir
