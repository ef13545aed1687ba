#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "proto/coordinator.grpc.pb.h"

namespace weir {

// A gRPC server on a free port of the loopback interface that answers Status, always the same. With nullptr
// it serves nothing.
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
  // 0: could not be started.
  int port() const { return server_ == nullptr ? 0 : port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  struct Service : v1::Coordinator::Service {
    v1::ClusterStatus status;
    grpc::Status Status(grpc::ServerContext*, const v1::StatusRequest*, v1::ClusterStatus* reply) override {
      *reply = status;
      return grpc::Status::OK;
    }
  };

  Service service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace weir
