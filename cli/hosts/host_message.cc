#include "cli/hosts/host_message.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace weir {
namespace {

constexpr char kMark[] = "weir-host\t";

}  // namespace

std::string EncodeMessage(const std::vector<std::string>& fields) {
  const auto escaped = [](std::string* out, const std::string& field) {
    absl::StrAppend(out, absl::CEscape(field));
  };
  return absl::StrCat(kMark, absl::StrJoin(fields, "\t", escaped), "\n");
}

std::optional<std::vector<std::string>> DecodeMessage(absl::string_view line) {
  if (!absl::ConsumePrefix(&line, kMark)) return std::nullopt;
  std::vector<std::string> fields;
  for (const absl::string_view field : absl::StrSplit(line, '\t')) {
    if (!absl::CUnescape(field, &fields.emplace_back())) return std::nullopt;
  }
  return fields;
}

}  // namespace weir
