#pragma once

#include <map>
#include <string>

#include "common/config/proto_json.h"
#include "google/protobuf/message.h"

// Rules that hold for the fields of any message of a config.
namespace weir {

// Returns whether the field has a meaning beside the word of the message's selector, which is its first field
// with words (used_with in proto/options.proto).
bool IsUsed(const google::protobuf::Message& message, const google::protobuf::FieldDescriptor& field);

// Adds a problem for each field of one message that is set but not used, or used but missing. `path`: of the
// message.
void CheckUses(const google::protobuf::Message& message, const std::string& path, ConfigProblems* problems);

// The names of a list's entries, which must differ.
class DifferentNames {
 public:
  // what: "layers".
  DifferentNames(const char* list, const char* what, ConfigProblems* problems)
      : list_(list), what_(what), problems_(problems) {}

  // `hint` ends the message.
  void Check(int i, const std::string& name, const char* hint = "");

 private:
  const char* const list_;
  const char* const what_;
  ConfigProblems* const problems_;
  std::map<std::string, int> positions_;
};

}  // namespace weir
