// A table of numbers. The first byte says which column is the label, and whether the first line has names.
#include <cmath>

#include "tests/fuzz/fuzz_target.h"
#include "worker/data/csv.h"

namespace weir {

bool ReadInput(absl::string_view input) {
  if (input.empty()) return false;
  v1::DataConfig config;
  config.set_header((input[0] & 1) != 0);
  if ((input[0] & 0xfe) == 0x80) {
    // Columns of all types; no label has so small a number.
    config.set_separator("\t");
    for (const auto type :
         {v1::ColumnConfig::COLUMN_LABEL, v1::ColumnConfig::COLUMN_CATEGORICAL, v1::ColumnConfig::COLUMN_KEY,
          v1::ColumnConfig::COLUMN_IGNORED, v1::ColumnConfig::COLUMN_NUMBER}) {
      v1::ColumnConfig& column = *config.add_columns();
      column.set_type(type);
      column.set_name(std::string(1, static_cast<char>('a' + config.columns_size() - 1)));
      if (type == v1::ColumnConfig::COLUMN_CATEGORICAL) column.set_separator("|");
    }
  } else {
    config.set_label_column(static_cast<signed char>(input[0]) >> 1);
  }
  const absl::StatusOr<CsvTable> table = ParseCsv("input", input.substr(1), config);
  if (!table.ok()) return false;
  const size_t rows = table->labels.size();
  FuzzCheck(table->lines.size() == rows, "each row has its line");
  FuzzCheck(table->features >= 0 && table->values.size() == rows * static_cast<size_t>(table->features),
            "all rows have all columns");
  for (const KeyColumn& column : table->keys) {
    FuzzCheck(rows == 0 || column.end(rows - 1) == column.keys.size(), "all keys are of a row");
    for (size_t i = 0; i < rows; ++i) FuzzCheck(column.begin(i) <= column.end(i), "rows follow each other");
  }
  for (const float value : table->values) FuzzCheck(std::isfinite(value), "values are finite");
  for (const double label : table->labels) FuzzCheck(std::isfinite(label), "labels are finite");
  FuzzCheck(table->header.names.empty() || config.header(), "only a header has names");
  if (!table->header.names.empty()) {
    const absl::StatusOr<CsvTable> again = ParseCsv("input", input.substr(1), config, table->header);
    FuzzCheck(again.ok() && again->values == table->values && again->labels == table->labels,
              "a file is like itself");
  }
  return true;
}

std::vector<std::string> Seeds() {
  // -1: the last column; -2 and names; 0.
  return {
      "\xfe"
      "1,2,0\n3,4,1\n",
      "\xfd"
      "a,b,c\n 1.5 , -2e3,0\r\n\r\n3,4,1\n",
      std::string("\0", 1) + "1,0.25\n0,1e-3",
      "\x80"
      "1\ta|b\t17\tx\t0.5\n0\t\t\t\t\n"};
}

std::vector<std::string> Words() {
  return {",",     "\t",     "|",    "18446744073709551615", "\n", "\r\n", "nan", "inf", "-inf", "1e39",
          "0x1p3", "1e-400", "\"1\""};
}

}  // namespace weir
