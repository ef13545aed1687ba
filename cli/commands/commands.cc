#include "cli/commands/commands.h"

#include <cstdio>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cli/commands/grpc_status_client.h"
#include "cli/report/format.h"
#include "common/config/address.h"
#include "common/config/cluster_spec.h"
#include "common/object_store/object_file_system.h"
#include "common/program/command_line.h"
#include "common/program/exit_codes.h"

namespace weir {
namespace {

constexpr absl::Duration kStatusDeadline = absl::Seconds(5);

absl::StatusOr<std::string> AddressIn(const absl::StatusOr<ClusterSpec>& spec, absl::string_view source) {
  if (!spec.ok()) return absl::FailedPreconditionError(spec.status().message());
  const auto addresses = spec->ps_addresses();
  if (addresses.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(source, ": cluster.ps: lists no server; ps:0 is the one to ask"));
  }
  return addresses[0];
}

// No valid address: InvalidArgument in the command line, FailedPrecondition in the cluster or TF_CONFIG.
absl::StatusOr<std::string> CoordinatorAddress(const ClusterFlags& flags) {
  if (!flags.address.empty()) {
    const auto parsed = ParseAddress(flags.address);
    if (parsed.ok()) return flags.address;
    return absl::InvalidArgumentError(absl::StrCat("--address: ", parsed.status().message()));
  }
  if (!flags.cluster.empty()) return AddressIn(ReadClusterSpec(flags.cluster), flags.cluster);
  if (const char* tf_config = std::getenv("TF_CONFIG")) {
    return AddressIn(ParseClusterSpec(tf_config, "TF_CONFIG"), "TF_CONFIG");
  }
  return absl::InvalidArgumentError(
      "which cluster? Name it with --cluster=FILE, --address=HOST:PORT (of ps:0) or TF_CONFIG");
}

int RefuseNoAnswer(const std::string& address, const absl::Status& status, const Tls* tls) {
  if (absl::IsUnimplemented(status)) {
    return Refuse(kExitConfig, absl::StrCat("what answers at ", Printable(address),
                                            " has no coordinator; ps:0 alone has one, is this its address?"));
  }
  // gRPC's words.
  if (absl::StrContains(status.message(), "http1.x")) {
    return Refuse(kExitConfig,
                  absl::StrCat("what answers at ", Printable(address),
                               " speaks HTTP, as the dashboard does; give the address at which ps:0 "
                               "listens, which its log has"));
  }
  const std::string said = Printable(status.message()), where = absl::StrCat("ps:0 at ", Printable(address));
  if (absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status)) {
    return Refuse(kExitConfig, absl::StrCat(where, ": ", said));
  }
  if (const absl::Status cause = ProbeTls(address, /*server=*/0, tls); !cause.ok()) {
    return Refuse(kExitConfig, Printable(cause.message()));
  }
  return Refuse(kExitPeerLost,
                absl::StrCat(where, " does not answer (", said,
                             "); is the job running, is this its address, or does ps:0 stand still?"));
}

constexpr int kExitDamaged = 1;

}  // namespace

CLI::App* Commands::Add(const char* name, const char* what, const char* examples) {
  CLI::App* command = app_.add_subcommand(name, what);
  command->footer(examples);
  return command;
}

CLI::App* Commands::AddGroup(const char* name, const char* what, const char* examples) {
  CLI::App* group = Add(name, what, examples);
  group->require_subcommand(1);
  return group;
}

void Commands::OnRun(const CLI::App* command, Runner run) { runners_.emplace_back(command, std::move(run)); }

void Commands::OnRunWithProgram(const CLI::App* command, std::vector<std::string>* program, Runner run) {
  if (program_.has_value()) *program = *program_;
  OnRun(command, [this, command, run = std::move(run)] {
    const bool is_missing = program_.has_value() && program_->empty();
    return is_missing ? BadCommandLine(*command, kProgramIsMissing) : run();
  });
}

int Commands::Run() const {
  for (const auto& [command, run] : runners_) {
    if (command->parsed()) return run();
  }
  std::abort();  // a command has no runner
}

