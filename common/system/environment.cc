#include "common/system/environment.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace weir {

std::string ValueIn(absl::string_view text) { return std::string(absl::StripAsciiWhitespace(text)); }

std::string EnvironmentValue(const char* variable) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? "" : ValueIn(value);
}

absl::Status CheckOneWord(absl::string_view name, absl::string_view value) {
  const auto bad = std::find_if_not(
      value.begin(), value.end(), [](char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)); });
  if (bad == value.end()) return absl::OkStatus();
  const auto c = static_cast<unsigned char>(*bad);
  return absl::FailedPreconditionError(absl::StrCat(name, ": its character ", bad - value.begin() + 1, " of ",
                                                    value.size(), " is ",
                                                    absl::ascii_isspace(c)   ? "a blank or a line end"
                                                    : absl::ascii_iscntrl(c) ? "a control character"
                                                                             : "not an ASCII character",
                                                    ", which cannot be in it"));
}

}  // namespace weir
