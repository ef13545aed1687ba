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

// Makes all paths in the message absolute; relative ones start from this folder.
void MakePathsAbsolute(const std::filesystem::path& folder, Message* message) {
  const Reflection& r = *message->GetReflection();
  std::vector<const FieldDescriptor*> fields;
  r.ListFields(*message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (!field->is_repeated() && field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      MakePathsAbsolute(folder, r.MutableMessage(message, field));
    } else if (IsPath(*field) && !IsObjectPath(r.GetString(*message, field))) {
      std::error_code error;  // without a working folder: the path stays as it is
      const std::filesystem::path absolute =
          std::filesystem::absolute(folder / r.GetString(*message, field), error);
      if (!error) r.SetString(message, field, absolute.lexically_normal().string());
    }
  }
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
  CheckJobConfigRules(config, &problems);
  WEIR_RETURN_IF_ERROR(problems.ToStatus());
  return config;
}

absl::StatusOr<v1::JobConfig> LoadJobConfig(const std::string& path,
                                            const std::vector<std::string>& overrides) {
  WEIR_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  WEIR_ASSIGN_OR_RETURN(v1::JobConfig config, ParseJobConfig(text, path, overrides));
  MakePathsAbsolute(std::filesystem::path(path).parent_path(), &config);
  return config;
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
