#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "common/model/model_spec.h"
#include "common/rpc/job_token.h"
#include "local/in_process_cluster.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/parameter_server.grpc.pb.h"
#include "proto/shard_control.grpc.pb.h"
#include "tests/ps_server/grpc_raw_stream.h"

namespace weir {

// Servers inside this process, and plain gRPC stubs to them: the servers cannot tell the stubs from a client
// in any language. Every call has a deadline of 20 seconds.
class ServerFixture {
 public:
  // One tensor "w" of zeros, SGD at rate -1 with gradients of ones: each step adds one to every weight.
  explicit ServerFixture(int64_t elements = 40, uint32_t servers = 1, uint32_t workers = 1);

  // Starts the servers.
  void Start();
  // The TCP port of server 0.
  int port() const;
  std::unique_ptr<grpc::ClientContext> Context() const;
  v1::JoinRequest JoinRequest(uint32_t rank = 0) const;
  // Starts the job: all workers join at once, and send a heartbeat each.
  void Join();
  // Worker 0's push at its next clock: its header; and the messages of an exchange on stream(), each with a
  // chunk.
  v1::PushRequest Header() const;
  std::vector<v1::ExchangeRequest> Push();
  // Push(), with the pull after it.
  std::vector<v1::ExchangeRequest> PushAndPull();
  v1::PullRequest PullHeader() const;
  // A correct push and pull: fails the test unless the version is the next one. One server.
  void TrainStep();
  // Pulls the shard's weights at the open step.
  v1::Version Pull(std::vector<float>* weights);

  // The stream to shard 0, opened at first use and after a reset. NextId(): ids of its exchanges.
  RawStream& stream();
  uint64_t NextId() { return ++last_id; }

  v1::JobConfig config;
  ModelSpec model;
  uint32_t servers, workers;
  int http_port = -1;
  JobToken token;  // of the servers; calls do not carry it
  std::unique_ptr<InProcessCluster> cluster;
  std::vector<std::unique_ptr<v1::ParameterServer::Stub>> shards;
  std::vector<std::unique_ptr<v1::ShardControl::Stub>> controls;
  std::unique_ptr<v1::Coordinator::Stub> coordinator;
  // The number of calls of Join(): each call makes new incarnations of the workers.
  int joins = 0;
  std::vector<v1::JoinReply> members;
  v1::Caller caller;  // worker 0
  v1::Version base;   // of shard 0
  uint64_t clock = 0;
  std::unique_ptr<RawStream> raw_stream;
  uint64_t last_id = 0;
};

}  // namespace weir
