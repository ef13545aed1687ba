#include "cli/report/digest_time.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace weir {
namespace {

// Of a server's tables, with slots and indexes, which are not hashed. SHA-256 takes several hundred MB/s even
// without instructions of its own; the machine may be busy.
constexpr double kBytesPerSecond = 50e6;

}  // namespace

absl::Duration TimeForDigests(const v1::ClusterStatus& status) {
  std::vector<uint64_t> bytes;  // by shard
  for (const v1::TableStatus& table : status.tables()) {
    bytes.resize(std::max(bytes.size(), static_cast<size_t>(table.shards_size())));
    for (int shard = 0; shard < table.shards_size(); ++shard) {
      bytes[static_cast<size_t>(shard)] += table.shards(shard).bytes();
    }
  }
  if (bytes.empty()) return absl::ZeroDuration();
  return absl::Seconds(static_cast<double>(*std::max_element(bytes.begin(), bytes.end())) / kBytesPerSecond);
}

}  // namespace weir
