#include "python/capi/member.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "client/task.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/config/cluster_spec.h"
#include "common/config/written_text.h"
#include "common/object_store/object_file_system.h"
#include "common/protocol/job_failure.h"
#include "common/rpc/job_token.h"
#include "common/rpc/tls.h"
#include "common/telemetry/grpc_process.h"
#include "common/telemetry/logging.h"
#include "local/saved_rows.h"
#include "python/capi/handles.h"

namespace weir {
namespace {

// While it lives, no other job of this process opens this folder of checkpoints: the constructor waits, and
// warns when it does. An opening goes on when nobody waits for it any more (Ctrl-C), and may find its storage
// silent for a while. If it claimed the folder after the next opening has, it would end that one's job.
class FolderOpening {
 public:
  explicit FolderOpening(std::string folder) : folder_(std::move(folder)) {
    MutexLock lock(all_.mutex);
    if (all_.folders.count(folder_) > 0) {
      LogWarning("an earlier call of this process still opens ", folder_,
                 ", perhaps one that Ctrl-C has ended; waiting until its storage has answered");
    }
    while (!all_.folders.insert(folder_).second) all_.changed.Wait(all_.mutex);
  }
  FolderOpening(const FolderOpening&) = delete;
  ~FolderOpening() {
    MutexLock lock(all_.mutex);
    all_.folders.erase(folder_);
    all_.changed.NotifyAll();
  }

 private:
  struct Openings {
    Mutex mutex;
    CondVar changed;
    std::set<std::string> folders ABSL_GUARDED_BY(mutex);
  };
  // Never destroyed: threads use them as long as the process runs.
  static Openings& all_;

