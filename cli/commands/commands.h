#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/rpc/job_token.h"
#include "common/rpc/tls.h"
#include "proto/coordinator.pb.h"

namespace weir {

// The commands of a program, each with the function that runs it. A command's options lie in a struct that
// its Runner owns, so that they live as long as this object. Used by one thread.
class Commands {
 public:
  // Runs a command after its command line has been parsed without an error. Returns the program's exit code.
  using Runner = std::function<int()>;

  // Adds commands to `app`, which outlives this object. Help and reference list them in the order in which
  // they are added. `program`: the words after -- (CommandWords::program in up.h).
  Commands(CLI::App& app, std::optional<std::vector<std::string>> program)
      : app_(app), program_(std::move(program)) {}

  CLI::App& app() const { return app_; }

  // Adds a command. Its help ends with `examples`.
  CLI::App* Add(const char* name, const char* what, const char* examples);
  // Adds a name that one of several commands must follow. Callers add these commands to the result.
  CLI::App* AddGroup(const char* name, const char* what, const char* examples);
  // Every command but a group needs a runner.
  void OnRun(const CLI::App* command, Runner run);
  // OnRun() for a command that may have a program after --, which becomes `program` now.
  void OnRunWithProgram(const CLI::App* command, std::vector<std::string>* program, Runner run);

  // Runs the command that was on the command line. Returns the exit code.
  int Run() const;

 private:
  CLI::App& app_;
  const std::optional<std::vector<std::string>> program_;
  std::vector<std::pair<const CLI::App*, Runner>> runners_;
};

// Each of these functions adds a command with its flags, its help and its runner.
void AddUpCommand(Commands& commands);
void AddRunCommand(Commands& commands);
void AddSlurmCommands(Commands& commands);
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
void AddPredictCommands(Commands& commands);
void AddHostAgentCommand(Commands& commands);
// Adds version, help, man and completion. They also describe commands that are added later.
void AddAboutCommands(Commands& commands);

// Arguments and flags that several commands have.

// A word or a flag whose value is called `type` in the help. Its default is not told.
template <typename T>
CLI::Option* AddNamed(CLI::App* command, const char* name, T* value, const char* type,
                      const std::string& what) {
  return command->add_option(name, *value, what)->type_name(type);
}

// A whole number from 1 to `most`. Its default is told.
template <typename T>
void AddCount(CLI::App* command, const char* name, T* count, int most, const std::string& what) {
  command->add_option(name, *count, what)->check(CLI::Range(1, most))->capture_default_str();
}

// A flag that may be given again; its help says so.
CLI::Option* AddRepeated(CLI::App* command, const char* name, std::vector<std::string>* values,
                         const char* type, const std::string& what);

// For commands that take a program after --.
inline constexpr const char* kProgramIsMissing = "after -- comes a program, with its arguments";

// The job config, which is required.
void AddConfigFile(CLI::App* command, std::string* config);

void AddOverrides(CLI::App* command, std::vector<std::string>* overrides);

// A checkpoint or a folder of them, which is required; `what` is its help.
void AddCheckpoint(CLI::App* command, std::string* path, const char* what);
inline constexpr const char* kOneCheckpoint =
    "A checkpoint, or a folder of them, whose newest it is (DIR/best: the best)";

// For unsigned values, because CLI11 reads -1 as 2^64 - 1.
CLI::Validator WholeNumber();

// The flags with which commands name a running cluster. At most one of `cluster` and `address` is given;
// without both, TF_CONFIG names the cluster.
struct ClusterFlags {
  std::string cluster;     // a file, or "dns:..."
  std::string address;     // of ps:0
  std::string token_file;  // "": the job has no token
  TlsFiles tls;            // none named: the job has no TLS
};

// Returns the options that say where ps:0 is.
std::vector<CLI::Option*> AddCluster(CLI::App* command, ClusterFlags* flags);

// Steps of several commands. Functions that return an exit code print the error first.

// Prints the error, and returns `exit_code`.
int Refuse(int exit_code, absl::string_view message);
// Prints the result of a command, and returns kExitOk.
int Print(absl::string_view text);

struct RunningJob {
  std::string address;  // of ps:0, "host:port"
  JobToken token;
  std::shared_ptr<const Tls> tls;  // null: the job has no TLS
  v1::ClusterStatus status;
};

// Asks ps:0 for the job's status, and sets `job`. If nothing answers, may connect to ps:0 once more to find
// out why. Returns the exit code. 64: the command line gives no valid address. 78: the cluster that it names
// has no valid address, a file cannot be read, or the answer is not that of the job's ps:0. 138: nothing
// answers.
int AskJob(const ClusterFlags& flags, RunningJob* job);

// Opens the checkpoint that a path of the command line means, and sets `folder` to its folder. Warns about
// newer checkpoints that are damaged and were passed over. `found`: the checkpoint, as ResolveCheckpoint()
// and the like return it.
absl::StatusOr<CheckpointReader> OpenCheckpoint(const absl::StatusOr<FoundCheckpoint>& found,
                                                std::string* folder);
absl::StatusOr<CheckpointReader> OpenCheckpoint(const std::string& path, std::string* folder);

// Refuses a command that cannot read or write a checkpoint.
int RefuseCheckpoint(const absl::Status& status);

}  // namespace weir
