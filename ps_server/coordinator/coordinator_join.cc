// The part of Coordinator that handles Joins: what a joining process must agree with, and what it is told.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/config/address.h"
#include "common/config/job_config.h"
#include "common/config/server_memory.h"
#include "common/model/wire_model.h"
#include "common/protocol/job_identity.h"
#include "common/protocol/protocol_version.h"
#include "common/telemetry/logging.h"
#include "ps_server/coordinator/coordinator.h"

namespace weir {
namespace {

// What a Join may declare. A job has 1024 workers at most.
constexpr size_t kMaxTaskName = 128;
constexpr uint64_t kMaxExamples = uint64_t{1} << 40;

absl::Status CheckTaskName(const std::string& task) {
  const bool printable =
      std::all_of(task.begin(), task.end(), [](unsigned char c) { return c > 0x20 && c != 0x7f; });
  if (printable && !task.empty() && task.size() <= kMaxTaskName) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("task: must be 1 to ", kMaxTaskName,
                                                 " bytes without spaces, such as worker:1; got ", task.size(),
                                                 " bytes"));
}

}  // namespace

void Coordinator::HandleJoin(v1::JoinRequest request, Done<v1::JoinReply> done, uint64_t call) {
  if (absl::Status same = members_.CheckJob(request.job().id()); !same.ok()) return done(same);
  if (state_ == v1::FAILED) return done(ending_.ForJoin());
  const bool worker = request.role() == v1::WORKER;
  // The job waits for its readers to leave, so when it waits for nobody else no more may come.
  const bool nothing_left = state_ == v1::DRAINING && ending_.saved() && !AwaitsEvaluation() &&
                            (worker || members_.workers().empty());
  if (over() || nothing_left) return done(NothingLeftFor(request));
  // Is this a repeat of a Join?
  for (WaitingJoin& join : members_.waiting()) {
    if (join.request.instance() != request.instance()) continue;
    join.done(absl::CancelledError("the same process called again"));
    join.done = std::move(done);
    join.call = call;
    return;
  }
  for (auto& [rank, member] : members_.workers()) {
    if (member.instance != request.instance()) continue;
    if (member.admitted()) {
      return done(MakeJoinReply(rank, member.incarnation, member.start_clock));
    }
    if (member.join.has_value()) member.join->done(absl::CancelledError("the same process called again"));
    // The Join as it was checked, whatever the repeat says.
    v1::JoinRequest same;
    same.set_role(v1::WORKER);
    same.set_task(member.task);
    same.set_rank(rank);
    same.set_instance(member.instance);
    same.set_evaluates(member.evaluates);
    member.join = WaitingJoin{std::move(same), std::move(done), call, now()};
    return;
  }
  for (const auto& [id, reader] : members_.readers()) {
    if (reader.instance == request.instance()) return done(MakeJoinReply(id, reader.incarnation, 0));
  }
  if (members_.Refuses(request.instance())) {
    return done(absl::AbortedError("the membership that this Join began has ended"));
  }
  if (absl::Status status = CheckJoin(request); !status.ok()) {
    // A refused process comes again and again.
    if (refusals_.Due(now())) {
      LogWarning("refused a Join: ", status.message(),
                 refusals_.left_out() > 0
                     ? absl::StrCat(" (and ", refusals_.left_out(), " since the last line)")
                     : "");
    }
    return done(status);
  }
  const uint32_t rank = request.rank();
  // These fields are checked and noted.
  request.clear_model();
  request.clear_job_config();
  request.clear_ps_addresses();
  request.clear_fingerprints();
  members_.waiting().push_back({std::move(request), std::move(done), call, now()});
  if (worker) ReplaceIfGone(rank);
  MaybeInstall();
  MaybeAdmit();
}

