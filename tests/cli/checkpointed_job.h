#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/system/file_system.h"
#include "tests/common/checkpoint/checkpoint_fixture.h"

namespace weir {

// A small job's checkpoints, as two servers wrote them.
struct CheckpointedJob {
  bool with_table = false;
  absl::Status Write(const std::string& directory, uint64_t step = 12,
                     std::optional<uint64_t> best = std::nullopt) const {
    std::error_code ignored;
    std::filesystem::create_directories(directory, ignored);
    StoredJob job;
    job.model = TestModel(1000);
    job.slots = {"momentum"};
    if (with_table) job.tables = {TestTable("clicks", 4)};
    return job.Write(FileSystem::Posix(), directory, step, 2, best);
  }
};

}  // namespace weir
