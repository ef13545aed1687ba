// A process that calls every method of a server, as any program of a machine's users can:
//
//   stranger ADDRESS USER BYTES [AUTHORIZATION]
//
// USER: the number of the user that it becomes; BYTES: its requests, unchanged; AUTHORIZATION: an entry of
// the calls' metadata. Prints a line for each method: its name and gRPC's code, "Join 16".
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/common/grpc_generic_call.h"

namespace {

constexpr const char* kMethods[] = {
    "grpc.health.v1.Health/Check",      "weir.v1.Coordinator/Join",      "weir.v1.Coordinator/Heartbeat",
    "weir.v1.Coordinator/Leave",        "weir.v1.Coordinator/NextRange", "weir.v1.Coordinator/Pin",
    "weir.v1.Coordinator/Unpin",        "weir.v1.Coordinator/Report",    "weir.v1.Coordinator/Checkpoint",
    "weir.v1.Coordinator/Status",       "weir.v1.Coordinator/Announce",  "weir.v1.ParameterServer/Exchange",
    "weir.v1.ParameterServer/ReadRows", "weir.v1.ShardControl/Attach",   "weir.v1.Coordinator/Stop",
};

grpc::Status Call(grpc::GenericStub& stub, const std::string& method, const std::string& bytes,
                  const std::string& authorization) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  if (!authorization.empty()) context.AddMetadata("authorization", authorization);
  grpc::ByteBuffer reply;
  return weir::CallWithOneMessage(stub, context, method, bytes, &reply);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 64;
  const auto user = static_cast<uid_t>(std::strtoul(argv[2], nullptr, 10));
  if (user != geteuid() && setuid(user) != 0) return 77;
  grpc::GenericStub stub(grpc::CreateChannel(argv[1], grpc::InsecureChannelCredentials()));
  for (const char* method : kMethods) {
    const grpc::Status status = Call(stub, method, argv[3], argc > 4 ? argv[4] : "");
    const std::string name = std::string(method).substr(std::string(method).find('/') + 1);
    std::printf("%s %d\n", name.c_str(), static_cast<int>(status.error_code()));
    if (!status.ok()) std::fprintf(stderr, "%s: %s\n", name.c_str(), status.error_message().c_str());
  }
}
