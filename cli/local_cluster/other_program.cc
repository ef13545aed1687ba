#include "cli/local_cluster/other_program.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/status/statusor.h"
#include "cli/local_cluster/installation.h"
#include "common/program/exit_codes.h"

namespace weir {

int BecomeProgram(const std::string& package, const std::string& name, const std::vector<std::string>& args,
                  const std::string& help) {
  const absl::StatusOr<std::string> program = FindProgram(package, name);
  if (!program.ok()) {
    const auto asks = [](const std::string& arg) { return arg == "--help" || arg == "-h"; };
    if (std::any_of(args.begin(), args.end(), asks)) {
      std::printf("%s\n%s says more, but %s\n", help.c_str(), name.c_str(),
                  std::string(program.status().message()).c_str());
      return kExitOk;
    }
    std::fprintf(stderr, "error: %s\n", std::string(program.status().message()).c_str());
    return kExitInternal;
  }
  std::vector<char*> argv = {const_cast<char*>(program->c_str())};
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  execv(program->c_str(), argv.data());
  std::fprintf(stderr, "error: %s cannot be run: %s\n", program->c_str(), std::strerror(errno));
  return kExitInternal;
}

}  // namespace weir
