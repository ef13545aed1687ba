#include "common/model/table_digest.h"

#include <utility>

#include "common/model/key_bucket.h"

namespace weir {

void TableDigest::AddRow(uint64_t key, absl::Span<const float> values) {
  const uint32_t bucket = BucketOfHash(HashKey(key));
  if (bucket_ != bucket) EndBucket();
  bucket_ = bucket;
  of_bucket_.Update(&key, sizeof key);
  of_bucket_.Update(values.data(), values.size() * sizeof(float));
}

void TableDigest::EndBucket() {
  if (!bucket_.has_value()) return;
  const auto digest = of_bucket_.Digest();
  Add({reinterpret_cast<const char*>(digest.data()), digest.size()}, sum_);
  bucket_.reset();
}

std::string TableDigest::Finish() {
  EndBucket();
  return std::exchange(sum_, std::string(kBytes, '\0'));
}

bool TableDigest::Add(absl::string_view shard, std::string& sum) {
  if (shard.size() != kBytes || sum.size() != kBytes) return false;
  for (size_t i = 0; i < kBytes; ++i) sum[i] = static_cast<char>(sum[i] ^ shard[i]);
  return true;
}

std::string TablesSha256(const std::map<std::string, std::string>& digests) {
  Sha256 hash;
  for (const auto& [name, digest] : digests) {
    hash.Update(name);
    hash.Update(absl::string_view("\0", 1));
    hash.Update(digest);
  }
  return hash.Hex();
}

}  // namespace weir
