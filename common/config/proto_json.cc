#include "common/config/proto_json.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "common/config/written_text.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/text_format.h"
#include "proto/options.pb.h"

namespace weir {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr size_t kMaxProblems = 20;
constexpr size_t kMaxLine = 110;  // columns of a list's element that is printed on one line

const v1::FieldLimits& LimitsOf(const FieldDescriptor& field) {
  return field.options().GetExtension(v1::limits);
}

std::vector<std::string> EnumWords(const EnumDescriptor& type) {
  std::vector<std::string> words;
  for (int i = 0; i < type.value_count(); ++i) {
    if (type.value(i)->number() != 0) words.push_back(EnumWord(*type.value(i)));  // 0 is "unspecified"
  }
  return words;
}

// The interval that a number must lie in.
struct Bounds {
  double min;
  double max;
  bool exclusive_min;
  bool exclusive_max;

  bool Hold(double v) const {
    return (exclusive_min ? v > min : v >= min) && (exclusive_max ? v < max : v <= max);
  }
  // "in [0, 1)", "at least 1"; "" if there are no bounds.
  std::string ToString() const {
    const bool has_min = std::isfinite(min);
    const bool has_max = std::isfinite(max);
    if (has_min && has_max) {
      return absl::StrCat("in ", exclusive_min ? "(" : "[", JsonNumber(min), ", ", JsonNumber(max),
                          exclusive_max ? ")" : "]");
    }
    if (has_min) return absl::StrCat(exclusive_min ? "above " : "at least ", JsonNumber(min));
    if (has_max) return absl::StrCat(exclusive_max ? "below " : "at most ", JsonNumber(max));
    return "";
  }
};

// The field's limits, or else what its type can hold. 64-bit integers are unlimited here, because their
// reader checks exactly that they fit.
Bounds BoundsOf(const FieldDescriptor& field) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Bounds bounds{-kInfinity, kInfinity, false, false};
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      bounds.max = std::numeric_limits<uint32_t>::max();
      [[fallthrough]];
    case FieldDescriptor::CPPTYPE_UINT64:
      bounds.min = 0;
      break;
    case FieldDescriptor::CPPTYPE_INT32:
      bounds.min = std::numeric_limits<int32_t>::min();
      bounds.max = std::numeric_limits<int32_t>::max();
      break;
    default:
      break;
  }
  const v1::FieldLimits& limits = LimitsOf(field);
  if (limits.has_min()) bounds.min = limits.min();
  if (limits.has_max()) bounds.max = limits.max();
  bounds.exclusive_min = limits.exclusive_min();
  bounds.exclusive_max = limits.exclusive_max();
  return bounds;
}

// "1 byte or more", "at most 5 bytes", "1 to 1000 elements".
std::string CountText(const v1::FieldLimits& limits, absl::string_view noun) {
  const auto count = [noun](double n) { return absl::StrCat(n, " ", noun, n == 1 ? "" : "s"); };
  if (!limits.has_max()) return absl::StrCat(count(limits.min()), " or more");
  if (!limits.has_min()) return absl::StrCat("at most ", count(limits.max()));
  return absl::StrCat(limits.min(), " to ", count(limits.max()));
}

bool CountHolds(const v1::FieldLimits& limits, size_t count) {
  return !(limits.has_min() && count < limits.min()) && !(limits.has_max() && count > limits.max());
}

// Reads one JSON value into a field: sets it, or appends to it if it is repeated.
class FieldReader {
 public:
  FieldReader(const JsonValue& value, const std::string& path, const FieldDescriptor& field, Message* message,
              ConfigProblems* problems, UnknownFields unknown)
      : value_(value), path_(path), field_(field), message_(message), problems_(problems), unknown_(unknown) {
    problems->NotePlace(path, value.place);
  }

