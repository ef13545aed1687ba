#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/parameter_server.grpc.pb.h"

namespace weir {

// What came of one exchange.
struct ExchangeResult {
  absl::Status error;  // of the exchange; or of the stream, if it ended before the exchange did
  std::optional<v1::PushReply> push;
  std::optional<v1::PullReply> pull;
  // As the protocol says they count: those of `pull`. In the order of their positions.
  std::vector<float> weights;
  int replies = 0;
  // Chunks of weights that came before the push was answered.
  int eager_chunks = 0;

  // Of the push, or else of the pull.
  v1::Outcome outcome() const {
    return push ? push->outcome() : pull ? pull->outcome() : v1::OUTCOME_UNSPECIFIED;
  }
};

// An Exchange stream through the generated stub: any language's client, as far as the server can tell. It has
// a deadline of 20 seconds.
class RawStream {
 public:
  explicit RawStream(v1::ParameterServer::Stub& shard);
  // Cancels the stream.
  ~RawStream();

  bool Write(const v1::ExchangeRequest& message) { return call_->Write(message); }
  // Nothing: the stream has ended.
  std::optional<v1::ExchangeReply> Read();

  // Sends the messages of one exchange, the first at once and the others as there is credit for them, and
  // reads what comes of it. `written`: of them have been sent already. Other exchanges' replies are an error.
  ExchangeResult Run(const std::vector<v1::ExchangeRequest>& messages, size_t written = 0);

  void WritesDone() { call_->WritesDone(); }
  void Cancel() { context_.TryCancel(); }
  // Reads what is left, and says how the stream ended.
  absl::Status End();

 private:
  grpc::ClientContext context_;
  const std::unique_ptr<grpc::ClientReaderWriter<v1::ExchangeRequest, v1::ExchangeReply>> call_;
  std::optional<absl::Status> end_;
};

}  // namespace weir
