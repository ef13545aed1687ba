#include "ps_server/coordinator/coordinator.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/config/job_config.h"
#include "common/telemetry/logging.h"
#include "common/wire_model.h"

namespace weir {
namespace {

// At most; a short lease needs more.
constexpr absl::Duration kPingInterval = absl::Milliseconds(500);
constexpr absl::Duration kComplaintInterval = absl::Seconds(10);

}  // namespace

Coordinator::Coordinator(Options options)
    : options_(std::move(options)),
      created_(options_.clock->Now()),
      next_complaint_(created_ + kComplaintInterval),
      addresses_(options_.shard_addresses) {
  queue_.Post([this] {
    if (addresses_.size() > 1) OpenLinks();
  });
}

Coordinator::~Coordinator() {
  std::vector<std::unique_ptr<ShardLink>> links;
  queue_.Run([&] {
    FailJob("the coordinator stops");
    for (ShardInfo& shard : shards_) links.push_back(std::move(shard.link));
  });
  links.clear();  // outside of the queue: waits for events under way, which may post to it
}

// ---- calls: each posts its turn

void Coordinator::Join(v1::JoinRequest request, Done<v1::JoinReply> done, uint64_t call) {
  queue_.Post([this, request = std::move(request), done = std::move(done), call]() mutable {
    HandleJoin(std::move(request), std::move(done), call);
  });
}

void Coordinator::Heartbeat(v1::HeartbeatRequest request, Done<v1::HeartbeatReply> done) {
  queue_.Post([this, request = std::move(request), done = std::move(done)]() mutable {
    HandleHeartbeat(request, std::move(done));
  });
}

void Coordinator::Leave(v1::LeaveRequest request, Done<v1::LeaveReply> done) {
  queue_.Post([this, request = std::move(request), done = std::move(done)] {
    HandleLeave(request);
    done(v1::LeaveReply());
  });
}

void Coordinator::NextRange(v1::NextRangeRequest request, Done<v1::NextRangeReply> done) {
  queue_.Post([this, request = std::move(request), done = std::move(done)]() mutable {
    HandleNextRange(request, std::move(done));
  });
}

void Coordinator::Pin(v1::PinRequest request, Done<v1::PinReply> done) {
  queue_.Post([this, request = std::move(request), done = std::move(done)]() mutable {
    HandlePin(request, std::move(done));
  });
}

void Coordinator::Unpin(v1::UnpinRequest request, Done<v1::UnpinReply> done) {
  queue_.Post([this, request = std::move(request), done = std::move(done)] {
    v1::ControlMessage message;
    message.mutable_unpin()->set_pin(request.pin());
    Broadcast(message);
    done(v1::UnpinReply());
  });
}

void Coordinator::Report(v1::ReportRequest request, Done<v1::ReportReply> done) {
  queue_.Post([this, request = std::move(request), done = std::move(done)] {
    // A late periodic evaluation must not hide the final one.
    if (!evaluation_.final() || request.evaluation().final()) evaluation_ = request.evaluation();
    done(v1::ReportReply());
  });
}

void Coordinator::Status(Done<v1::ClusterStatus> done) {
  queue_.Post([this, done = std::move(done)] { done(MakeStatus()); });
}

void Coordinator::OnDisconnect(uint32_t worker, uint64_t incarnation) {
  queue_.Post([this, worker, incarnation] {
    const absl::Time end = now() + absl::Seconds(options_.config.cluster().grace_seconds());
    const auto member = members_.find(worker);
    if (member != members_.end() && member->second.incarnation == incarnation) {
      member->second.lease_end = std::min(member->second.lease_end, end);
      if (member->second.heartbeat) AnswerHeartbeat(member->second.heartbeat, false);
    }
    const auto reader = readers_.find(worker);
    if (reader != readers_.end() && reader->second.incarnation == incarnation) {
      reader->second.lease_end = std::min(reader->second.lease_end, end);
      if (reader->second.heartbeat) AnswerHeartbeat(reader->second.heartbeat, false);
    }
  });
}

void Coordinator::OnJoinCancelled(uint64_t instance, uint64_t call) {
  queue_.Post([this, instance, call] {
    for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
      if (it->request.instance() != instance || it->call != call) continue;
      it->done(absl::CancelledError("the caller went away"));
      waiting_.erase(it);
      return;
    }
  });
}

void Coordinator::Tick() {
  queue_.Post([this] { HandleTick(); });
}

