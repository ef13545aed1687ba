// ClientImpl's way into the job: membership, connections, initial values.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/job/client_impl.h"
#include "client/job/join_job.h"
#include "client/job/transport.h"
#include "common/base/status_macros.h"
#include "common/codec/floats.h"
#include "common/model/partition.h"
#include "common/protocol/job_failure.h"
#include "common/telemetry/logging.h"
#include "common/threads/mutex.h"
#include "proto/coordinator.pb.h"

namespace weir {
namespace {

constexpr absl::Duration kReportEvery = absl::Seconds(10);
// ps:0 applies the same limit, and its error says more than ours would.
constexpr absl::Duration kUploadSlack = absl::Seconds(2);

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

}  // namespace

absl::StatusOr<std::unique_ptr<ClientImpl>> ClientImpl::Enter(const ClientOptions& options, bool again,
                                                              uint64_t job, const ModelSpec& model,
                                                              const v1::JobConfig& config,
                                                              Transport& transport) {
  std::unique_ptr<History> history;
  if (!options.history_path.empty()) {
    WEIR_ASSIGN_OR_RETURN(history, History::Open(options.history_path, again));
  }

  const uint64_t instance = transport.NewInstance();
  WEIR_ASSIGN_OR_RETURN(const v1::JoinReply reply,
                        JoinJob(options, again, job, instance, model, config, transport));

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
  channels.loop = transport.loop();
  channels.coordinator = transport.OpenCoordinator(servers[0], std::nullopt);
  const Partition partition(model.elements(), reply.num_shards());
  for (uint32_t shard = 0; shard < servers.size(); ++shard) {
    channels.shards.push_back(transport.OpenShard(shard, servers[shard], partition.shard_elements(shard)));
  }
  channels.chunk_unit = transport.chunk_unit();
  channels.observer = transport.observer();
  return std::make_unique<ClientImpl>(options, model, config, instance, reply, std::move(channels),
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
      while (uploads || news_.membership().uploader() != caller_.incarnation()) {
        WEIR_RETURN_IF_ERROR(Alive());
        if (news_.membership().uploader() == 0 && !uploading_) return absl::OkStatus();
        if (!upload_error_.ok()) return upload_error_;
        const absl::Time now = awake.Now();
        const std::string what = absl::StrCat("the initial values, which ", UploaderTask(news_.membership()),
                                              " uploads, are not on all servers yet");
        if (now >= deadline) {
          return absl::DeadlineExceededError(
              absl::StrCat(what, " after ", absl::FormatDuration(now - begun)));
        }
        if (now >= next_report) {
          LogWarning("waits for the job to start; ", what);
          next_report += kReportEvery;
        }
        changed_.WaitFor(mutex_, absl::ToChronoNanoseconds(std::min(next_report, deadline) - now));
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
  absl::StatusOr<ShardSet::Push> push = exchanges_.InitialValues();
  if (!push.ok()) return end(push.status());
  shards_.Start(shards_.size(), *std::move(push), std::nullopt, /*rows=*/nullptr,
                [end](const absl::StatusOr<Answers>& answers) { end(answers.status()); });
}

absl::StatusOr<std::unique_ptr<Client>> ClientImpl::Join(const ClientOptions& options, const ModelSpec& model,
                                                         const v1::JobConfig& config, Transport& transport) {
  if (options.servers.empty()) return absl::InvalidArgumentError("no server is given");
  WEIR_RETURN_IF_ERROR(model.Validate());
  if (!options.reader) WEIR_RETURN_IF_ERROR(CheckInitialValues(options.initial_values, model));
  const absl::Duration limit = absl::Seconds(config.cluster().start_seconds());
  const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(limit);
  const absl::Time values_deadline = transport.loop()->awake().Now() + limit + kUploadSlack;
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
