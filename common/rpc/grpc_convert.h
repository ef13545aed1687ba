#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/protocol/message.h"

namespace weir {

// Converts between gRPC's bytes and an exchange's messages. Neither way copies a payload.

// Takes the buffer's slices over. Internal: gRPC could not give them.
absl::StatusOr<IncomingMessage> ToIncoming(const grpc::ByteBuffer& buffer);

// The payload's owners are released, on any thread, when gRPC needs the bytes no more.
grpc::ByteBuffer ToByteBuffer(OutgoingMessage message);

// Codes of absl::Status and gRPC are the same numbers. The kind of a failure (common/protocol/job_failure.h)
// travels along. A very long message is shortened. A failure without a message gets one, which says how
// `call` ("weir.v1.Coordinator/Join") ended: gRPC itself gives none for a call that a server does not have.
grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status, absl::string_view call);

}  // namespace weir
