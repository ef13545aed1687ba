#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "proto/coordinator.grpc.pb.h"

namespace weir {

// A gRPC server on a free port of the loopback interface. It answers Status, always the same, and Checkpoint:
// with the folder that the status names, or with the error that the job takes none. With nullptr it serves
// nothing.
class FakeCoordinator {
 public:
  explicit FakeCoordinator(const v1::ClusterStatus* status) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    if (status != nullptr) {
      service_.status = *status;
      builder.RegisterService(&service_);
    }
    server_ = builder.BuildAndStart();
  }
  // 0: the server could not be started.
  int port() const { return server_ == nullptr ? 0 : port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  struct Service : v1::Coordinator::Service {
    v1::ClusterStatus status;
    grpc::Status Status(grpc::ServerContext*, const v1::StatusRequest*, v1::ClusterStatus* reply) override {
      *reply = status;
      return grpc::Status::OK;
    }
    grpc::Status Checkpoint(grpc::ServerContext*, const v1::CheckpointRequest*,
                            v1::CheckpointReply* reply) override {
      if (status.checkpoint().empty()) {
        return {grpc::StatusCode::FAILED_PRECONDITION, "checkpoint.directory is not set"};
      }
      reply->set_directory(status.checkpoint());
      reply->set_step(status.step());
      return grpc::Status::OK;
    }
  };

  Service service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace weir
