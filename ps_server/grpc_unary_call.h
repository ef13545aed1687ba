#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace weir {

// Codes of absl::Status and gRPC are the same numbers.
inline grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

// A unary call of gRPC's callback API that is answered later, from any thread, once. Owns itself.
template <typename Reply>
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  // `on_cancel`, if any, runs when the caller or its connection goes away before the answer; the answer is
  // still owed.
  explicit UnaryCall(Reply* reply, std::function<void()> on_cancel = nullptr)
      : reply_(reply), on_cancel_(std::move(on_cancel)) {}

  // Gives the answer. The call must not be touched afterwards.
  std::function<void(absl::StatusOr<Reply>)> Done() {
    return [this](absl::StatusOr<Reply> result) {
      if (!result.ok()) return Finish(ToGrpc(result.status()));
      *reply_ = *std::move(result);
      Finish(grpc::Status::OK);
    };
  }

 private:
  void OnCancel() override {
    if (on_cancel_) on_cancel_();
  }
  void OnDone() override { delete this; }

  Reply* const reply_;
  const std::function<void()> on_cancel_;
};

}  // namespace weir
