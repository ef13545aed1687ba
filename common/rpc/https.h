#pragma once

#include <memory>

#include "common/rpc/tls.h"
#include "common/telemetry/http_server.h"

namespace weir {

// The server's end of TLS 1.3 on a connection of HTTP that was accepted and has received nothing yet. A
// client need not have a certificate; one with a certificate of this process's job, whatever its role, is
// proven. The files of `tls` are read anew for each connection. Null: they are half replaced just now. The
// socket must outlive the stream.
std::unique_ptr<HttpStream> AcceptHttps(int socket, const Tls& tls);

}  // namespace weir
