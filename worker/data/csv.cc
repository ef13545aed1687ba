#include "worker/data/csv.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace weir {
namespace {

constexpr size_t kShownCharacters = 40;
constexpr size_t kMostRows = 0x7fffffff;  // positions are int32

class Parser {
 public:
  Parser(absl::string_view file, const CsvOptions& options) : file_(file), options_(options) {}

  absl::StatusOr<CsvTable> Parse(absl::string_view text) {
    absl::ConsumePrefix(&text, "\xEF\xBB\xBF");  // a byte order mark
    bool header = options_.header;
    while (!text.empty()) {
      const size_t end = std::min(text.find('\n'), text.size());
      const absl::string_view line = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      ++line_;
      if (absl::StripAsciiWhitespace(line).empty()) continue;
      const absl::Status status = header ? absl::OkStatus() : AddRow(line);
      if (!status.ok()) return status;
      header = false;
    }
    return std::move(table_);
  }

 private:
  absl::Status AddRow(absl::string_view line) {
    row_.clear();
    for (const absl::string_view field : absl::StrSplit(line, ',')) {
      const absl::string_view word = absl::StripAsciiWhitespace(field);
      double value;
      if (!absl::SimpleAtod(word, &value) || !std::isfinite(static_cast<float>(value))) {
        const bool may_be_header = table_.labels.empty() && !options_.header;
        return Error(field.data() - line.data(),
                     absl::StrCat("value ", row_.size(), " is '", word.substr(0, kShownCharacters),
                                  "'; expected a finite number",
                                  may_be_header ? " (if the first line holds names, set data.header)" : ""));
      }
      row_.push_back(value);
    }
    const int64_t fields = static_cast<int64_t>(row_.size());
    if (table_.labels.empty()) {
      fields_ = fields;
      label_ = options_.label_column < 0 ? fields + options_.label_column : options_.label_column;
      if (fields < 2)
        return Error(0, "one value; expected at least one feature and the label, separated by commas");
      if (label_ < 0 || label_ >= fields) {
        return Error(0,
                     absl::StrCat("the line has ", fields, " values, so data.label_column must be within [-",
                                  fields, ", ", fields - 1, "]; it is ", options_.label_column));
      }
      table_.columns = fields - 1;
    }
    if (fields != fields_) {
      return Error(0, absl::StrCat(fields, " values; expected ", fields_, " as in the lines before"));
    }
    if (table_.labels.size() == kMostRows)
      return Error(0, absl::StrCat("more than ", kMostRows, " examples"));
    for (int64_t i = 0; i < fields; ++i) {
      if (i == label_) {
        table_.labels.push_back(row_[static_cast<size_t>(i)]);
      } else {
        table_.values.push_back(static_cast<float>(row_[static_cast<size_t>(i)]));
      }
    }
    table_.lines.push_back(line_);
    return absl::OkStatus();
  }

  absl::Status Error(int64_t at, absl::string_view message) const {
    return absl::InvalidArgumentError(absl::StrCat(file_, ":", line_, ":", at + 1, ": ", message));
  }

  const absl::string_view file_;
  const CsvOptions options_;
  CsvTable table_;
  int64_t line_ = 0, fields_ = 0, label_ = 0;
  std::vector<double> row_;
};

}  // namespace

absl::StatusOr<CsvTable> ParseCsv(absl::string_view file, absl::string_view text, const CsvOptions& options) {
  return Parser(file, options).Parse(text);
}

}  // namespace weir
