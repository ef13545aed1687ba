#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace weir {

// The key of a text in a vocabulary (ColumnConfig): FNV-1a of 64 bits over the vocabulary's bytes, a zero
// byte and the text's bytes. Tables are kept in checkpoints by these keys, so it must never change.
inline uint64_t CategoryKey(absl::string_view vocabulary, absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto mix = [&hash](unsigned char c) { hash = (hash ^ c) * 0x100000001b3; };
  for (const char c : vocabulary) mix(static_cast<unsigned char>(c));
  mix(0);
  for (const char c : text) mix(static_cast<unsigned char>(c));
  return hash;
}

}  // namespace weir
