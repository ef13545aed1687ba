#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/integration/processes.h"

// The table of bad input that a process gets from its command line, environment and files.
namespace weir {

// The good job's.
constexpr uint32_t kBadInputExamples = 400, kBadInputEpochs = 5;

// A job on CSV files, for two workers of which one suffices, async; and the files of the invalid jobs.
struct BadInputFiles {
  BadInputFiles();

  TestFolder folder;
  // The good job's.
  std::string config;
};

struct BadProcess {
  std::string what;
  // "worker" or "ps_server".
  std::string program;
  // "=@NAME" stands for "=" and the path of a file of BadInputFiles.
  std::vector<std::string> args;
  // TF_CONFIG's text; or "worker:1" etc. for that of a task of the running good job; or none.
  std::string tf_config;
  int exit_code = 0;
  // Substrings of its message.
  std::vector<std::string> message;
};

std::vector<BadProcess> BadProcesses();
RunResult Run(const BadProcess& bad, const BadInputFiles& files, const TestJob& job);

}  // namespace weir
