#include "worker/data/csv.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "worker/data/category_key.h"

namespace weir {
namespace {

using v1::ColumnConfig;

constexpr size_t kShownCharacters = 40;
constexpr size_t kMostRows = 0x7fffffff;  // positions are int32

bool HasKeys(const ColumnConfig& column) {
  return column.type() == ColumnConfig::COLUMN_CATEGORICAL || column.type() == ColumnConfig::COLUMN_KEY;
}

class Parser {
 public:
  Parser(absl::string_view file, const v1::DataConfig& config)
      : file_(file),
        config_(config),
        separator_(config.separator()[0]),
        columns_(config.columns().begin(), config.columns().end()) {}

  absl::StatusOr<CsvTable> Parse(absl::string_view text) {
    absl::ConsumePrefix(&text, "\xEF\xBB\xBF");  // a byte order mark
    bool header = config_.header();
    for (const std::string& name : KeyColumnNames(config_)) table_.keys.push_back({name, {}, {0}});
    while (!text.empty()) {
      const size_t end = std::min(text.find('\n'), text.size());
      line_ = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      ++number_;
      if (absl::StripAsciiWhitespace(line_).empty()) continue;
      if (!header) WEIR_RETURN_IF_ERROR(AddRow());
      header = false;
    }
    for (KeyColumn& column : table_.keys) column.DropNeedlessOffsets();
    return std::move(table_);
  }

 private:
  absl::Status AddRow() {
    const std::vector<absl::string_view> fields = absl::StrSplit(line_, separator_);
    if (table_.labels.empty()) WEIR_RETURN_IF_ERROR(FindColumns(fields.size()));
    if (fields.size() != columns_.size()) {
      return Error(line_,
                   absl::StrCat(fields.size(), " values; expected ", columns_.size(), " as ",
                                config_.columns().empty() ? "in the lines before" : "in data.columns"));
    }
    if (table_.labels.size() == kMostRows) {
      return Error(line_, absl::StrCat("more than ", kMostRows, " examples"));
    }
    size_t keys = 0;
    for (size_t i = 0; i < fields.size(); ++i) {
      const absl::string_view word = absl::StripAsciiWhitespace(fields[i]);
      if (columns_[i].type() == ColumnConfig::COLUMN_IGNORED) continue;
      if (HasKeys(columns_[i])) {
        WEIR_RETURN_IF_ERROR(AddKeys(columns_[i], fields[i], word, &table_.keys[keys++]));
        continue;
      }
      double value = 0;
      const bool label = columns_[i].type() == ColumnConfig::COLUMN_LABEL;
      const bool missing = word.empty() && !label && !config_.columns().empty();
      if (!missing && (!absl::SimpleAtod(word, &value) || !std::isfinite(static_cast<float>(value)))) {
        return BadValue(i, fields[i], word, "a finite number");
      }
      if (label) {
        table_.labels.push_back(value);
      } else {
        table_.values.push_back(static_cast<float>(value));
      }
    }
    table_.lines.push_back(number_);
    return absl::OkStatus();
  }

  // Without data.columns the first row says how many there are. Counts the features.
  absl::Status FindColumns(size_t fields) {
    if (config_.columns().empty()) {
      const auto n = static_cast<int64_t>(fields);
      const int64_t label = config_.label_column() < 0 ? n + config_.label_column() : config_.label_column();
      if (n < 2) {
        return Error(line_, "one value; expected at least one feature and the label, separated by commas");
      }
      if (label < 0 || label >= n) {
        return Error(line_,
                     absl::StrCat("the line has ", n, " values, so data.label_column must be within [-", n,
                                  ", ", n - 1, "]; it is ", config_.label_column()));
      }
      columns_.resize(fields);
      columns_[static_cast<size_t>(label)].set_type(ColumnConfig::COLUMN_LABEL);
    }
    table_.features = std::count_if(columns_.begin(), columns_.end(), [](const ColumnConfig& column) {
      return column.type() == ColumnConfig::COLUMN_NUMBER;
    });
    return absl::OkStatus();
  }

  absl::Status AddKeys(const ColumnConfig& column, absl::string_view field, absl::string_view word,
                       KeyColumn* to) {
    const auto add = [&](absl::string_view text) -> absl::Status {
      text = absl::StripAsciiWhitespace(text);
      if (text.empty()) return absl::OkStatus();
      uint64_t key;
      if (column.type() == ColumnConfig::COLUMN_CATEGORICAL) {
        key = CategoryKey(column.vocabulary(), text);
      } else if (!absl::SimpleAtoi(text, &key)) {
        return BadValue(static_cast<size_t>(&column - columns_.data()), field, text,
                        absl::StrCat("a whole number from 0 to ", std::numeric_limits<uint64_t>::max()));
      }
      to->keys.push_back(key);
      return absl::OkStatus();
    };
    if (column.has_separator()) {
      for (const absl::string_view text : absl::StrSplit(word, column.separator()[0])) {
        WEIR_RETURN_IF_ERROR(add(text));
      }
    } else {
      WEIR_RETURN_IF_ERROR(add(word));
    }
    to->offsets.push_back(static_cast<int64_t>(to->keys.size()));
    return absl::OkStatus();
  }

  absl::Status BadValue(size_t column, absl::string_view field, absl::string_view word,
                        absl::string_view expected) const {
    const std::string name =
        config_.columns().empty() ? "" : absl::StrCat(" (", columns_[column].name(), ")");
    return Error(field, absl::StrCat("value ", column, name, " is '", word.substr(0, kShownCharacters),
                                     "'; expected ", expected,
                                     table_.lines.empty() && !config_.header()
                                         ? " (if the first line holds names, set data.header)"
                                         : ""));
  }
  // at: a part of the line, where the error is.
  absl::Status Error(absl::string_view at, absl::string_view message) const {
    return absl::InvalidArgumentError(
        absl::StrCat(file_, ":", number_, ":", at.data() - line_.data() + 1, ": ", message));
  }

  const absl::string_view file_;
  const v1::DataConfig& config_;
  const char separator_;
  std::vector<ColumnConfig> columns_;
  CsvTable table_;
  absl::string_view line_;
  int64_t number_ = 0;  // of the line
};

}  // namespace

absl::StatusOr<CsvTable> ParseCsv(absl::string_view file, absl::string_view text,
                                  const v1::DataConfig& config) {
  return Parser(file, config).Parse(text);
}

std::vector<std::string> KeyColumnNames(const v1::DataConfig& config) {
  std::vector<std::string> names;
  for (const ColumnConfig& column : config.columns()) {
    if (HasKeys(column)) names.push_back(column.name());
  }
  return names;
}

}  // namespace weir
