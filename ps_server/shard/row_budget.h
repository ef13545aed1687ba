#pragma once

#include <cstdint>
#include <string>

#include "common/config/server_memory.h"
#include "proto/job_config.pb.h"
#include "proto/parameter_server.pb.h"

namespace weir {

// How much memory of a server rows may take beside the tables: those of the open step's parts (sync, unless
// they take effect on arrival), and former rows, which tables keep for their pins. It is what the server's
// limit leaves beside the weights, slots and gradients of the dense model (CheckServerMemory), and beside the
// tables as they are. A plain value.
class RowBudget {
 public:
  // No limit.
  RowBudget() = default;
  // For a job of so many workers whose model lies on so many servers. `machine_bytes`: 0 if it is not known.
  RowBudget(const v1::JobConfig& config, uint32_t workers, int64_t elements, uint64_t servers,
            uint64_t machine_bytes);

  bool limited() const { return limit_.bytes > 0; }
  // In bytes, beside tables of so many bytes. Only if limited().
  double Left(uint64_t tables) const;
  // "64.0 MiB are left for them beside ..."
  std::string Describe(uint64_t tables) const;

 private:
  MemoryLimit limit_;
  double model_ = 0;
};

// What the rows of a push take, as they are kept: float32, whatever has come.
uint64_t BytesOfRows(const v1::JobConfig& config, const v1::PushRequest& push);

}  // namespace weir
