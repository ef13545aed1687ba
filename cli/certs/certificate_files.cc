#include "cli/certs/certificate_files.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/bn.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/openssl.h"
#include "common/rpc/tls.h"
#include "common/system/unique_fd.h"

namespace weir {
namespace {

using Pair = CertificateAuthority::Pair;
using Validity = CertificateAuthority::Validity;
// An extension: its kind, and its value as in OpenSSL's configuration files.
using Extensions = std::vector<std::pair<int, std::string>>;

using BignumPtr = std::unique_ptr<BIGNUM, OpensslFree<BN_free>>;
using ExtensionPtr = std::unique_ptr<X509_EXTENSION, OpensslFree<X509_EXTENSION_free>>;

constexpr int kSerialBits = 127;

absl::Status Failed(absl::string_view what) {
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return absl::InternalError(
      absl::StrCat("OpenSSL could not ", what, ": ", reason == nullptr ? "?" : reason));
}

bool SetSerial(X509* certificate) {
  const BignumPtr number(BN_new());
  return BN_rand(number.get(), kSerialBits, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) == 1 &&
         BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) != nullptr;
}

bool AddExtensions(X509* certificate, X509* issuer, const Extensions& extensions) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  for (const auto& [kind, value] : extensions) {
    const ExtensionPtr extension(X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
    if (extension == nullptr || X509_add_ext(certificate, extension.get(), -1) != 1) return false;
  }
  return true;
}

// Signed by `issuer`'s key; null: by its own.
absl::StatusOr<X509Ptr> MakeCertificate(const std::string& name, EVP_PKEY* key, const Validity& validity,
                                        const Extensions& extensions, X509* issuer, EVP_PKEY* issuer_key) {
  X509Ptr certificate(X509_new());
  X509* const made = certificate.get();
  X509_NAME* const subject = X509_get_subject_name(made);
  const auto* const text = reinterpret_cast<const unsigned char*>(name.c_str());
  const bool ok =
      X509_set_version(made, X509_VERSION_3) == 1 && SetSerial(made) &&
      X509_NAME_add_entry_by_NID(subject, NID_commonName, MBSTRING_ASC, text, -1, -1, 0) == 1 &&
      X509_set_issuer_name(made, issuer == nullptr ? subject : X509_get_subject_name(issuer)) == 1 &&
      ASN1_TIME_set(X509_getm_notBefore(made), absl::ToTimeT(validity.from)) != nullptr &&
      ASN1_TIME_set(X509_getm_notAfter(made), absl::ToTimeT(validity.to)) != nullptr &&
      X509_set_pubkey(made, key) == 1 && AddExtensions(made, issuer == nullptr ? made : issuer, extensions) &&
      X509_sign(made, issuer == nullptr ? key : issuer_key, EVP_sha256()) > 0;
  if (!ok) return Failed("make a certificate");
  return certificate;
}

absl::StatusOr<Pair> ToPem(X509* certificate, EVP_PKEY* key) {
  const auto text = [](BIO* bio) {
    char* bytes = nullptr;
    const auto size = BIO_get_mem_data(bio, &bytes);
    return std::string(bytes, static_cast<size_t>(size));
  };
  const BioPtr certificate_bio(BIO_new(BIO_s_mem())), key_bio(BIO_new(BIO_s_secmem()));
  if (PEM_write_bio_X509(certificate_bio.get(), certificate) != 1 ||
      PEM_write_bio_PrivateKey(key_bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    return Failed("write a certificate and its key");
  }
  return Pair{text(certificate_bio.get()), text(key_bio.get())};
}

// Clocks of machines differ a little.
constexpr absl::Duration kBackdated = absl::Minutes(5);

absl::Status WriteNew(const std::string& path, const std::string& bytes, mode_t mode) {
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", path));
  if (WriteAll(fd.get(), bytes)) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
}

absl::Status WritePair(const std::string& certificate, const std::string& key,
                       const CertificateAuthority::Pair& pair) {
  WEIR_RETURN_IF_ERROR(WriteNew(certificate, pair.certificate, 0644));
  return WriteNew(key, pair.key, 0600);
}

}  // namespace

struct CertificateAuthority::State {
  PrivateKeyPtr key;
  X509Ptr certificate;
};

CertificateAuthority::CertificateAuthority(std::unique_ptr<State> state) : state_(std::move(state)) {}
CertificateAuthority::CertificateAuthority(CertificateAuthority&&) noexcept = default;
CertificateAuthority::~CertificateAuthority() = default;

absl::StatusOr<CertificateAuthority> CertificateAuthority::Create(const std::string& name,
                                                                  const Validity& validity) {
  auto state = std::make_unique<State>();
  state->key.reset(EVP_EC_gen("P-256"));
  if (state->key == nullptr) return Failed("make a key");
  WEIR_ASSIGN_OR_RETURN(state->certificate,
                        MakeCertificate(name, state->key.get(), validity,
                                        {{NID_basic_constraints, "critical,CA:TRUE,pathlen:0"},
                                         {NID_key_usage, "critical,keyCertSign,cRLSign"},
                                         {NID_subject_key_identifier, "hash"}},
                                        nullptr, nullptr));
  return CertificateAuthority(std::move(state));
}

absl::StatusOr<Pair> CertificateAuthority::Self() const {
  return ToPem(state_->certificate.get(), state_->key.get());
}

absl::StatusOr<Pair> CertificateAuthority::Issue(const Identity& identity, const Validity& validity) const {
  const PrivateKeyPtr key(EVP_EC_gen("P-256"));
  if (key == nullptr) return Failed("make a key");
  WEIR_ASSIGN_OR_RETURN(const X509Ptr certificate,
                        MakeCertificate(identity.ToDns(), key.get(), validity,
                                        {{NID_basic_constraints, "critical,CA:FALSE"},
                                         {NID_key_usage, "critical,digitalSignature"},
                                         {NID_ext_key_usage, "serverAuth,clientAuth"},
                                         {NID_authority_key_identifier, "keyid:always"},
                                         {NID_subject_alt_name,
                                          absl::StrCat("URI:", identity.ToUri(), ",DNS:", identity.ToDns())}},
                                        state_->certificate.get(), state_->key.get()));
  return ToPem(certificate.get(), key.get());
}

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
