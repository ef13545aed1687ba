#include "bench/cipher.h"

#include <openssl/evp.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

namespace weir::bench {

double CipherSpeed() {
  using Steady = std::chrono::steady_clock;
  constexpr int kRecordBytes = 16 << 10, kRecords = 4096, kRuns = 5;
  const std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)> context(EVP_CIPHER_CTX_new(),
                                                                                EVP_CIPHER_CTX_free);
  const unsigned char key[32] = {1};
  unsigned char nonce[12] = {};
  std::vector<unsigned char> plain(kRecordBytes, 2), sealed(kRecordBytes);
  double best = 0;
  for (int run = 0; run < kRuns; ++run) {
    const Steady::time_point start = Steady::now();
    for (int record = 0; record < kRecords; ++record) {
      ++nonce[record % 12];
      int length = 0;
      if (EVP_EncryptInit_ex(context.get(), EVP_aes_256_gcm(), nullptr, key, nonce) != 1 ||
          EVP_EncryptUpdate(context.get(), sealed.data(), &length, plain.data(), kRecordBytes) != 1 ||
          EVP_EncryptFinal_ex(context.get(), sealed.data() + length, &length) != 1) {
        return 0;
      }
    }
    const std::chrono::duration<double> took = Steady::now() - start;
    best = std::max(best, 1e-9 * kRecordBytes * kRecords / took.count());
  }
  return best;
}

}  // namespace weir::bench