absl::Status Coordinator::CheckJoin(const v1::JoinRequest& request) {
  // First, since messages name the task.
  WEIR_RETURN_IF_ERROR(CheckTaskName(request.task()));
  WEIR_RETURN_IF_ERROR(CheckProtocol(request.task(), request.protocol(), "ps:0"));
  if (request.role() != v1::WORKER && request.role() != v1::READER) {
    return absl::InvalidArgumentError(
        absl::StrCat("role: ", request.role(), " is not one of WORKER, READER"));
  }
  if (evaluations_.waits() && !WaitsAtWorkEnd(request.protocol())) {
    return absl::FailedPreconditionError(
        absl::StrCat(request.task(), " speaks version ", ToString(request.protocol()),
                     " of the protocol, and evaluation.keep_best and evaluation.patience need 1.3: upgrade ",
                     request.task()));
  }
  const bool worker = request.role() == v1::WORKER;
  if (worker && request.rank() >= options_.workers) {
    return absl::InvalidArgumentError(absl::StrCat("rank: ", request.task(), " has rank ", request.rank(),
                                                   "; the job has ", options_.workers,
                                                   " workers (cluster.workers, or the cluster spec)"));
  }
  WEIR_RETURN_IF_ERROR(members_.CheckRoom(request));
  v1::JobConfig config;
  if (!config.ParseFromString(request.job_config()))
    return absl::InvalidArgumentError("job_config does not parse");
  if (std::string difference = FirstDifference(options_.config, config); !difference.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the config of ", request.task(), " differs from that of ps:0: ", difference));
  }
  WEIR_RETURN_IF_ERROR(CheckAddresses(request));
  v1::Model declared;
  if (!declared.ParseFromString(request.model())) return absl::InvalidArgumentError("model does not parse");
  WEIR_ASSIGN_OR_RETURN(ModelSpec model, FromProto(declared));
  if (model_.has_value()) {
    if (std::string difference = model_->FirstDifference(model); !difference.empty()) {
      return absl::FailedPreconditionError(absl::StrCat("the model of ", request.task(), " differs from ",
                                                        DeclaredBy(/*worker=*/false), ": ", difference));
    }
  }
  // Only workers say where the initial values come from, and it matters until the job has some.
  if (worker && size_.batches != 0 && !checkpoints_.any() && model.uploaded() != model_->uploaded()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the model of ", request.task(), " differs from ", DeclaredBy(/*worker=*/true),
        ": expected initial values that ", model_->uploaded() ? "a worker uploads" : "the servers make",
        ", got such that ", model.uploaded() ? "a worker uploads" : "the servers make"));
  }
  const uint32_t shards = ShardsOf(model, static_cast<uint32_t>(request.ps_addresses_size()));
  WEIR_RETURN_IF_ERROR(
      CheckServerMemory(options_.config, options_.workers, model.elements(), shards, options_.memory_bytes));
  if (worker) {
    WEIR_RETURN_IF_ERROR(CheckLength(request));
    WEIR_RETURN_IF_ERROR(fingerprints_.Check(request));
  }

  if (AddressesOpen()) shards_.Readdress({request.ps_addresses().begin(), request.ps_addresses().end()});
  if (worker || !model_.has_value()) SetModel(std::move(model));
  if (worker && size_.batches == 0) SetLength(request.train_examples());
  if (worker) fingerprints_.Declare(request);
  return absl::OkStatus();
}

