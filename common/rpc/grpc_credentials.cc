#include "common/rpc/grpc_credentials.h"

#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <cstdlib>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace weir {
namespace {

using grpc::experimental::ExternalCertificateVerifier;
using grpc::experimental::FileWatcherCertificateProvider;
using grpc::experimental::TlsCustomVerificationCheckRequest;

constexpr unsigned kRefreshSeconds = 1;

// This gRPC has no option for the lowest version. The variable names the ciphers of TLS 1.2 alone: without
// pre-shared keys, which nobody here has, no handshake of TLS 1.2 can agree on this one. gRPC reads it once,
// before its first handshake. It is set before main(), while there is one thread.
[[maybe_unused]] const int kNoTls12 = setenv("GRPC_SSL_CIPHER_SUITES", "PSK-AES128-GCM-SHA256", 1);

std::vector<std::string> ToStrings(const std::vector<grpc::string_ref>& texts) {
  std::vector<std::string> strings;
  for (const grpc::string_ref& text : texts) strings.emplace_back(text.data(), text.size());
  return strings;
}

bool IsTrue(const std::vector<grpc::string_ref>& property) {
  return !property.empty() && property[0] == "true";
}

// OpenSSL has checked the chain and the dates before.
class IdentityVerifier final : public ExternalCertificateVerifier {
 public:
  explicit IdentityVerifier(Identity expected) : expected_(std::move(expected)) {}

  bool Verify(TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)> /*callback*/,
              grpc::Status* status) override {
    const absl::StatusOr<Identity> found =
        IdentityOf(ToStrings(request->uri_names()), ToStrings(request->dns_names()));
    if (!found.ok() || !(*found == expected_)) {
      *status = {grpc::StatusCode::UNAUTHENTICATED,
                 absl::StrCat("the server's certificate ",
                              found.ok() ? absl::StrCat("is that of ", found->ToUri())
                                         : std::string(found.status().message()),
                              "; expected is ", expected_.ToUri())};
    }
    return true;  // done
  }
  void Cancel(TlsCustomVerificationCheckRequest* /*request*/) override {}

 private:
  const Identity expected_;
};

// A host's name may begin with "unix", too.
bool IsUnix(const std::string& address) {
  return absl::StartsWith(address, "unix:") || absl::StartsWith(address, "unix-abstract:");
}

std::shared_ptr<FileWatcherCertificateProvider> Watch(const Tls* tls) {
  if (tls == nullptr) return nullptr;
  const TlsFiles& files = tls->files();
  return std::make_shared<FileWatcherCertificateProvider>(files.key, files.certificate, files.ca,
                                                          kRefreshSeconds);
}

constexpr char kEntry[] = "authorization";

}  // namespace

JobCredentials::JobCredentials(std::shared_ptr<const Tls> tls)
    : tls_(std::move(tls)), provider_(Watch(tls_.get())) {}

std::shared_ptr<grpc::ChannelCredentials> JobCredentials::ToServer(uint32_t server,
                                                                   const std::string& target) const {
  if (tls_ == nullptr || IsUnix(target)) return grpc::InsecureChannelCredentials();
  MutexLock lock(mutex_);
  std::shared_ptr<grpc::ChannelCredentials>& credentials = to_servers_[server];
  if (credentials == nullptr) {
    grpc::experimental::TlsChannelCredentialsOptions options;
    options.set_certificate_provider(provider_);
    options.watch_root_certs();
    options.watch_identity_key_cert_pairs();
    options.set_verify_server_certs(true);
    options.set_check_call_host(false);
    options.set_certificate_verifier(ExternalCertificateVerifier::Create<IdentityVerifier>(
        Identity{tls_->identity().job, Role::kServer, server}));
    credentials = grpc::experimental::TlsCredentials(options);
  }
  return credentials;
}

std::shared_ptr<grpc::ServerCredentials> JobCredentials::OfServer(const std::string& listen) const {
  if (tls_ == nullptr || IsUnix(listen)) return grpc::InsecureServerCredentials();
  grpc::experimental::TlsServerCredentialsOptions options(provider_);
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return grpc::experimental::TlsServerCredentials(options);
}

absl::StatusOr<std::optional<Identity>> CallerOf(const grpc::ServerContext& context) {
  const std::shared_ptr<const grpc::AuthContext> peer = context.auth_context();
  if (peer == nullptr || !peer->IsPeerAuthenticated()) {
    // "ipv4:10.0.0.1:4711", "ipv6:...": no connection over a network comes without TLS to a server that has
    // it.
    if (absl::StartsWith(context.peer(), "ipv")) return absl::UnauthenticatedError("is missing");
    return std::nullopt;
  }
  if (IsTrue(peer->FindPropertyValues(GRPC_SSL_SESSION_REUSED_PROPERTY))) {
    // OpenSSL checks the dates of a chain, and here none has come: the session has the certificate.
    const std::vector<std::string> pem =
        ToStrings(peer->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME));
    if (pem.empty() || EndOfCertificate(pem[0]) < absl::Now()) return absl::UnauthenticatedError("has ended");
  }
  const absl::StatusOr<Identity> identity =
      IdentityOf(ToStrings(peer->FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)),
                 ToStrings(peer->FindPropertyValues(GRPC_PEER_DNS_PROPERTY_NAME)));
  if (!identity.ok()) return identity.status();
  return std::make_optional(*identity);
}

void SetToken(const JobToken& token, grpc::ClientContext* context) {
  if (!token.empty()) context->AddMetadata(kEntry, token.Authorization());
}

grpc::Status CheckToken(const JobToken& token, const grpc::ServerContext& context) {
  if (token.empty()) return grpc::Status::OK;
  const auto entry = context.client_metadata().find(kEntry);
  const bool given = entry != context.client_metadata().end();
  if (given && token.Authorizes({entry->second.data(), entry->second.size()})) return grpc::Status::OK;
  return {grpc::StatusCode::UNAUTHENTICATED,
          absl::StrCat("this job has a token, and the caller ", given ? "has another one" : "has none",
                       "; give --token_file=FILE with the file that the job's servers have")};
}

}  // namespace weir
