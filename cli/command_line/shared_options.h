#pragma once

#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "cli/commands/coordinator_address.h"

// Arguments and flags that several commands have.
namespace weir {

// The job config, which is required.
void AddConfigFile(CLI::App* command, std::string* config);

void AddOverrides(CLI::App* command, std::vector<std::string>* overrides);

void AddDevice(CLI::App* command, std::string* device);

// Returns the options that say where ps:0 is.
std::vector<CLI::Option*> AddCluster(CLI::App* command, ClusterFlags* flags);

inline constexpr const char* kOneCheckpoint =
    "A checkpoint, or a folder of them, whose newest it is (DIR/best: the best)";

// A checkpoint or a folder of them, which is required; `what` is its help.
void AddCheckpoint(CLI::App* command, std::string* path, const char* what);

// For unsigned values, because CLI11 reads -1 as 2^64 - 1.
CLI::Validator WholeNumber();

}  // namespace weir