  void Read() {
    switch (field_.cpp_type()) {
      case FieldDescriptor::CPPTYPE_BOOL:
        return ReadBool();
      case FieldDescriptor::CPPTYPE_STRING:
        return ReadString();
      case FieldDescriptor::CPPTYPE_ENUM:
        return ReadEnum();
      case FieldDescriptor::CPPTYPE_FLOAT:
        return ReadReal<float>(&Reflection::SetFloat, &Reflection::AddFloat);
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return ReadReal<double>(&Reflection::SetDouble, &Reflection::AddDouble);
      case FieldDescriptor::CPPTYPE_INT32:
        return ReadInteger<int32_t>(&Reflection::SetInt32, &Reflection::AddInt32);
      case FieldDescriptor::CPPTYPE_INT64:
        return ReadInteger<int64_t>(&Reflection::SetInt64, &Reflection::AddInt64);
      case FieldDescriptor::CPPTYPE_UINT32:
        return ReadInteger<uint32_t>(&Reflection::SetUInt32, &Reflection::AddUInt32);
      case FieldDescriptor::CPPTYPE_UINT64:
        return ReadInteger<uint64_t>(&Reflection::SetUInt64, &Reflection::AddUInt64);
      case FieldDescriptor::CPPTYPE_MESSAGE: {
        const Reflection* reflection = message_->GetReflection();
        return ReadProto(value_, path_,
                         field_.is_repeated() ? reflection->AddMessage(message_, &field_)
                                              : reflection->MutableMessage(message_, &field_),
                         problems_, unknown_);
      }
    }
  }

 private:
  template <typename T>
  using Setter = void (Reflection::*)(Message*, const FieldDescriptor*, T) const;

  template <typename T, typename V>
  void Put(Setter<T> set, Setter<T> add, V value) {
    (message_->GetReflection()->*(field_.is_repeated() ? add : set))(message_, &field_, std::move(value));
  }

  void Refuse(absl::string_view expected) {
    problems_->AddAt(value_.place, path_, absl::StrCat("must be ", expected, ", got ", value_.Describe()));
  }

  void ReadBool() {
    if (value_.kind != JsonValue::Kind::kBool) return Refuse("true or false");
    Put<bool>(&Reflection::SetBool, &Reflection::AddBool, value_.boolean);
  }

  void ReadString() {
    if (value_.kind != JsonValue::Kind::kString) return Refuse("a string");
    const v1::FieldLimits& limits = LimitsOf(field_);
    if (!CountHolds(limits, value_.text.size())) {
      return Refuse(absl::StrCat("a string of ", CountText(limits, "byte")));
    }
    Put<std::string>(&Reflection::SetString, &Reflection::AddString, value_.text);
  }

  void ReadEnum() {
    const EnumDescriptor& type = *field_.enum_type();
    for (int i = 0; value_.kind == JsonValue::Kind::kString && i < type.value_count(); ++i) {
      if (type.value(i)->number() != 0 && EnumWord(*type.value(i)) == value_.text) {
        return Put<const EnumValueDescriptor*>(&Reflection::SetEnum, &Reflection::AddEnum, type.value(i));
      }
    }
    Refuse(absl::StrCat("one of ", absl::StrJoin(EnumWords(type), ", ")));
  }

  template <typename T>
  void ReadReal(Setter<T> set, Setter<T> add) {
    Bounds bounds = BoundsOf(field_);
    // Bounds and value are compared as the field holds them: 0.1 as a float is not below a limit of 0.1.
    bounds.min = static_cast<T>(bounds.min);
    bounds.max = static_cast<T>(bounds.max);
    const bool fits = value_.is_number() && std::fabs(value_.AsDouble()) <= std::numeric_limits<T>::max();
    if (!fits || !bounds.Hold(static_cast<T>(value_.AsDouble()))) {
      const std::string interval = BoundsOf(field_).ToString();
      return Refuse(interval.empty() ? "a finite number" : absl::StrCat("a number ", interval));
    }
    Put<T>(set, add, static_cast<T>(value_.AsDouble()));
  }

  template <typename T>
  void ReadInteger(Setter<T> set, Setter<T> add) {
    const Bounds bounds = BoundsOf(field_);
    const bool negative = value_.kind == JsonValue::Kind::kNegative && value_.negative != 0;  // "-0" is not
    const bool fits = value_.is_integer() &&
                      (negative ? std::is_signed_v<T> &&
                                      value_.negative >= static_cast<int64_t>(std::numeric_limits<T>::min())
                                : value_.natural <= static_cast<uint64_t>(std::numeric_limits<T>::max()));
    const T number = negative ? static_cast<T>(value_.negative) : static_cast<T>(value_.natural);
    if (!fits || !bounds.Hold(static_cast<double>(number))) {
      return Refuse(absl::StrCat("a whole number ", bounds.ToString()));
    }
    Put<T>(set, add, number);
  }

  const JsonValue& value_;
  const std::string& path_;
  const FieldDescriptor& field_;
  Message* message_;
  ConfigProblems* problems_;
  const UnknownFields unknown_;
};

