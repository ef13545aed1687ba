#include "worker/data/inflate.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace weir {
namespace {

constexpr absl::string_view kGzipMagic = "\x1f\x8b";
constexpr int kGzipWindow = 16 + MAX_WBITS;  // zlib's code for "a gzip header is there"

bool HasGzipMagic(absl::string_view bytes) { return bytes.substr(0, 2) == kGzipMagic; }

}  // namespace

InflateReader::InflateReader(absl::string_view bytes) : rest_(bytes), compressed_(HasGzipMagic(bytes)) {
  if (compressed_ && inflateInit2(&stream_, kGzipWindow) != Z_OK) std::abort();  // only without memory
}

InflateReader::~InflateReader() {
  if (compressed_) inflateEnd(&stream_);
}

absl::StatusOr<size_t> InflateReader::Read(absl::Span<uint8_t> out) {
  if (!compressed_) {
    const size_t n = std::min(out.size(), rest_.size());
    if (n > 0) std::memcpy(out.data(), rest_.data(), n);
    rest_.remove_prefix(n);
    return n;
  }
  constexpr size_t kMost = std::numeric_limits<uInt>::max();
  size_t done = 0;
  while (done < out.size()) {
    if (ended_) {
      if (rest_.empty()) break;
      // A gzip file may consist of several, one behind the other.
      if (!HasGzipMagic(rest_)) {
        return absl::DataLossError(absl::StrCat(rest_.size(), " bytes after the end of the gzip data"));
      }
      inflateReset(&stream_);
      ended_ = false;
    }
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(rest_.data()));
    stream_.avail_in = static_cast<uInt>(std::min(rest_.size(), kMost));
    stream_.next_out = out.data() + done;
    stream_.avail_out = static_cast<uInt>(std::min(out.size() - done, kMost));
    const uInt had_in = stream_.avail_in, had_out = stream_.avail_out;
    const int result = inflate(&stream_, Z_NO_FLUSH);
    rest_.remove_prefix(had_in - stream_.avail_in);
    done += had_out - stream_.avail_out;
    if (result == Z_STREAM_END) {
      ended_ = true;
    } else if (result == Z_BUF_ERROR || (result == Z_OK && rest_.empty() && stream_.avail_out > 0)) {
      return absl::DataLossError("the gzip data is cut short");
    } else if (result != Z_OK) {
      return absl::DataLossError(absl::StrCat("the gzip data is damaged: ",
                                              stream_.msg == nullptr ? "unknown reason" : stream_.msg));
    }
  }
  return done;
}

absl::StatusOr<std::vector<uint8_t>> InflateReader::ReadUpTo(uint64_t most) {
  constexpr size_t kStep = size_t{16} << 20;
  std::vector<uint8_t> bytes;
  while (bytes.size() < most) {
    const size_t before = bytes.size(), piece = std::min<uint64_t>(kStep, most - before);
    bytes.resize(before + piece);
    WEIR_ASSIGN_OR_RETURN(const size_t got, Read(absl::MakeSpan(bytes).subspan(before)));
    bytes.resize(before + got);
    if (got < piece) break;
  }
  return bytes;
}

absl::Status InflateReader::Check() {
  std::vector<uint8_t> piece(size_t{1} << 20);
  absl::StatusOr<size_t> got = compressed_ ? piece.size() : 0;
  while (got.ok() && *got > 0) got = Read(absl::MakeSpan(piece));
  return got.status();
}

}  // namespace weir
