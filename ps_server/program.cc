#include "ps_server/program.h"

#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/config/address.h"
#include "common/config/cluster_spec.h"
#include "common/config/job_config.h"
#include "common/net/tcp.h"
#include "common/program/command_line.h"
#include "common/program/exit_codes.h"
#include "common/protocol/job_failure.h"
#include "common/rpc/job_token.h"
#include "common/rpc/tls.h"
#include "common/system/file_system.h"
#include "common/system/process.h"
#include "common/telemetry/grpc_process.h"
#include "common/telemetry/logging.h"
#include "ps_server/process/replay.h"
#include "ps_server/process/server.h"

namespace weir {
namespace {

struct Flags {
  std::string config, replay, cluster, task, token_file,
      bind = "127.0.0.1", port_file, summary, log_format = "text", http_token_file, tensorboard_dir;
  TlsFiles tls;
  std::vector<std::string> set;
  bool insecure_plaintext = false, check = false;
  int http_port = -1, health_port = -1;
};

int Fail(int code, absl::string_view message) {
  LogError(message);
  return code;
}

// Prints the last weights' hash of a job that has ended, from its checkpoints and logs.
int Replay(const std::string& directory) {
  const auto result = ReplayJob(FileSystem::Posix(), directory, [](const std::string& why) {
    std::fprintf(stderr, "passed over: %s\n", why.c_str());
  });
  if (!result.ok()) return Fail(kExitConfig, result.status().message());
  std::printf("start: %s\nrecords: %llu\n", result->start.c_str(),
              static_cast<unsigned long long>(result->records));
  for (size_t shard = 0; shard < result->versions.size(); ++shard) {
    std::printf("shard %zu: version %llu\n", shard, static_cast<unsigned long long>(result->versions[shard]));
  }
  std::printf("weights_sha256: %s\n", result->weights_sha256.c_str());
  if (!result->tables_sha256.empty()) std::printf("tables_sha256: %s\n", result->tables_sha256.c_str());
  return kExitOk;
}

// For `weir config check`: the text is an answer, and not a line of a log.
int Check(const absl::Status& status) {
  if (status.ok()) return kExitOk;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return kExitConfig;
}

int Run(const Flags& flags) {
  if (!flags.replay.empty()) return Replay(flags.replay);
  const auto config = LoadJobConfig(flags.config, flags.set);
  if (flags.check) return Check(config.ok() ? Server::CheckHost(*config) : config.status());
  if (!config.ok()) return Fail(kExitConfig, config.status().message());
  const auto environment =
      FromEnvironment(std::getenv("TF_CONFIG"), flags.cluster, flags.task, Pod::Current());
  if (!environment.ok()) return Fail(kExitConfig, environment.status().message());
  if (!environment->has_value()) {
    return Fail(kExitConfig,
                "a ps_server needs a cluster: set TF_CONFIG, or give --cluster=FILE (or dns:...) and "
                "--task=ps:0 (or pod)");
  }
  const TaskEnvironment& me = **environment;
  if (me.task.type != "ps") {
    return Fail(kExitConfig, absl::StrCat("this is ps_server, but the task is ", me.task.ToString(),
                                          "; start `worker` for it"));
  }
  const auto log_format = ParseLogFormat(flags.log_format);
  InitLogging({*log_format, LogLevel::kInfo, me.task.ToString()});
  PrepareGrpc();

  Server::Options options;
  auto token = JobToken::ReadIfGiven(flags.token_file);
  if (!token.ok()) return Fail(kExitConfig, token.status().message());
  options.token = *std::move(token);
  auto tls = Tls::ReadIfGiven(flags.tls);
  if (!tls.ok()) return Fail(kExitConfig, tls.status().message());
  options.tls = *std::move(tls);
  const bool encrypted = options.tls != nullptr;
  if (encrypted) {
    const absl::Status mine = options.tls->CheckIs(Role::kServer, me.task.index);
    if (!mine.ok()) return Fail(kExitConfig, mine.message());
  }
  options.config = *config;
  options.index = me.task.index;
  options.http_port = flags.http_port;
  options.health_port = flags.health_port;
  auto http_token = JobToken::ReadIfGiven(flags.http_token_file);
  if (!http_token.ok()) return Fail(kExitConfig, http_token.status().message());
  options.http_token = *std::move(http_token);
  options.http_host = flags.bind;
  options.summary_path = flags.summary;
  options.tensorboard_dir = flags.tensorboard_dir;
  options.ps_addresses = me.cluster.ps_addresses();
  // The spec holds this server's address for other processes; the server listens on the interface of --bind,
  // at that port.
  const auto address = ParseAddress(me.address);
  // The HTTP port uses that interface too, even with a Unix address.
  const bool plaintext_allowed = IsLoopback(flags.bind) || flags.insecure_plaintext;
  options.http_closed = !options.http_token.empty() || (encrypted && !plaintext_allowed);
  if ((!address->is_unix() || flags.http_port >= 0) && !encrypted && !plaintext_allowed) {
    return Fail(
        kExitConfig,
        absl::StrCat("--bind=", flags.bind, " is not loopback, and there is no encryption: give all tasks ",
                     kTlsFlags,
                     " (`weir certs init` makes such files), or add "
                     "--insecure_plaintext if everybody on that network may read ",
                     options.token.empty() ? "and change the weights" : "what travels, the token included"));
  }
  if (address->is_unix()) {
    options.listen = me.address;
  } else {
    Address listen = *address;
    listen.host = flags.bind;
    options.listen = listen.ToString();
  }
  // A list with one address holds this server's address, not that of ps:0.
  if (options.index != 0 && options.ps_addresses.size() > 1) {
    options.coordinator_address = me.cluster.AddressOf({"ps", 0}).value_or("");
    options.own_address = me.address;
  }
  const auto spec_workers = me.cluster.num_workers();
  const auto& cluster = config->cluster();
  if (spec_workers.has_value() && cluster.has_workers() && *spec_workers != cluster.workers()) {
    return Fail(kExitConfig,
                absl::StrCat("cluster.workers is ", cluster.workers(), ", but the cluster spec lists ",
                             *spec_workers, " workers (the chief included)"));
  }
  for (const char* job : {"chief", "worker"}) {
    const auto tasks = me.cluster.jobs().find(job);
    if (!spec_workers.has_value() || tasks == me.cluster.jobs().end()) continue;
    for (const auto& [index, where] : tasks->second) {
      options.worker_names.push_back(absl::StrCat(Task{job, index}.ToString(), " at ", where));
    }
  }
  options.workers = cluster.has_workers() ? cluster.workers() : spec_workers.value_or(1);

  const bool open_to_all = options.token.empty() && !encrypted && !address->is_unix();
  BlockSignals({SIGINT, SIGTERM});
  // Null: the server has yet to start. One waiter serves the whole time: between two a signal would be lost.
  std::atomic<Server*> running = nullptr;
  bool drained = false;
  const auto signals = SignalWaiter::Start({SIGINT, SIGTERM}, [&](int signal) {
    const std::string reason = absl::StrCat(me.task.ToString(), " got signal ", signal);
    Server* const serving = running;
    if (serving == nullptr) {
      // The start may wait for object storage, and has nothing to save.
      LogInfo(reason, " while it started");
      std::_Exit(kExitDrained);
    }
    // A second signal means that the user does not want to wait for a checkpoint.
    if (std::exchange(drained, true)) {
      serving->Stop(reason);
    } else {
      serving->Drain(reason);
    }
  });
  if (!signals.ok()) return Fail(kExitInternal, signals.status().message());
  auto server = Server::Start(std::move(options));
  if (!server.ok()) {
    // Object storage that does not answer now may do so later. Internal: the system gives no threads.
    return Fail(absl::IsUnavailable(server.status())              ? kExitPeerLost
                : KindOf(server.status()) == v1::FAILURE_RESOURCE ? kExitStorage
                : absl::IsInternal(server.status())               ? kExitInternal
                                                                  : kExitConfig,
                server.status().message());
  }
  running = server->get();
  if (open_to_all) {
    LogWarning(
        "this server has no token: whoever reaches its port (",
        IsLoopback(flags.bind) ? "every user of this machine" : "everybody on that network",
        ") may join the job, read its weights and change them; give all tasks the same --token_file=FILE");
  }
  if (!flags.port_file.empty()) {
    const std::string temporary = flags.port_file + ".tmp";
    std::ofstream file(temporary);
    for (const int port : {(*server)->port(), (*server)->http_port(), (*server)->health_port()}) {
      if (port >= 0) file << port;
      file << "\n";
    }
    file.close();
    if (!file || std::rename(temporary.c_str(), flags.port_file.c_str()) != 0) {
      (*signals)->Stop();
      return Fail(kExitConfig, absl::StrCat("--port_file=", flags.port_file, " could not be written"));
    }
  }
  const absl::Status status = (*server)->Wait();
  (*signals)->Stop();
  server->reset();
  if (status.ok()) {
    LogInfo("the job is done");
    return kExitOk;
  }
  const v1::FailureKind kind = KindOf(status);
  if (drained || kind == v1::FAILURE_DRAINED) {
    LogInfo(status.message());
    return kExitDrained;
  }
  // If it were started again, a server that was replaced would take the job back.
  return Fail(kind == v1::FAILURE_FENCED ? kExitConfig : ExitCodeOf(status), status.message());
}

}  // namespace

int RunPsServer(int argc, char** argv) {
  KeepFreedMemory();
  RaiseDescriptorLimit();
  Flags flags;
  CLI::App app("One parameter server of a Weir job: holds a shard of the weights. ps:0 also coordinates.",
               "ps_server");
  CLI::Option* const config =
      app.add_option("--config", flags.config, "The job's config (JSON)")->type_name("FILE");
  app.add_option(
         "--replay", flags.replay,
         "Instead of serving, compute the last weights of a bounded or async job again from the logs in "
         "this folder of checkpoints (server.durability), and print their SHA-256")
      ->type_name("DIR")
      ->excludes(config);
  app.add_option("--set", flags.set, "Override a field of the config: a.b.c=value")->allow_extra_args(false);
  app.add_option("--cluster", flags.cluster,
                 "Cluster spec (a file), or dns:JOB=NAME:COUNT[:PORT],... for pods; instead of TF_CONFIG's")
      ->type_name("FILE");
  app.add_option("--task", flags.task,
                 "This task: ps:INDEX, or pod for the task in the pod's name; instead of TF_CONFIG's");
  FileOrVariable(app.add_option("--token_file", flags.token_file,
                                "The job's token, which every caller of this server must have"),
                 "WEIR_TOKEN_FILE");
  app.add_option("--bind", flags.bind, "The address to listen on")->capture_default_str();
  app.add_flag("--insecure_plaintext", flags.insecure_plaintext,
               "Allow --bind to an address other than loopback without TLS, and with TLS show all pages of "
               "--http_port there to everybody");
  AddTlsFlags(&app, &flags.tls);
  app.add_option(
         "--port_file", flags.port_file,
         "Write the bound ports there, in three lines: the server's own, --http_port, --health_port; the "
         "line of a port that is not asked for is empty")
      ->type_name("FILE");
  app.add_option("--http_port", flags.http_port,
                 "Port of /metrics, /healthz, /readyz and the dashboard; 0: any free port")
      ->check(CLI::Range(0, 65535));
  FileOrVariable(
      app.add_option(
          "--http_token_file", flags.http_token_file,
          "Demand the token in this file for all pages of --http_port but health, unless the client has a "
          "certificate of the job"),
      "WEIR_HTTP_TOKEN_FILE");
  app.add_option(
         "--health_port", flags.health_port,
         "Port for health alone, in plain text: /healthz, /readyz and grpc.health.v1; 0: any free port")
      ->check(CLI::Range(0, 65535));
  app.add_option("--summary", flags.summary, "ps:0: write the job's summary (JSON) there at the job's end")
      ->type_name("FILE");
  app.add_option("--tensorboard_dir", flags.tensorboard_dir,
                 "ps:0: write the job's values over time to this folder, for TensorBoard")
      ->type_name("DIR");
  app.add_flag("--check", flags.check,
               "Instead of serving, check whether a server on this machine can do what the config asks for");
  app.add_option("--log_format", flags.log_format, "Format of a line of the log")
      ->check(CLI::IsMember({"text", "json"}));
  if (const std::optional<int> exit = ReadCommandLine(app, argc, argv)) return *exit;
  if (flags.replay.empty() && flags.config.empty()) {
    return BadCommandLine(app, CLI::RequiredError("--config").what());
  }
  return Run(flags);
}

}  // namespace weir
