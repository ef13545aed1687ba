#include "tests/chaos/planted_links.h"

#include <algorithm>
#include <cstdint>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace weir {

size_t PlantedLinks::Plant() {
  // The paths of the next checkpoints and of the coordinator's own files.
  std::vector<std::string> names = {"coordinator.json", "coordinator.json.tmp", "manifest.json", "claim",
                                    "lock"};
  uint64_t newest = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    uint64_t step = 0;
    const std::string text = entry.path().filename().string();
    absl::string_view name = text;
    if (absl::ConsumePrefix(&name, "step-") && absl::SimpleAtoi(name, &step)) newest = std::max(newest, step);
  }
  for (uint64_t step = newest + 1; step < newest + 4000; ++step) {
    std::string number = absl::StrCat(step);
    number.insert(0, 8 - std::min<size_t>(8, number.size()), '0');
    names.push_back("step-" + number);
  }
  for (const std::string& name : names) {
    const std::filesystem::path link = folder_ + "/" + name;
    std::error_code error;
    const bool file = name.rfind("step-", 0) != 0;
    std::filesystem::create_symlink(file ? outside_ + "/victim" : outside_, link, error);
    if (!error) links_.push_back(link);
  }
  return links_.size();
}

PlantedLinks::~PlantedLinks() {
  for (const auto& link : links_) {
    std::error_code error;
    if (std::filesystem::is_symlink(link, error)) std::filesystem::remove(link, error);
  }
}

}  // namespace weir
