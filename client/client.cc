#include "client/client.h"

#include <chrono>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/client_impl.h"
#include "common/base/status_macros.h"
#include "common/model/wire_model.h"
#include "common/protocol/protocol_version.h"

namespace weir {
namespace {

std::chrono::nanoseconds Seconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

// Whether this client can do with what it was told.
absl::Status CheckReply(const v1::JoinReply& reply, const ClientOptions& options, const ModelSpec& model,
                        const v1::JobConfig& config) {
  WEIR_RETURN_IF_ERROR(CheckProtocol("ps:0", reply.protocol(), options.task));
  const bool sync = config.consistency().mode() == v1::ConsistencyConfig::MODE_SYNC;
  if (reply.num_shards() == 0 || !(reply.lease_seconds() > 0) ||
      (sync && !options.reader && reply.parts() == 0)) {
    return absl::InternalError(
        absl::StrCat("the coordinator's reply to Join lacks something: ", reply.ShortDebugString()));
  }
  if (reply.model_hash() != model.Hash()) {
    return absl::FailedPreconditionError("the job's model is another one than this program's");
  }
  if (options.servers.size() != reply.num_shards() &&
      reply.ps_addresses_size() != static_cast<int>(reply.num_shards())) {
    return absl::FailedPreconditionError(
        absl::StrCat("the job has ", reply.num_shards(), " servers, but ", options.servers.size(),
                     " addresses are known: ", absl::StrJoin(options.servers, ", ")));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Join(const ClientOptions& options, const ModelSpec& model) {
  if (options.servers.empty()) return absl::InvalidArgumentError("no server is given");
  WEIR_RETURN_IF_ERROR(model.Validate());
  v1::JobConfig config;
  if (!config.ParseFromString(options.job_config)) {
    return absl::InvalidArgumentError("the job's config is not a serialized weir.v1.JobConfig");
  }
  std::unique_ptr<History> history;
  if (!options.history_path.empty()) {
    WEIR_ASSIGN_OR_RETURN(history, History::Open(options.history_path, options.again));
  }

  v1::JoinRequest request;
  request.set_role(options.reader ? v1::READER : v1::WORKER);
  request.set_task(options.task);
  request.set_rank(options.rank);
  std::random_device random;
  request.set_instance(uint64_t{random()} << 32 | random());
  request.set_model(ToProto(model).SerializeAsString());
  request.set_job_config(options.job_config);
  request.set_train_examples(options.train_examples);
  request.set_evaluates(options.evaluates);
  *request.mutable_protocol() = OwnProtocol();
  for (const std::string& server : options.servers) request.add_ps_addresses(server);
  const std::chrono::nanoseconds start = Seconds(config.cluster().start_seconds());
  const auto deadline = std::chrono::steady_clock::now() + start;
  WEIR_ASSIGN_OR_RETURN(
      const v1::JoinReply reply,
      JoinJob(request, options.token, start, Seconds(config.cluster().server_wait_seconds()), options.again));
  WEIR_RETURN_IF_ERROR(CheckReply(reply, options, model, config));

  // What this program was given comes first: it may reach the servers in another way than ps:0 does. Only
  // where they moved since, or that is out of date, ps:0 knows better.
  std::vector<std::string> servers = options.servers, otherwise;
  if (reply.ps_addresses_size() == static_cast<int>(reply.num_shards())) {
    otherwise.assign(reply.ps_addresses().begin(), reply.ps_addresses().end());
  }
  if (servers.size() != reply.num_shards()) servers = otherwise;
  auto client = std::make_unique<ClientImpl>(options, model, config, request.instance(), reply, servers,
                                             std::move(history));
  if (absl::Status connected = client->Connect(deadline, otherwise); !connected.ok()) {
    client->Leave(connected).IgnoreError();
    return connected;
  }
  return client;
}

}  // namespace weir
