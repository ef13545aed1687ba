#pragma once

#include <string>
#include <vector>

#include "common/config/address.h"
#include "common/net/local_host.h"

namespace weir {

// What every job of a test program is to use, from WEIR_TEST_TRANSPORT, which transport_tests() in the BUILD
// file sets: a value of wire.transport. Empty: the default.
std::string TransportUnderTest();
// The same for --set.
std::vector<std::string> TransportOverrides();

// How many connections a server of this machine has on its abstract Unix socket of this service, as the
// kernel tells it.
int LocalConnections(LocalService service, const Address& server);

}  // namespace weir
