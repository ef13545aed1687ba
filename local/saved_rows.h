#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "proto/job_config.pb.h"

namespace weir {

// Reads the rows of these keys as a job of this seed has them when it continues from the checkpoint. A key
// without a row reads as its initial values. Reads the table's files whole.
// Requires: CheckpointReader::CheckTables() has passed the table. `values`: keys x dim.
// Errors: DataLoss: a file is damaged.
absl::Status ReadSavedRows(const CheckpointReader& reader, const v1::TableConfig& table, uint64_t seed,
                           absl::Span<const uint64_t> keys, absl::Span<float> values);

}  // namespace weir
