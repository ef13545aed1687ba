#include "common/config/job_config.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/config/job_config_rules.h"
#include "common/config/json_document.h"
#include "common/config/proto_json.h"
#include "common/config/written_text.h"
#include "google/protobuf/descriptor.h"

namespace weir {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// "a[0].b" -> {"a", "0", "b"}; empty if it is no path.
std::vector<std::string> SplitPath(absl::string_view path) {
  std::vector<std::string> steps;
  for (absl::string_view part : absl::StrSplit(path, '.')) {
    std::vector<absl::string_view> pieces = absl::StrSplit(part, '[');
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (i > 0 && !absl::ConsumeSuffix(&pieces[i], "]")) return {};
      if (pieces[i].empty()) return {};
      steps.emplace_back(pieces[i]);
    }
  }
  return steps;
}

// All places inside `value` become `place`: a position in an override's text would mean nothing to its
// reader.
void SetPlaces(const JsonPlace& place, JsonValue* value) {
  value->place = place;
  for (JsonValue& element : value->elements) SetPlaces(place, &element);
  for (JsonMember& member : value->members) {
    member.place = place;
    SetPlaces(place, &member.value);
  }
}

JsonValue ParseOverrideValue(absl::string_view text, const JsonPlace& place) {
  JsonValue value;
  if (absl::StatusOr<JsonValue> parsed = ParseJson(text, ""); parsed.ok()) {
    value = *std::move(parsed);
  } else {
    value.kind = JsonValue::Kind::kString;
    value.text = std::string(text);
  }
  SetPlaces(place, &value);
  return value;
}

// Goes one step down from `parent`, for writing. Makes a missing member.
absl::StatusOr<JsonValue*> Descend(const std::string& step, const JsonPlace& place, JsonValue* parent) {
  if (parent->kind == JsonValue::Kind::kArray) {
    uint32_t index;
    if (!absl::SimpleAtoi(step, &index) || index >= parent->elements.size()) {
      return absl::InvalidArgumentError(absl::StrCat("\"", step, "\" is no element of the list, which has ",
                                                     parent->elements.size(), " elements, counted from 0"));
    }
    return &parent->elements[index];
  }
  if (parent->kind == JsonValue::Kind::kNull) {  // made by the step before
    parent->kind = JsonValue::Kind::kObject;
    parent->place = place;
  }
  if (parent->kind != JsonValue::Kind::kObject) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", step, "\" is looked for in ", parent->Describe(), ", which has no fields"));
  }
  if (JsonMember* member = parent->Find(step)) return &member->value;
  parent->members.push_back({step, place, {}});
  return &parent->members.back().value;
}

// Applies one `--set` to a config's tree: "optimizer.learning_rate=0.1", "model.layers[0].units=64" (or
// ".0."), "consistency={\"mode\": \"bounded\", \"staleness\": 3}". The text after the first '=' is JSON. Text
// that is not JSON is a string, so that words need no quotes. null takes the field out, as if the file did
// not have it. Objects on the way are made, list elements are not. The new value's place is the override
// itself. InvalidArgument names the override.
absl::Status ApplyOverride(absl::string_view assignment, JsonValue* root) {
  const JsonPlace place{std::make_shared<const std::string>(absl::StrCat("--set ", assignment)), 0, 0};
  const auto refuse = [&place](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(place.ToString(), ": ", what));
  };
  const size_t equals = assignment.find('=');
  const std::vector<std::string> path = SplitPath(assignment.substr(0, equals));
  if (equals == absl::string_view::npos || path.empty()) {
    return refuse("must be PATH=VALUE, such as optimizer.learning_rate=0.1 or model.layers[0].units=64");
  }
  JsonValue value = ParseOverrideValue(assignment.substr(equals + 1), place);
  JsonValue* target = root;
  JsonValue* parent = nullptr;
  for (const std::string& step : path) {
    parent = target;
    absl::StatusOr<JsonValue*> next = Descend(step, place, parent);
    if (!next.ok()) return refuse(next.status().message());
    target = *next;
  }
  if (value.kind != JsonValue::Kind::kNull) {
    *target = std::move(value);
  } else if (parent->kind == JsonValue::Kind::kObject) {
    parent->members.erase(std::find_if(parent->members.begin(), parent->members.end(),
                                       [&path](const JsonMember& m) { return m.key == path.back(); }));
  } else {
    return refuse("null takes a field out, but not an element of a list");
  }
  return absl::OkStatus();
}

