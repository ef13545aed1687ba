#include "cli/hosts/hosts.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/report/format.h"
#include "common/base/status_macros.h"
#include "common/system/subprocess.h"

namespace weir {
namespace {

namespace fs = std::filesystem;
using std::chrono::steady_clock;

constexpr auto kHelloLimit = std::chrono::seconds(15);
constexpr auto kReadyLimit = std::chrono::seconds(10);
constexpr auto kCopyLimit = std::chrono::minutes(10);
constexpr uint64_t kMostCopied = uint64_t{1} << 30;

// Of the working folder, without what is hidden.
absl::Status CheckSize() {
  uint64_t bytes = 0;
  std::error_code error;
  for (auto entry = fs::recursive_directory_iterator(".", error); entry != fs::recursive_directory_iterator();
       entry.increment(error)) {
    if (entry->path().filename().string()[0] == '.') {
      entry.disable_recursion_pending();
    } else if (entry->is_regular_file(error)) {
      bytes += entry->file_size(error);
    }
    if (bytes > kMostCopied) {
      return absl::InvalidArgumentError(
          absl::StrCat("--copy: the working folder has more than ", FormatBytes(kMostCopied),
                       " in files that are not hidden; start in the program's own folder, or copy it "
                       "yourself (rsync), without --copy"));
    }
  }
  return absl::OkStatus();
}

// Waits for a host, without leaving the others in silence.
absl::Status Await(Hosts& hosts, steady_clock::time_point end,
                   const std::function<absl::Status(steady_clock::time_point until)>& wait) {
  while (true) {
    hosts.Beat();
    const absl::Status status = wait(std::min(end, steady_clock::now() + std::chrono::seconds(1)));
    if (!absl::IsDeadlineExceeded(status) || steady_clock::now() >= end) return status;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Hosts>> Hosts::Open(Options options) {
  std::unique_ptr<Hosts> hosts(new Hosts(std::move(options)));
  const size_t count = hosts->options_.hosts.size();
  hosts->connections_.resize(count);
  hosts->addresses_.resize(count);
  // All at once; then the waits overlap.
  WEIR_RETURN_IF_ERROR(hosts->ForEach([&](int host) { return hosts->Connect(host); }));
  WEIR_RETURN_IF_ERROR(hosts->ForEach([&, by = steady_clock::now() + kHelloLimit](int host) {
    return Await(*hosts, by, [&](auto until) { return hosts->connections_[host]->AwaitHello(until); });
  }));
  WEIR_RETURN_IF_ERROR(hosts->ChooseAddresses());
  if (hosts->options_.copy) WEIR_RETURN_IF_ERROR(hosts->Copy());
  for (size_t host = 0; host < count; ++host) {
    hosts->connections_[host]->Prepare(hosts->options_.needs(static_cast<int>(host)));
  }
  WEIR_RETURN_IF_ERROR(hosts->ForEach([&, by = steady_clock::now() + kReadyLimit](int host) {
    return Await(*hosts, by, [&](auto until) { return hosts->connections_[host]->AwaitReady(until); });
  }));
  return hosts;
}

Hosts::~Hosts() {
  for (const auto& connection : connections_) {
    if (connection != nullptr) connection->Close();
  }
}

absl::Status Hosts::ForEach(const std::function<absl::Status(int host)>& check) {
  std::string errors;
  for (size_t host = 0; host < options_.hosts.size(); ++host) {
    const absl::Status status = check(static_cast<int>(host));
    if (!status.ok()) absl::StrAppend(&errors, errors.empty() ? "" : "\n", status.message());
  }
  return errors.empty() ? absl::OkStatus() : absl::FailedPreconditionError(errors);
}

absl::Status Hosts::Connect(int host) {
  HostConnection::Options connection = {options_.hosts[host], options_.access, options_.on_file};
  if (connection.host.is_here()) connection.access.directory = fs::current_path().string();
  WEIR_ASSIGN_OR_RETURN(connections_[host], HostConnection::Open(std::move(connection)));
  return absl::OkStatus();
}

absl::Status Hosts::Reconnect(int host) {
  // A connection that never was ready may still be trying.
  const HostConnection& before = *connections_[host];
  if (!before.is_lost() && !before.binaries().ps_server.empty()) return absl::OkStatus();
  WEIR_RETURN_IF_ERROR(Connect(host));
  HostConnection& now = *connections_[host];
  WEIR_RETURN_IF_ERROR(
      Await(*this, steady_clock::now() + kHelloLimit, [&](auto until) { return now.AwaitHello(until); }));
  now.Prepare(options_.needs(host));
  return Await(*this, steady_clock::now() + kReadyLimit, [&](auto until) { return now.AwaitReady(until); });
}

void Hosts::Beat() {
  for (const auto& connection : connections_) connection->Beat();
}

absl::Status Hosts::ChooseAddresses() {
  std::string ours = "127.0.0.1";
  for (const auto& connection : connections_) {
    if (!connection->our_address().empty()) ours = connection->our_address();
  }
  return ForEach([&](int i) {
    const Host& host = options_.hosts[i];
    addresses_[i] = !host.address.empty() ? host.address
                    : host.is_here()      ? ours
                                          : connections_[i]->its_address();
    const bool loopback = absl::StartsWith(addresses_[i], "127.") || addresses_[i] == "::1";
    if (!addresses_[i].empty() && !(loopback && options_.hosts.size() > 1)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "host ", host.name, ": its address is '", addresses_[i],
        "' here, at which the other hosts cannot reach it; write its own one into a file: ", host.name,
        " address=10.0.0.1 (--hosts=FILE)"));
  });
}

absl::Status Hosts::Copy() {
  WEIR_RETURN_IF_ERROR(CheckSize());
  const std::string archive = absl::StrCat(options_.scratch, "/copy.tar.gz");
  Subprocess::Options pack;
  pack.args = {"tar", "-czf", archive, "--exclude=*/.*", "."};
  WEIR_ASSIGN_OR_RETURN(const CommandResult packed, RunCommand(std::move(pack), kCopyLimit));
  std::error_code ignored;
  if (!packed.exit.ok()) {
    fs::remove(archive, ignored);
    return absl::FailedPreconditionError(
        absl::StrCat("--copy: tar: ", packed.exit.ToString(), ": ", packed.output));
  }
  struct Unpacking {
    std::string output;  // until the process has ended, of its thread
    std::unique_ptr<Subprocess> process;
  };
  std::vector<Unpacking> all(options_.hosts.size());
  WEIR_RETURN_IF_ERROR(ForEach([&](int i) -> absl::Status {
    if (options_.hosts[i].is_here()) return absl::OkStatus();
    Subprocess::Options unpack;
    const std::string& folder = options_.access.directory;
    unpack.args = WithInput(archive, CommandOnHost(options_.hosts[i], options_.access.ssh,
                                                   absl::StrCat("d=", ShellQuoted(folder),
                                                                R"(; mkdir -p "$d" && tar -xzf - -C "$d")")));
    unpack.on_line = [output = &all[i].output](absl::string_view line) {
      absl::StrAppend(output, line, "; ");
    };
    WEIR_ASSIGN_OR_RETURN(all[i].process, Subprocess::Start(std::move(unpack)));
    return absl::OkStatus();
  }));
  const auto end = steady_clock::now() + kCopyLimit;
  const absl::Status copied = ForEach([&](int i) -> absl::Status {
    if (all[i].process == nullptr) return absl::OkStatus();
    std::optional<ProcessExit> exit;
    while (!exit.has_value() && steady_clock::now() < end) {
      exit = all[i].process->Wait(steady_clock::now() + std::chrono::seconds(1));
      Beat();
    }
    if (exit.has_value() && exit->ok()) return absl::OkStatus();
    all[i].process.reset();
    return absl::FailedPreconditionError(
        absl::StrCat("host ", options_.hosts[i].name, ": --copy into ", options_.access.directory, ": ",
                     exit.has_value() ? exit->ToString() : "not done in ten minutes", ": ", all[i].output,
                     "a different folder there: --dir=DIR"));
  });
  fs::remove(archive, ignored);
  return copied;
}

}  // namespace weir
