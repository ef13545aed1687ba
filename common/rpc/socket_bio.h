#pragma once

#include "common/rpc/openssl_types.h"

namespace weir {

// A BIO on a non-blocking socket, which must outlive it. Unlike OpenSSL's own, it raises no SIGPIPE when the
// peer is gone, which would end the process.
BioPtr NewSocketBio(int socket);

}  // namespace weir
