#include "common/rpc/openssl.h"

#include <errno.h>
#include <sys/socket.h>

#include <cstdint>

namespace weir {
namespace {

int SocketOf(BIO* bio) { return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio))); }

// As a BIO's functions return it: -1 with a flag that says whether to try again.
int Result(BIO* bio, ssize_t bytes, int again) {
  BIO_clear_retry_flags(bio);
  if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
    BIO_set_flags(bio, again | BIO_FLAGS_SHOULD_RETRY);
  }
  return static_cast<int>(bytes);
}

int Write(BIO* bio, const char* bytes, int size) {
  return Result(bio, send(SocketOf(bio), bytes, static_cast<size_t>(size), MSG_NOSIGNAL), BIO_FLAGS_WRITE);
}

int Read(BIO* bio, char* bytes, int size) {
  return Result(bio, recv(SocketOf(bio), bytes, static_cast<size_t>(size), 0), BIO_FLAGS_READ);
}

long Control(BIO* /*bio*/, int command, long /*number*/, void* /*pointer*/) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

// Lives as long as the process.
BIO_METHOD* Method() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "weir socket");
    BIO_meth_set_write(made, Write);
    BIO_meth_set_read(made, Read);
    BIO_meth_set_ctrl(made, Control);
    return made;
  }();
  return method;
}

}  // namespace

BioPtr NewSocketBio(int socket) {
  BioPtr bio(BIO_new(Method()));
  BIO_set_data(bio.get(), reinterpret_cast<void*>(static_cast<intptr_t>(socket)));
  BIO_set_init(bio.get(), 1);
  return bio;
}

SslContextPtr MakeSslContext(const SSL_METHOD* method, const Tls* tls) {
  SslContextPtr context(SSL_CTX_new(method));
  SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION);
  SSL_CTX_set_default_passwd_cb(context.get(), NoPassPhrase);
  if (tls == nullptr) return context;
  const TlsFiles& files = tls->files();
  if (SSL_CTX_load_verify_locations(context.get(), files.ca.c_str(), nullptr) != 1 ||
      SSL_CTX_use_certificate_chain_file(context.get(), files.certificate.c_str()) != 1 ||
      SSL_CTX_use_PrivateKey_file(context.get(), files.key.c_str(), SSL_FILETYPE_PEM) != 1) {
    return nullptr;
  }
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  return context;
}

}  // namespace weir
