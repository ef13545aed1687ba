#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/job_config.pb.h"
#include "worker/data/dataset.h"

namespace weir {

// The examples of a file, one per line.
struct CsvTable {
  int64_t features = 0;         // number columns
  std::vector<float> values;    // [rows, features]
  std::vector<KeyColumn> keys;  // of the columns of the types categorical and key
  std::vector<double> labels;   // [rows]
  std::vector<int64_t> lines;   // [rows], where each row stood in the file, for messages
};

// Parses a file of format csv by the fields of `config` that are for it (separator, header, columns,
// label_column); `config` has passed the job config's checks. Numbers are finite. Blanks around values are
// allowed, and empty lines are skipped. A value cannot contain a separator; quotes have no meaning. `file` is
// the file's name, for messages. InvalidArgument with file:line:column (both counted from 1, the column in
// characters).
absl::StatusOr<CsvTable> ParseCsv(absl::string_view file, absl::string_view text,
                                  const v1::DataConfig& config);

// The names of the columns with keys, in their order.
std::vector<std::string> KeyColumnNames(const v1::DataConfig& config);

}  // namespace weir
