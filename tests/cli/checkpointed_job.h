#pragma once

#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "common/file_system.h"
#include "tests/common/checkpoint/checkpoint_fixture.h"

namespace weir {

// A small job's checkpoint of step 12, as two servers wrote it.
struct CheckpointedJob {
  absl::Status Write(const std::string& directory) const {
    std::error_code ignored;
    std::filesystem::create_directories(directory, ignored);
    StoredJob job;
    job.model = TestModel(1000);
    job.slots = {"momentum"};
    return job.Write(FileSystem::Posix(), directory, 12, 2);
  }
};

}  // namespace weir
