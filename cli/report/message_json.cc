#include "cli/report/message_json.h"

#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/config/proto_json.h"

namespace weir {
namespace {

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

std::string MessageJson(const google::protobuf::Message& message) { return Json(message, "") + "\n"; }

}  // namespace weir
