#pragma once

#include <memory>
#include <string>

#include "common/rpc/job_token.h"
#include "common/rpc/tls.h"
#include "proto/coordinator.pb.h"

namespace weir {

// The flags with which commands name a running cluster. At most one of the first two is given; with neither,
// TF_CONFIG names the cluster.
struct ClusterFlags {
  std::string cluster;     // a file, or "dns:..."
  std::string address;     // of ps:0
  std::string token_file;  // "": the job has no token
  TlsFiles tls;            // none named: the job has no TLS
};

struct RunningJob {
  std::string address;  // of ps:0, "host:port"
  JobToken token;
  std::shared_ptr<const Tls> tls;  // null: none
  v1::ClusterStatus status;
};

// What to say, and which code to exit with: 64, 78: the command line or what it names gives no address, or no
// good one; 138: nothing answers.
struct Refusal {
  int exit_code;
  std::string message;
};

// Asks ps:0 how the job is. True: `job` is filled, else `refusal`. If nothing answers, may connect to ps:0
// once more to find out why.
bool AskJob(const ClusterFlags& flags, RunningJob* job, Refusal* refusal);

}  // namespace weir