void Coordinator::Fail(std::string reason) {
  queue_.Post([this, reason = std::move(reason)] { FailJob(reason); });
}

// ---- starting

void Coordinator::OpenLinks() {
  if (!shards_.empty()) return;
  shards_.resize(addresses_.size());
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) {
    shards_[shard].address = addresses_[shard];
    OpenLink(shard);
  }
}

void Coordinator::OpenLink(uint32_t shard) {
  ShardLinkEvents events;
  events.connected = [this, shard] {
    queue_.Post([this, shard] {
      shards_[shard].connected = true;
      shards_[shard].last_heard = now();
      MaybeInstall();
    });
  };
  events.report = [this, shard](v1::ShardReport report) {
    queue_.Post([this, shard, report = std::move(report)] { HandleShardReport(shard, report); });
  };
  events.broken = [this, shard](absl::Status status) {
    queue_.Post([this, shard, status = std::move(status)] { HandleShardBroken(shard, status); });
  };
  shards_[shard].link = options_.open_link(shard, shards_[shard].address, std::move(events));
}

void Coordinator::MaybeInstall() {
  if (installing_ || over() || shards_.empty()) return;
  std::set<uint32_t> ranks;
  for (const WaitingJoin& join : waiting_) {
    if (join.request.role() == v1::WORKER) ranks.insert(join.request.rank());
  }
  if (ranks.size() < needed_workers()) return;
  for (const ShardInfo& shard : shards_) {
    if (!shard.connected) return;
  }
  installing_ = true;
  Install();
}

void Coordinator::Install() {
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) {
    v1::ControlMessage message;
    v1::Install& install = *message.mutable_install();
    install.set_shard(shard);
    install.set_num_shards(shards_.size());
    *install.mutable_model() = ToProto(*model_);
    install.set_job_config(options_.config.SerializeAsString());
    install.set_workers(options_.workers);
    install.set_parts(parts_);
    install.set_total_steps(total_steps_);
    install.set_total_batches(total_batches_);
    install.set_total_examples(total_examples_);
    install.set_coordinator_address(addresses_[0]);
    shards_[shard].link->Send(message);
  }
}

// ---- shards

void Coordinator::HandleShardReport(uint32_t index, const v1::ShardReport& report) {
  ShardInfo& shard = shards_[index];
  shard.last_heard = now();
  switch (report.report_case()) {
    case v1::ShardReport::kInstalled:
      if (!report.installed().error().empty()) {
        return FailJob(absl::StrCat(ShardName(index), " cannot take part: ", report.installed().error()));
      }
      shard.installed = true;
      shard.incarnation = report.installed().incarnation();
      return MaybeAdmit();
    case v1::ShardReport::kMembership: {
      shard.acked_epoch = report.membership().epoch();
      shard.floor = report.membership().floor();
      const bool all = std::all_of(shards_.begin(), shards_.end(),
                                   [&](const ShardInfo& s) { return s.acked_epoch == epoch_; });
      if (all) OnAllAcked();
      return;
    }
    case v1::ShardReport::kStaged:
      shard.staged = report.staged();
      return MaybeCommit();
    case v1::ShardReport::kPinned: {
      const auto waiting = waiting_pins_.find(report.pinned().pin());
      if (waiting == waiting_pins_.end()) return;
      waiting->second.versions[index] = report.pinned().version();
      if (waiting->second.versions.size() < shards_.size()) return;
      v1::PinReply reply;
      reply.set_pin(report.pinned().pin());
      for (const auto& [s, version] : waiting->second.versions) *reply.add_versions() = version;
      waiting->second.done(std::move(reply));
      waiting_pins_.erase(waiting);
      return;
    }
    case v1::ShardReport::kStats:
      shard.stats = report.stats();
      if (final_ping_ > 0 && std::all_of(shards_.begin(), shards_.end(), [&](const ShardInfo& s) {
            return s.stats.sequence() >= final_ping_;
          })) {
        End();
      }
      return;
    case v1::ShardReport::REPORT_NOT_SET:
      return;
  }
}

void Coordinator::HandleShardBroken(uint32_t index, const absl::Status& status) {
  if (over()) return;
  FailJob(absl::StrCat(ShardName(index),
                       shards_[index].connected ? " was lost: " : " cannot take part: ", status.message()));
}

