#include "client/job/join_job.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "client/call.h"
#include "common/base/bounded.h"
#include "common/base/status_macros.h"
#include "common/config/job_config.h"
#include "common/model/partition.h"
#include "common/model/wire_model.h"
#include "common/protocol/handshake.h"
#include "common/protocol/job_failure.h"
#include "common/protocol/mode_traits.h"
#include "common/protocol/part_assignment.h"
#include "common/telemetry/logging.h"
#include "common/threads/mutex.h"

namespace weir {
namespace {

using Nanoseconds = std::chrono::nanoseconds;

Nanoseconds Seconds(double seconds) {
  return std::chrono::duration_cast<Nanoseconds>(std::chrono::duration<double>(seconds));
}

constexpr absl::Duration kReportEvery = absl::Seconds(10);
// How often to look whether there is a connection.
constexpr absl::Duration kLook = absl::Milliseconds(200);
// For so long must the channel find a cause: files of certificates may be half replaced just now.
constexpr absl::Duration kCauseLasts = absl::Seconds(2);
// The coordinator applies the same limit, and its error says more than ours would.
constexpr absl::Duration kSlack = absl::Seconds(1);

// A result that another thread waits for. Shared with the call, which may end later.
template <typename Reply>
class Answer {
 public:
  void Set(absl::StatusOr<Reply> reply) {
    MutexLock lock(mutex_);
    reply_ = std::move(reply);
    set_.NotifyAll();
  }
  // nullopt: there was no result within `limit`.
  std::optional<absl::StatusOr<Reply>> WaitFor(absl::Duration limit, const Clock& clock) {
    const absl::Time until = clock.Now() + limit;
    MutexLock lock(mutex_);
    while (!reply_.has_value()) {
      const absl::Duration left = until - clock.Now();
      if (left <= absl::ZeroDuration()) return std::nullopt;
      set_.WaitFor(mutex_, absl::ToChronoNanoseconds(absl::Ceil(left, absl::Nanoseconds(1))));
    }
    return std::move(reply_);
  }

 private:
  Mutex mutex_;
  CondVar set_;
  std::optional<absl::StatusOr<Reply>> reply_ ABSL_GUARDED_BY(mutex_);
};

// What this process waits for, as the coordinator says; "": the coordinator does not answer.
std::string WaitingFor(const v1::JoinRequest& request, CoordinatorChannel& channel, const Clock& clock) {
  if (!channel.connected()) return "";
  const auto answer = std::make_shared<Answer<v1::ClusterStatus>>();
  const auto asked =
      channel.Start(v1::StatusRequest(), std::chrono::seconds(1),
                    [answer](absl::StatusOr<v1::ClusterStatus> status) { answer->Set(std::move(status)); });
  std::optional<absl::StatusOr<v1::ClusterStatus>> status;
  // The call has a deadline of its own.
  while (!(status = answer->WaitFor(absl::Seconds(2), clock)).has_value()) asked->Cancel();
  if (!status->ok()) return "";
  for (const v1::TaskStatus& task : (*status)->tasks()) {
    if (request.role() != v1::WORKER || task.task() != request.task() || task.phase() != v1::TASK_LIVE) {
      continue;
    }
    return absl::StrCat(
        "waits to join: another process is ", task.task(), " and was heard ",
        absl::FormatDuration(absl::Trunc(absl::Seconds(task.seconds_since_heard()), absl::Milliseconds(100))),
        " ago; is the same task index used twice? If so, end one of the two, or give this one another index. "
        "If the other process is gone, this one takes its place once the lease of the other ends");
  }
  if ((*status)->waiting_for().empty()) {
    return absl::StrCat("waits for ", channel.name(), " to let it join; the job is ",
                        v1::JobState_Name((*status)->state()));
  }
  return absl::StrCat("waits for the job to start; missing: ", ShortList((*status)->waiting_for()));
}

// Sends the request until it is answered. Each try has a channel of its own: on one channel, gRPC would look
// up a name that does not resolve yet less and less often. `again`: this process was in the job before, so it
// waits only cluster.server_wait_seconds for a coordinator that is not there at all.
absl::StatusOr<v1::JoinReply> Ask(const v1::JoinRequest& request, bool again, const v1::JobConfig& config,
                                  Transport& transport) {
  EventLoop& loop = *transport.loop();
  const Nanoseconds start = Seconds(config.cluster().start_seconds());
  const Nanoseconds server_wait = Seconds(config.cluster().server_wait_seconds());
  // Awake times: when to give up, and when the coordinator was last connected.
  const Clock& awake = loop.awake();
  const Clock& real = loop.real();
  const absl::Time deadline = awake.Now() + absl::FromChrono(start);
  absl::Time heard = awake.Now();
  absl::Time next_report = real.Now() + kReportEvery;
  Backoff backoff(std::chrono::milliseconds(50), std::chrono::milliseconds(again ? 100 : 1000),
                  [&loop] { return loop.Random(); });
  std::string last_error = "it did not answer yet";
  Nanoseconds attempt = kFirstAttempt;
  std::optional<absl::Time> cause_since;  // since when the channel finds one
  while (true) {
    const absl::Duration try_limit = deadline - awake.Now() + kSlack;
    const absl::Time try_ends = real.Now() + try_limit;
    const std::unique_ptr<CoordinatorChannel> channel =
        transport.OpenCoordinator(request.ps_addresses(0), attempt);
    const std::string name = channel->name();
    attempt = std::min<Nanoseconds>(2 * attempt, kLongestAttempt);
    const auto answer = std::make_shared<Answer<v1::JoinReply>>();
    channel->Start(request, absl::ToChronoNanoseconds(try_limit),
                   [answer](absl::StatusOr<v1::JoinReply> reply) { answer->Set(std::move(reply)); });
    std::string waiting_for;
    std::optional<absl::StatusOr<v1::JoinReply>> reply;
    // A try has the deadline of the whole join, so this loop ends.
    while (!(reply = answer->WaitFor(std::min(next_report - real.Now(), kLook), real)).has_value()) {
      if (channel->connected()) heard = awake.Now();
      if (real.Now() < next_report) continue;
      waiting_for = WaitingFor(request, *channel, real);
      LogWarning(waiting_for.empty() ? absl::StrCat("waits for ", name, ": ", last_error) : waiting_for);
      next_report += kReportEvery;
    }
    if (reply->ok()) return **std::move(reply);
    const absl::Status& status = reply->status();
    const absl::Time now = awake.Now();
    if (channel->connected()) heard = now;
    const std::string limit =
        absl::StrCat(" within cluster.start_seconds = ", std::chrono::duration<double>(start).count(), " s");
    if (absl::IsDeadlineExceeded(status) && now < deadline && real.Now() >= try_ends) {
      continue;  // this process was stopped meanwhile
    }
    if (absl::IsDeadlineExceeded(status) && now >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          name, " did not start the job", limit, ": ",
          waiting_for.empty() ? std::string(status.message()) : absl::StrCat("this process ", waiting_for)));
    }
    if (!absl::IsUnavailable(status) && !absl::IsCancelled(status)) {
      return Reworded(status, absl::StrCat(name, ": ", status.message()));
    }
    if (const absl::Status lasting = channel->Diagnose(); lasting.ok()) {
      cause_since.reset();
    } else if (awake.Now() - cause_since.emplace(cause_since.value_or(awake.Now())) >= kCauseLasts) {
      return lasting;
    }
    last_error = std::string(status.message());
    if (now >= deadline) {
      return absl::UnavailableError(absl::StrCat(name, " could not be reached", limit, ": ", last_error));
    }
    if (again && now - heard >= absl::FromChrono(server_wait)) {
      return absl::UnavailableError(absl::StrCat(
          name, " could not be reached within cluster.server_wait_seconds = ",
          std::chrono::duration<double>(server_wait).count(), " s, to join the job again: ", last_error));
    }
    // Sleeps: nothing sets this answer.
    Answer<v1::JoinReply>().WaitFor(std::min(absl::FromChrono(backoff.Next()), deadline - now), real);
    if (real.Now() >= next_report) {
      LogWarning("waits for ", name, ": ", last_error);
      next_report += kReportEvery;
    }
  }
}

