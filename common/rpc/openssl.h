#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>

#include "common/rpc/tls.h"

namespace weir {

// Owners of OpenSSL's objects.
template <auto free>
struct OpensslFree {
  template <typename T>
  void operator()(T* object) const {
    free(object);
  }
};
// Frees the stack, not the certificates in it.
inline void FreeX509Stack(STACK_OF(X509) * stack) { sk_X509_free(stack); }

using BioPtr = std::unique_ptr<BIO, OpensslFree<BIO_free_all>>;
using PrivateKeyPtr = std::unique_ptr<EVP_PKEY, OpensslFree<EVP_PKEY_free>>;
using GeneralNamesPtr = std::unique_ptr<GENERAL_NAMES, OpensslFree<GENERAL_NAMES_free>>;
using X509Ptr = std::unique_ptr<X509, OpensslFree<X509_free>>;
using X509StackPtr = std::unique_ptr<STACK_OF(X509), OpensslFree<FreeX509Stack>>;
using X509StorePtr = std::unique_ptr<X509_STORE, OpensslFree<X509_STORE_free>>;
using X509StoreContextPtr = std::unique_ptr<X509_STORE_CTX, OpensslFree<X509_STORE_CTX_free>>;
using SslContextPtr = std::unique_ptr<SSL_CTX, OpensslFree<SSL_CTX_free>>;
using SslPtr = std::unique_ptr<SSL, OpensslFree<SSL_free>>;

// Says that there is no pass phrase for a PEM file (pem_password_cb). Without such a function OpenSSL asks
// for one at the terminal.
inline int NoPassPhrase(char*, int, int, void*) { return -1; }

// A BIO on a non-blocking socket, which must outlive it. Unlike OpenSSL's own, it raises no SIGPIPE when the
// peer is gone, which would end the process.
BioPtr NewSocketBio(int socket);

// A context of OpenSSL for TLS 1.3, with what the files hold now: the process's certificate and key, and the
// CAs by which the peer's certificate, if it has one, is proven. Null: the files cannot be used, or are half
// replaced just now. `tls` null: without any of this.
SslContextPtr MakeSslContext(const SSL_METHOD* method, const Tls* tls);

}  // namespace weir
