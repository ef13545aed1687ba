#include "common/config/job_config.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/config/job_config_rules.h"
#include "common/config/json_document.h"
#include "common/config/object_path.h"
#include "common/config/override.h"
#include "common/config/proto_json.h"
#include "common/config/text_file.h"
#include "common/config/written_path.h"
#include "google/protobuf/descriptor.h"

namespace weir {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

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

}  // namespace weir
