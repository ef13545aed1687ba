#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/rpc/identity.h"
#include "common/rpc/tls.h"

// Certificates and environment that a launcher gives the tasks of a job, wherever the tasks run.
namespace weir {

// Makes certificates in this new folder for the tasks of a job, and for a reader of the job's status.
absl::Status WriteTaskCertificates(const std::string& folder, int ps, int workers);

// Whose certificate a task has: TlsFilesIn(folder, TaskIdentity("worker", 1)). An evaluator is a reader.
Identity TaskIdentity(const std::string& type, int index);

// Returns what a program that is not Weir's, which has none of Weir's flags, must know of its job.
std::map<std::string, std::string> ProgramEnvironment(const std::string& token_file,
                                                      const std::vector<std::string>& overrides);

// Adds what such a program gets on the machine where it runs: the threads that PyTorch, OpenBLAS and MKL
// begin with (0: they decide), and output without a buffer. Values of this process's own environment stay.
void SetProgramEnvironment(int threads, std::map<std::string, std::string>* environment);
// The threads for each of so many programs that share this machine's CPUs; 0: the program has all of them.
int ThreadsOfShare(int sharers);

// A JSON list of these texts.
std::string JsonList(const std::vector<std::string>& texts);

// Adds what every task has: TF_CONFIG, where `cluster` is the JSON of the cluster, and the TLS files. Without
// TLS these are empty, so that tasks do not inherit this process's.
void SetTaskEnvironment(const std::string& cluster, const std::string& type, int index, const TlsFiles& files,
                        std::map<std::string, std::string>* environment);

// Removes a file, or a folder with what is in it.
void RemoveIfThere(const std::string& path);

}  // namespace weir
