#include "common/rpc/grpc_status.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/bounded.h"
#include "common/protocol/job_failure.h"

namespace weir {
namespace {

// All header fields of an answer may have 8 KiB; a peer's own words may be in the message.
constexpr size_t kMostBytes = 4000;

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), Shortened(status.message(), kMostBytes),
                      DetailsOf(status));
}

absl::Status FromGrpc(const grpc::Status& status, absl::string_view call) {
  if (status.ok()) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  std::string text = status.error_message();
  if (text.empty()) {
    text = absl::StrCat(
        call, " ended with ", absl::StatusCodeToString(code), " (", status.error_code(), "), and no message",
        code == absl::StatusCode::kUnimplemented
            ? ": what listens there has no such call, so it is another server, or another program"
            : "");
  }
  return FromDetails(code, text, status.error_details());
}

}  // namespace weir
