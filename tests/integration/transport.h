#pragma once

#include <string>
#include <vector>

#include "common/config/address.h"
#include "common/net/local_socket.h"

namespace weir {

// The transport for every job of a test program, from WEIR_TEST_TRANSPORT, which transport_tests() in the
// BUILD file sets: a value of wire.transport. Empty: the default.
std::string TransportUnderTest();
// For the --set of every job of a test: that transport, and that each server holds a part of the job's small
// model.
std::vector<std::string> CommonOverrides();

// The number of connections that a server of this machine has on its abstract Unix socket for this service,
// from the kernel.
int LocalConnections(LocalService service, const Address& server);

}  // namespace weir
