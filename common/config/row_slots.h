#pragma once

#include "absl/types/span.h"
#include "proto/job_config.pb.h"
#include "proto/parameter_server.pb.h"

namespace weir {

// Adds to `row` what the optimizer of its table keeps beside the row's values, by name. `words`: those of
// TableRowSlots(), in their order. Words of another number, as of a file by somebody else, become one slot
// "slots".
void AddRowSlots(const v1::TableConfig& table, absl::Span<const float> words, v1::RowState* row);

}  // namespace weir
