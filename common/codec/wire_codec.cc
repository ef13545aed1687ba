#include "common/codec/wire_codec.h"

#include <algorithm>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace weir {
namespace {

enum WireType { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };

absl::Status Malformed(const char* what) {
  return absl::InvalidArgumentError(absl::StrCat("not a message of this protocol: ", what));
}

void AppendVarint(uint64_t value, std::string& out) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

// A position in bytes that lie in pieces.
class Cursor {
 public:
  explicit Cursor(absl::Span<const absl::string_view> pieces) : pieces_(pieces) {
    for (absl::string_view piece : pieces) left_ += piece.size();
    SkipEmpty();
  }

  uint64_t left() const { return left_; }

  absl::StatusOr<uint64_t> Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (left_ == 0) return Malformed("it ends inside a number");
      const auto byte = static_cast<uint8_t>(pieces_[piece_][offset_]);
      Advance(1);
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    return Malformed("a number of more than 64 bits");
  }

  // Steps over n <= left() bytes. Copies them to `out`, or notes where they lie.
  void Take(uint64_t n, std::string* out, std::vector<absl::string_view>* where) {
    while (n > 0) {
      const absl::string_view rest = pieces_[piece_].substr(offset_);
      const absl::string_view part = rest.substr(0, std::min<uint64_t>(n, rest.size()));
      if (out != nullptr) out->append(part.data(), part.size());
      if (where != nullptr) where->push_back(part);
      Advance(part.size());
      n -= part.size();
    }
  }

 private:
  void Advance(uint64_t n) {
    offset_ += n;
    left_ -= n;
    SkipEmpty();
  }
  void SkipEmpty() {
    while (piece_ < pieces_.size() && offset_ == pieces_[piece_].size()) {
      ++piece_;
      offset_ = 0;
    }
  }

  absl::Span<const absl::string_view> pieces_;
  size_t piece_ = 0;
  size_t offset_ = 0;
  uint64_t left_ = 0;
};

// Copies one field whose tag was read to `head`, tag included.
absl::Status CopyField(uint64_t tag, Cursor& cursor, std::string& head) {
  AppendVarint(tag, head);
  uint64_t bytes = 0;
  switch (tag & 7) {
    case kVarint: {
      WEIR_ASSIGN_OR_RETURN(const uint64_t value, cursor.Varint());
      AppendVarint(value, head);
      return absl::OkStatus();
    }
    case kFixed64:
      bytes = 8;
      break;
    case kFixed32:
      bytes = 4;
      break;
    case kLengthDelimited: {
      WEIR_ASSIGN_OR_RETURN(bytes, cursor.Varint());
      AppendVarint(bytes, head);
      break;
    }
    default:
      return Malformed("a field of an unknown wire type");
  }
  if (bytes > cursor.left()) return Malformed("it ends inside a field");
  cursor.Take(bytes, &head, nullptr);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SplitMessage> SplitPayload(absl::Span<const absl::string_view> pieces) {
  constexpr uint64_t kPayloadTag = kPayloadField << 3 | kLengthDelimited;
  SplitMessage out;
  Cursor cursor(pieces);
  while (cursor.left() > 0) {
    WEIR_ASSIGN_OR_RETURN(const uint64_t tag, cursor.Varint());
    if (tag >> 3 == 0) return Malformed("a field without a number");
    if (tag == kPayloadTag) {
      WEIR_ASSIGN_OR_RETURN(const uint64_t bytes, cursor.Varint());
      if (bytes > cursor.left()) return Malformed("it ends inside its payload");
      // An empty payload stays in the head, for it voids one that came before.
      if (bytes > 0 && bytes == cursor.left()) {
        out.payload_bytes = bytes;
        cursor.Take(bytes, nullptr, &out.payload);
        return out;
      }
      AppendVarint(tag, out.head);
      AppendVarint(bytes, out.head);
      cursor.Take(bytes, &out.head, nullptr);
      continue;
    }
    WEIR_RETURN_IF_ERROR(CopyField(tag, cursor, out.head));
  }
  return out;
}

std::string PayloadPrefix(uint64_t payload_bytes) {
  if (payload_bytes == 0) return "";
  std::string out;
  AppendVarint(uint64_t{kPayloadField} << 3 | kLengthDelimited, out);
  AppendVarint(payload_bytes, out);
  return out;
}

}  // namespace weir
