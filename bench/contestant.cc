#include "bench/contestant.h"

#include "absl/strings/str_cat.h"
#include "bench/grpc_echo.h"
#include "bench/grpc_protobuf.h"
#include "bench/raw_rows.h"
#include "bench/raw_socket.h"
#include "bench/shared_ring.h"
#include "bench/weir_contestant.h"
#include "bench/weir_rows.h"

namespace weir::bench {

absl::StatusOr<std::unique_ptr<StepServer>> StartServer(const Contestant& contestant, int index,
                                                        const std::string& host) {
  if (contestant.kind == "raw") return StartRawServer(contestant, index, host);
  if (contestant.kind == "ring") return StartRingServer(contestant);
  if (contestant.kind == "protobuf") return StartProtobufServer(contestant, index, host);
  if (contestant.kind == "echo") return StartEchoServer(host);
  if (contestant.kind == "raw rows") return StartRawRowServer(contestant, host);
  if (contestant.kind == "weir" || contestant.kind == "weir rows") {
    return StartWeirServer(contestant, index, host);
  }
  return absl::InvalidArgumentError(absl::StrCat("no contestant is called '", contestant.kind, "'"));
}

absl::StatusOr<std::unique_ptr<StepClient>> ConnectClient(const Contestant& contestant, int index,
                                                          const std::vector<std::string>& addresses) {
  if (contestant.kind == "raw") return ConnectRawClient(contestant, index, addresses);
  if (contestant.kind == "ring") return ConnectRingClient(contestant, addresses[0]);
  if (contestant.kind == "protobuf") return ConnectProtobufClient(contestant, addresses);
  if (contestant.kind == "echo") return ConnectEchoClient(contestant, addresses[0]);
  if (contestant.kind == "weir") return ConnectWeirClient(contestant, index, addresses);
  if (contestant.kind == "bare rows") return ConnectBareRows(contestant, index);
  if (contestant.kind == "raw rows") return ConnectRawRows(contestant, index, addresses[0]);
  if (contestant.kind == "weir rows") return ConnectWeirRows(contestant, index, addresses);
  return absl::InvalidArgumentError(absl::StrCat("no contestant is called '", contestant.kind, "'"));
}

}  // namespace weir::bench