// "$schema" is for editors: it says where configs/job.schema.json is.
void TakeOutSchema(JsonValue* root) {
  const auto member = std::find_if(root->members.begin(), root->members.end(), [](const JsonMember& m) {
    return m.key == "$schema" && m.value.kind == JsonValue::Kind::kString;
  });
  if (member != root->members.end()) root->members.erase(member);
}

bool IsPath(const FieldDescriptor& field) {
  return field.containing_type() == v1::DataFiles::descriptor() ||
         (field.containing_type() == v1::CheckpointConfig::descriptor() &&
          (field.name() == "directory" || field.name() == "init_from"));
}

// Calls `change` for each path that the message has, with the field's path ("checkpoint.directory").
template <typename Change>
void ForEachPath(const std::string& message_path, Message* message, const Change& change) {
  const Reflection& r = *message->GetReflection();
  std::vector<const FieldDescriptor*> fields;
  r.ListFields(*message, &fields);
  for (const FieldDescriptor* field : fields) {
    const std::string path = FieldPath(message_path, field->name());
    if (!field->is_repeated() && field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      ForEachPath(path, r.MutableMessage(message, field), change);
    } else if (IsPath(*field)) {
      r.SetString(message, field, change(path, *field, r.GetString(*message, field)));
    }
  }
}

// Takes file:// off, and reports the paths that cannot be taken.
void CheckPaths(v1::JobConfig* config, ConfigProblems* problems) {
  ForEachPath(
      "", config, [&](const std::string& path, const FieldDescriptor& field, const std::string& value) {
        const absl::StatusOr<std::string> checked = CheckedPath(value);
        if (!checked.ok()) {
          problems->Add(path, checked.status().message());
          return value;
        }
        if (IsObjectPath(value) && field.containing_type() == v1::DataFiles::descriptor()) {
          problems->Add(path, absl::StrCat(JsonQuote(value),
                                           " is in object storage, which is for checkpoints; copy the "
                                           "file to a disk of each worker"));
        }
        return *checked;
      });
}

// Each machine may have its files elsewhere, but none may lack what the others have.
bool MayDiffer(const Message& a, const Message& b, const FieldDescriptor& field) {
  if (field.message_type() == v1::DebugConfig::descriptor()) return true;
  return IsPath(field) && a.GetReflection()->HasField(a, &field) == b.GetReflection()->HasField(b, &field);
}

std::string ShowScalar(const Message& message, const FieldDescriptor& field) {
  const bool known = field.has_default_value() || message.GetReflection()->HasField(message, &field);
  return known ? WriteScalar(message, field) : "none";
}

std::string MessageDifference(const Message& a, const Message& b, const std::string& path);

std::string FieldDifference(const Message& a, const Message& b, const FieldDescriptor& field,
                            const std::string& path) {
  const Reflection& r = *a.GetReflection();
  const bool is_message = field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
  const auto say = [](const std::string& where, const auto& expected, const auto& got) {
    return absl::StrCat(where, ": expected ", expected, ", got ", got);
  };
  if (!field.is_repeated()) {
    if (is_message) return MessageDifference(r.GetMessage(a, &field), r.GetMessage(b, &field), path);
    const std::string expected = ShowScalar(a, field);
    const std::string got = ShowScalar(b, field);
    return expected == got ? "" : say(path, expected, got);
  }
  const int size = r.FieldSize(a, &field);
  const int size_b = r.FieldSize(b, &field);
  for (int i = 0; i < std::min(size, size_b); ++i) {
    const std::string element = ElementPath(path, i);
    if (is_message) {
      std::string difference =
          MessageDifference(r.GetRepeatedMessage(a, &field, i), r.GetRepeatedMessage(b, &field, i), element);
      if (!difference.empty()) return difference;
    } else if (WriteScalar(a, field, i) != WriteScalar(b, field, i)) {
      return say(element, WriteScalar(a, field, i), WriteScalar(b, field, i));
    }
  }
  return size == size_b ? "" : say(path, absl::StrCat(size, " elements"), size_b);
}