void AddConfigFile(CLI::App* command, std::string* config) {
  AddNamed(command, "config", config, "FILE", "Job config (JSON with comments)")->required();
}

CLI::Option* AddRepeated(CLI::App* command, const char* name, std::vector<std::string>* values,
                         const char* type, const std::string& what) {
  return command->add_option(name, *values, what + "; may be given again")
      ->type_name(type)
      ->expected(1)
      ->allow_extra_args(false)  // or it would take the words that follow, such as the config
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void AddOverrides(CLI::App* command, std::vector<std::string>* overrides) {
  AddRepeated(command, "--set", overrides, "FIELD=VALUE", "Override a field of the config");
}

std::vector<CLI::Option*> AddCluster(CLI::App* command, ClusterFlags* flags) {
  CLI::Option* cluster = AddNamed(command, "--cluster", &flags->cluster, "FILE",
                                  "Cluster spec or a TF_CONFIG, or dns:ps=NAME:COUNT for pods");
  CLI::Option* address =
      AddNamed(command, "--address", &flags->address, "HOST:PORT", "Address of ps:0")->excludes(cluster);
  FileOrVariable(
      command->add_option("--token_file", flags->token_file, "The job's token, if its servers have one"),
      "WEIR_TOKEN_FILE");
  AddTlsFlags(command, &flags->tls);
  return {cluster, address};
}

void AddCheckpoint(CLI::App* command, std::string* path, const char* what) {
  AddNamed(command, "checkpoint", path, "DIR", what)->required();
}

CLI::Validator WholeNumber() {
  return CLI::Validator(
      [](const std::string& text) {
        const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
        return digits ? "" : "must be a whole number from 0 to 2^64 - 1, got '" + text + "'";
      },
      "");
}

int Refuse(int exit_code, absl::string_view message) {
  std::fprintf(stderr, "error: %s\n", std::string(message).c_str());
  return exit_code;
}

int Print(absl::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
  return kExitOk;
}

int AskJob(const ClusterFlags& flags, RunningJob* job) {
  absl::StatusOr<std::string> address = CoordinatorAddress(flags);
  if (!address.ok()) {
    return Refuse(absl::IsInvalidArgument(address.status()) ? kExitUsage : kExitConfig,
                  Printable(address.status().message()));
  }
  absl::StatusOr<JobToken> token = JobToken::ReadIfGiven(flags.token_file);
  absl::StatusOr<std::shared_ptr<const Tls>> tls = Tls::ReadIfGiven(flags.tls);
  if (!token.ok() || !tls.ok()) {
    return Refuse(kExitConfig, Printable((token.ok() ? tls.status() : token.status()).message()));
  }
  absl::StatusOr<v1::ClusterStatus> status = StatusClient(*address, *token, *tls).Get(kStatusDeadline);
  if (!status.ok()) return RefuseNoAnswer(*address, status.status(), tls->get());
  *job = {*std::move(address), *std::move(token), *std::move(tls), *std::move(status)};
  return kExitOk;
}

absl::StatusOr<CheckpointReader> OpenCheckpoint(const absl::StatusOr<FoundCheckpoint>& found,
                                                std::string* folder) {
  if (!found.ok()) return found.status();
  for (const std::string& refused : found->refused) {
    std::fprintf(stderr, "warning: passed over: %s\n", Printable(refused).c_str());
  }
  *folder = found->folder;
  return CheckpointReader::Open(AnyStorage(), found->folder);
}

absl::StatusOr<CheckpointReader> OpenCheckpoint(const std::string& path, std::string* folder) {
  return OpenCheckpoint(ResolveCheckpoint(AnyStorage(), path), folder);
}

int RefuseCheckpoint(const absl::Status& status) {
  const int exit_code = absl::IsDataLoss(status)            ? kExitDamaged
                        : absl::IsResourceExhausted(status) ? kExitStorage
                        : absl::IsUnavailable(status)       ? kExitPeerLost
                                                            : kExitConfig;
  return Refuse(exit_code, Printable(status.message()));
}

}  // namespace weir
