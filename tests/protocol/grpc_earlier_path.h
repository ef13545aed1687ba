#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tests/protocol/wire_fields.h"

namespace weir {

// The path to a server, on loopback, on which the server and its callers seem to each other to be of an
// earlier version of the protocol. Thread-safe.
class EarlierPath {
 public:
  // The path begins at `listen` and ends at `server`, each "HOST:PORT"; the server may come and go. `earlier`
  // outlives the path.
  static std::unique_ptr<EarlierPath> Start(const std::string& listen, const std::string& server,
                                            const EarlierWire& earlier);
  virtual ~EarlierPath() = default;

  // The messages of this service ("weir.v1.Coordinator") from which fields were taken, so far.
  virtual uint64_t changed(const std::string& service) const = 0;
};

}  // namespace weir
