#pragma once

#include <memory>
#include <string>

#include "common/rpc/job_token.h"
#include "common/rpc/tls.h"
#include "proto/coordinator.pb.h"

namespace weir {

// The flags with which commands name a running cluster. At most one of `cluster` and `address` is given;
// without both, TF_CONFIG names the cluster.
struct ClusterFlags {
  std::string cluster;     // a file, or "dns:..."
  std::string address;     // of ps:0
  std::string token_file;  // "": the job has no token
  TlsFiles tls;            // none named: the job has no TLS
};

struct RunningJob {
  std::string address;  // of ps:0, "host:port"
  JobToken token;
  std::shared_ptr<const Tls> tls;  // null: the job has no TLS
  v1::ClusterStatus status;
};

// The reason why a command cannot ask a job, and the command's exit code. 64: the command line gives no valid
// address. 78: the cluster that it names has no valid address, a file cannot be read, or the answer is not
// that of the job's ps:0. 138: nothing answers.
struct Refusal {
  int exit_code;
  std::string message;
};

// Asks ps:0 for the job's status. Returns true and fills `job`, or returns false and fills `refusal`. If
// nothing answers, may connect to ps:0 once more to find out why.
bool AskJob(const ClusterFlags& flags, RunningJob* job, Refusal* refusal);

}  // namespace weir
