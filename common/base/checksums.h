#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace weir {

// CRC-32C (Castagnoli; RFC 3720, appendix B.4). Uses the CPU's instruction if there is one, which takes
// several bytes per cycle. Finds every change of up to 32 adjacent bits. No protection against intent.

// The checksum of earlier data and these bytes, where `crc` is the checksum of the earlier data; 0: there is
// none.
uint32_t ExtendCrc32c(uint32_t crc, const void* data, size_t bytes);
inline uint32_t Crc32c(absl::string_view data) { return ExtendCrc32c(0, data.data(), data.size()); }

// The checksum of two pieces put together, from the checksum of each.
uint32_t ConcatCrc32c(uint32_t first, uint32_t second, uint64_t second_bytes);

// ExtendCrc32c as on a CPU without the instruction. For tests.
uint32_t ExtendCrc32cPortably(uint32_t crc, const void* data, size_t bytes);

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
