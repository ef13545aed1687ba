#pragma once

#include <string>

#include "google/protobuf/message.h"

namespace weir {

// Returns a message as JSON, with its fields by their names and a line feed at the end. Unlike WriteProto(),
// also writes fields that are zero or empty, so that a program finds the same fields in every message. A
// value that is not set, or not finite, is null.
std::string MessageJson(const google::protobuf::Message& message);

}  // namespace weir
