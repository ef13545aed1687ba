#pragma once

#include <functional>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/config/json_document.h"
#include "google/protobuf/generated_enum_reflection.h"
#include "google/protobuf/message.h"

namespace weir {

// The problems of a config, one line each: "job.json:3:17: optimizer.momentum: must be in [0, 1), got 1.5".
class ConfigProblems {
 public:
  // Remembers where the value of a field stands.
  void NotePlace(const std::string& path, const JsonPlace& place) { places_[path] = place; }
  // Adds a problem at the place that was noted for `path`, or else for the nearest field around it.
  void Add(const std::string& path, absl::string_view what);
  void AddAt(const JsonPlace& place, const std::string& path, absl::string_view what);
  // Add() if something is wrong. `what`: pieces as for absl::StrCat.
  template <typename... Pieces>
  void AddIf(bool wrong, const std::string& path, const Pieces&... what) {
    if (wrong) Add(path, absl::StrCat(what...));
  }

  // OK, or InvalidArgument with all lines (the first 20).
  absl::Status ToStatus() const;

 private:
  std::map<std::string, JsonPlace> places_;
  std::vector<std::string> problems_;
};

// Path of a field of the message at `path` ("" is the root), and of an element of a list.
std::string FieldPath(const std::string& path, absl::string_view field);
std::string ElementPath(const std::string& path, int index);

// JSON as people write it <-> proto2 messages whose fields bear (limits) options (proto/options.proto), by
// reflection. Unlike protobuf's own JSON this is strict, names places, and spells enum values in lower case
// without their prefix.

// Unknown fields are refused in what people write, and ignored in what a program of another version may have
// written.
enum class UnknownFields { kRefuse, kIgnore };

// Fills `message`, which is empty. Unknown fields (unless ignored), wrong types and values out of their
// limits become problems; what could be read is set anyway. A field is present in `message` only if it is in
// `value`.
void ReadProto(const JsonValue& value, const std::string& path, google::protobuf::Message* message,
               ConfigProblems* problems, UnknownFields unknown = UnknownFields::kRefuse);

// Returns whether to show a field that is not set but has a default.
using ShowDefault =
    std::function<bool(const google::protobuf::Message&, const google::protobuf::FieldDescriptor&)>;

// Pretty-printed, with fields in the schema's order. Set fields are always shown; a message without content
// is left out.
std::string WriteProto(const google::protobuf::Message& message, const ShowDefault& show_default);

// One scalar field, set or its default, as JSON. index: the element of a repeated field, else -1.
std::string WriteScalar(const google::protobuf::Message& message,
                        const google::protobuf::FieldDescriptor& field, int index = -1);

// "sync" for MODE_SYNC: lower case, without the prefix that all values of the enum share.
std::string EnumWord(const google::protobuf::EnumValueDescriptor& value);
// Requires: the enum has the value.
template <typename Enum, typename = std::enable_if_t<std::is_enum_v<Enum>>>
std::string EnumWord(Enum value) {
  return EnumWord(*google::protobuf::GetEnumDescriptor<Enum>()->FindValueByNumber(value));
}

}  // namespace weir
