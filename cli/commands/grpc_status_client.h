#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/job_token.h"
#include "common/rpc/tls.h"
#include "proto/coordinator.pb.h"
#include "proto/parameter_server.pb.h"

namespace weir {

// Asks a coordinator for the job's status and for checkpoints. Thread-safe.
class StatusClient {
 public:
  // `address`: host:port, as a cluster spec writes it. Connects at the first Get. Null for `tls`: no TLS.
  explicit StatusClient(const std::string& address, JobToken token = {},
                        std::shared_ptr<const Tls> tls = nullptr);
  ~StatusClient();

  // Unavailable or DeadlineExceeded: nothing answers at the address. Unauthenticated: the job has a different
  // token. If no server is there, returns before `deadline` is over.
  absl::StatusOr<v1::ClusterStatus> Get(absl::Duration deadline);
  // Returns when the checkpoint is complete. FailedPrecondition: the job takes none. Any other error says why
  // the checkpoint failed.
  absl::StatusOr<v1::CheckpointReply> TakeCheckpoint(absl::Duration deadline);

 private:
  struct Connection;
  std::unique_ptr<Connection> connection_;
};

// Asks ps:`server`, at `address`, for rows of a table.
// Errors: those of StatusClient and of ParameterServer.ReadRows.
absl::StatusOr<v1::ReadRowsReply> ReadRows(uint32_t server, const std::string& address, const JobToken& token,
                                           std::shared_ptr<const Tls> tls, const v1::ReadRowsRequest& request,
                                           absl::Duration deadline);

}  // namespace weir
