// The part of Coordinator that says who may come in: what a joining process must agree with, and what it is
// told.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/config/job_config.h"
#include "common/protocol_version.h"
#include "common/status_macros.h"
#include "common/telemetry/logging.h"
#include "common/wire_model.h"
#include "ps_server/coordinator/coordinator.h"

namespace weir {

void Coordinator::HandleJoin(v1::JoinRequest request, Done<v1::JoinReply> done, uint64_t call) {
  if (state_ == v1::FAILED) return done(RefuseJoin());
  const bool worker = request.role() == v1::WORKER;
  if (over() || (state_ == v1::DRAINING && saved_last_ && worker)) {
    if (worker) told_.insert(request.rank());
    return done(absl::OutOfRangeError("the job's examples are done; there is nothing left to do"));
  }
  // The same Join again?
  for (WaitingJoin& join : waiting_) {
    if (join.request.instance() != request.instance()) continue;
    join.done(absl::CancelledError("the same process called again"));
    join.done = std::move(done);
    join.call = call;
    return;
  }
  for (auto& [rank, member] : members_) {
    if (member.instance != request.instance()) continue;
    if (member.phase == Phase::kLive || member.phase == Phase::kIdle) {
      return done(MakeJoinReply(rank, member.incarnation, member.start_clock));
    }
    if (member.join.has_value()) member.join->done(absl::CancelledError("the same process called again"));
    member.join = WaitingJoin{std::move(request), std::move(done), call, now()};
    return;
  }
  for (const auto& [id, reader] : readers_) {
    if (reader.instance == request.instance()) return done(MakeJoinReply(id, reader.incarnation, 0));
  }
  if (absl::Status status = CheckJoin(request); !status.ok()) {
    LogWarning("refused ", request.task(), ": ", status.message());
    return done(status);
  }
  const uint32_t rank = request.rank();
  waiting_.push_back({std::move(request), std::move(done), call, now()});
  OpenLinks();
  if (worker) ReplaceIfGone(rank);
  MaybeInstall();
  MaybeAdmit();
}

absl::Status Coordinator::CheckJoin(const v1::JoinRequest& request) {
  WEIR_RETURN_IF_ERROR(CheckProtocol(request.task(), request.protocol(), "ps:0"));
  if (request.role() != v1::WORKER && request.role() != v1::READER) {
    return absl::InvalidArgumentError(
        absl::StrCat("role: ", request.role(), " is not one of WORKER, READER"));
  }
  const bool worker = request.role() == v1::WORKER;
  if (worker && request.rank() >= options_.workers) {
    return absl::InvalidArgumentError(absl::StrCat("rank: ", request.task(), " has rank ", request.rank(),
                                                   "; the job has ", options_.workers,
                                                   " workers (cluster.workers, or the cluster spec)"));
  }
  v1::JobConfig config;
  if (!config.ParseFromString(request.job_config()))
    return absl::InvalidArgumentError("job_config does not parse");
  if (std::string difference = FirstDifference(options_.config, config); !difference.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the config of ", request.task(), " differs from that of ps:0: ", difference));
  }
  WEIR_ASSIGN_OR_RETURN(ModelSpec model, FromProto(request.model()));
  if (model_.has_value()) {
    if (std::string difference = model_->FirstDifference(model); !difference.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("the model of ", request.task(), " differs from the job's: ", difference));
    }
  }
  if (worker && request.train_examples() == 0) {
    return absl::InvalidArgumentError("train_examples: a worker needs at least one");
  }
  if (worker && train_examples_ != 0 && request.train_examples() != train_examples_) {
    return absl::FailedPreconditionError(absl::StrCat("the training set of ", request.task(), " has ",
                                                      request.train_examples(),
                                                      " examples; that of the job has ", train_examples_));
  }
  const uint64_t shards = std::max<uint64_t>(addresses_.size(), 1);
  if (!shards_.empty() && request.ps_addresses_size() != static_cast<int>(shards)) {
    return absl::FailedPreconditionError(absl::StrCat("the cluster spec of ", request.task(), " lists ",
                                                      request.ps_addresses_size(), " servers; the job has ",
                                                      shards));
  }
  if (request.ps_addresses_size() == 0) return absl::InvalidArgumentError("ps_addresses: needs at least one");

  model_ = std::move(model);
  if (shards_.empty()) addresses_.assign(request.ps_addresses().begin(), request.ps_addresses().end());
  if (worker && total_batches_ == 0) SetLength(request.train_examples());
  return absl::OkStatus();
}

JobSize SizeOf(const v1::JobConfig& config, uint64_t train_examples) {
  const v1::TrainConfig& train = config.train();
  JobSize size;
  size.examples = train.has_examples()
                      ? train.examples()
                      : static_cast<uint64_t>(
                            std::max(1.0, std::round(train.epochs() * static_cast<double>(train_examples))));
  const uint64_t batch = config.data().batch_size();
  size.batches = (size.examples + batch - 1) / batch;
  return size;
}

void Coordinator::SetLength(uint64_t train_examples) {
  const JobSize size = SizeOf(options_.config, train_examples);
  train_examples_ = train_examples;
  total_examples_ = size.examples;
  total_batches_ = size.batches;
  const auto& consistency = options_.config.consistency();
  parts_ = consistency.has_parts() ? consistency.parts() : options_.workers;
  if (recoverable() && checkpoints_->newest().has_value()) {
    // With as many workers as then or not, a step has the same parts.
    parts_ = std::max(1u, checkpoints_->newest()->job().parts());
  }
  const uint64_t per_step = sync() ? parts_ : options_.workers;
  total_steps_ = (total_batches_ + per_step - 1) / per_step;
  progress_.emplace(train_examples_);
}

v1::JoinReply Coordinator::MakeJoinReply(uint32_t worker, uint64_t incarnation, uint64_t start_clock) const {
  v1::JoinReply reply;
  reply.set_worker(worker);
  reply.set_incarnation(incarnation);
  *reply.mutable_membership() = MembershipNow();
  reply.set_start_clock(start_clock);
  reply.set_num_shards(shards_.size());
  for (const ShardInfo& shard : shards_) reply.add_ps_addresses(shard.address);
  *reply.mutable_moved() = MovedShards();
  reply.set_total_batches(total_batches_);
  reply.set_total_examples(total_examples_);
  reply.set_parts(parts_);
  reply.set_total_steps(total_steps_);
  reply.set_model_hash(model_->Hash());
  reply.set_lease_seconds(options_.config.cluster().lease_seconds());
  *reply.mutable_protocol() = OwnProtocol();
  return reply;
}

}  // namespace weir
