#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/config/json_document.h"

namespace weir {

// Applies one `--set` to a config's tree: "optimizer.learning_rate=0.1", "model.layers[0].units=64" (or
// ".0."), "consistency={\"mode\": \"bounded\", \"staleness\": 3}". The text after the first '=' is JSON. Text
// that is not JSON is a string, so that words need no quotes. null takes the field out, as if the file did
// not have it. Objects on the way are made, list elements are not. The new value's place is the override
// itself. InvalidArgument names the override.
absl::Status ApplyOverride(absl::string_view assignment, JsonValue* root);

}  // namespace weir
