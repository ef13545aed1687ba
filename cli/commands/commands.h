#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/string_view.h"
#include "cli/commands/coordinator_address.h"

namespace weir {

// The commands of a program, each with the function that runs it. A command's options lie in a struct that
// its Runner owns, so that they live as long as this object. Used by one thread.
class Commands {
 public:
  // Runs a command after its command line has been parsed without an error. Returns the program's exit code.
  using Runner = std::function<int()>;

  // Adds commands to `app`, which outlives this object. Help and reference list them in the order in which
  // they are added.
  explicit Commands(CLI::App& app) : app_(app) {}

  CLI::App& app() const { return app_; }

  // Adds a command. Its help ends with `examples`.
  CLI::App* Add(const char* name, const char* what, const char* examples);
  // Adds a name that one of several commands must follow. Callers add these commands to the result.
  CLI::App* AddGroup(const char* name, const char* what, const char* examples);
  // Every command but a group needs a runner.
  void OnRun(const CLI::App* command, Runner run);

  // Runs the command that was on the command line. Returns the exit code.
  int Run() const;

 private:
  CLI::App& app_;
  std::vector<std::pair<const CLI::App*, Runner>> runners_;
};

// Each of these functions adds a command with its flags, its help and its runner.

// `program`: UpWords::program (up.h).
void AddUpCommand(Commands& commands, std::optional<std::vector<std::string>> program);
void AddRunCommand(Commands& commands);
void AddStatusCommand(Commands& commands);
void AddDemoCommand(Commands& commands);
void AddConfigCommands(Commands& commands);
void AddCheckpointCommands(Commands& commands);
void AddTableCommands(Commands& commands);
void AddCertsCommands(Commands& commands);
void AddExportCommand(Commands& commands);
void AddImportCommand(Commands& commands);
void AddReplayCommand(Commands& commands);
void AddManifestCommand(Commands& commands);
void AddDataCommands(Commands& commands);
void AddBenchCommand(Commands& commands);
void AddDoctorCommand(Commands& commands);
// Adds version, help, man and completion. They also describe commands that are added later.
void AddAboutCommands(Commands& commands);

// Arguments and flags that several commands have.

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

// Prints the error, and returns `exit_code`.
int Refuse(int exit_code, absl::string_view message);

// For unsigned values, because CLI11 reads -1 as 2^64 - 1.
CLI::Validator WholeNumber();

}  // namespace weir