std::vector<std::string> FieldNames(const Descriptor& type) {
  std::vector<std::string> names;
  for (int i = 0; i < type.field_count(); ++i) names.push_back(type.field(i)->name());
  return names;
}

void ReadField(const JsonValue& value, const std::string& path, const FieldDescriptor& field,
               Message* message, ConfigProblems* problems, UnknownFields unknown) {
  if (!field.is_repeated()) return FieldReader(value, path, field, message, problems, unknown).Read();
  problems->NotePlace(path, value.place);
  if (value.kind != JsonValue::Kind::kArray) {
    return problems->AddAt(value.place, path, absl::StrCat("must be a list, got ", value.Describe()));
  }
  for (size_t i = 0; i < value.elements.size(); ++i) {
    FieldReader(value.elements[i], ElementPath(path, static_cast<int>(i)), field, message, problems, unknown)
        .Read();
  }
}

// Checks what can be seen only once all members are read: presence, and the length of lists.
void CheckPresence(const JsonValue& object, const std::string& path, const Descriptor& type,
                   ConfigProblems* problems) {
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const v1::FieldLimits& limits = LimitsOf(field);
    const JsonMember* member = object.Find(field.name());
    const std::string field_path = FieldPath(path, field.name());
    if (field.is_repeated()) {
      const bool is_list = member == nullptr || member->value.kind == JsonValue::Kind::kArray;
      const size_t count = member == nullptr ? 0 : member->value.elements.size();
      if (is_list && !CountHolds(limits, count)) {
        problems->Add(field_path, absl::StrCat("must have ", CountText(limits, "element"), ", has ", count));
      }
    } else if (limits.required() && limits.used_with().empty() && member == nullptr) {
      std::string allowed;
      if (field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
        allowed = absl::StrCat(": one of ", absl::StrJoin(EnumWords(*field.enum_type()), ", "));
      } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        allowed = absl::StrCat(": an object with ", absl::StrJoin(FieldNames(*field.message_type()), ", "));
      }
      problems->Add(field_path, absl::StrCat("is missing and must be given", allowed));
    }
  }
}

class Writer {
 public:
  explicit Writer(const ShowDefault& show_default) : show_default_(show_default) {}

  // "" for a message without content. Compact: on one line.
  std::string Object(const Message& message, size_t indent, bool compact) const {
    std::vector<std::string> members;
    for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
      const FieldDescriptor& field = *message.GetDescriptor()->field(i);
      const std::string value = Value(message, field, indent + 2, compact);
      if (!value.empty()) members.push_back(absl::StrCat(JsonQuote(field.name()), ": ", value));
    }
    return members.empty() ? "" : Wrap("{", members, "}", indent, compact);
  }

 private:
  static std::string Wrap(absl::string_view open, const std::vector<std::string>& items,
                          absl::string_view close, size_t indent, bool compact) {
    if (compact) return absl::StrCat(open, absl::StrJoin(items, ", "), close);
    const std::string outer = absl::StrCat("\n", std::string(indent, ' '));
    const std::string inner = absl::StrCat(outer, "  ");
    return absl::StrCat(open, inner, absl::StrJoin(items, absl::StrCat(",", inner)), outer, close);
  }

  // "" if the field is not shown.
  std::string Value(const Message& message, const FieldDescriptor& field, size_t indent, bool compact) const {
    const Reflection& reflection = *message.GetReflection();
    if (field.is_repeated()) {
      std::vector<std::string> items;
      for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
        if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
          const Message& element = reflection.GetRepeatedMessage(message, &field, i);
          std::string item = Object(element, indent + 2, /*compact=*/true);
          if (item.size() > kMaxLine) item = Object(element, indent + 2, compact);
          items.push_back(item.empty() ? "{}" : item);
        } else {
          items.push_back(WriteScalar(message, field, i));
        }
      }
      return items.empty() ? "" : Wrap("[", items, "]", indent, compact);
    }
    const bool set = reflection.HasField(message, &field);
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      if (!set && !show_default_(message, field)) return "";
      return Object(reflection.GetMessage(message, &field), indent, compact);
    }
    if (!set && !(field.has_default_value() && show_default_(message, field))) return "";
    return WriteScalar(message, field);
  }

  const ShowDefault& show_default_;
};

}  // namespace

