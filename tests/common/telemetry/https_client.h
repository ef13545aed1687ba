#pragma once

#include <openssl/ssl.h>

#include <string>

#include "common/rpc/openssl.h"
#include "tests/common/telemetry/http_client.h"

namespace weir {

// The answer of a server on this host over TLS 1.3, or over TLS 1.2 if `old`; "": there is no connection, or
// the two do not accept each other. Null for `tls`: the client has no certificate, and accepts any of the
// server's. `server`: whose certificate the server has; nullptr: nobody asks.
inline std::string HttpsExchange(int port, const std::string& request, const Tls* tls, bool old = false,
                                 Identity* server = nullptr) {
  const UniqueFd fd = HttpConnect(port);
  const SslContextPtr context = MakeSslContext(TLS_client_method(), tls);
  if (!fd.valid() || context == nullptr) return "";
  if (old) {
    SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
    SSL_CTX_set_max_proto_version(context.get(), TLS1_2_VERSION);
  }
  const SslPtr ssl(SSL_new(context.get()));
  BIO* const bio = NewSocketBio(fd.get()).release();
  SSL_set_bio(ssl.get(), bio, bio);
  if (SSL_connect(ssl.get()) != 1) return "";
  if (server != nullptr) {
    const X509Ptr certificate(SSL_get1_peer_certificate(ssl.get()));
    const auto identity = IdentityOfCertificate(certificate.get());
    if (identity.ok()) *server = *identity;
  }
  if (SSL_write(ssl.get(), request.data(), static_cast<int>(request.size())) <= 0) return "";
  std::string response;
  char buffer[4096];
  for (int got; (got = SSL_read(ssl.get(), buffer, sizeof buffer)) > 0;) {
    response.append(buffer, static_cast<size_t>(got));
  }
  // A page is whole only if the server says that it ends.
  return (SSL_get_shutdown(ssl.get()) & SSL_RECEIVED_SHUTDOWN) != 0 ? response : "";
}

inline std::string HttpsGet(int port, const std::string& path, const Tls* tls) {
  return HttpsExchange(port, "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n", tls);
}

}  // namespace weir