absl::Status Coordinator::CheckAddresses(const v1::JoinRequest& request) const {
  const int count = request.ps_addresses_size();
  if (count == 0) return absl::InvalidArgumentError("ps_addresses: needs at least one");
  if (count > kMaxServers) {
    return absl::InvalidArgumentError(
        absl::StrCat("ps_addresses: ", count, " servers; at most ", kMaxServers, " are allowed"));
  }
  if (!AddressesOpen() && count != static_cast<int>(shards_.addresses().size())) {
    return absl::FailedPreconditionError(
        absl::StrCat("the cluster spec of ", request.task(), " lists ", count, " servers; ",
                     options_.shard_addresses.size() > 1 ? "that of ps:0" : DeclaredBy(/*worker=*/false),
                     " lists ", shards_.addresses().size()));
  }
  std::set<std::string> seen;
  for (int i = 0; i < count; ++i) {
    const std::string& address = request.ps_addresses(i);
    if (const auto parsed = ParseAddress(address); !parsed.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("ps_addresses[", i, "]: ", parsed.status().message()));
    }
    if (!seen.insert(address).second) {
      return absl::InvalidArgumentError(absl::StrCat("ps_addresses[", i, "]: ", address, " is listed twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status Coordinator::CheckLength(const v1::JoinRequest& request) const {
  const uint64_t examples = request.train_examples();
  if (examples == 0) return absl::InvalidArgumentError("train_examples: a worker needs at least one");
  if (examples > kMaxExamples) {
    return absl::InvalidArgumentError(
        absl::StrCat("train_examples: ", examples, "; at most 2^40 are allowed"));
  }
  if (const v1::TrainConfig& train = options_.config.train();
      !train.has_examples() && train.epochs() * static_cast<double>(examples) > std::ldexp(1.0, 53)) {
    return absl::InvalidArgumentError(absl::StrCat("train_examples: ", examples, " in ", train.epochs(),
                                                   " epochs are more than 2^53 examples in all"));
  }
  if (size_.train_examples != 0 && examples != size_.train_examples) {
    return absl::FailedPreconditionError(absl::StrCat("the training set of ", request.task(), " has ",
                                                      examples, " examples; ", DeclaredBy(/*worker=*/true),
                                                      " has ", size_.train_examples));
  }
  return CheckSize(options_.config, SizeWith(examples));
}

bool Coordinator::AddressesOpen() const {
  return options_.shard_addresses.size() <= 1 && !shards_.begun() && !ending_.ends_again() &&
         members_.waiting().empty();
}

std::string Coordinator::DeclaredBy(bool worker) const {
  if (!settled()) {
    for (const WaitingJoin& join : members_.waiting()) {
      if (worker && !join.worker()) continue;
      return absl::StrCat("that of ", join.request.task(), " (which waits for the job to start)");
    }
  }
  return "that of the job";
}

void Coordinator::ForgetUndeclared() {
  if (!members_.AnyWorkerWaits()) fingerprints_.Forget();
  if (settled()) return;
  if (members_.waiting().empty()) model_.reset();
  if (members_.AnyWorkerWaits()) return;
  size_ = JobSize();
  meter_.SetTrainExamples(0);
  evaluations_.SetLength(size_);
}

uint32_t Coordinator::ShardsOf(const ModelSpec& model, uint32_t servers) const {
  return ServersWithPart(options_.config, model.elements(), servers);
}

void Coordinator::SetModel(ModelSpec model) {
  const auto servers = static_cast<uint32_t>(std::max<size_t>(1, shards_.addresses().size()));
  shards_.LimitTo(ShardsOf(model, servers));
  model_ = std::move(model);
}

JobSize Coordinator::SizeWith(uint64_t train_examples) const {
  // A step has the same parts as before, even if the number of workers has changed.
  const bool goes_on = checkpoints_.any();
  const uint32_t parts = goes_on ? std::max(1u, checkpoints_.newest()->job().parts()) : 0;
  return SizeOf(options_.config, options_.workers, train_examples, parts);
}

void Coordinator::SetLength(uint64_t train_examples) {
  size_ = SizeWith(train_examples);
  meter_.SetTrainExamples(train_examples);
  evaluations_.SetLength(size_);
}

void Coordinator::Shorten(uint64_t examples, uint64_t batches) {
  size_ = Shortened(options_.config, options_.workers, size_, examples, batches);
}

v1::JoinReply Coordinator::MakeJoinReply(uint32_t worker, uint64_t incarnation, uint64_t start_clock) const {
  v1::JoinReply reply;
  reply.set_worker(worker);
  reply.set_incarnation(incarnation);
  *reply.mutable_membership() = MembershipNow();
  reply.set_start_clock(start_clock);
  reply.set_num_shards(shards_.size());
  for (const ShardFleet::Shard& shard : shards_) reply.add_ps_addresses(shard.address);
  *reply.mutable_moved() = shards_.Moved();
  reply.set_total_batches(size_.batches);
  reply.set_total_examples(size_.examples);
  reply.set_parts(size_.parts);
  reply.set_total_steps(size_.steps);
  reply.set_model_hash(model_->Hash());
  reply.set_lease_seconds(options_.config.cluster().lease_seconds());
  *reply.mutable_protocol() = OwnProtocol();
  *reply.mutable_job() = job_;
  if (evaluations_.work_end().has_value()) reply.set_work_end(*evaluations_.work_end());
  return reply;
}

}  // namespace weir
