#pragma once

namespace weir {

// Sends what the gRPC library itself logs (warnings and errors) through our log, so that --log_format=json
// holds for it too. Once, at the start of main, before gRPC is used.
void RouteGrpcLog();

}  // namespace weir
