#include "client/task.h"

#include <cstdlib>
#include <mutex>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/config/cluster_spec.h"
#include "common/config/job_config.h"
#include "common/config/json_document.h"
#include "common/config/written_text.h"
#include "common/rpc/identity.h"
#include "common/rpc/job_token.h"
#include "common/rpc/tls.h"
#include "common/telemetry/grpc_process.h"
#include "common/telemetry/logging.h"

namespace weir {
absl::StatusOr<std::vector<std::string>> OverridesOfEnvironment() {
  std::vector<std::string> overrides;
  const std::string text = EnvironmentValue("WEIR_SET");
  if (text.empty()) return overrides;
  WEIR_ASSIGN_OR_RETURN(const JsonValue list, ParseJson(text, "WEIR_SET"));
  const auto refuse = [](const JsonValue& value) {
    return absl::InvalidArgumentError(absl::StrCat(
        value.place.ToString(), ": must be a list of strings, \"field=value\", got ", value.Describe()));
  };
  if (list.kind != JsonValue::Kind::kArray) return refuse(list);
  for (const JsonValue& element : list.elements) {
    if (element.kind != JsonValue::Kind::kString) return refuse(element);
    overrides.push_back(element.text);
  }
  return overrides;
}

absl::Status SetTask(const TaskEnvironment* environment, const std::string& token_file, const TlsFiles& tls,
                     ClientOptions* options) {
  WEIR_ASSIGN_OR_RETURN(options->token, JobToken::ReadIfGiven(token_file));
  WEIR_ASSIGN_OR_RETURN(options->tls, Tls::ReadIfGiven(tls));
  if (environment != nullptr) {
    options->task = environment->task.ToString();
    options->rank = environment->cluster.WorkerRank(environment->task).value_or(0);
    options->servers = environment->cluster.ps_addresses();
  }
  if (options->tls == nullptr) return absl::OkStatus();
  if (environment == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("TLS (", kTlsCertificateVariable,
                     ") is for the tasks of a cluster; without a cluster spec the job runs in this process"));
  }
  WEIR_RETURN_IF_ERROR(options->tls->CheckIs(options->reader ? Role::kReader : Role::kWorker, options->rank));
  WarnIfExpiring(*options->tls, absl::Now());
  return absl::OkStatus();
}

absl::StatusOr<ClientOptions> OptionsOfTask(const TaskFlags& flags) {
  WEIR_ASSIGN_OR_RETURN(const std::string cluster, ExpandedPath(flags.cluster));
  WEIR_ASSIGN_OR_RETURN(const std::optional<TaskEnvironment> environment,
                        FromEnvironment(std::getenv("TF_CONFIG"), cluster, flags.task, Pod::Current()));
  if (!environment.has_value()) {
    return absl::InvalidArgumentError(
        "there is no cluster: start this program with `weir up JOB -- PROGRAM`, which starts servers, too, "
        "or name the cluster in TF_CONFIG");
  }
  const std::string task = environment->task.ToString();
  if (environment->task.type == "ps") {
    return absl::InvalidArgumentError(
        absl::StrCat("this program trains, but its task is ", task, "; start `ps_server` for it"));
  }
  static std::once_flag once;
  std::call_once(once, [&] {
    InitLogging({LogFormat::kText, LogLevel::kInfo, task});
    PrepareGrpc();
  });
  std::vector<std::string> overrides = flags.set;
  WEIR_ASSIGN_OR_RETURN(const std::vector<std::string> more, OverridesOfEnvironment());
  overrides.insert(overrides.end(), more.begin(), more.end());
  WEIR_ASSIGN_OR_RETURN(const std::string config, ExpandedPath(flags.config));
  WEIR_ASSIGN_OR_RETURN(const v1::JobConfig job, LoadJobConfig(config, overrides));
  WEIR_ASSIGN_OR_RETURN(
      const std::string token_file,
      ExpandedPath(flags.token_file.empty() ? EnvironmentValue("WEIR_TOKEN_FILE") : flags.token_file));
  TlsFiles tls = TlsFilesOfEnvironment();
  for (std::string* file : {&tls.ca, &tls.certificate, &tls.key}) {
    WEIR_ASSIGN_OR_RETURN(*file, ExpandedPath(*file));
  }
  ClientOptions options;
  options.reader = environment->task.type == "evaluator";
  options.job_config = job.SerializeAsString();
  WEIR_RETURN_IF_ERROR(SetTask(&*environment, token_file, tls, &options));
  return options;
}

}  // namespace weir
