#pragma once

#include <grpcpp/support/byte_buffer.h>

#include "absl/status/statusor.h"
#include "common/protocol/message.h"

namespace weir {

// gRPC's bytes and the exchange's messages. Neither way copies a payload.

// Takes the buffer's slices over. Internal: gRPC could not give them.
absl::StatusOr<IncomingMessage> ToIncoming(const grpc::ByteBuffer& buffer);

// The payload's owners are let go when gRPC has no use for the bytes any more, on any thread.
grpc::ByteBuffer ToByteBuffer(OutgoingMessage message);

}  // namespace weir
