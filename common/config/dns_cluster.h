#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/config/address.h"
#include "common/config/json_document.h"

// A cluster in one line, where tasks have names with their indexes in them, as Kubernetes gives names to
// pods:
//
//   dns:ps=weir-ps:2,worker=weir-worker:4:3333
//
//   cluster = "dns:" entry {"," entry}
//   entry   = JOB "=" NAME ":" COUNT [":" PORT]        PORT: 2222 if it is not given
//
// NAME is that of a headless service, which may have a domain, and whose first part is also the name of its
// StatefulSet or Indexed Job: task i of weir-ps.training.svc is at weir-ps-i.weir-ps.training.svc. Where
// names are made in another way, one "*" in NAME stands for i: weir-ps-0-*.weir, say.
namespace weir {

// Whether `text`, a value of --cluster, is such a line and no file's name.
bool IsDnsCluster(absl::string_view text);

struct DnsJob {
  std::string job;  // Task::type
  JsonPlace place;
  JsonPlace name_place;
  std::vector<Address> addresses;  // by index; 1 to kMostTasks
};

// The most tasks of one job, servers or workers.
inline constexpr int kMostTasks = 1024;

// The jobs in the order of the text, at least one. InvalidArgument with "source:1:column: what".
absl::StatusOr<std::vector<DnsJob>> ParseDnsCluster(absl::string_view text, absl::string_view source);

}  // namespace weir