void ReadProto(const JsonValue& value, const std::string& path, Message* message, ConfigProblems* problems,
               UnknownFields unknown) {
  problems->NotePlace(path, value.place);
  const Descriptor& type = *message->GetDescriptor();
  const std::vector<std::string> names = FieldNames(type);
  if (value.kind != JsonValue::Kind::kObject) {
    return problems->AddAt(
        value.place, path,
        absl::StrCat("must be an object with ", absl::StrJoin(names, ", "), "; got ", value.Describe()));
  }
  for (const JsonMember& member : value.members) {
    const std::string member_path = FieldPath(path, member.key);
    if (const FieldDescriptor* field = type.FindFieldByName(member.key)) {
      ReadField(member.value, member_path, *field, message, problems, unknown);
    } else if (unknown == UnknownFields::kRefuse) {
      problems->AddAt(member.place, member_path,
                      absl::StrCat("unknown field", DidYouMean(member.key, names),
                                   "; allowed here: ", absl::StrJoin(names, ", ")));
    }
  }
  CheckPresence(value, path, type, problems);
}

std::string WriteProto(const Message& message, const ShowDefault& show_default) {
  const std::string text = Writer(show_default).Object(message, 0, /*compact=*/false);
  return absl::StrCat(text.empty() ? "{}" : text, "\n");
}

std::string WriteScalar(const Message& message, const FieldDescriptor& field, int index) {
  const Reflection& r = *message.GetReflection();
  const bool one = index < 0;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return JsonQuote(one ? r.GetString(message, &field) : r.GetRepeatedString(message, &field, index));
    case FieldDescriptor::CPPTYPE_ENUM:
      return JsonQuote(
          EnumWord(*(one ? r.GetEnum(message, &field) : r.GetRepeatedEnum(message, &field, index))));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return JsonNumber(one ? r.GetFloat(message, &field) : r.GetRepeatedFloat(message, &field, index));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return JsonNumber(one ? r.GetDouble(message, &field) : r.GetRepeatedDouble(message, &field, index));
    default:  // true, false and whole numbers
      std::string text;
      google::protobuf::TextFormat::PrintFieldValueToString(message, &field, index, &text);
      return text;
  }
}

std::string EnumWord(const EnumValueDescriptor& value) {
  const EnumDescriptor& type = *value.type();
  const std::string& first = type.value(0)->name();
  size_t common = first.size();
  for (int i = 1; i < type.value_count(); ++i) {
    const std::string& name = type.value(i)->name();
    common = std::min<size_t>(
        common, std::mismatch(first.begin(), first.end(), name.begin(), name.end()).first - first.begin());
  }
  // Whole words only: LAYER_DENSE and LAYER_DROPOUT share "LAYER_".
  const size_t underscore = common == 0 ? std::string::npos : first.rfind('_', common - 1);
  const size_t prefix = underscore == std::string::npos ? 0 : underscore + 1;
  return absl::AsciiStrToLower(absl::string_view(value.name()).substr(prefix));
}

void ConfigProblems::Add(const std::string& path, absl::string_view what) {
  std::string around = path;
  auto place = places_.find(around);
  while (place == places_.end() && !around.empty()) {
    const size_t cut = around.find_last_of(".[");
    around.resize(cut == std::string::npos ? 0 : cut);
    place = places_.find(around);
  }
  AddAt(place == places_.end() ? JsonPlace() : place->second, path, what);
}

void ConfigProblems::AddAt(const JsonPlace& place, const std::string& path, absl::string_view what) {
  const std::string where = place.ToString();
  problems_.push_back(absl::StrCat(where, where.empty() ? "" : ": ", path, path.empty() ? "" : ": ", what));
}

absl::Status ConfigProblems::ToStatus() const {
  if (problems_.empty()) return absl::OkStatus();
  const size_t shown = std::min(problems_.size(), kMaxProblems);
  std::string lines = absl::StrJoin(problems_.begin(), problems_.begin() + shown, "\n");
  if (shown < problems_.size()) absl::StrAppend(&lines, "\nand ", problems_.size() - shown, " more");
  return absl::InvalidArgumentError(lines);
}

std::string FieldPath(const std::string& path, absl::string_view field) {
  return path.empty() ? std::string(field) : absl::StrCat(path, ".", field);
}

std::string ElementPath(const std::string& path, int index) { return absl::StrCat(path, "[", index, "]"); }

}  // namespace weir
