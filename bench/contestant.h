#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "nlohmann/json.hpp"

namespace weir::bench {

// A bad path to the server; the path back is good.
struct Detour {
  double bytes_per_second = 0;  // 0: unlimited
  int64_t stop_after = -1;      // bytes, after which nothing more is passed on; -1: never
};

// One way to do a worker's step: its gradient goes to the servers, they apply it, and the new weights come
// back into the worker's tensor. Holds everything that a process needs to play its part in it.
struct Contestant {
  std::string name;  // in tables
  // "raw", "ring", "protobuf", "echo" or "weir"; with rows of an embedding table instead of tensors "bare
  // rows", "raw rows" or "weir rows"
  std::string kind;
  int64_t elements = 0;                // float32 of the model
  std::string optimizer = "momentum";  // "sgd", "momentum", "adam"
  int servers = 1, clients = 1;

  // raw
  std::string transport = "tcp";   // or "unix"
  int64_t window_bytes = 1 << 20;  // what is received before it is applied; at most the whole gradient
  int windows_in_flight = 2;
  int connections = 1;             // from each client to each server
  std::string congestion_control;  // "": the system's
  bool pull = true;                // false: the servers only confirm that they have applied it

  // ring: window_bytes and windows_in_flight describe its slots

  // weir: "" or members of a job's config, {"wire": {...}, "server": {...}}
  std::string config;
  // weir: the worker reads the weights where they are, instead of in its own tensor, if Weir can do so
  // (WeightsView), and the server reads the gradient where it is (Client::NewGradient()).
  bool in_place = false;
  // weir: the folder where `weir certs init` has put a cluster's certificates; "": no TLS.
  std::string certificates;
  // weir, with one server: what stands between a client (by index) and the server.
  std::map<int, Detour> detours;

  // rows: what the table holds, and the float32 of a row. A step is on a batch of kBatchKeys.
  uint64_t table_rows = 0;
  uint64_t dim = 0;
  // weir rows: "pull"; "push" with gradients for the batch; or "both", one after the other.
  std::string row_step = "pull";
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Contestant, name, kind, elements, optimizer, servers, clients,
                                                transport, window_bytes, windows_in_flight, connections,
                                                congestion_control, pull, config, in_place, certificates,
                                                table_rows, dim, row_step)

// A server of a contestant. It serves on threads of its own until it is destroyed.
class StepServer {
 public:
  virtual ~StepServer() = default;
  virtual std::string address() const = 0;
  // The process that does the work.
  virtual pid_t pid() const = 0;
};

// A worker of a contestant. Used by one thread.
class StepClient {
 public:
  virtual ~StepClient() = default;
  // Pushes the gradient, and returns when the new weights are in the tensor.
  virtual absl::Status Step() = 0;
  // The weights as the last step brought them.
  virtual absl::Span<const float> weights() const = 0;
  // The number of updates in the weights, with one server. 0: unknown.
  virtual uint64_t version() const { return 0; }
};

// `host` is the interface to listen on. May be called once in a process.
absl::StatusOr<std::unique_ptr<StepServer>> StartServer(const Contestant& contestant, int index,
                                                        const std::string& host);
// `addresses`: of all servers.
absl::StatusOr<std::unique_ptr<StepClient>> ConnectClient(const Contestant& contestant, int index,
                                                          const std::vector<std::string>& addresses);

}  // namespace weir::bench
