#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/types.h"

namespace weir {

// The job of a training program and its task there, as `worker` has them in the flags of these names. Empty
// ones come from the environment that `weir up` and `weir run` give a program: TF_CONFIG, WEIR_TOKEN_FILE.
struct TaskFlags {
  std::string config;  // the job's config, a file
  // Overrides of the config, "optimizer.learning_rate=0.1". The overrides of `weir up`, in WEIR_SET, win.
  std::vector<std::string> set;
  std::string cluster, task, token_file;
};

// Reads the files that the flags and the environment name, and returns the options for Client::Join(): the
// servers, this task and its rank, the token, TLS, and the config. WEIR_TLS_CA, WEIR_TLS_CERTIFICATE and
// WEIR_TLS_KEY name the files of TLS. An evaluator is a reader. The program adds
// ClientOptions::train_examples and what else its job needs. The first call also sets up the log, on standard
// error, and gRPC.
//
// Errors: InvalidArgument: the config, the cluster or the task is wrong, or there is no cluster.
// FailedPrecondition: a file of the token or of TLS is missing, or cannot be used.
absl::StatusOr<ClientOptions> OptionsOfTask(const TaskFlags& flags);

// ---- for Weir's own programs

struct TaskEnvironment;  // common/config/cluster_spec.h
struct TlsFiles;         // common/rpc/tls.h

// The overrides of `weir up` and `weir run`, of which WEIR_SET has a JSON list. Errors: InvalidArgument: it
// is no such list.
absl::StatusOr<std::vector<std::string>> OverridesOfEnvironment();

// Sets how a client reaches its job's servers and what proves it to them: token and TLS and, if there is an
// environment (not null), task, rank and servers.
// Requires: options->reader is set.
// Errors: InvalidArgument: there is TLS without an environment. FailedPrecondition: a file is missing or
// cannot be used, or the certificate is another task's.
absl::Status SetTask(const TaskEnvironment* environment, const std::string& token_file, const TlsFiles& tls,
                     ClientOptions* options);

}  // namespace weir