  const std::string folder_;
};

FolderOpening::Openings& FolderOpening::all_ = *new Openings;

absl::Status Closed() { return absl::FailedPreconditionError("this client is closed"); }

std::string Text(const char* text) { return text == nullptr ? "" : text; }

// What the main functions of programs do.
absl::Status PrepareProcess(const char* level, const std::string& task) {
  WEIR_ASSIGN_OR_RETURN(const LogLevel log_level, ParseLogLevel(level != nullptr ? level
                                                                : task.empty()   ? "warning"
                                                                                 : "info"));
  static std::once_flag once;
  std::call_once(once, [&] {
    InitLogging({LogFormat::kText, log_level, task});
    PrepareGrpc();
  });
  return absl::OkStatus();
}

absl::Status CheckTask(const Task& task, bool reader) {
  if (reader ? task.type == "evaluator" : task.type == "worker" || task.type == "chief")
    return absl::OkStatus();
  const std::string seen =
      absl::StrCat("this program ", reader ? "evaluates" : "trains", ", but its task is ", task.ToString());
  if (task.type == "ps") return absl::InvalidArgumentError(absl::StrCat(seen, "; start `ps_server` for it"));
  return absl::InvalidArgumentError(
      absl::StrCat(seen, reader ? "; make it an evaluator"
                                : "; make it a worker or chief, or have it read (weir.torch.Reader)"));
}

absl::StatusOr<TlsFiles> TlsFilesToRead() {
  TlsFiles files = TlsFilesOfEnvironment();
  for (std::string* file : {&files.ca, &files.certificate, &files.key}) {
    WEIR_ASSIGN_OR_RETURN(*file, ExpandedPath(*file));
  }
  return files;
}

absl::StatusOr<std::optional<TaskEnvironment>> EnvironmentOf(const weir_options& options) {
  const char* const tf_config = std::getenv("TF_CONFIG");
  std::string task = Text(options.task);
  // A cluster need not list its evaluators.
  if (options.reader != 0 && task.empty() && tf_config == nullptr && options.cluster != nullptr) {
    task = "evaluator:0";
  }
  WEIR_ASSIGN_OR_RETURN(const std::string cluster, ExpandedPath(Text(options.cluster)));
  WEIR_ASSIGN_OR_RETURN(std::optional<TaskEnvironment> environment,
                        FromEnvironment(tf_config, cluster, task, Pod::Current()));
  if (options.reader != 0 && !environment.has_value()) {
    return absl::InvalidArgumentError(
        "a reader needs a cluster whose job it reads: give `cluster`, or TF_CONFIG in the environment. The "
        "process that trains reads with Optimizer.snapshot()");
  }
  return environment;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Member>> Member::Open(v1::JobConfig config, const weir_options& options,
                                                     ModelSpec model) {
  WEIR_ASSIGN_OR_RETURN(const std::optional<TaskEnvironment> environment, EnvironmentOf(options));
  ClientOptions client;
  client.reader = options.reader != 0;
  client.evaluates = options.evaluates != 0;
  client.job_config = config.SerializeAsString();
  WEIR_ASSIGN_OR_RETURN(client.history_path, ExpandedPath(Text(options.history)));
  client.train_examples = options.train_examples;
  for (const weir_fingerprint& of : absl::MakeConstSpan(options.fingerprints, options.n_fingerprints)) {
    client.fingerprints.push_back({of.name, of.value});
  }
  if (environment.has_value()) {
    WEIR_RETURN_IF_ERROR(CheckTask(environment->task, client.reader));
  }
  WEIR_RETURN_IF_ERROR(
      PrepareProcess(options.log_level, environment.has_value() ? environment->task.ToString() : ""));
  WEIR_ASSIGN_OR_RETURN(const std::string token,
                        ExpandedPath(options.token_file != nullptr ? Text(options.token_file)
                                                                   : EnvironmentValue("WEIR_TOKEN_FILE")));
  WEIR_ASSIGN_OR_RETURN(const TlsFiles tls, TlsFilesToRead());
  WEIR_RETURN_IF_ERROR(SetTask(environment.has_value() ? &*environment : nullptr, token, tls, &client));
  const std::string& checkpoints = config.checkpoint().directory();
  std::unique_ptr<InProcessCluster> local;
  std::string resumed_from;
  if (!environment.has_value()) {
    if (config.cluster().workers() > 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "cluster.workers is ", config.cluster().workers(),
          ", but without a cluster spec there is one worker, in this process; start `weir up --workers=",
          config.cluster().workers(), " JOB -- PROGRAM` for more"));
    }
    InProcessCluster::Options cluster;
    cluster.config = config;
    cluster.servers = options.servers;
    if (client.token.empty()) {
      WEIR_ASSIGN_OR_RETURN(client.token, JobToken::Random());
    }
    cluster.token = client.token;
    std::optional<FolderOpening> opening;
    if (!checkpoints.empty()) opening.emplace(checkpoints);
    WEIR_ASSIGN_OR_RETURN(local, InProcessCluster::Start(std::move(cluster)));
    client.servers = local->addresses();
    // The servers have looked there as well, and find nothing newer before a worker joins.
    if (!checkpoints.empty()) {
      const absl::StatusOr<FoundCheckpoint> found = LatestComplete(AnyStorage(), checkpoints);
      if (found.ok()) resumed_from = found->folder;
    }
  }
  return std::shared_ptr<Member>(new Member(std::move(config), std::move(model), std::move(client),
                                            std::move(local), std::move(resumed_from)));
}

absl::Status Member::Join(const std::vector<ConstTensor>& initial) {
  ClientOptions options;
  std::shared_ptr<InProcessCluster> local;
  {
    MutexLock lock(mutex_);
    if (closed_) return Closed();
    if (client_ != nullptr)
      return absl::FailedPreconditionError("this client is in the job already; leave first");
    WEIR_RETURN_IF_ERROR(last_fence_);
    options = options_;
    local = local_;
  }
  // Servers in this process make no summary.
  options.hashes_weights = local == nullptr;
  options.initial_values = initial;
  if (!options.reader) {
    // A program that does not say when it computes (weir_set_computing()) has no utilization.
    options.compute_seconds = [time = compute_time_] { return time->Seconds() > 0 ? time->Seconds() : -1; };
  }
  WEIR_ASSIGN_OR_RETURN(std::unique_ptr<Client> joined, Client::Join(options, model_));
  std::shared_ptr<Client> client(joined.release(),
                                 [local = std::move(local)](const Client* ended) { delete ended; });
  MutexLock lock(mutex_);
  if (closed_) return Closed();
  client_ = std::move(client);
  options_.again = true;
  options_.job = client_->job();
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Client>> Member::client() const {
  if (Forked()) return ForkedError();
  MutexLock lock(mutex_);
  return JoinedClient();
}

absl::StatusOr<std::shared_ptr<Client>> Member::JoinedClient() const {
  if (closed_) return Closed();
  if (client_ == nullptr) return absl::FailedPreconditionError("this client is not in the job: join first");
  return client_;
}

absl::Status Member::LoadResumed(const std::vector<MutableTensor>& tensors,
                                 const std::vector<RowsToRead>& rows) const {
  if (resumed_from_.empty()) {
    return absl::FailedPreconditionError(
        "this job goes on from no checkpoint, or its servers are not in this process");
  }
  WEIR_ASSIGN_OR_RETURN(const CheckpointReader reader, CheckpointReader::Open(AnyStorage(), resumed_from_));
  WEIR_RETURN_IF_ERROR(
      reader.CheckTables({config_.tables().begin(), config_.tables().end()}, /*weights_only=*/false));
  for (const RowsToRead& of : rows) {
    WEIR_RETURN_IF_ERROR(ReadSavedRows(reader, config_.tables(static_cast<int>(of.table)), config_.seed(),
                                       of.keys, of.values));
  }
  std::vector<float> weights(static_cast<size_t>(model_.elements()));
  WEIR_RETURN_IF_ERROR(reader.LoadWeights(model_, /*shard=*/0, /*num_shards=*/1, absl::MakeSpan(weights)));
  const float* from = weights.data();
  for (const MutableTensor& tensor : tensors) {
    std::copy_n(from, tensor.values.size(), tensor.values.data());
    from += tensor.values.size();
  }
  return absl::OkStatus();
}

absl::Status Member::EndJob(InProcessCluster& local, const absl::Status& failure) const {
  const bool saves = !config_.checkpoint().directory().empty() && KindOf(failure) == v1::FAILURE_DRAINED;
  // Before this member leaves: to the servers it would be the last one that gives up, which they would
  // report.
  const absl::Status ended = local.End(std::string(failure.message()), saves);
  return saves ? ended : absl::OkStatus();
}

absl::Status Member::Leave(const absl::Status& failure) {
  std::shared_ptr<InProcessCluster> local;
  std::shared_ptr<Client> client;
  {
    MutexLock lock(mutex_);
    WEIR_ASSIGN_OR_RETURN(client, JoinedClient());
    local = local_;
  }
  absl::Status ended;
  if (!failure.ok() && local != nullptr && KindOf(failure) != v1::FAILURE_FENCED)
    ended = EndJob(*local, failure);
  const absl::Status left = client->Leave(failure);
  // All was done, but the job went back before all members had left.
  const absl::Status& fenced = failure.ok() ? left : failure;
  {
    MutexLock lock(mutex_);
    client_ = nullptr;
    if (absl::IsAborted(fenced)) last_fence_ = rejoining_.OnFenced(fenced, *client);
  }
  if (!failure.ok()) return ended;
  // The job has gone back, or cannot be saved.
  if (absl::IsAborted(left) || KindOf(left) == v1::FAILURE_RESOURCE) return left;
  if (!left.ok()) LogWarning("could not take leave: ", left.message());
  return local == nullptr ? absl::OkStatus() : local->Wait();
}

void Member::Close() {
  std::shared_ptr<InProcessCluster> local;
  std::shared_ptr<Client> client;
  MutexLock lock(mutex_);
  closed_ = true;
  local.swap(local_);
  client.swap(client_);
}

}  // namespace weir
