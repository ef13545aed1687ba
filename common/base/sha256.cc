#include "common/base/sha256.h"

#include <openssl/evp.h>

#include <cstdlib>

#include "absl/strings/escaping.h"

namespace weir {

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
