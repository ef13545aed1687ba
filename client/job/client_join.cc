// How a process becomes a member of the job.
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/job/client_impl.h"
#include "client/job/join_job.h"
#include "common/base/status_macros.h"
#include "common/model/partition.h"
#include "common/model/wire_model.h"
#include "common/protocol/protocol_version.h"
#include "common/telemetry/logging.h"

namespace weir {
namespace {

std::chrono::nanoseconds Seconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
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
    return absl::FailedPreconditionError("the job's model is another one than this program's");
  }
  if (options.servers.size() < reply.num_shards() &&
      reply.ps_addresses_size() != static_cast<int>(reply.num_shards())) {
    return absl::FailedPreconditionError(
        absl::StrCat("the job has ", reply.num_shards(), " shards, but ", options.servers.size(),
                     " addresses are known: ", absl::StrJoin(options.servers, ", ")));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ClientImpl>> ClientImpl::Enter(const ClientOptions& options, bool again,
                                                              const ModelSpec& model,
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
  request.set_evaluates(options.evaluates);
  *request.mutable_protocol() = OwnProtocol();
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

  // The addresses that this program was given come first: it may reach the servers in another way than ps:0
  // does. ps:0 knows better only if servers have moved since, or if those addresses are out of date.
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

absl::StatusOr<std::unique_ptr<Client>> ClientImpl::Join(const ClientOptions& options, const ModelSpec& model,
                                                         const v1::JobConfig& config, Transport& transport) {
  if (options.servers.empty()) return absl::InvalidArgumentError("no server is given");
  WEIR_RETURN_IF_ERROR(model.Validate());
  const auto deadline = std::chrono::steady_clock::now() + Seconds(config.cluster().start_seconds());
  for (bool again = options.again;; again = true) {
    WEIR_ASSIGN_OR_RETURN(std::unique_ptr<ClientImpl> client,
                          Enter(options, again, model, config, transport));
    const absl::Status connected = client->Connect(deadline);
    if (connected.ok()) return client;
    client->Leave(connected).IgnoreError();
    // The job went back, say, because of the server that cannot be reached.
    if (!absl::IsAborted(connected) || std::chrono::steady_clock::now() >= deadline) return connected;
    LogWarning(connected.message(), "; joining again");
  }
}

}  // namespace weir
