#include "cli/report/format.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/config/proto_json.h"
#include "google/protobuf/message.h"

namespace weir {
namespace {

// Three significant digits of a value in [1, 1000).
std::string ThreeDigits(double value) {
  return absl::StrFormat("%.*f", value < 9.995 ? 2 : value < 99.95 ? 1 : 0, value);
}

// `value` with the metric prefix that fits it.
std::string Scaled(double value, absl::string_view separator, absl::string_view unit) {
  static constexpr absl::string_view kPrefixes[] = {"", "k", "M", "G", "T"};
  size_t prefix = 0;
  // 999.6 would be shown as 1000.
  while (value >= 999.5 && prefix + 1 < std::size(kPrefixes)) {
    value /= 1000;
    ++prefix;
  }
  const std::string number = prefix == 0 ? absl::StrFormat("%.0f", value) : ThreeDigits(value);
  return absl::StrCat(number, separator, kPrefixes[prefix], unit);
}

// index: the element of a repeated field, else -1. null: not finite, which JSON has no number for.
std::string Scalar(const google::protobuf::Message& message, const google::protobuf::FieldDescriptor& field,
                   int index) {
  using Field = google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& r = *message.GetReflection();
  double value = 0;
  if (field.cpp_type() == Field::CPPTYPE_DOUBLE) {
    value = index < 0 ? r.GetDouble(message, &field) : r.GetRepeatedDouble(message, &field, index);
  } else if (field.cpp_type() == Field::CPPTYPE_FLOAT) {
    value = index < 0 ? r.GetFloat(message, &field) : r.GetRepeatedFloat(message, &field, index);
  }
  return std::isfinite(value) ? WriteScalar(message, field, index) : "null";
}

std::string Json(const google::protobuf::Message& message, const std::string& indent) {
  const google::protobuf::Reflection& r = *message.GetReflection();
  const std::string inner = indent + "  ";
  std::vector<std::string> fields;
  for (int f = 0; f < message.GetDescriptor()->field_count(); ++f) {
    const google::protobuf::FieldDescriptor& field = *message.GetDescriptor()->field(f);
    const bool is_message = field.message_type() != nullptr;
    std::string value;
    if (field.is_repeated()) {
      std::vector<std::string> elements;
      for (int i = 0; i < r.FieldSize(message, &field); ++i) {
        elements.push_back(is_message ? Json(r.GetRepeatedMessage(message, &field, i), inner)
                                      : Scalar(message, field, i));
      }
      value = absl::StrCat("[", absl::StrJoin(elements, ", "), "]");
    } else if (is_message) {
      value = r.HasField(message, &field) ? Json(r.GetMessage(message, &field), inner) : "null";
    } else if (field.has_presence() && !r.HasField(message, &field)) {
      value = "null";
    } else {
      value = Scalar(message, field, -1);
    }
    fields.push_back(absl::StrCat(inner, "\"", field.name(), "\": ", value));
  }
  return absl::StrCat("{\n", absl::StrJoin(fields, ",\n"), "\n", indent, "}");
}

}  // namespace

std::string FormatSeconds(double seconds) {
  if (!(seconds >= 0) || std::isinf(seconds)) return "-";
  if (seconds > 0 && seconds < 0.0009995) return absl::StrFormat("%.0f us", seconds * 1e6);
  if (seconds < 0.9995) return absl::StrFormat("%.0f ms", seconds * 1000);
  if (seconds < 59.95) return absl::StrCat(ThreeDigits(seconds), " s");
  const auto whole = static_cast<uint64_t>(std::llround(seconds));
  if (whole < 3600) return absl::StrFormat("%d min %02d s", whole / 60, whole % 60);
  return absl::StrFormat("%d h %02d min", whole / 3600, whole % 3600 / 60);
}

std::string FormatCount(uint64_t count) {
  std::string out = absl::StrCat(count);
  for (int at = static_cast<int>(out.size()) - 3; at > 0; at -= 3) out.insert(at, ",");
  return out;
}

std::string Counted(uint64_t count, absl::string_view one) {
  return absl::StrCat(count, " ", one, count == 1 ? "" : "s");
}

std::string FormatRate(double per_second) {
  if (!(per_second >= 0) || std::isinf(per_second)) return "-";
  return Scaled(per_second, "", "");
}

std::string FormatBytes(uint64_t bytes) { return Scaled(static_cast<double>(bytes), " ", "B"); }

std::string FormatPercent(double share) {
  if (!(share >= 0 && share <= 1)) return "-";
  return absl::StrFormat("%.2f%%", share * 100);
}

std::string FormatLoss(double loss) {
  const double size = std::fabs(loss);
  if (std::isfinite(loss) && (size >= 1e-4 || loss == 0) && size < 1e4) return absl::StrFormat("%.4f", loss);
  return absl::StrFormat("%.3g", loss);
}

void Table::AddRow(std::vector<std::string> cells) {
  cells.resize(rows_[0].size());
  rows_.push_back(std::move(cells));
}

void Table::AlignLeft(size_t column) { left_.push_back(column); }

std::string Table::ToString() const {
  std::vector<size_t> widths(rows_[0].size(), 0);
  for (const auto& row : rows_) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string out;
  const auto append = [&](const std::vector<std::string>& row) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      if (c > 0) line.append("  ");
      const std::string padding(widths[c] - row[c].size(), ' ');
      const bool left = std::find(left_.begin(), left_.end(), c) != left_.end();
      absl::StrAppend(&line, left ? row[c] : padding, left ? padding : row[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&out, line, "\n");
  };
  append(rows_[0]);
  std::vector<std::string> rule;
  for (const size_t width : widths) rule.emplace_back(width, '-');
  append(rule);
  std::for_each(rows_.begin() + 1, rows_.end(), append);
  return out;
}

std::string Printable(absl::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\t') || byte == 0x7F) {
      absl::StrAppendFormat(&out, "\\x%02x", byte);
    } else {
      out.push_back(c);
    }
  }
  return out;
}

std::string MessageJson(const google::protobuf::Message& message) { return Json(message, "") + "\n"; }

}  // namespace weir
