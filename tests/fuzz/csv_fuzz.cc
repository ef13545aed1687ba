// A table of numbers. The first byte says which column is the label, and whether the first line has names.
#include <cmath>

#include "tests/fuzz/fuzz_target.h"
#include "worker/data/csv.h"

namespace weir {

bool ReadInput(absl::string_view input) {
  if (input.empty()) return false;
  CsvOptions options;
  options.header = (input[0] & 1) != 0;
  options.label_column = static_cast<signed char>(input[0]) >> 1;
  const absl::StatusOr<CsvTable> table = ParseCsv("input", input.substr(1), options);
  if (!table.ok()) return false;
  const size_t rows = table->labels.size();
  FuzzCheck(table->lines.size() == rows, "each row has its line");
  FuzzCheck(table->columns >= 0 && table->values.size() == rows * static_cast<size_t>(table->columns),
            "all rows have all columns");
  for (const float value : table->values) FuzzCheck(std::isfinite(value), "values are finite");
  for (const double label : table->labels) FuzzCheck(std::isfinite(label), "labels are finite");
  return true;
}

std::vector<std::string> Seeds() {
  // -1: the last column; -2 and names; 0.
  return {
      "\xfe"
      "1,2,0\n3,4,1\n",
      "\xfd"
      "a,b,c\n 1.5 , -2e3,0\r\n\r\n3,4,1\n",
      std::string("\0", 1) + "1,0.25\n0,1e-3"};
}

std::vector<std::string> Words() {
  return {",", "\n", "\r\n", "nan", "inf", "-inf", "1e39", "0x1p3", "1e-400", "\"1\""};
}

}  // namespace weir
