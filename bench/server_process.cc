#include "bench/server_process.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace weir::bench {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kStartLimit{60};

std::string program_path;

// Looks in a build tree and in a bundle: Weir's programs lie in one of them.
absl::StatusOr<std::string> FindProgram() {
  if (!program_path.empty()) return program_path;
  std::error_code error;
  const fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const fs::path& path : {folder / "ps_server", folder.parent_path() / "ps_server" / "ps_server"}) {
    if (fs::is_regular_file(path, error)) return path.string();
  }
  return absl::NotFoundError(
      absl::StrCat("ps_server is not beside ", folder.string(), "; say where with --ps_server"));
}

// A folder that is needed only until the server listens; afterwards the log is a file without a name.
class Folder {
 public:
  Folder() {
    std::error_code error;
    path_ = (fs::temp_directory_path(error) / "weir-bench-XXXXXX").string();
    if (mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  ~Folder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

void ServerProcess::SetProgram(const std::string& path) { program_path = path; }

absl::StatusOr<std::unique_ptr<ServerProcess>> ServerProcess::Start(const std::string& job, int index,
                                                                    const std::string& host,
                                                                    const TlsFiles& tls) {
  WEIR_ASSIGN_OR_RETURN(const std::string program, FindProgram());
  const Folder folder;
  if (folder.path().empty()) return absl::ErrnoToStatus(errno, "mkdtemp");
  const std::string config = folder.path() + "/job.json", log = folder.path() + "/log",
                    port_file = folder.path() + "/port";
  std::ofstream(config) << job;
  std::unique_ptr<ServerProcess> server(new ServerProcess());
  server->log_ = UniqueFd(open(log.c_str(), O_RDONLY | O_CREAT | O_CLOEXEC, 0600));
  if (!server->log_.valid()) return absl::ErrnoToStatus(errno, log);
  Subprocess::Options options;
  options.args = {program, "--config=" + config, "--port_file=" + port_file, "--bind=" + host};
  if (!tls.ca.empty()) {
    for (std::string& flag : FlagsOf(tls)) options.args.push_back(std::move(flag));
  } else if (host != "127.0.0.1") {
    // The benchmark's user has said where the server may listen.
    options.args.push_back("--insecure_plaintext");
  }
  options.environment["TF_CONFIG"] =
      absl::StrCat(R"({"cluster":{"ps":[")", host, R"(:0"]},"task":{"type":"ps","index":)", index, "}}");
  options.output_file = log;
  WEIR_ASSIGN_OR_RETURN(server->process_, Subprocess::Start(std::move(options)));
  const auto deadline = std::chrono::steady_clock::now() + kStartLimit;
  for (std::string port; server->address_.empty();) {
    std::ifstream file(port_file);
    if (std::getline(file, port)) {
      server->address_ = absl::StrCat(host, ":", port);
    } else if (server->Wait(std::chrono::steady_clock::now() + std::chrono::milliseconds(2)).has_value() ||
               std::chrono::steady_clock::now() > deadline) {
      return absl::UnavailableError(absl::StrCat("ps_server did not start; its log:\n", server->Log()));
    }
  }
  return server;
}

std::string ServerProcess::Log() const {
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = pread(log_.get(), buffer, sizeof buffer, static_cast<off_t>(text.size()))) > 0;) {
    text.append(buffer, static_cast<size_t>(n));
  }
  return text;
}

}  // namespace weir::bench