// Buffers are assigned, not optimised: a scale that they share with gradients fits neither.
absl::Status CheckPushType(const ClientOptions& options, const ModelSpec& model,
                           const v1::JobConfig& config) {
  if (!QuantisesPushes(config.wire()) || options.reader) return absl::OkStatus();
  for (const TensorSpec& tensor : model.tensors) {
    if (tensor.kind == TensorKind::kParameter) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("wire.push_dtype: must be f32 or bf16 for a model with buffers, and '", tensor.name,
                     "' is one; set it to bf16, or use layers without buffers"));
  }
  return absl::OkStatus();
}

// Checks that this client can work with the reply.
absl::Status CheckReply(const v1::JoinReply& reply, const ClientOptions& options, const ModelSpec& model,
                        const v1::JobConfig& config) {
  WEIR_RETURN_IF_ERROR(CheckProtocol("ps:0", reply.protocol(), options.task));
  if (QuantisesPushes(config.wire()) && !options.reader && !TakesQuantisedPushes(reply.protocol())) {
    return absl::FailedPreconditionError(
        absl::StrCat("wire.push_dtype: ps:0 speaks version ", ToString(reply.protocol()),
                     " of the protocol, and pushes of this type need version 1.11. Upgrade the servers"));
  }
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
  const uint64_t batch = ExamplesOfBatch(config);
  const uint64_t examples = sync ? batch * reply.parts() : batch;
  if (examples <= train_examples) return;
  const char* const unit = sync ? "step" : "batch";
  const uint64_t units = sync ? reply.total_steps() : reply.total_batches();
  LogWarning("a ", unit, " has ", examples, " examples (", sync ? absl::StrCat(reply.parts(), " x ") : "",
             BatchInWords(config), "), and the training set has ", train_examples, ": a ", unit,
             " goes through several epochs, and all ", reply.total_examples(), " examples of the job are ",
             units, " ", unit,
             units == 1 ? ""
             : sync     ? "s"
                        : "es",
             "; lower ", BatchFields(config), " for more");
}

}  // namespace

absl::StatusOr<v1::JoinReply> JoinJob(const ClientOptions& options, bool again, uint64_t job,
                                      uint64_t instance, const ModelSpec& model, const v1::JobConfig& config,
                                      Transport& transport) {
  WEIR_RETURN_IF_ERROR(CheckPushType(options, model, config));
  v1::JoinRequest request;
  request.set_role(options.reader ? v1::READER : v1::WORKER);
  request.set_task(options.task);
  request.set_rank(options.rank);
  request.set_instance(instance);
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

  WEIR_ASSIGN_OR_RETURN(v1::JoinReply reply, Ask(request, again, config, transport));
  WEIR_RETURN_IF_ERROR(CheckReply(reply, options, model, config));
  // One worker says it.
  if (!options.reader && options.rank == 0 && !again) WarnOfLargeBatch(reply, options.train_examples, config);
  return reply;
}

JobChannels OpenChannels(const ClientOptions& options, const ModelSpec& model, const v1::JoinReply& reply,
                         Transport& transport) {
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
  return channels;
}

}  // namespace weir
