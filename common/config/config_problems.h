#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/config/json_document.h"

namespace weir {

// The problems of a config, one line each: "job.json:3:17: optimizer.momentum: must be in [0, 1), got 1.5".
class ConfigProblems {
 public:
  // Remembers where the value of a field stands.
  void NotePlace(const std::string& path, const JsonPlace& place) { places_[path] = place; }
  // Adds a problem at the place that was noted for `path`, or else for the nearest field around it.
  void Add(const std::string& path, absl::string_view what);
  void AddAt(const JsonPlace& place, const std::string& path, absl::string_view what);

  // OK, or InvalidArgument with all lines (the first 20).
  absl::Status ToStatus() const;

 private:
  std::map<std::string, JsonPlace> places_;
  std::vector<std::string> problems_;
};

// Path of a field of the message at `path` ("" is the root), and of an element of a list.
std::string FieldPath(const std::string& path, absl::string_view field);
std::string ElementPath(const std::string& path, int index);

}  // namespace weir
