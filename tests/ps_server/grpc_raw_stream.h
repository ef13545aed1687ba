#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/parameter_server.grpc.pb.h"

namespace weir {

// The result of one exchange.
struct ExchangeResult {
  absl::Status error;  // of the exchange, or of the stream if it ended first
  std::optional<v1::PushReply> push;
  std::optional<v1::PullReply> pull;
  // The weights that count by the protocol: those of `pull`, in the order of their positions.
  std::vector<float> weights;
  int replies = 0;
  // Chunks of weights that came before the push was answered.
  int eager_chunks = 0;

  // The push's outcome, or else the pull's.
  v1::Outcome outcome() const {
    return push ? push->outcome() : pull ? pull->outcome() : v1::OUTCOME_UNSPECIFIED;
  }
};

// An Exchange stream through the generated stub: the server cannot tell it from a client in any language. It
// has a deadline of 20 seconds.
class RawStream {
 public:
  explicit RawStream(v1::ParameterServer::Stub& shard);
  // Cancels the stream.
  ~RawStream();

  bool Write(const v1::ExchangeRequest& message) { return call_->Write(message); }
  // nullopt: the stream has ended.
  std::optional<v1::ExchangeReply> Read();

  // Sends the messages of one exchange, the first at once and the others as credit allows, and reads the
  // replies. `written`: the number of messages that were sent already. Other exchanges' replies are an error.
  ExchangeResult Run(const std::vector<v1::ExchangeRequest>& messages, size_t written = 0);

  void WritesDone() { call_->WritesDone(); }
  void Cancel() { context_.TryCancel(); }
  // Reads what is left, and returns how the stream ended.
  absl::Status End();

 private:
  grpc::ClientContext context_;
  const std::unique_ptr<grpc::ClientReaderWriter<v1::ExchangeRequest, v1::ExchangeReply>> call_;
  std::optional<absl::Status> end_;
};

}  // namespace weir
