#include "common/base/checksums.h"

#include <string>

#include "catch2/catch.hpp"
#include "common/base/random.h"

namespace weir {
namespace {

std::string RandomBytes(size_t n) {
  RandomStream random(RandomKey(1, "crc32c"), n);
  std::string out(n, '\0');
  for (char& c : out) c = static_cast<char>(random.Next());
  return out;
}

TEST_CASE("CRC-32C: the values of RFC 3720") {
  std::string rising, falling;
  for (int i = 0; i < 32; ++i) {
    rising += static_cast<char>(i);
    falling += static_cast<char>(31 - i);
  }
  CHECK(Crc32c("") == 0);
  CHECK(Crc32c("123456789") == 0xe3069283);
  CHECK(Crc32c(std::string(32, '\0')) == 0x8a9136aa);
  CHECK(Crc32c(std::string(32, '\xff')) == 0x62a8ab43);
  CHECK(Crc32c(rising) == 0x46dd794e);
  CHECK(Crc32c(falling) == 0x113fdb5c);
}

TEST_CASE("CRC-32C: the instruction and the table agree at every length and cut") {
  const std::string data = RandomBytes(40000);
  for (size_t n : {0, 1, 7, 8, 9, 63, 4095, 4096, 12287, 12288, 12289, 24576, 36871, 40000}) {
    const uint32_t whole = ExtendCrc32cPortably(0, data.data(), n);
    CHECK(ExtendCrc32c(0, data.data(), n) == whole);
    for (size_t cut : {size_t{0}, size_t{1}, n / 3, n / 2, n - n / 7}) {
      if (cut > n) continue;
      const uint32_t first = ExtendCrc32c(0, data.data(), cut);
      CHECK(ExtendCrc32c(first, data.data() + cut, n - cut) == whole);
      CHECK(ConcatCrc32c(first, ExtendCrc32c(0, data.data() + cut, n - cut), n - cut) == whole);
    }
  }
}

// The examples of FIPS 180-4.
TEST_CASE("known digests") {
  CHECK(Sha256Hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(Sha256Hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(Sha256Hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST_CASE("pieces give the digest of the whole, and a digest starts a new message") {
  const std::string million(1000000, 'a');
  Sha256 sha;
  for (size_t at = 0, piece = 1; at < million.size(); at += piece, piece = piece * 3 % 1009 + 1) {
    sha.Update(absl::string_view(million).substr(at, piece));
  }
  CHECK(sha.Hex() == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  sha.Update("abc");
  CHECK(sha.Hex() == Sha256Hex("abc"));
}

}  // namespace
}  // namespace weir
