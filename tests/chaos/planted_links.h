#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace weir {

// Symbolic links to what is outside, under the names that a job will use next in its folder of checkpoints.
// They are removed with this object.
class PlantedLinks {
 public:
  // `outside`: a folder with a file "victim".
  PlantedLinks(std::string folder, std::string outside)
      : folder_(std::move(folder)), outside_(std::move(outside)) {}
  ~PlantedLinks();
  PlantedLinks(const PlantedLinks&) = delete;
  PlantedLinks& operator=(const PlantedLinks&) = delete;

  // Returns how many links there are.
  size_t Plant();

 private:
  const std::string folder_, outside_;
  std::vector<std::filesystem::path> links_;
};

}  // namespace weir