std::string MessageDifference(const Message& a, const Message& b, const std::string& path) {
  for (int i = 0; i < a.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *a.GetDescriptor()->field(i);
    if (MayDiffer(a, b, field)) continue;
    std::string difference = FieldDifference(a, b, field, FieldPath(path, field.name()));
    if (!difference.empty()) return difference;
  }
  return "";
}

}  // namespace

absl::StatusOr<v1::JobConfig> ParseJobConfig(absl::string_view text, absl::string_view source,
                                             const std::vector<std::string>& overrides) {
  WEIR_ASSIGN_OR_RETURN(JsonValue root, ParseJson(text, source));
  for (const std::string& override : overrides) WEIR_RETURN_IF_ERROR(ApplyOverride(override, &root));
  TakeOutSchema(&root);
  v1::JobConfig config;
  ConfigProblems problems;
  ReadProto(root, "", &config, &problems);
  // Rules over fields that could not be read would only repeat what is wrong with those.
  WEIR_RETURN_IF_ERROR(problems.ToStatus());
  FillContextDefaults(&config);
  CheckPaths(&config, &problems);
  CheckJobConfigRules(config, &problems);
  WEIR_RETURN_IF_ERROR(problems.ToStatus());
  return config;
}

absl::StatusOr<v1::JobConfig> LoadJobConfig(const std::string& path,
                                            const std::vector<std::string>& overrides) {
  WEIR_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  WEIR_ASSIGN_OR_RETURN(v1::JobConfig config, ParseJobConfig(text, path, overrides));
  const absl::Status paths = MakePathsAbsolute(std::filesystem::path(path).parent_path(), &config);
  if (!paths.ok()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", paths.message()));
  return config;
}

absl::Status MakePathsAbsolute(const std::string& folder, v1::JobConfig* config) {
  absl::Status status;
  ForEachPath("", config, [&](const std::string& path, const FieldDescriptor&, const std::string& value) {
    const absl::StatusOr<std::string> expanded = ExpandedPath(value);
    if (!expanded.ok()) {
      status.Update(absl::InvalidArgumentError(absl::StrCat(path, ": ", expanded.status().message())));
      return value;
    }
    if (IsObjectPath(value)) return value;
    std::error_code error;  // without a working folder: the path stays as it is
    const std::filesystem::path absolute =
        std::filesystem::absolute(std::filesystem::path(folder) / *expanded, error);
    return error ? *expanded : absolute.lexically_normal().string();
  });
  return status;
}

std::string ToJson(const v1::JobConfig& config, bool with_defaults) {
  return WriteProto(config, [with_defaults](const Message& message, const FieldDescriptor& field) {
    return with_defaults && FieldApplies(message, field);
  });
}

std::string FirstDifference(const v1::JobConfig& expected, const v1::JobConfig& got) {
  return MessageDifference(expected, got, "");
}

bool IsForCpuOnly(v1::LayerConfig::Type type) {
  return type == v1::LayerConfig::LAYER_EMBEDDING || type == v1::LayerConfig::LAYER_CONCAT ||
         type == v1::LayerConfig::LAYER_CROSS || type == v1::LayerConfig::LAYER_FACTORIZATION_MACHINE;
}

bool QuantisesPushes(const v1::WireConfig& wire) {
  return wire.push_dtype() == v1::WireConfig::TYPE_INT8 || wire.push_dtype() == v1::WireConfig::TYPE_INT4 ||
         wire.push_dtype() == v1::WireConfig::TYPE_BIT1 || wire.push_dtype() == v1::WireConfig::TYPE_TOPK;
}

}  // namespace weir
