#pragma once

#include <cstdint>
#include <string>

#include "proto/job_config.pb.h"

namespace weir {

// Describes the memory that a server of the job needs: the sum of docs/memory.md with this config's numbers.
// The unit is W, the bytes of the server's weights, since only the data's shape tells W. Returns one line,
// without a line feed.
std::string DescribeServerMemory(const v1::JobConfig& config);

// Describes the sum in bytes, for this number of parameters. Returns one line, without a line feed.
std::string DescribeServerBytes(const v1::JobConfig& config, uint32_t servers, uint32_t workers,
                                int64_t parameters);

// Describes where and when the job takes checkpoints, and what the loss of a server then means to the job.
// Returns one line, without a line feed.
std::string DescribeCheckpoints(const v1::JobConfig& config);

}  // namespace weir
