#include "common/rpc/tls_probe.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/config/address.h"
#include "common/net/resolve.h"
#include "common/rpc/openssl.h"
#include "common/system/unique_fd.h"

namespace weir {
namespace {

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

}  // namespace

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

}  // namespace weir
