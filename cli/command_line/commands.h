#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"

namespace weir {

// The commands of a program, each with what runs it. A command's options lie in a struct that its Runner
// owns: they live as long as this object. Used by one thread.
class Commands {
 public:
  // Runs a command whose command line is good and has been read. Returns the program's exit code.
  using Runner = std::function<int()>;

  // Adds commands to `app`, which outlives this object. Help and reference list them in the order in which
  // they are added.
  explicit Commands(CLI::App& app) : app_(app) {}

  CLI::App& app() const { return app_; }

  // Adds a command. Its help ends with `examples`.
  CLI::App* Add(const char* name, const char* what, const char* examples);
  // Adds a name for several commands, of which one must follow it. Callers add them to the result.
  CLI::App* AddGroup(const char* name, const char* what, const char* examples);
  // Every command but a group needs a runner.
  void OnRun(const CLI::App* command, Runner run);

  // Runs the command that was on the command line. Returns the exit code.
  int Run() const;

 private:
  CLI::App& app_;
  std::vector<std::pair<const CLI::App*, Runner>> runners_;
};

}  // namespace weir
