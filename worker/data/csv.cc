#include "worker/data/csv.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/bounded.h"
#include "common/base/status_macros.h"
#include "common/config/json_document.h"

namespace weir {
namespace {

using v1::ColumnConfig;

constexpr size_t kShownCharacters = 40;
constexpr size_t kShownNames = 200;
constexpr size_t kMostRows = 0x7fffffff;  // positions are int32
// Of a column that the file does not have.
constexpr size_t kNoField = static_cast<size_t>(-1);

bool HasKeys(const ColumnConfig& column) {
  return column.type() == ColumnConfig::COLUMN_CATEGORICAL || column.type() == ColumnConfig::COLUMN_KEY;
}

// A number or, as in a row of data, nothing.
bool IsNumber(absl::string_view word) {
  double value;
  return word.empty() || absl::SimpleAtod(word, &value);
}

// Without the quotes around it, if there are any.
absl::string_view Unquoted(absl::string_view word) {
  if (word.size() >= 2 && word.front() == '"' && word.back() == '"') return word.substr(1, word.size() - 2);
  return word;
}

class Parser {
 public:
  Parser(absl::string_view file, const v1::DataConfig& config, const CsvHeader& like)
      : file_(file), config_(config), like_(like), separator_(config.separator()[0]) {
    for (const ColumnConfig& column : config.columns()) columns_.push_back({column, columns_.size()});
  }

  absl::StatusOr<CsvTable> Parse(absl::string_view text) {
    absl::ConsumePrefix(&text, "\xEF\xBB\xBF");  // a byte order mark
    bool first = true;
    for (const std::string& name : KeyColumnNames(config_)) table_.keys.push_back({name, {}, {0}});
    while (!text.empty()) {
      const size_t end = std::min(text.find('\n'), text.size());
      line_ = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      ++number_;
      if (absl::StripAsciiWhitespace(line_).empty()) continue;
      const std::vector<absl::string_view> fields = absl::StrSplit(line_, separator_);
      if (first) WEIR_RETURN_IF_ERROR(BeginFile(fields));
      if (!first || !config_.header()) WEIR_RETURN_IF_ERROR(AddRow(fields));
      first = false;
    }
    for (KeyColumn& column : table_.keys) column.DropNeedlessOffsets();
    return std::move(table_);
  }

 private:
  // A column that is read. `field`: its position in the file.
  struct Column {
    ColumnConfig config;
    size_t field = 0;
  };

  // Finds the columns, by the fields of the first line.
  absl::Status BeginFile(const std::vector<absl::string_view>& fields) {
    if (const size_t zero = line_.find('\0'); zero != absl::string_view::npos) {
      return Error(line_.substr(zero),
                   "a byte of 0; expected text in UTF-8 (is it UTF-16, or no text at all?)");
    }
    fields_ = fields.size();
    if (config_.columns().empty()) {
      WEIR_RETURN_IF_ERROR(FindLabel());
    } else if (!config_.header()) {
      fields_ = columns_.size();
    }
    table_.features = std::count_if(columns_.begin(), columns_.end(), [](const Column& column) {
      return column.config.type() == ColumnConfig::COLUMN_NUMBER;
    });
    return config_.header() ? ReadHeader(fields) : absl::OkStatus();
  }

  // Without data.columns: all columns are features, but for the label.
  absl::Status FindLabel() {
    const auto n = static_cast<int64_t>(like_.names.empty() ? fields_ : like_.names.size());
    const int64_t label = config_.label_column() < 0 ? n + config_.label_column() : config_.label_column();
    if (n < 2) {
      return Error(line_, "one value; expected at least one feature and the label, separated by commas");
    }
    if (label < 0 || label >= n) {
      return Error(line_, absl::StrCat("the line has ", n, " values, so data.label_column must be within [-",
                                       n, ", ", n - 1, "]; it is ", config_.label_column()));
    }
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) columns_.push_back({ColumnConfig(), i});
    columns_[static_cast<size_t>(label)].config.set_type(ColumnConfig::COLUMN_LABEL);
    return absl::OkStatus();
  }

  absl::Status ReadHeader(const std::vector<absl::string_view>& fields) {
    std::map<std::string, size_t> places;
    absl::Status repeated;
    for (size_t i = 0; i < fields.size(); ++i) {
      const absl::string_view word = absl::StripAsciiWhitespace(fields[i]);
      const std::string name(absl::StripAsciiWhitespace(Unquoted(word)));
      if (absl::StrContains(name, '"')) {
        return Error(word,
                     absl::StrCat("the name ", JsonQuote(word),
                                  " has a quote in it; a name cannot contain quotes or data.separator"));
      }
      table_.header.names.push_back(name);
      // Columns without a name are not found by it.
      if (const auto [place, added] = places.emplace(name, i); !added && !name.empty() && repeated.ok()) {
        repeated = Error(word, absl::StrCat("column ", i, " has the name ", JsonQuote(name), ", as column ",
                                            place->second, "; the names must differ"));
      }
    }
    table_.header.file = std::string(file_);
    table_.header.line = number_;
    if (config_.columns().empty() && like_.names.empty()) {
      if (!std::all_of(fields.begin(), fields.end(),
                       [](absl::string_view field) { return IsNumber(absl::StripAsciiWhitespace(field)); })) {
        return repeated;
      }
      return Error(line_,
                   "data.header is true, but this line has numbers only, as an example has; take data.header "
                   "out if the file has no header, or list the names in data.columns if these are names");
    }
    if (config_.columns().empty() && table_.header.names == like_.names) return absl::OkStatus();
    return MatchNames(fields, std::move(places), repeated);
  }

