#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

namespace weir {

// Stands before a server and passes on all gRPC calls, on loopback and without credentials. The caller's
// metadata stay behind. Thread-safe.
class GrpcForwarder {
 public:
  // Called with a message of a caller. It travels on once `forward` runs, at once or later, on any thread. No
  // other message of the call arrives before.
  using OnRequest = std::function<void(grpc::ByteBuffer* message, std::function<void()> forward)>;
  // Both functions are called on any thread, for several calls at a time. `method`:
  // "/package.Service/Method".
  struct Options {
    // "HOST:PORT"; the server may come and go.
    std::string server;
    // "HOST:PORT", where it stands.
    std::string listen = "127.0.0.1:0";
    // A call begins. Returns what gets its messages, and lives as long as the call.
    std::function<OnRequest(const std::string& method)> on_call = [](const std::string&) -> OnRequest {
      return [](grpc::ByteBuffer*, const std::function<void()>& forward) { forward(); };
    };
    // A message of the server, which travels on after this call.
    std::function<void(const std::string& method, grpc::ByteBuffer* message)> on_reply =
        [](const std::string&, grpc::ByteBuffer*) {};
  };

  static std::unique_ptr<GrpcForwarder> Start(Options options);
  // Cancels the calls, and waits until they have ended.
  virtual ~GrpcForwarder() = default;

  // "HOST:PORT" of Options.listen, with the port that was found.
  virtual std::string address() const = 0;
  // To the server.
  virtual const std::shared_ptr<grpc::Channel>& channel() const = 0;
};

}  // namespace weir
