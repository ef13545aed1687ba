#include "common/rpc/ssl_context.h"

namespace weir {

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
