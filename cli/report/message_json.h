#pragma once

#include <string>

#include "google/protobuf/message.h"

namespace weir {

// A message as JSON, its fields by their names; ends with a line feed. Unlike WriteProto() it also writes
// what is zero or empty: a program looks for the same fields whatever they hold. What is not set, or not
// finite, is null.
std::string MessageJson(const google::protobuf::Message& message);

}  // namespace weir
