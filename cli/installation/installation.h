#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/system/subprocess.h"

// Finds the other parts of Weir: beside this program in a bundle (bin/), or in the folders of a build tree.
namespace weir {

// The programs that a job runs.
struct Binaries {
  std::string ps_server;
  std::string worker;  // "": the job's workers run a program of the user
};

// Finds both in one folder, or ps_server alone. If `bin_dir` is not empty, looks there alone. NotFound names
// the places.
absl::StatusOr<Binaries> FindBinaries(const std::string& bin_dir, bool with_worker);

// Finds a program that only some commands need, in `package` of the build tree or beside this program.
// NotFound names the places.
absl::StatusOr<std::string> FindProgram(const std::string& package, const std::string& name);

// Checks that `name` is a program that can be run. `name` is a path, or a word that is looked for in PATH as
// a shell does. NotFound says what is missing, and what to do.
absl::Status CheckCanRun(const std::string& name);

// Finds a file such as "configs/digits.json" in one of the folders above this program (a bundle's or
// repository's root), or above the working folder. NotFound names `name`.
absl::StatusOr<std::string> FindShipped(const std::string& name);

// Returns the flags that give a program of Weir a job's config.
std::vector<std::string> ConfigFlags(const std::string& config, const std::vector<std::string>& overrides);

// Runs a program of Weir with `flag` ("--check") on a job's config to its end, for at most a minute: files
// may be on a slow network disk.
absl::StatusOr<CommandResult> RunOnConfig(const std::string& program, const std::string& flag,
                                          const std::string& config,
                                          const std::vector<std::string>& overrides);

// Becomes another program of Weir (FindProgram): weir_bench for `weir bench ARGS`, ps_server for `weir replay
// DIR`. Returns, with an exit code, only if that fails. If the program is not there and `args` ask for help,
// prints `help`.
int BecomeProgram(const std::string& package, const std::string& name, const std::vector<std::string>& args,
                  const std::string& help);

}  // namespace weir