void Coordinator::MaybeCommit() {
  if (state_ != v1::RUNNING) return;
  std::set<uint32_t> refused;
  for (const ShardInfo& shard : shards_) {
    if (!shard.staged.has_value() || shard.staged->step() != committed_) return;
    refused.insert(shard.staged->refused_parts().begin(), shard.staged->refused_parts().end());
  }
  v1::ControlMessage message;
  v1::CommitStep& commit = *message.mutable_commit();
  commit.set_step(committed_);
  const uint64_t parts = std::min<uint64_t>(parts_, total_batches_ - committed_ * parts_);
  for (uint32_t part = 0; part < parts; ++part) {
    if (refused.count(part) == 0) commit.add_parts(part);
  }
  if (!refused.empty()) {
    std::string reason;
    for (const ShardInfo& shard : shards_) {
      if (reason.empty()) reason = shard.staged->reason();
    }
    LogWarning("step ", committed_, " is committed without part(s) ", absl::StrJoin(refused, ", "), ": ",
               reason);
  }
  for (ShardInfo& shard : shards_) shard.staged.reset();
  ++committed_;
  Broadcast(message);
  if (committed_ == total_steps_) StartDraining();
}

// ---- readers

void Coordinator::HandlePin(const v1::PinRequest& request, Done<v1::PinReply> done) {
  if (state_ != v1::RUNNING && state_ != v1::DRAINING) {
    return done(absl::UnavailableError(
        absl::StrCat("the job is ", v1::JobState_Name(state_), "; there is nothing to pin")));
  }
  const uint64_t pin = ++last_pin_;
  waiting_pins_[pin] = {std::move(done), {}, now() + lease()};
  v1::ControlMessage message;
  message.mutable_pin()->set_pin(pin);
  // In this order a NaN ends as the least.
  message.mutable_pin()->set_lease_seconds(std::min(600.0, std::max(1.0, request.lease_seconds())));
  Broadcast(message);
}

// ---- time

void Coordinator::HandleTick() {
  if (over()) return;
  const absl::Time time = now();
  if (state_ == v1::STARTING) {
    const double limit = options_.config.cluster().start_seconds();
    if (time - created_ > absl::Seconds(limit)) {
      return FailJob(absl::StrCat("the job did not start within cluster.start_seconds = ", limit,
                                  "; missing: ", absl::StrJoin(WaitingFor(), ", ")));
    }
    if (time >= next_complaint_) {
      next_complaint_ = time + kComplaintInterval;
      LogWarning("still waiting for ", absl::StrJoin(WaitingFor(), ", "));
    }
  }

  std::vector<uint32_t> expired;
  for (auto& [rank, member] : members_) {
    if (member.lease_end <= time) expired.push_back(rank);
    if (member.heartbeat && member.heartbeat_until <= time) AnswerHeartbeat(member.heartbeat, false);
    if (member.next_range && member.next_range_until <= time) {
      const auto done = std::exchange(member.next_range, nullptr);
      done(v1::NextRangeReply());
    }
  }
  for (uint32_t rank : expired) {
    RemoveMember(rank, absl::StrCat("nothing was heard of it for ",
                                    absl::FormatDuration(time - members_.at(rank).last_heard)));
  }
  std::vector<uint32_t> expired_readers;
  for (auto& [id, reader] : readers_) {
    if (reader.lease_end <= time) expired_readers.push_back(id);
    if (reader.heartbeat && reader.heartbeat_until <= time) AnswerHeartbeat(reader.heartbeat, false);
  }
  for (uint32_t id : expired_readers) RemoveReader(id);

  for (auto it = waiting_.begin(); it != waiting_.end();) {
    const auto holder = it->request.role() == v1::WORKER ? members_.find(it->request.rank()) : members_.end();
    if (holder != members_.end() && holder->second.phase != Phase::kJoining &&
        time - it->since > 2 * lease()) {
      it->done(absl::AlreadyExistsError(absl::StrCat("another live process is ", holder->second.task,
                                                     "; is the same task index used twice?")));
      it = waiting_.erase(it);
    } else {
      ++it;
    }
  }
  for (auto it = waiting_pins_.begin(); it != waiting_pins_.end();) {
    if (it->second.deadline > time) {
      ++it;
      continue;
    }
    it->second.done(absl::DeadlineExceededError("not every shard confirmed the pin in time"));
    it = waiting_pins_.erase(it);
  }

  // From the first moment: a shard, too, takes silence for loss, and workers may be long in coming.
  if (time >= next_ping_) {
    next_ping_ = time + std::min(kPingInterval, lease() / 3);
    PingShards();
    if (state_ == v1::RUNNING && progress_.has_value()) progress_->Sample(time, examples_done());
  }
  for (uint32_t i = 0; i < shards_.size(); ++i) {
    // Making version 0 of a large model may take longer than a lease; the start deadline limits that.
    const bool busy = installing_ && !shards_[i].installed;
    if (shards_[i].connected && !busy && time - shards_[i].last_heard > lease()) {
      return FailJob(absl::StrCat(ShardName(i), " was lost: nothing was heard of it for ",
                                  absl::FormatDuration(time - shards_[i].last_heard)));
    }
  }

  if (state_ == v1::RUNNING && members_.empty()) {
    if (!deserted_.has_value()) deserted_ = time;
    const double limit = options_.config.cluster().start_seconds();
    if (time - *deserted_ > absl::Seconds(limit)) {
      return FailJob(absl::StrCat("no worker was live for cluster.start_seconds = ", limit));
    }
    if (time >= next_complaint_) {
      next_complaint_ = time + kComplaintInterval;
      LogWarning("no worker is live; waiting for one to join");
    }
  } else {
    deserted_.reset();
  }
}

