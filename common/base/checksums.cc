#include "common/base/checksums.h"

#include <nmmintrin.h>
#include <openssl/evp.h>

#include <cstdlib>
#include <cstring>

#include "absl/strings/escaping.h"

#if defined(__x86_64__)
#endif

namespace weir {
namespace {

// Polynomials over GF(2) are bit-reflected: x^0 is the highest bit.
constexpr uint32_t kPolynomial = 0x82f63b78;

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t r = i;
    for (int bit = 0; bit < 8; ++bit) r = (r & 1) != 0 ? (r >> 1) ^ kPolynomial : r >> 1;
    table[i] = r;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = MakeTable();

// a * b modulo the polynomial.
constexpr uint32_t Multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = uint32_t{1} << 31; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b & 1) != 0 ? (b >> 1) ^ kPolynomial : b >> 1;
  }
  return product;
}

// x^(8 * bytes): the factor by which this many zero bytes multiply a remainder.
constexpr uint32_t PowerOfBytes(uint64_t bytes) {
  uint32_t power = uint32_t{1} << 31, square = uint32_t{1} << 23;
  for (; bytes != 0; bytes >>= 1) {
    if ((bytes & 1) != 0) power = Multiply(power, square);
    square = Multiply(square, square);
  }
  return power;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t ExtendWithInstruction(uint32_t crc, const void* data,
                                                                 size_t bytes) {
  const char* at = static_cast<const char*>(data);
  const auto word = [](const char* from) {
    uint64_t w;
    std::memcpy(&w, from, sizeof w);
    return w;
  };
  uint64_t r = ~crc;
  // The instruction takes three cycles, but one can begin in each cycle, so three stretches run side by side.
  constexpr size_t kStretch = 4096;
  constexpr uint32_t kPower = PowerOfBytes(kStretch);
  for (; bytes >= 3 * kStretch; at += 3 * kStretch, bytes -= 3 * kStretch) {
    uint64_t r1 = 0, r2 = 0;
    for (size_t i = 0; i < kStretch; i += 8) {
      r = _mm_crc32_u64(r, word(at + i));
      r1 = _mm_crc32_u64(r1, word(at + kStretch + i));
      r2 = _mm_crc32_u64(r2, word(at + 2 * kStretch + i));
    }
    r = Multiply(kPower, static_cast<uint32_t>(r)) ^ r1;
    r = Multiply(kPower, static_cast<uint32_t>(r)) ^ r2;
  }
  for (; bytes >= 8; at += 8, bytes -= 8) r = _mm_crc32_u64(r, word(at));
  for (; bytes > 0; ++at, --bytes) {
    r = _mm_crc32_u8(static_cast<uint32_t>(r), static_cast<unsigned char>(*at));
  }
  return ~static_cast<uint32_t>(r);
}
#endif

}  // namespace

uint32_t ExtendCrc32cPortably(uint32_t crc, const void* data, size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  uint32_t r = ~crc;
  for (size_t i = 0; i < bytes; ++i) r = (r >> 8) ^ kTable[(r ^ at[i]) & 0xff];
  return ~r;
}

uint32_t ExtendCrc32c(uint32_t crc, const void* data, size_t bytes) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return ExtendWithInstruction(crc, data, bytes);
#endif
  return ExtendCrc32cPortably(crc, data, bytes);
}

uint32_t ConcatCrc32c(uint32_t first, uint32_t second, uint64_t second_bytes) {
  return Multiply(PowerOfBytes(second_bytes), first) ^ second;
}

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

namespace {

// OpenSSL's calls on a plain SHA-256 fail only if memory or the default provider is missing.
void Check(bool ok) {
  if (!ok) abort();
}

}  // namespace

Sha256::Sha256() : state_(std::make_unique<State>()) {
  Check(state_->context != nullptr && EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() = default;

void Sha256::Update(const void* data, size_t bytes) {
  Check(EVP_DigestUpdate(state_->context, data, bytes) == 1);
}

std::array<uint8_t, 32> Sha256::Digest() {
  std::array<uint8_t, 32> digest;
  Check(EVP_DigestFinal_ex(state_->context, digest.data(), nullptr) == 1 &&
        EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1);
  return digest;
}

std::string Sha256::Hex() {
  const auto digest = Digest();
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

std::string Sha256Hex(absl::string_view data) {
  Sha256 sha;
  sha.Update(data);
  return sha.Hex();
}

}  // namespace weir
