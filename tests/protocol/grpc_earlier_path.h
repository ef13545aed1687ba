#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tests/protocol/wire_fields.h"

namespace weir {

// The path from a process to a server, on loopback, on which each seems to the other to be of an earlier
// version of the protocol. Thread-safe.
class EarlierPath {
 public:
  // `server`: "HOST:PORT"; the server may come and go. `earlier` outlives the path.
  static std::unique_ptr<EarlierPath> Start(const std::string& server, const EarlierWire& earlier);
  virtual ~EarlierPath() = default;

  // "127.0.0.1:PORT".
  virtual std::string address() const = 0;
  // Messages from which fields were taken, so far.
  virtual uint64_t changed() const = 0;
};

}  // namespace weir
