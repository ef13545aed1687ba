#include "common/config/field_rules.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/descriptor.h"
#include "proto/options.pb.h"

namespace weir {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// The field by whose word other fields of the message have a meaning (used_with in proto/options.proto).
const FieldDescriptor& Selector(const Descriptor& message) {
  int i = 0;
  while (message.field(i)->cpp_type() != FieldDescriptor::CPPTYPE_ENUM) ++i;
  return *message.field(i);
}

std::string WordOf(const Message& message, const FieldDescriptor& selector) {
  return EnumWord(*message.GetReflection()->GetEnum(message, &selector));
}

bool IsSet(const Message& message, const FieldDescriptor& field) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  return field.is_repeated() ? reflection.FieldSize(message, &field) > 0
                             : reflection.HasField(message, &field);
}

}  // namespace

bool IsUsed(const Message& message, const FieldDescriptor& field) {
  const auto& words = field.options().GetExtension(v1::limits).used_with();
  return words.empty() || std::find(words.begin(), words.end(),
                                    WordOf(message, Selector(*field.containing_type()))) != words.end();
}

void CheckUses(const Message& message, const std::string& path, ConfigProblems* problems) {
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    const v1::FieldLimits& limits = field.options().GetExtension(v1::limits);
    if (limits.used_with().empty()) continue;
    const FieldDescriptor& selector = Selector(*message.GetDescriptor());
    const std::string word = WordOf(message, selector);
    const bool set = IsSet(message, field);
    const bool used = IsUsed(message, field);
    problems->AddIf(set && !used, FieldPath(path, field.name()), "is not used with ", selector.name(), " \"",
                    word, "\", only with ", absl::StrJoin(limits.used_with(), ", "), "; take it out (--set ",
                    FieldPath(path, field.name()), "=null) or change ", FieldPath(path, selector.name()));
    problems->AddIf(!set && used && limits.required(), FieldPath(path, field.name()),
                    "is missing and must be given with ", selector.name(), " \"", word, "\"");
  }
}

void DifferentNames::Check(int i, const std::string& name, const char* hint) {
  const auto [first, inserted] = positions_.emplace(name, i);
  if (inserted) return;
  problems_->Add(FieldPath(ElementPath(list_, i), "name"),
                 absl::StrCat("is ", JsonQuote(name), ", as that of ", ElementPath(list_, first->second),
                              "; ", what_, " must have different names", hint));
}

}  // namespace weir
