#include "tests/integration/transport.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

namespace weir {

std::string TransportUnderTest() {
  const char* transport = std::getenv("WEIR_TEST_TRANSPORT");
  return transport == nullptr ? "" : transport;
}

std::vector<std::string> CommonOverrides() {
  std::vector<std::string> overrides = {"server.min_shard_kib=0"};
  if (const std::string transport = TransportUnderTest(); !transport.empty()) {
    overrides.push_back("wire.transport=" + transport);
  }
  return overrides;
}

int LocalConnections(LocalService service, const Address& server) {
  const std::vector<std::string> names = NamesToListenOn(service, server);
  std::ifstream sockets("/proc/net/unix");
  int connections = 0;
  for (std::string line; std::getline(sockets, line);) {
    std::istringstream fields(line);
    std::string number, references, protocol, flags, type, state, inode, path;
    fields >> number >> references >> protocol >> flags >> type >> state >> inode >> path;
    if (state != "03") continue;  // connected
    for (const std::string& name : names) connections += path == "@" + name;
  }
  return connections;
}

}  // namespace weir
