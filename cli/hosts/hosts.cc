#include "cli/hosts/hosts.h"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/report/format.h"
#include "common/base/status_macros.h"
#include "common/system/subprocess.h"
#include "common/system/unique_fd.h"

namespace weir {
namespace {

namespace fs = std::filesystem;
using std::chrono::steady_clock;

constexpr auto kHelloLimit = std::chrono::seconds(15);
constexpr auto kReadyLimit = std::chrono::seconds(10);
constexpr auto kCopyLimit = std::chrono::minutes(10);
// A signal is noticed after this time.
constexpr auto kSlice = std::chrono::milliseconds(100);
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

}  // namespace

absl::StatusOr<std::unique_ptr<Hosts>> Hosts::Open(Options options) {
  std::unique_ptr<Hosts> hosts(new Hosts(std::move(options)));
  const size_t count = hosts->options_.hosts.size();
  hosts->connections_.resize(count);
  hosts->addresses_.resize(count);
  // All at once; then the waits overlap.
  WEIR_RETURN_IF_ERROR(hosts->ForEach([&](int host) { return hosts->Connect(host); }));
  WEIR_RETURN_IF_ERROR(hosts->ForEach([&, by = steady_clock::now() + kHelloLimit](int host) {
    return hosts->Await(by, [&](auto until) { return hosts->connections_[host]->AwaitHello(until); });
  }));
  WEIR_RETURN_IF_ERROR(hosts->ChooseAddresses());
  if (hosts->options_.copy) WEIR_RETURN_IF_ERROR(hosts->Copy());
  for (size_t host = 0; host < count; ++host) {
    hosts->connections_[host]->Prepare(hosts->options_.needs(static_cast<int>(host)));
  }
  WEIR_RETURN_IF_ERROR(hosts->ForEach([&, by = steady_clock::now() + kReadyLimit](int host) {
    return hosts->Await(by, [&](auto until) { return hosts->connections_[host]->AwaitReady(until); });
  }));
  return hosts;
}

Hosts::~Hosts() {
  for (const auto& connection : connections_) {
    if (connection != nullptr) connection->Close();
  }
}

absl::Status Hosts::Await(steady_clock::time_point end,
                          const std::function<absl::Status(steady_clock::time_point until)>& wait) {
  while (true) {
    Beat();
    const absl::Status status = wait(std::min(end, steady_clock::now() + kSlice));
    if (!absl::IsDeadlineExceeded(status) || steady_clock::now() >= end) return status;
    pollfd stop = {options_.stop_fd, POLLIN, 0};
    if (poll(&stop, 1, 0) > 0) return absl::CancelledError("ended while it waited for hosts");
  }
}

absl::Status Hosts::ForEach(const std::function<absl::Status(int host)>& check) {
  std::string errors;
  for (size_t host = 0; host < options_.hosts.size(); ++host) {
    const absl::Status status = check(static_cast<int>(host));
    if (absl::IsCancelled(status)) return status;
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
      Await(steady_clock::now() + kHelloLimit, [&](auto until) { return now.AwaitHello(until); }));
  now.Prepare(options_.needs(host));
  return Await(steady_clock::now() + kReadyLimit, [&](auto until) { return now.AwaitReady(until); });
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

// Packs the folder and unpacks it on the hosts, each by a process of its own.
absl::Status Hosts::Copy() {
  struct Work {
    std::string output;  // until the process has ended, of its thread
    std::unique_ptr<Subprocess> process;
  };
  const auto start = [](Subprocess::Options options, Work* work) -> absl::Status {
    options.on_line = [work](absl::string_view line) { absl::StrAppend(&work->output, line, "; "); };
    WEIR_ASSIGN_OR_RETURN(work->process, Subprocess::Start(std::move(options)));
    return absl::OkStatus();
  };
  const auto end = steady_clock::now() + kCopyLimit;
  const auto await = [&](Work& work, absl::string_view what) -> absl::Status {
    std::optional<ProcessExit> exit;
    const absl::Status status = Await(end, [&](auto until) {
      exit = work.process->Wait(until);
      return exit.has_value() ? absl::OkStatus() : absl::DeadlineExceededError("");
    });
    if (absl::IsCancelled(status) || (exit.has_value() && exit->ok())) return status;
    work.process.reset();  // from here on no thread writes to the output
    return absl::FailedPreconditionError(absl::StrCat(
        what, ": ", exit.has_value() ? exit->ToString() : "not done in ten minutes", ": ", work.output));
  };

  WEIR_RETURN_IF_ERROR(CheckSize());
  const std::string archive = absl::StrCat(options_.scratch, "/copy.tar.gz");
  const absl::Cleanup remove = [&archive] {
    std::error_code ignored;
    fs::remove(archive, ignored);
  };
  Work packing;
  Subprocess::Options pack;
  pack.args = {"tar", "-czf", archive, "--exclude=*/.*", "."};
  WEIR_RETURN_IF_ERROR(start(std::move(pack), &packing));
  WEIR_RETURN_IF_ERROR(await(packing, "--copy: tar"));
  std::vector<Work> all(options_.hosts.size());
  WEIR_RETURN_IF_ERROR(ForEach([&](int i) -> absl::Status {
    if (options_.hosts[i].is_here()) return absl::OkStatus();
    const UniqueFd packed(open(archive.c_str(), O_RDONLY | O_CLOEXEC));
    Subprocess::Options unpack;
    unpack.input = packed.get();
    unpack.args = CommandOnHost(options_.hosts[i], options_.access.ssh,
                                absl::StrCat("d=", ShellQuoted(options_.access.directory),
                                             R"(; mkdir -p "$d" && tar -xzf - -C "$d")"));
    return start(std::move(unpack), &all[i]);
  }));
  return ForEach([&](int i) -> absl::Status {
    if (all[i].process == nullptr) return absl::OkStatus();
    const absl::Status copied = await(
        all[i], absl::StrCat("host ", options_.hosts[i].name, ": --copy into ", options_.access.directory));
    if (copied.ok() || absl::IsCancelled(copied)) return copied;
    return absl::FailedPreconditionError(
        absl::StrCat(copied.message(), "a different folder there: --dir=DIR"));
  });
}

}  // namespace weir
