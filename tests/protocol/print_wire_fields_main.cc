// Prints the fields of the present version, as tests/protocol keeps those of the version before.
#include <cstdio>

#include "common/protocol/handshake.h"
#include "tests/protocol/wire_fields.h"

int main() {
  std::printf("# %s\n", weir::ToString(weir::OwnProtocol()).c_str());
  for (const std::string& line : weir::PresentWireFields()) std::printf("%s\n", line.c_str());
}
