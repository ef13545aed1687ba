#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/system/file_system.h"
#include "common/telemetry/logging.h"
#include "proto/coordinator.pb.h"

namespace weir {

// A job's values over time, in a file that TensorBoard reads (docs/metrics.md). A file that lacks its end is
// read up to the last whole record, so that nothing is lost when this process is killed. Not thread-safe.
class EventFile {
 public:
  // Makes the folder, unless it is there, and a new file in it: each process that writes has its own.
  // InvalidArgument: the folder is in object storage. `files` outlives this object.
  static absl::StatusOr<std::unique_ptr<EventFile>> Create(FileSystem* files, const std::string& folder,
                                                           absl::Time now);

  // Adds what `status` has, unless nothing was done since the last call. A value that is not known is left
  // out. While the disk takes nothing, a warning says so once a minute, and a new file is tried as often.
  void Add(const v1::ClusterStatus& status, absl::Time now);

 private:
  EventFile(FileSystem* files, std::string folder) : files_(*files), folder_(std::move(folder)) {}
  absl::Status Open(absl::Time now);
  absl::Status Write(const v1::ClusterStatus& status, absl::Time now);

  FileSystem& files_;
  const std::string folder_;
  std::unique_ptr<WritableFile> file_;  // null after an error
  LogLimit retry_{absl::Minutes(1)};
  // The last that was added.
  uint64_t examples_ = 0, epoch_ = 0;
  bool evaluated_ = false;
};

}  // namespace weir