  // Gives each column the field that has its name. `repeated`: not OK if a name is there twice.
  absl::Status MatchNames(const std::vector<absl::string_view>& fields, std::map<std::string, size_t> places,
                          const absl::Status& repeated) {
    const bool listed = !config_.columns().empty();
    const std::string source = listed ? "data.columns" : absl::StrCat("the header of ", like_.file);
    std::vector<std::string> names, missing;
    size_t found = 0, last = 0;
    for (size_t i = 0; i < columns_.size(); ++i) {
      Column& column = columns_[i];
      names.push_back(listed ? column.config.name() : like_.names[i]);
      const auto place = places.find(names.back());
      if (place == places.end()) {
        column.field = kNoField;
        if (column.config.type() != ColumnConfig::COLUMN_IGNORED) missing.push_back(JsonQuote(names.back()));
        continue;
      }
      table_.reordered |= place->second < last;
      last = column.field = place->second;
      places.erase(place);
      ++found;
    }
    if (listed) places.erase("");
    if (found == 0) {
      return Error(line_,
                   absl::StrCat("data.header is true, but this line has none of the names of ", source, " (",
                                Shortened(absl::StrJoin(names, ", "), kShownNames), "), and begins with ",
                                JsonQuote(fields[0].substr(0, kShownCharacters)),
                                "; take data.header out if the file has no header"));
    }
    WEIR_RETURN_IF_ERROR(repeated);
    if (places.empty() && missing.empty()) return absl::OkStatus();
    const std::string lacks = Shortened(absl::StrJoin(missing, ", "), kShownNames);
    if (places.empty()) {
      return Error(line_, absl::StrCat("the header lacks ", lacks, " of ", source, "; it has ",
                                       Shortened(absl::StrJoin(table_.header.names, ", "), kShownNames)));
    }
    // The first in the file.
    const auto unknown = std::min_element(places.begin(), places.end(),
                                          [](const auto& a, const auto& b) { return a.second < b.second; });
    return Error(
        fields[unknown->second],
        absl::StrCat(
            "the column ", JsonQuote(unknown->first), " is not in ", source,
            missing.empty() ? "" : absl::StrCat(", of which the header lacks ", lacks),
            listed && missing.empty() ? "; add it there, with type \"ignored\" if it is no input" : ""));
  }

  absl::Status AddRow(const std::vector<absl::string_view>& fields) {
    if (fields.size() != fields_) {
      const absl::string_view as = config_.header()            ? "in the header"
                                   : config_.columns().empty() ? "in the lines before"
                                                               : "in data.columns";
      return Error(line_, absl::StrCat(fields.size(), " values; expected ", fields_, " as ", as,
                                       absl::StrContains(line_, '"')
                                           ? " (a value cannot contain the separator, in quotes neither)"
                                           : ""));
    }
    if (table_.labels.size() == kMostRows) {
      return Error(line_, absl::StrCat("more than ", kMostRows, " examples"));
    }
    size_t keys = 0;
    for (const Column& column : columns_) {
      if (column.config.type() == ColumnConfig::COLUMN_IGNORED) continue;
      const absl::string_view field = fields[column.field], word = absl::StripAsciiWhitespace(field);
      if (HasKeys(column.config)) {
        WEIR_RETURN_IF_ERROR(AddKeys(column, field, word, &table_.keys[keys++]));
        continue;
      }
      double value = 0;
      const bool label = column.config.type() == ColumnConfig::COLUMN_LABEL;
      const bool missing = word.empty() && !label && !config_.columns().empty();
      if (!missing && (!absl::SimpleAtod(word, &value) || !std::isfinite(static_cast<float>(value)))) {
        return BadValue(column, field, word, "a finite number");
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

  absl::Status AddKeys(const Column& column, absl::string_view field, absl::string_view word, KeyColumn* to) {
    const auto add = [&](absl::string_view text) -> absl::Status {
      text = absl::StripAsciiWhitespace(text);
      if (text.empty()) return absl::OkStatus();
      uint64_t key;
      if (column.config.type() == ColumnConfig::COLUMN_CATEGORICAL) {
        key = CategoryKey(column.config.vocabulary(), text);
      } else if (!absl::SimpleAtoi(text, &key)) {
        return BadValue(column, field, text,
                        absl::StrCat("a whole number from 0 to ", std::numeric_limits<uint64_t>::max()));
      }
      to->keys.push_back(key);
      return absl::OkStatus();
    };
    if (column.config.has_separator()) {
      for (const absl::string_view text : absl::StrSplit(word, column.config.separator()[0])) {
        WEIR_RETURN_IF_ERROR(add(text));
      }
    } else {
      WEIR_RETURN_IF_ERROR(add(word));
    }
    to->offsets.push_back(static_cast<int64_t>(to->keys.size()));
    return absl::OkStatus();
  }

  absl::Status BadValue(const Column& column, absl::string_view field, absl::string_view word,
                        absl::string_view expected) const {
    const std::string name = config_.columns().empty() ? "" : absl::StrCat(" (", column.config.name(), ")");
    return Error(field, absl::StrCat("value ", column.field, name, " is '", word.substr(0, kShownCharacters),
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
  const CsvHeader& like_;
  const char separator_;
  // In the order of the table.
  std::vector<Column> columns_;
  size_t fields_ = 0;  // of each line
  CsvTable table_;
  absl::string_view line_;
  int64_t number_ = 0;  // of the line
};

}  // namespace

absl::StatusOr<CsvTable> ParseCsv(absl::string_view file, absl::string_view text,
                                  const v1::DataConfig& config, const CsvHeader& like) {
  return Parser(file, config, like).Parse(text);
}

std::vector<std::string> KeyColumnNames(const v1::DataConfig& config) {
  std::vector<std::string> names;
  for (const ColumnConfig& column : config.columns()) {
    if (HasKeys(column)) names.push_back(column.name());
  }
  return names;
}

}  // namespace weir
