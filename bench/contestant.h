#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"
#include "nlohmann/json.hpp"

namespace weir::bench {

// A way to do a worker's step: the worker sends its gradient to the servers, the servers apply the gradient,
// and the new weights come back into the worker's tensor. Holds all that a process of this contestant needs.
struct Contestant {
  std::string name;                    // in tables
  std::string kind;                    // "raw", "weir", or one of AddKind()
  int64_t elements = 0;                // float32 of the model
  std::string optimizer = "momentum";  // "sgd", "momentum", "adam"
  int servers = 1, clients = 1;

  // raw
  std::string transport = "tcp";   // or "unix"
  int64_t window_bytes = 1 << 20;  // received before they are applied; at most the whole gradient
  int windows_in_flight = 2;
  int connections = 1;             // from each client to each server
  std::string congestion_control;  // "": the system's

  // weir: "" or members of a job's config, {"wire": {...}, "server": {...}}
  std::string config;
  // weir: if possible, the worker reads the weights in the server's memory (WeightsView), instead of in a
  // tensor of its own, and the server reads the gradient in the worker's memory (Client::NewGradient()).
  bool in_place = false;
  // weir: the folder where `weir certs init` has put a cluster's certificates; "": no TLS.
  std::string certificates;

  // For steps on an embedding table instead of tensors: the rows of the table, and the float32 of a row.
  uint64_t table_rows = 0;
  uint64_t dim = 0;
  // "pull"; "push", with gradients for the batch; or "both": a pull, then a push.
  std::string row_step = "pull";
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Contestant, name, kind, elements, optimizer, servers, clients,
                                                transport, window_bytes, windows_in_flight, connections,
                                                congestion_control, config, in_place, certificates,
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
};

// `host` is the interface to listen on. May be called once in a process.
using StartServerFunction = std::function<absl::StatusOr<std::unique_ptr<StepServer>>(
    const Contestant& contestant, int index, const std::string& host)>;
// `addresses`: the addresses of all servers.
using ConnectClientFunction = std::function<absl::StatusOr<std::unique_ptr<StepClient>>(
    const Contestant& contestant, int index, const std::vector<std::string>& addresses)>;
struct Kind {
  StartServerFunction start_server;
  ConnectClientFunction connect_client;
};

// Returns the kind of this name.
// Errors: InvalidArgument: there is none.
absl::StatusOr<Kind> FindKind(const std::string& name);
// Adds a kind. Called before the first ServerHost is made, whose process is a copy of this one.
void AddKind(const std::string& name, Kind kind);

// Weir as users have it: the program ps_server, and the client library.
Kind WeirKind();
// The limit that sockets set: a plain loop of send and recv with Weir's kernels to apply the gradient. There
// is no protocol, no check, no version that a reader could hold, and no recovery.
Kind RawSockets();

// Makes a contestant of the kind "weir". `config`: members of the job's config, as JSON.
Contestant Weir(const std::string& name, const std::string& config);

// The options with which a worker of a contestant of the kind "weir" joins.
absl::StatusOr<ClientOptions> WeirClientOptions(const Contestant& contestant, int index,
                                                const std::vector<std::string>& addresses);

}  // namespace weir::bench
