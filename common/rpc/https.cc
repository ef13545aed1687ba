#include "common/rpc/https.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <string>
#include <utility>

#include "common/rpc/openssl.h"

namespace weir {
namespace {

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
