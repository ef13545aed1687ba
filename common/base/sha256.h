#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace weir {

// SHA-256 (FIPS 180-4), fed in pieces. Not thread-safe. After Digest or Hex the next Update starts a new
// message.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Update(const void* data, size_t bytes);
  void Update(absl::string_view data) { Update(data.data(), data.size()); }
  std::array<uint8_t, 32> Digest();
  // The digest as 64 lower-case hex digits.
  std::string Hex();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The digest of one piece, in hex.
std::string Sha256Hex(absl::string_view data);

}  // namespace weir
