#pragma once

#include <grpcpp/support/byte_buffer.h>

#include "absl/status/statusor.h"
#include "common/protocol/message.h"

namespace weir {

// Converts between gRPC's bytes and an exchange's messages. Neither way copies a payload.

// Takes the buffer's slices over. Internal: gRPC could not give them.
absl::StatusOr<IncomingMessage> ToIncoming(const grpc::ByteBuffer& buffer);

// The payload's owners are released, on any thread, when gRPC needs the bytes no more.
grpc::ByteBuffer ToByteBuffer(OutgoingMessage message);

}  // namespace weir
