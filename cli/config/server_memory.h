#pragma once

#include <cstdint>
#include <string>

#include "proto/job_config.pb.h"

namespace weir {

// How much memory a server of the job needs, in words: docs/memory.md with this config's numbers. In
// multiples of W, the bytes of the server's weights, which are known only with the data's shape. One line,
// without a line feed.
std::string DescribeServerMemory(const v1::JobConfig& config);

// The same sum in bytes, for a model of so many parameters. One line, without a line feed.
std::string DescribeServerBytes(const v1::JobConfig& config, uint32_t servers, uint32_t workers,
                                int64_t parameters);

}  // namespace weir
