#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weir {

struct CsvOptions {
  // Counted from 0, or from the end if negative.
  int label_column = -1;
  // The first line holds names.
  bool header = false;
};

// A table of numbers, one example per line, without the label column.
struct CsvTable {
  int64_t columns = 0;         // without the label's
  std::vector<float> values;   // [rows, columns]
  std::vector<double> labels;  // [rows]
  std::vector<int64_t> lines;  // [rows], where each row stood in the file, for messages
};

// Parses comma-separated finite numbers. Blanks around them are allowed, and empty lines are skipped. `file`
// is the file's name, for messages. InvalidArgument with file:line:column (both counted from 1, the column in
// characters).
absl::StatusOr<CsvTable> ParseCsv(absl::string_view file, absl::string_view text, const CsvOptions& options);

}  // namespace weir
