#include <string>

#include "catch2/catch.hpp"
#include "common/base/checksums.h"

namespace weir {
namespace {

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
