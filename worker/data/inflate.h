#pragma once

#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weir {

// Reads bytes that may be compressed with gzip (recognised by their first two bytes) piece by piece, so that
// the reader decides how much memory the content gets. Not thread-safe. The bytes must outlive this.
class InflateReader {
 public:
  explicit InflateReader(absl::string_view bytes);
  ~InflateReader();
  InflateReader(const InflateReader&) = delete;
  InflateReader& operator=(const InflateReader&) = delete;

  bool compressed() const { return compressed_; }
  // Fills `out` as far as there is content; less than its size means the end. DataLoss: damaged or truncated
  // gzip data.
  absl::StatusOr<size_t> Read(absl::Span<uint8_t> out);
  // The next `most` bytes, or fewer if the content ends. Memory is taken as they come.
  absl::StatusOr<std::vector<uint8_t>> ReadUpTo(uint64_t most);
  // Reads to the end, and keeps nothing. OK: what was read so far is complete and is what was compressed. A
  // byte that has changed usually makes other content, and only the checksum at the end shows it.
  absl::Status Check();

 private:
  absl::string_view rest_;
  bool compressed_;
  bool ended_ = false;  // at the end of a gzip member
  z_stream stream_{};
};

}  // namespace weir
