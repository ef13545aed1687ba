#pragma once

#include <grpcpp/server_builder.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "proto/job_config.pb.h"
#include "ps_server/exchange/exchange_session.h"
#include "ps_server/grpc/grpc_admission.h"
#include "ps_server/grpc/grpc_calls.h"
#include "ps_server/grpc/grpc_event_loop.h"
#include "ps_server/shard/shard.h"
#include "ps_server/shared_memory/shared_memory_server.h"

namespace weir {

// The data plane of a shard: Exchange streams, and ReadRows. Event loops serve them; each loop handles its
// streams' messages and applies their gradients.
//
// Construct, Register(), build the server, Start(); at the end End(), shut the server down, stop the loops.
// The shard outlives the loops' threads, and the service must live until the shard has answered all its
// calls.
class ParameterServerService {
 public:
  static constexpr char kService[] = "weir.v1.ParameterServer";

  struct Options {
    Shard* shard = nullptr;
    std::deque<GrpcEventLoop>* loops = nullptr;
    GrpcAdmission* admission = nullptr;
    v1::WireConfig wire;
    // For the rows of all clients, each way. Bytes.
    uint64_t most_row_bytes = std::numeric_limits<uint64_t>::max();
    // A stream of this caller broke, or the caller cancelled it. Runs on a loop's thread. May be null.
    std::function<void(const v1::Caller&)> on_broken;
  };

  explicit ParameterServerService(Options options);
  ~ParameterServerService();

  void Register(grpc::ServerBuilder* builder);
  // `shared_memory` may be null; it must outlive the streams.
  void Start(SharedMemoryServer* shared_memory);
  // The job is over, and the shard knows it: streams end when their open exchanges have been answered.
  void End(const absl::Status& failure);
  // The shard has revoked readers (Shard::Options::on_revoke). Any thread.
  void DropRevoked();
  // The shard is short of memory (Shard::Options::on_short). Any thread.
  void WantReleases();

  // For metrics; any thread.
  uint64_t open_streams() const;
  uint64_t messages_received() const;
  uint64_t messages_sent() const;

 private:
  class Stream;
  struct Host;

  // Requests one call at a time, on the loop with the fewest calls.
  void AcceptNext();
  // Runs `run` with each host, on its loop.
  void OnEach(const std::function<void(Host&)>& run);

  const Options options_;
  ByteBudget arriving_rows_, asked_rows_;
  GrpcMethods service_;
  std::atomic<uint64_t> sessions_{0};  // the last id that was given out
  std::atomic<bool> wants_releases_{false};
  std::vector<std::unique_ptr<Host>> hosts_;  // by loop
};

}  // namespace weir
