// How a process becomes a member of the job.
#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/job/client_impl.h"
#include "client/job/join_job.h"
#include "common/base/status_macros.h"
#include "common/codec/finite.h"
#include "common/model/partition.h"
#include "common/model/wire_model.h"
#include "common/protocol/job_failure.h"
#include "common/protocol/protocol_version.h"
#include "common/telemetry/logging.h"

namespace weir {
namespace {

std::chrono::nanoseconds Seconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

constexpr absl::Duration kReportEvery = absl::Seconds(10);
// ps:0 applies the same limit, and its error says more than ours would.
constexpr absl::Duration kSlack = absl::Seconds(2);

// Whether these are the initial values of a model that needs any.
absl::Status CheckInitialValues(const std::vector<ConstTensor>& values, const ModelSpec& model) {
  if (values.empty() != !model.uploaded()) {
    return absl::InvalidArgumentError(
        model.uploaded() ? "the initial values of this model are uploaded, but this worker gives none"
                         : "this worker gives initial values, but those of this model are not uploaded");
  }
  if (values.empty()) return absl::OkStatus();
  WEIR_RETURN_IF_ERROR(TensorMap(model, 1).Match(values).status());
  for (const ConstTensor& tensor : values) {
    const auto n = static_cast<int64_t>(tensor.values.size());
    const int64_t bad = FirstNonFinite(tensor.values.data(), n);
    if (bad == n) continue;
    return absl::InvalidArgumentError(
        NonFiniteValue(absl::StrCat("the initial value ", tensor.name, "[", bad, "]"), tensor.values[bad]));
  }
  return absl::OkStatus();
}

std::string UploaderTask(const v1::Membership& membership) {
  for (const v1::Member& member : membership.members()) {
    if (member.incarnation() == membership.uploader()) return member.task();
  }
  return "a worker";
}

// Checks that this client can work with the reply.
absl::Status CheckReply(const v1::JoinReply& reply, const ClientOptions& options, const ModelSpec& model,
                        const v1::JobConfig& config) {
  WEIR_RETURN_IF_ERROR(CheckProtocol("ps:0", reply.protocol(), options.task));
  if (reply.num_shards() == 0 || !(reply.lease_seconds() > 0) ||
      (TraitsOf(config).works_on_parts && !options.reader && reply.parts() == 0)) {
    return absl::InternalError(
        absl::StrCat("the coordinator's reply to Join lacks something: ", reply.ShortDebugString()));
  }
  if (reply.model_hash() != model.Hash()) {
    return absl::FailedPreconditionError("the job's model is a different one from this program's");
  }
  if (options.servers.size() < reply.num_shards() &&
      reply.ps_addresses_size() != static_cast<int>(reply.num_shards())) {
    return absl::FailedPreconditionError(
        absl::StrCat("the job has ", reply.num_shards(), " shards, but ", options.servers.size(),
                     " addresses are known: ", absl::StrJoin(options.servers, ", ")));
  }
  return absl::OkStatus();
}

// Where a step takes more examples than the training set has, the job's epochs are fewer steps than one
// expects.
void WarnOfLargeBatch(const v1::JoinReply& reply, uint64_t train_examples, const v1::JobConfig& config) {
  const bool sync = TraitsOf(config).works_on_parts;
  const uint64_t batch = config.data().batch_size();
  const uint64_t examples = sync ? batch * reply.parts() : batch;
  if (examples <= train_examples) return;
  const char* const unit = sync ? "step" : "batch";
  const uint64_t units = sync ? reply.total_steps() : reply.total_batches();
  LogWarning("a ", unit, " has ", examples, " examples (", sync ? absl::StrCat(reply.parts(), " x ") : "",
             "data.batch_size ", batch, "), and the training set has ", train_examples, ": a ", unit,
             " goes through several epochs, and all ", reply.total_examples(), " examples of the job are ",
             units, " ", unit,
             units == 1 ? ""
             : sync     ? "s"
                        : "es",
             "; lower data.batch_size for more");
}

}  // namespace

absl::StatusOr<std::unique_ptr<ClientImpl>> ClientImpl::Enter(const ClientOptions& options, bool again,
                                                              uint64_t job, const ModelSpec& model,
                                                              const v1::JobConfig& config,
                                                              Transport& transport) {
  std::unique_ptr<History> history;
  if (!options.history_path.empty()) {
    WEIR_ASSIGN_OR_RETURN(history, History::Open(options.history_path, again));
  }

  v1::JoinRequest request;
  request.set_role(options.reader ? v1::READER : v1::WORKER);
  request.set_task(options.task);
  request.set_rank(options.rank);
  request.set_instance(transport.NewInstance());
  request.set_model(ToProto(model).SerializeAsString());
  request.set_job_config(options.job_config);
  request.set_train_examples(options.train_examples);
  for (const Fingerprint& fingerprint : options.fingerprints) {
    v1::Fingerprint& declared = *request.add_fingerprints();
    declared.set_name(fingerprint.name);
    declared.set_value(fingerprint.value);
  }
  request.set_evaluates(options.evaluates);
  *request.mutable_protocol() = OwnProtocol();
  if (job != 0) request.mutable_job()->set_id(job);
  for (const std::string& server : options.servers) request.add_ps_addresses(server);

  const std::shared_ptr<EventLoop> loop = transport.loop();
  JoinOptions join;
  join.start = Seconds(config.cluster().start_seconds());
  join.server_wait = Seconds(config.cluster().server_wait_seconds());
  join.again = again;
  join.open = [&](std::chrono::nanoseconds attempt) {
    return transport.OpenCoordinator(options.servers[0], attempt);
  };
  WEIR_ASSIGN_OR_RETURN(const v1::JoinReply reply, JoinJob(request, join, *loop));
  WEIR_RETURN_IF_ERROR(CheckReply(reply, options, model, config));
  // One worker says it.
  if (!options.reader && options.rank == 0 && !again) WarnOfLargeBatch(reply, options.train_examples, config);

  // The addresses that this program was given come first: it may reach the servers in a different way from
  // ps:0 does. ps:0 knows better only if servers have moved since, or if those addresses are out of date.
  std::vector<std::string> servers = options.servers;
  JobChannels channels;
  if (reply.ps_addresses_size() == static_cast<int>(reply.num_shards())) {
    channels.otherwise.assign(reply.ps_addresses().begin(), reply.ps_addresses().end());
  }
  // The servers beyond hold no shard.
  if (servers.size() > reply.num_shards()) servers.resize(reply.num_shards());
  if (servers.size() != reply.num_shards()) servers = channels.otherwise;
  channels.loop = loop;
  channels.coordinator = transport.OpenCoordinator(servers[0], std::nullopt);
  const Partition partition(model.elements(), reply.num_shards());
  for (uint32_t shard = 0; shard < servers.size(); ++shard) {
    channels.shards.push_back(transport.OpenShard(shard, servers[shard], partition.shard_elements(shard)));
  }
  channels.chunk_unit = transport.chunk_unit();
  channels.observer = transport.observer();
  return std::make_unique<ClientImpl>(options, model, config, request.instance(), reply, std::move(channels),
                                      std::move(history));
}

absl::Status ClientImpl::AwaitInitialValues(absl::Time deadline) {
  const Clock& awake = loop_->awake();
  const absl::Time begun = awake.Now();
  absl::Time next_report = begun + kReportEvery;
  bool uploads = false;
  while (true) {
    {
      MutexLock lock(mutex_);
      while (uploads || membership_.uploader() != caller_.incarnation()) {
        WEIR_RETURN_IF_ERROR(Alive());
        if (membership_.uploader() == 0 && !uploading_) return absl::OkStatus();
        if (!upload_error_.ok()) return upload_error_;
        const absl::Time now = awake.Now();
        const std::string what = absl::StrCat("the initial values, which ", UploaderTask(membership_),
                                              " uploads, are not on all servers yet");
        if (now >= deadline) {
          return absl::DeadlineExceededError(
              absl::StrCat(what, " after ", absl::FormatDuration(now - begun)));
        }
        if (now >= next_report) {
          LogWarning("waits for the job to start; ", what);
          next_report += kReportEvery;
        }
        news_.WaitFor(mutex_, absl::ToChronoNanoseconds(std::min(next_report, deadline) - now));
      }
      uploading_ = uploads = true;
    }
    LogInfo("uploads the initial values");
    Upload();
  }
}

void ClientImpl::Upload() {
  const auto end = [this](const absl::Status& status) {
    MutexLock lock(mutex_);
    uploading_ = false;
    upload_error_ = status;
    Changed();
  };
  absl::StatusOr<GradientTensors> tensors = tensors_.Match(options_.initial_values);
  if (!tensors.ok()) return end(tensors.status());
  absl::StatusOr<std::shared_ptr<OutgoingGradient>> values = OutgoingGradient::Create(
      {caller_.worker(), options_.task}, tensors_, *std::move(tensors), wire_.Exact(), /*gate=*/nullptr);
  if (!values.ok()) return end(values.status());
  ShardSet::Push push;
  push.gradient = *std::move(values);
  push.initial_values = true;
  shards_.Start(shards_.size(), std::move(push), std::nullopt, /*rows=*/nullptr,
                [end](const absl::StatusOr<Answers>& answers) { end(answers.status()); });
}

absl::StatusOr<std::unique_ptr<Client>> ClientImpl::Join(const ClientOptions& options, const ModelSpec& model,
                                                         const v1::JobConfig& config, Transport& transport) {
  if (options.servers.empty()) return absl::InvalidArgumentError("no server is given");
  WEIR_RETURN_IF_ERROR(model.Validate());
  if (!options.reader) WEIR_RETURN_IF_ERROR(CheckInitialValues(options.initial_values, model));
  const std::chrono::nanoseconds limit = Seconds(config.cluster().start_seconds());
  const auto deadline = std::chrono::steady_clock::now() + limit;
  const absl::Time values_deadline = transport.loop()->awake().Now() + absl::FromChrono(limit) + kSlack;
  uint64_t job = options.job;
  for (bool again = options.again;; again = true) {
    WEIR_ASSIGN_OR_RETURN(std::unique_ptr<ClientImpl> client,
                          Enter(options, again, job, model, config, transport));
    job = client->job();
    absl::Status status = client->Connect(deadline);
    if (status.ok()) status = client->AwaitInitialValues(values_deadline);
    if (status.ok()) return client;
    client->Leave(status).IgnoreError();
    // The job went back, say, because of the server that cannot be reached.
    if (!absl::IsAborted(status) || std::chrono::steady_clock::now() >= deadline) return status;
    LogWarning(status.message(), "; joining again");
  }
}

}  // namespace weir
