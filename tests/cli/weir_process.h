#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/system/subprocess.h"

namespace weir {

struct WeirResult {
  int code;  // as a shell reports it
  std::string output;
};

// Runs `weir` (or a copy of it) with these arguments to its end, without TF_CONFIG.
inline WeirResult Weir(std::vector<std::string> args, const std::string& program = "cli/weir") {
  Subprocess::Options options;
  options.args = {program};
  options.args.insert(options.args.end(), args.begin(), args.end());
  options.remove_environment = {"TF_CONFIG"};
  const auto result = RunCommand(std::move(options), std::chrono::seconds(60));
  REQUIRE(result.ok());
  return {result->exit.status(), result->output};
}

}  // namespace weir
