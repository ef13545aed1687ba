#include "common/telemetry/escape.h"

#include <cstdint>

#include "absl/strings/str_format.h"

namespace weir {
namespace {

constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";

// The length of the UTF-8 sequence that `text` begins with, or 0 if it is not one (overlong, a surrogate, too
// large, cut).
size_t SequenceLength(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xC2 && first <= 0xDF   ? 2
                        : first >= 0xE0 && first <= 0xEF ? 3
                        : first >= 0xF0 && first <= 0xF4 ? 4
                                                         : 0;
  if (length == 0 || text.size() < length) return 0;
  // The second byte's range is narrower after these (Unicode, table 3-7).
  const uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  return length;
}

// Calls `append` with each valid sequence, or with U+FFFD for a byte that is none.
template <typename Append>
void ForEachCharacter(absl::string_view text, Append append) {
  while (!text.empty()) {
    const size_t length = SequenceLength(text);
    append(length == 0 ? kReplacement : text.substr(0, length));
    text.remove_prefix(length == 0 ? 1 : length);
  }
}

}  // namespace

std::string ValidUtf8(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  ForEachCharacter(text,
                   [&](absl::string_view character) { out.append(character.data(), character.size()); });
  return out;
}

void AppendJsonString(absl::string_view text, std::string& out) {
  out.push_back('"');
  ForEachCharacter(text, [&](absl::string_view character) {
    const char c = character[0];
    if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (c == '\n') {
      out.append("\\n");
    } else if (c == '\t') {
      out.append("\\t");
    } else if (static_cast<uint8_t>(c) < 0x20 || c == 0x7F) {
      absl::StrAppendFormat(&out, "\\u%04x", static_cast<unsigned>(static_cast<uint8_t>(c)));
    } else {
      out.append(character.data(), character.size());
    }
  });
  out.push_back('"');
}

}  // namespace weir
