#include "cli/installation/installation.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/program/exit_codes.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

// The folders of this program: first that of the path that it was called with (a link into the build tree
// lies in the repository), then that of its real path.
std::vector<fs::path> ProgramFolders() {
  std::vector<fs::path> folders;
  std::error_code error;
  std::ifstream command_line("/proc/self/cmdline", std::ios::binary);
  std::string called;
  if (std::getline(command_line, called, '\0') && called.find('/') != std::string::npos) {
    folders.push_back(fs::absolute(called, error).lexically_normal().parent_path());
  }
  const fs::path real = fs::read_symlink("/proc/self/exe", error);
  if (!error) folders.push_back(real.parent_path());
  return folders;
}

bool IsProgram(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
}

}  // namespace

absl::StatusOr<Binaries> FindBinaries(const std::string& bin_dir, bool with_worker) {
  std::vector<Binaries> places;
  if (!bin_dir.empty()) {
    places.push_back({fs::path(bin_dir) / "ps_server", fs::path(bin_dir) / "worker"});
  } else {
    for (const fs::path& folder : ProgramFolders()) {
      places.push_back({folder / "ps_server", folder / "worker"});
      const fs::path build = folder.parent_path();
      places.push_back({build / "ps_server" / "ps_server", build / "worker" / "worker"});
    }
  }
  std::string looked_at;
  for (Binaries& place : places) {
    if (!with_worker) place.worker.clear();
    if (IsProgram(place.ps_server) && (!with_worker || IsProgram(place.worker))) return place;
    absl::StrAppend(&looked_at, "\n  ", place.ps_server, with_worker ? " and " : "", place.worker);
  }
  return absl::NotFoundError(absl::StrCat(
      with_worker ? "the programs ps_server and worker are" : "the program ps_server is",
      " not there; build all of Weir, or say with --bin_dir where to look; looked for", looked_at));
}

absl::StatusOr<std::string> FindProgram(const std::string& package, const std::string& name) {
  std::string looked_at;
  for (const fs::path& folder : ProgramFolders()) {
    for (const fs::path& place : {folder / name, folder.parent_path() / package / name}) {
      if (IsProgram(place)) return place.string();
      absl::StrAppend(&looked_at, "\n  ", place.string());
    }
  }
  return absl::NotFoundError(
      absl::StrCat("the program ", name, " is not there; `./dev build //", package, ":", name,
                   "` makes it, or else a bundle has it beside `weir`; looked for", looked_at));
}

absl::Status CheckCanRun(const std::string& name) {
  if (absl::StrContains(name, '/')) {
    if (IsProgram(name)) return absl::OkStatus();
    std::error_code error;
    return absl::NotFoundError(
        absl::StrCat("cannot run ", name, ": ",
                     fs::exists(name, error) ? "it is no file that may be executed; for a script, name its "
                                               "interpreter before it (`-- python train.py`)"
                                             : "there is no such file"));
  }
  const char* const path = std::getenv("PATH");
  // What execvp() does without PATH.
  const std::string folders = path != nullptr ? path : "/bin:/usr/bin";
  for (const absl::string_view folder : absl::StrSplit(folders, ':')) {
    if (IsProgram(fs::path(folder.empty() ? "." : std::string(folder)) / name)) return absl::OkStatus();
  }
  std::error_code error;
  return absl::NotFoundError(
      absl::StrCat("cannot run ", name, ": no folder of PATH has such a program; ",
                   fs::exists(name, error)
                       ? "there is a file of this name here: for a script, name its interpreter before it "
                         "(`-- python train.py`), and for a program its folder (`./program`)"
                       : "is it misspelt?",
                   " PATH is ", folders));
}

absl::StatusOr<std::string> FindShipped(const std::string& name) {
  std::vector<fs::path> starts = ProgramFolders();
  std::error_code error;
  starts.push_back(fs::current_path(error));
  for (const fs::path& start : starts) {
    for (fs::path folder = start; folder.has_relative_path(); folder = folder.parent_path()) {
      if (fs::is_regular_file(folder / name, error)) return (folder / name).string();
    }
  }
  return absl::NotFoundError(absl::StrCat(
      name, " is in no folder above this program or the working folder; name one with --config"));
}

std::vector<std::string> ConfigFlags(const std::string& config, const std::vector<std::string>& overrides) {
  std::vector<std::string> flags = {absl::StrCat("--config=", config)};
  for (const std::string& override : overrides) flags.insert(flags.end(), {"--set", override});
  return flags;
}

absl::StatusOr<CommandResult> RunOnConfig(const std::string& program, const std::string& flag,
                                          const std::string& config,
                                          const std::vector<std::string>& overrides) {
  Subprocess::Options options;
  options.args = ConfigFlags(config, overrides);
  options.args.insert(options.args.begin(), {program, flag});
  return RunCommand(std::move(options), std::chrono::minutes(1));
}

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
