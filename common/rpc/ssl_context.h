#pragma once

#include <openssl/ssl.h>

#include "common/rpc/openssl_types.h"
#include "common/rpc/tls.h"

namespace weir {

// A context of OpenSSL for TLS 1.3, with what the files hold now: the process's certificate and key, and the
// CAs by which the peer's certificate, if it has one, is proven. Null: the files cannot be used, or are half
// replaced just now. `tls` null: without any of this.
SslContextPtr MakeSslContext(const SSL_METHOD* method, const Tls* tls);

}  // namespace weir