// ---- the end

void Coordinator::StartDraining() {
  if (state_ != v1::RUNNING) return;
  state_ = v1::DRAINING;
  ended_ = now();
  LogInfo("all ", total_examples_, " examples are done");
  Changed();
  ServeRanges();
  MaybeFinish();
}

void Coordinator::MaybeFinish() {
  if (state_ != v1::DRAINING || final_ping_ > 0 || !members_.empty() || !readers_.empty()) return;
  final_ping_ = PingShards();
}

void Coordinator::End() {
  if (over()) return;
  state_ = v1::DONE;
  v1::ControlMessage message;
  message.mutable_shutdown();
  Broadcast(message);
  Changed();
  AnswerParked(absl::OutOfRangeError("the job's examples are done; there is nothing left to do"),
               absl::FailedPreconditionError("the job is done"));
  options_.on_end(MakeStatus(), "");
}

void Coordinator::FailJob(const std::string& reason) {
  if (over()) return;
  state_ = v1::FAILED;
  failure_ = reason;
  if (ended_ == absl::Time()) ended_ = now();
  LogError(reason);
  v1::ControlMessage message;
  message.mutable_shutdown()->set_failure(reason);
  Broadcast(message);
  Changed();
  // Joins: not Unavailable, which asks for another try, which would find nobody and hide the reason.
  AnswerParked(absl::AbortedError(reason), absl::UnavailableError(reason));
  options_.on_end(MakeStatus(), reason);
}

void Coordinator::AnswerParked(const absl::Status& joins, const absl::Status& others) {
  for (WaitingJoin& join : waiting_) join.done(joins);
  waiting_.clear();
  for (auto& [rank, member] : members_) {
    if (member.join) std::exchange(member.join, nullptr)(joins);
    if (member.next_range) std::exchange(member.next_range, nullptr)(others);
  }
  for (auto& [pin, waiting] : waiting_pins_) waiting.done(others);
  waiting_pins_.clear();
}

void Coordinator::Changed() {
  ++revision_;
  for (auto& [rank, member] : members_) {
    if (member.heartbeat) AnswerHeartbeat(member.heartbeat, false);
  }
  for (auto& [id, reader] : readers_) {
    if (reader.heartbeat) AnswerHeartbeat(reader.heartbeat, false);
  }
}

void Coordinator::AnswerHeartbeat(Done<v1::HeartbeatReply>& parked, bool fenced) {
  v1::HeartbeatReply reply;
  reply.set_revision(revision_);
  reply.set_state(state_);
  *reply.mutable_membership() = MembershipNow();
  reply.set_fenced(fenced);
  reply.set_failure(failure_);
  std::exchange(parked, nullptr)(std::move(reply));
}

uint64_t Coordinator::PingShards() {
  v1::ControlMessage message;
  message.mutable_ping()->set_sequence(++last_ping_);
  Broadcast(message);
  return last_ping_;
}

void Coordinator::Broadcast(const v1::ControlMessage& message) {
  for (ShardInfo& shard : shards_) {
    if (shard.link != nullptr && shard.connected) shard.link->Send(message);
  }
}

std::string Coordinator::ShardName(uint32_t shard) const {
  return absl::StrCat("ps:", shard, " at ", shards_[shard].address);
}

uint32_t Coordinator::needed_workers() const {
  const auto& cluster = options_.config.cluster();
  return std::min(options_.workers, cluster.has_min_workers() ? cluster.min_workers() : options_.workers);
}

}  // namespace weir
