#include "common/config/config_problems.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weir {
namespace {

constexpr size_t kMaxProblems = 20;

}  // namespace

// ----------------------------------------------------------------------------------------------

void ConfigProblems::Add(const std::string& path, absl::string_view what) {
  std::string around = path;
  auto place = places_.find(around);
  while (place == places_.end() && !around.empty()) {
    const size_t cut = around.find_last_of(".[");
    around.resize(cut == std::string::npos ? 0 : cut);
    place = places_.find(around);
  }
  AddAt(place == places_.end() ? JsonPlace() : place->second, path, what);
}

void ConfigProblems::AddAt(const JsonPlace& place, const std::string& path, absl::string_view what) {
  const std::string where = place.ToString();
  problems_.push_back(absl::StrCat(where, where.empty() ? "" : ": ", path, path.empty() ? "" : ": ", what));
}

absl::Status ConfigProblems::ToStatus() const {
  if (problems_.empty()) return absl::OkStatus();
  const size_t shown = std::min(problems_.size(), kMaxProblems);
  std::string lines = absl::StrJoin(problems_.begin(), problems_.begin() + shown, "\n");
  if (shown < problems_.size()) absl::StrAppend(&lines, "\nand ", problems_.size() - shown, " more");
  return absl::InvalidArgumentError(lines);
}

std::string FieldPath(const std::string& path, absl::string_view field) {
  return path.empty() ? std::string(field) : absl::StrCat(path, ".", field);
}

std::string ElementPath(const std::string& path, int index) { return absl::StrCat(path, "[", index, "]"); }

}  // namespace weir
