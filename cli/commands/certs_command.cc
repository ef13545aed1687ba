// `weir certs`: makes certificates for TLS, and says what one allows.
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/certs/certificate_files.h"
#include "cli/commands/commands.h"
#include "cli/report/format.h"
#include "common/config/cluster_spec.h"
#include "common/program/exit_codes.h"
#include "common/rpc/tls.h"

namespace weir {
namespace {

struct CertsInitOptions {
  std::string directory;
  std::string spec;          // as --cluster
  std::string job = "weir";  // the job's name in the certificates
  int days = 365;
};

std::vector<Identity> IdentitiesOf(const ClusterSpec& cluster, const std::string& job) {
  std::vector<Identity> identities;
  for (const auto& [type, tasks] : cluster.jobs()) {
    for (const auto& [index, address] : tasks) {
      const std::optional<uint32_t> rank = cluster.WorkerRank({type, index});
      if (type == "ps") identities.push_back({job, Role::kServer, index});
      if (rank.has_value()) identities.push_back({job, Role::kWorker, *rank});
    }
  }
  identities.push_back({job, Role::kReader, 0});
  identities.push_back({job, Role::kAdmin, 0});
  return identities;
}

absl::string_view MayDo(Role role) {
  switch (role) {
    case Role::kWorker:
      return "joins as the worker of this rank, pulls and pushes as itself";
    case Role::kServer:
      return "serves the shard of this index, and speaks with the other servers";
    case Role::kReader:
      return "joins as a reader (an evaluator) and pulls; asks for the status";
    case Role::kAdmin:
      return "takes checkpoints; asks for the status";
  }
  return "";
}

int RunCertsInit(const CertsInitOptions& options) {
  const absl::StatusOr<ClusterSpec> cluster = ReadClusterSpec(options.spec);
  if (!cluster.ok()) return Refuse(kExitConfig, cluster.status().message());
  const std::vector<Identity> identities = IdentitiesOf(*cluster, options.job);
  const absl::Status written = WriteCertificates(options.directory, options.job, identities, absl::Now(),
                                                 absl::Hours(24) * options.days);
  if (!written.ok()) return Refuse(kExitConfig, written.message());
  std::printf("%s: a CA, and certificates of job %s for %zu identities, valid for %d days\n",
              Printable(options.directory).c_str(), options.job.c_str(), identities.size(), options.days);
  std::printf(
      "give each task its own: --tls_ca=%s/ca.pem --tls_certificate=%s/ps-0.pem --tls_key=%s/ps-0.key\n",
      options.directory.c_str(), options.directory.c_str(), options.directory.c_str());
  std::printf("ca.key makes further certificates; keep it away from the tasks\n");
  return kExitOk;
}

int RunCertsCheck(const std::string& path) {
  const absl::StatusOr<CertificateInfo> info = ReadCertificate(path);
  if (!info.ok()) return Refuse(kExitConfig, info.status().message());
  const absl::Time now = absl::Now();
  const auto date = [](absl::Time time) {
    return absl::FormatTime("%Y-%m-%d %H:%M UTC", time, absl::UTCTimeZone());
  };
  std::printf("identity  %s (%s)\n", info->identity.ToUri().c_str(), info->identity.ToDns().c_str());
  std::printf("allows    %s\n", std::string(MayDo(info->identity.role)).c_str());
  std::printf("valid     from %s to %s\n", date(info->not_before).c_str(), date(info->not_after).c_str());
  if (now < info->not_before) return Refuse(kExitConfig, absl::StrCat(path, ": it is not valid yet"));
  if (now >= info->not_after) return Refuse(kExitConfig, absl::StrCat(path, ": it has expired"));
  std::printf("ends in   %lld days\n", static_cast<long long>((info->not_after - now) / absl::Hours(24)));
  return kExitOk;
}

constexpr const char* kCertsExamples = R"(Examples:
  weir certs init certs --spec=configs/cluster_2ps_2workers.json
  weir certs check certs/worker-0.pem)";

}  // namespace

void AddCertsCommands(Commands& commands) {
  CLI::App* group =
      commands.AddGroup("certs", "Make certificates for TLS, or show what one allows", kCertsExamples);

  const auto options = std::make_shared<CertsInitOptions>();
  CLI::App* init = group->add_subcommand(
      "init",
      "Make a development CA, and certificates and keys for a cluster's tasks, a reader and an admin");
  AddNamed(init, "directory", &options->directory, "DIR", "A new folder for them")->required();
  AddNamed(init, "--spec", &options->spec, "FILE",
           "Cluster spec or a TF_CONFIG, or dns:ps=NAME:COUNT,worker=NAME:COUNT")
      ->required();
  AddNamed(init, "--job", &options->job, "NAME", "The job's name in the certificates")->capture_default_str();
  AddCount(init, "--days", &options->days, 3650, "For how long they are valid");
  commands.OnRun(init, [options] { return RunCertsInit(*options); });

  const auto certificate = std::make_shared<std::string>();
  CLI::App* check =
      group->add_subcommand("check", "Show whose certificate it is, what it allows, and when it ends");
  AddNamed(check, "certificate", certificate.get(), "FILE", "The certificate (PEM)")->required();
  commands.OnRun(check, [certificate] { return RunCertsCheck(*certificate); });
}

}  // namespace weir
