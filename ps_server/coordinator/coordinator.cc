#include "ps_server/coordinator/coordinator.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/bounded.h"
#include "common/protocol/job_failure.h"
#include "common/protocol/part_assignment.h"
#include "common/telemetry/logging.h"

namespace weir {
namespace {

// The length of a SHA-256 in hex digits.
constexpr size_t kSha256 = 64;

// The results of the job in a checkpoint, beside the shards' state and the job's progress.
std::string ResultsIn(const v1::CoordinatorState& job) {
  v1::CoordinatorState results;
  results.set_done(job.done());
  results.set_total_batches(job.total_batches());
  *results.mutable_evaluations() = job.evaluations();
  if (job.has_best()) *results.mutable_best() = job.best();
  return results.SerializeAsString();
}

absl::Status NothingLeft() {
  return absl::OutOfRangeError("the job's examples are done; there is nothing left to do");
}

}  // namespace

Coordinator::Coordinator(Options options, std::unique_ptr<JobStore> store)
    : options_(std::move(options)),
      job_(store == nullptr ? options_.job : store->opened().job),
      mode_(TraitsOf(options_.config)),
      created_(options_.clock->Now()),
      last_tick_(created_),
      context_(MakeContext()),
      checkpoints_(context_, std::move(store), CheckpointsOptions()),
      numbers_(context_, checkpoints_.opened(), NumbersOptions()),
      shards_(context_, options_.shard_addresses, FleetOptions()),
      members_(context_, MembersOptions()),
      ending_(context_, checkpoints_, EndingOptions()),
      declared_(context_, {&checkpoints_, &members_, &shards_,
                           /*knows_servers=*/options_.shard_addresses.size() > 1, options_.memory_bytes,
                           /*size_changed=*/
                           [this] {
                             meter_.SetTrainExamples(size().train_examples);
                             evaluations_.SetLength(size());
                           }}),
      source_(context_, checkpoints_,
              {options_.init_from, options_.init_from_before, [this] { MaybeInstall(); },
               [this](const absl::Status& failure) { ending_.FailUnlessReplaced(failure); }}),
      upload_(context_, checkpoints_,
              [this](bool uploaded) {
                if (!uploaded) return MaybeAdmit();
                LogInfo("all shards have the initial values");
                // Members are told once all shards know.
                BroadcastMembership();
              }),
      progress_(context_, declared_, checkpoints_, shards_),
      losses_(options_.config.train().divergence()),
      evaluations_(context_, checkpoints_,
                   [this] {
                     MaybeEvaluate();
                     MaybeCommit();
                   }),
      pins_({lease(), checkpoints_.enabled() ? (checkpoints_.opened().coordinator_incarnation << 32) + 1 : 1,
             [this](const v1::ControlMessage& message) { shards_.Broadcast(message); }}) {
  complaints_.Begin(created_);
  if (checkpoints_.enabled()) members_.Fence(numbers_.incarnation(), "ps:0 was started again");
  if (checkpoints_.any()) {
    const v1::CoordinatorState& job = checkpoints_.newest()->job();
    declared_.Restore();
    progress_.steps().GoTo(job.committed_steps());
    evaluations_.Restore(job);
    losses_.Restore(job.losses());
  }
  queue_.Post([this] {
    if (checkpoints_.any()) {
      const absl::Status status = CanGoOn(options_.config, *checkpoints_.newest());
      if (!status.ok()) return EndJob(Misfit(status.message()));
    }
    if (declared_.DoneBefore()) return EndAgain();
    if (shards_.addresses().size() > 1) shards_.Open();
  });
}

Coordinator::~Coordinator() {
  std::vector<std::unique_ptr<ShardLink>> links;
  std::unique_ptr<JobStore> store;
  queue_.Run([&] {
    EndJob(LostPeer("the coordinator stops"), /*asked=*/true);
    links = shards_.Close();
    store = checkpoints_.Close(absl::UnavailableError("the coordinator stops"));
  });
  // Destroyed outside of the queue: the destructors wait for events, which may post to the queue.
  links.clear();
  store.reset();
}

// ---- the parts' functions

JobContext Coordinator::MakeContext() {
  return {options_.config,
          options_.workers,
          options_.clock,
          [this](std::function<void()> function) { queue_.Post(std::move(function)); },
          [this] { return over(); },
          [this](const absl::Status& failure) { EndJob(failure); },
          [this](const std::string& why) { StepAside(why); }};
}

Checkpoints::Options Coordinator::CheckpointsOptions() {
  return {[this] { return TakeSnapshot(); },
          [this](const v1::ControlMessage& message) { shards_.Broadcast(message); },
          [this] { MaybeInstall(); }};
}

JobNumbers::Options Coordinator::NumbersOptions() {
  JobNumbers::Options options;
  if (checkpoints_.enabled()) {
    options.reserve = [this](const JobStore::Numbers& up_to, JobNumbers::Done done) {
      checkpoints_.Reserve(up_to, std::move(done));
    };
  }
  options.reserved = [this](bool needed) {
    if (std::exchange(pending_.due, false)) BroadcastMembership();
    if (needed) MaybeAdmit();
  };
  return options;
}

ShardFleet::Options Coordinator::FleetOptions() {
  ShardFleet::Options fleet;
  fleet.identity = job_;
  fleet.incarnation = checkpoints_.opened().coordinator_incarnation;
  fleet.open_link = options_.open_link;
  fleet.on_report = [this](uint32_t shard, const v1::ShardReport& report) {
    HandleShardReport(shard, report);
  };
  fleet.on_ended = [this](uint32_t shard, const absl::Status& status) {
    over() ? HandleServerGone(shard, status) : HandleShardBroken(shard, status);
  };
  return fleet;
}

MemberTable::Options Coordinator::MembersOptions() {
  MemberTable::Options members;
  members.identity = job_;
  members.names = options_.worker_names;
  members.describe = [this](const ParkedHeartbeat& heartbeat, bool news, v1::HeartbeatReply* reply) {
    reply->set_state(state_);
    if (news) {
      *reply->mutable_membership() = MembershipNow();
      *reply->mutable_moved() = shards_.Moved();
    }
    reply->set_evaluated(evaluations_.final());
    if (auto order = evaluations_.OrderFor(heartbeat.incarnation)) {
      *reply->mutable_evaluate() = *order;
    }
    reply->set_awaits_evaluation(evaluations_.awaited());
    if (evaluations_.work_end().has_value()) reply->set_work_end(*evaluations_.work_end());
    if (!ending_.failure().ok()) SetFailure(ending_.failure(), reply);
  };
  return members;
}

JobEnding::Options Coordinator::EndingOptions() {
  JobEnding::Options ending;
  ending.worker_name = [this](uint32_t rank) { return members_.NameOf(rank); };
  ending.confirm = [this](std::function<void(const absl::Status&)> done) {
    checkpoints_.Reserve(numbers_.reserved(), std::move(done));
  };
  ending.all_installed = [this] { return shards_.AllInstalled(); };
  ending.saved = [this] {
    TellNothingLeft();
    MaybeFinish();
  };
  ending.settled = [this] {
    if (state_ == v1::DONE && !ending_.awaited_servers().empty()) {
      std::vector<std::string> names;
      for (const uint32_t index : ending_.awaited_servers()) names.push_back(shards_.name(index));
      LogWarning("the job is done, but ", ShortList(names), " may not know that: no answer within ",
                 "cluster.server_wait_seconds = ", options_.config.cluster().server_wait_seconds());
    }
    options_.on_end(StatusOf(View(), MembershipNow()), ending_.failure());
  };
  return ending;
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
  queue_.Post([this, request = std::move(request), done = std::move(done)]() mutable {
    HandleLeave(request, std::move(done));
  });
}

void Coordinator::NextRange(v1::NextRangeRequest request, Done<v1::NextRangeReply> done) {
  queue_.Post([this, request = std::move(request), done = std::move(done)]() mutable {
    HandleNextRange(request, std::move(done));
  });
}

void Coordinator::Pin(v1::PinRequest request, Done<v1::PinReply> done) {
  queue_.Post([this, request = std::move(request), done = std::move(done)]() mutable {
    if (absl::Status same = members_.CheckJob(request.caller().job()); !same.ok()) return done(same);
    if (state_ != v1::RUNNING && state_ != v1::DRAINING) {
      return done(absl::UnavailableError(
          absl::StrCat("the job is ", v1::JobState_Name(state_), "; there is nothing to pin")));
    }
    if (absl::Status caller = members_.CheckCaller(request.caller()); !caller.ok()) return done(caller);
    pins_.Ask(request, members_.TaskOf(request.caller().incarnation()), now(), std::move(done));
  });
}

void Coordinator::Unpin(v1::UnpinRequest request, Done<v1::UnpinReply> done) {
  queue_.Post([this, request = std::move(request), done = std::move(done)] {
    if (absl::Status caller = members_.CheckCaller(request.caller()); !caller.ok()) return done(caller);
    if (const std::optional<std::vector<uint64_t>> read = pins_.Release(request, now()); read.has_value()) {
      evaluations_.OnRead(request.caller().incarnation(), *read);
      MaybeCommit();
    }
    done(v1::UnpinReply());
  });
}

void Coordinator::Report(v1::ReportRequest request, Done<v1::ReportReply> done) {
  queue_.Post([this, request = std::move(request), done = std::move(done)] {
    if (absl::Status caller = members_.CheckCaller(request.caller()); !caller.ok()) return done(caller);
    if (request.evaluation().weights_sha256().size() > kSha256) {
      return done(absl::InvalidArgumentError(
          absl::StrCat("evaluation.weights_sha256: must be ", kSha256, " digits in hex, or empty")));
    }
    done(v1::ReportReply());
    HandleReport(request);
  });
}

void Coordinator::Checkpoint(v1::CheckpointRequest, Done<v1::CheckpointReply> done) {
  queue_.Post([this, done = std::move(done)]() mutable {
    if (!checkpoints_.enabled()) {
      return done(absl::FailedPreconditionError("the job's config has no checkpoint.directory"));
    }
    if (over()) return done(ending_.ForCall());
    checkpoints_.Request(/*of_now=*/false, std::move(done));
  });
}

void Coordinator::Announce(v1::AnnounceRequest request, Done<v1::AnnounceReply> done) {
  queue_.Post([this, request = std::move(request), done = std::move(done)]() mutable {
    if (over()) return done(ending_.ForCall());
    shards_.Announce(std::move(request), std::move(done));
  });
}

void Coordinator::Status(Done<v1::ClusterStatus> done, bool with_loss_curve) {
  queue_.Post([this, done = std::move(done), with_loss_curve] {
    v1::ClusterStatus status = StatusOf(View(), MembershipNow());
    if (with_loss_curve) {
      for (v1::LossPoint& point : meter_.LossCurve()) *status.add_loss_curve() = std::move(point);
    }
    done(std::move(status));
  });
}

void Coordinator::OnDisconnect(v1::Caller caller) {
  queue_.Post([this, caller = std::move(caller)] {
    if (!members_.CheckCaller(caller).ok()) return;
    if (const auto member = members_.workers().find(caller.worker()); member != members_.workers().end()) {
      members_.Disconnect(member->second);
      ReplaceIfGone(caller.worker());
    } else if (const auto reader = members_.readers().find(caller.worker());
               reader != members_.readers().end()) {
      members_.Disconnect(reader->second);
    }
  });
}

void Coordinator::OnJoinCancelled(uint64_t instance, uint64_t call) {
  queue_.Post([this, instance, call] {
    for (auto it = members_.waiting().begin(); it != members_.waiting().end(); ++it) {
      if (it->request.instance() != instance || it->call != call) continue;
      it->done(absl::CancelledError("the caller went away"));
      if (it->worker()) ending_.OnJoinBroken(it->request.rank(), it->request.task());
      members_.waiting().erase(it);
      return declared_.Forget();
    }
    // The process was admitted meanwhile, and may never learn that.
    for (auto& [rank, member] : members_.workers()) {
      if (member.instance != instance || (member.join.has_value() && member.join->call != call)) continue;
      members_.Disconnect(member);
      return ReplaceIfGone(rank);
    }
  });
}

void Coordinator::Tick() {
  queue_.Post([this] { HandleTick(); });
}

void Coordinator::Fail(std::string reason) {
  queue_.Post([this, reason = std::move(reason)] { EndJob(LostPeer(reason), /*asked=*/true); });
}

void Coordinator::Drain(std::string reason) {
  queue_.Post([this, reason = std::move(reason)] { HandleDrain(reason); });
}

// ---- shards

void Coordinator::HandleShardReport(uint32_t index, const v1::ShardReport& report) {
  ShardFleet::Shard& shard = shards_[index];
  shard.last_heard = now();
  if (over()) return;
  switch (report.report_case()) {
    case v1::ShardReport::kAttached: {
      const ShardFleet::Place place = shards_.Attach(index, report.attached());
      if (place == ShardFleet::Place::kOther) return;
      if (place == ShardFleet::Place::kMoved) {
        members_.Changed();
        shard.moved_revision = members_.revision();
      }
      return MaybeInstall();
    }
    case v1::ShardReport::kInstalled:
      return HandleInstalled(index, report.installed());
    case v1::ShardReport::kMembership: {
      if (!shard.installed) return;  // the report is about the shard's earlier state
      shard.acked_epoch = report.membership().epoch();
      shard.floor = report.membership().floor();
      if (shards_.AllAcknowledged(numbers_.epoch()) && !pending_.due) OnAllAcked();
      if (pending_.idle) TellIdle();
      return;
    }
    case v1::ShardReport::kStaged:
      if (!shard.installed) return;
      progress_.steps().OnStaged(index, report.staged());
      return MaybeCommit();
    case v1::ShardReport::kPinned:
      return pins_.OnPinned(index, report.pinned(), shards_.size());
    case v1::ShardReport::kStats:
      shard.stats = report.stats();
      shard.stats_since = now();
      if (index == 0) {
        progress_.steps().OnApplied(shard.stats.version().count());
        // Only now is the count up to date; between reports it is old.
        meter_.Sample(now(), progress_.examples(), state_ == v1::RUNNING);
      }
      // A committed step may still wait for memory on a shard, which publishes the step anyway.
      if (std::all_of(shards_.begin(), shards_.end(), [&](const ShardFleet::Shard& s) {
            return shards_.AnsweredFinalPing(s) &&
                   (!mode_.commits_steps || s.stats.version().count() >= progress_.steps().committed());
          })) {
        EndJob(absl::OkStatus());
      }
      return;
    case v1::ShardReport::kCheckpoint:
      if (checkpoints_.enabled() && shard.installed) checkpoints_.OnWritten(index, report.checkpoint());
      return;
    case v1::ShardReport::kValues:
      if (shard.installed) upload_.OnStaged(index, report.values().uploader(), shards_.size());
      return;
    case v1::ShardReport::kFailed: {
      const std::string why = absl::StrCat(shards_.name(index), ": ", report.failed().error());
      if (!report.failed().replaced()) {
        const v1::FailureKind kind = report.failed().kind();
        const bool storage = kind == v1::FAILURE_UNSPECIFIED || kind == v1::FAILURE_RESOURCE;
        return EndJob(storage ? StorageFailure(why) : JobFailure(kind, why));
      }
      // No other coordinator installs the shard of this process. So if another coordinator has taken the
      // shard's log, it has the job, too.
      return index == 0 ? StepAside(why) : EndJob(LostPeer(why));
    }
    case v1::ShardReport::REPORT_NOT_SET:
      return;
  }
}

void Coordinator::MaybeCommit() {
  if (state_ != v1::RUNNING || ending_.drained()) return;
  if (evaluations_.Holds()) return;  // an evaluator needs this step's weights
  const uint32_t parts = PartsOf(progress_.steps().committed(), size().parts, size().batches);
  const std::optional<StepCommitter::Commit> commit = progress_.steps().Ready(parts, shards_.size());
  if (!commit.has_value()) return;
  if (!commit->refused.empty()) {
    if (options_.config.consistency().on_nonfinite() == v1::ConsistencyConfig::ON_NONFINITE_STOP)
      return EndJob(Divergence(commit->reason));
    LogWarning("step ", progress_.steps().committed(), " is committed without part(s) ",
               ShortList(commit->refused), ": ", commit->reason);
  }
  progress_.steps().Committed(*commit);
  v1::ControlMessage message;
  *message.mutable_commit() = commit->step;
  shards_.Broadcast(message);
  if (progress_.all_done() && !evaluations_.waits()) return StartDraining();
  MaybeEvaluate();
}

// ---- time

void Coordinator::HandleTick() {
  if (over()) {
    for (const uint32_t server : ending_.awaited_servers()) shards_.Reopen(server);
  }
  ending_.Tick();
  if (over()) return;
  const absl::Time time = now();
  if (state_ == v1::STARTING) {
    const double limit = options_.config.cluster().start_seconds();
    if (time - created_ > absl::Seconds(limit)) {
      return ending_.FailUnlessReplaced(
          LostPeer(absl::StrCat("the job did not start within cluster.start_seconds = ", limit,
                                "; missing: ", ShortList(WaitingFor(View())))));
    }
  }
  if ((state_ == v1::STARTING || state_ == v1::RECOVERING) && complaints_.Due(time)) {
    LogWarning("still waiting for ", ShortList(WaitingFor(View())));
  }
  // If this process stood still, others may have called meanwhile.
  const bool stood_still = time - last_tick_ > lease() / 2;
  last_tick_ = time;
  if (stood_still) {
    for (ShardFleet::Shard& server : shards_.servers()) server.last_heard = time;
  }
  members_.Tick(shards_.AllInstalled(), stood_still);
  for (const uint32_t rank : members_.ExpiredWorkers()) {
    const Worker& member = members_.workers().at(rank);
    ending_.OnLost(rank, member.task, member.disconnected || !member.heard, members_.Waiting(rank));
    RemoveMember(
        rank, absl::StrCat("nothing was heard of it for ", absl::FormatDuration(time - member.last_heard)));
  }
  for (const uint32_t id : members_.ExpiredReaders()) RemoveReader(id);
  members_.RefuseSecond();
  if (evaluations_.OnTick(time)) {
    LogWarning("the evaluation of an epoch took longer than cluster.wait_seconds = ",
               options_.config.cluster().wait_seconds(), ", and is left out");
    MaybeCommit();
  }
  MaybeEvaluate();
  pins_.Tick(time);
  TickShards(time);
  if (over()) return;

  // Pings begin at once, because a shard also takes silence for loss, and workers may take long to come.
  shards_.PingIfDue();
  if (checkpoints_.enabled()) {
    checkpoints_.Tick();
    const bool saves = state_ == v1::RUNNING || upload_.saving();
    // If the job waits for an evaluation at an epoch's end, a checkpoint now would lack its result.
    if (saves && !ending_.drained() && !evaluations_.awaited())
      checkpoints_.TakeIfDue(progress_.steps_done());
    ending_.TickSave();
    upload_.Tick();
    numbers_.Tick();
  }
  if (pending_.left) TellMembership();
  MaybeFinish();

  // Workers cannot join while shards are away.
  const bool ready = state_ == v1::RUNNING || (AwaitsEvaluation() && ending_.saved()) ||
                     (state_ == v1::RECOVERING && shards_.AllAttached());
  if (!ready || !members_.workers().empty()) return deserted_.reset();
  if (!deserted_.has_value()) deserted_ = time;
  const double limit = options_.config.cluster().start_seconds();
  if (time - *deserted_ > absl::Seconds(limit)) {
    const std::string what = absl::StrCat("no worker was live for cluster.start_seconds = ", limit);
    if (state_ != v1::DRAINING) return ending_.FailUnlessReplaced(LostPeer(what));
    return ending_.FailUnlessReplaced(LostPeer(absl::StrCat(
        "all ", size().examples, " examples are done, but no worker has evaluated the weights: ", what,
        checkpoints_.enabled() ? "; they are in " + checkpoints_.newest_folder() : "")));
  }
  if (complaints_.Due(time)) {
    LogWarning("no worker is live; waiting for one to join");
  }
}

JobView Coordinator::View() const {
  return {state_,
          context_,
          job_,
          options_.tls,
          /*searches=*/source_.searching() && !source_.found(),
          checkpoints_,
          numbers_,
          shards_,
          members_,
          ending_,
          declared_,
          progress_,
          upload_,
          meter_,
          evaluations_};
}

// ---- checkpoints

absl::StatusOr<Checkpoints::Snapshot> Coordinator::TakeSnapshot() const {
  if (state_ != v1::RUNNING && state_ != v1::DRAINING && !upload_.saving()) {
    return absl::UnavailableError(
        absl::StrCat("the job is ", v1::JobState_Name(state_), "; there is nothing to save"));
  }
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) {
    if (!shards_[shard].installed)
      return absl::UnavailableError(absl::StrCat(shards_.name(shard), " is away"));
  }
  Checkpoints::Snapshot snapshot;
  const auto& newest = checkpoints_.newest();
  snapshot.progress = progress_.steps_done();
  // Complete batches are known at once, the work of shard 0 only as of its last report.
  const uint64_t complete = progress_.done() / std::max<uint32_t>(1, options_.workers);
  if (!mode_.commits_steps) {
    snapshot.step = std::max({progress_.steps_done(), complete, checkpoints_.next_step()});
  } else if (newest.has_value()) {
    // The step is above the newest checkpoint's, which may be of this very step.
    snapshot.step = std::max(progress_.steps().committed(), newest->step() + 1);
  } else {
    snapshot.step = progress_.steps().committed();
  }
  snapshot.num_shards = shards_.size();
  declared_.Describe(&snapshot);
  v1::CoordinatorState& job = snapshot.job;
  *job.mutable_identity() = job_;
  job.set_committed_steps(progress_.steps().committed());
  // If it said `done`, a coordinator that starts from it would not have the last epoch evaluated.
  const bool evaluated = !evaluations_.waits() || !evaluations_.open();
  job.set_done(state_ == v1::DRAINING || (progress_.all_done() && evaluated));
  job.set_examples(progress_.examples());
  job.set_epoch(numbers_.epoch());
  job.set_last_incarnation(numbers_.incarnation());
  const v1::Membership membership = MembershipNow();
  *job.mutable_members() = membership.members();
  for (uint32_t rank : ending_.gave_up()) job.add_gave_up(rank);
  evaluations_.Save(snapshot.step, &job);
  *job.mutable_losses() = losses_.history();
  // The results count, too. A checkpoint of this state may have been taken before an epoch's evaluation was
  // known, or before the last range was reported. Then a coordinator that starts from it would not know the
  // best epoch, or would wait for workers that were told of the end and are gone.
  snapshot.saved = progress_.saved() && ResultsIn(newest->job()) == ResultsIn(job);
  return snapshot;
}

// ---- evaluations

void Coordinator::HandleReport(const v1::ReportRequest& request) {
  if (over()) return;
  const v1::Evaluation& evaluation = request.evaluation();
  if (evaluation.order() == 0) {
    // The member may have read the weights for its final evaluation before the job went back to a checkpoint.
    const bool of_end = evaluation.final() || !evaluation.weights_sha256().empty();
    if (of_end && state_ != v1::DRAINING) return;
    if (!evaluations_.OnUnasked(evaluation, size().steps)) return;
    TellNothingLeft();
    return members_.Changed();
  }
  evaluations_.OnReport(request.caller().incarnation(), evaluation, progress_.StepOf(evaluation.version()));
  MaybeEvaluate();
  MaybeCommit();
}

void Coordinator::MaybeEvaluate() {
  if (state_ != v1::RUNNING || ending_.drained()) return;
  evaluations_.Advance(progress_.done());
  if (evaluations_.AskOneOf([this] { return members_.Evaluators(); }, !members_.workers().empty(), now()))
    members_.Changed();
  if (!evaluations_.waits()) return;
  if (!evaluations_.busy()) {
    if (progress_.all_done()) return StartDraining();
    if (const std::string why = evaluations_.WhyItStopsHere(); !why.empty()) return StopEarly(why);
  }
  const bool changed = evaluations_.SetWorkEnd(progress_.done());
  progress_.SetWorkEnd(evaluations_.work_end());
  if (!changed) return;
  members_.Changed();
  ServeRanges();
  MaybeAdmit();  // idle workers may have work again
}

void Coordinator::StopEarly(const std::string& why) {
  evaluations_.StopEarly(why);
  LogInfo("training stops ", why);
  const uint64_t batches = mode_.commits_steps ? progress_.batches() : progress_.done();
  declared_.Shorten(std::min(size().examples, batches * options_.config.data().batch_size()), batches);
  if (progress_.ranges().has_value()) progress_.ranges()->EndHere();
  StartDraining();
}

// ---- the end

void Coordinator::TrainingStarts() {
  ending_.OnStart();
  meter_.OnStart(now(), progress_.examples());
}

void Coordinator::StartDraining() {
  if (state_ != v1::RUNNING) return;
  state_ = v1::DRAINING;
  meter_.OnEnd(now());
  LogInfo("all ", size().examples, " examples are done");
  ending_.Save(size().examples);
  members_.Changed();
  ServeRanges();
  MaybeFinish();
}

absl::Status Coordinator::NothingLeftFor(const v1::JoinRequest& request) {
  // The request was not checked before.
  if (ending_.ends_again())
    shards_.OnNamed(std::min(request.ps_addresses_size(), JobDeclaration::kMaxServers));
  // If the instance is refused, this Join is a late repeat, whose process does not hear the answer.
  if (request.role() == v1::WORKER && request.rank() < options_.workers &&
      !members_.Refuses(request.instance())) {
    ending_.OnTold(request.rank(), request.instance());
  }
  return NothingLeft();
}

void Coordinator::TellNothingLeft() {
  if (state_ != v1::DRAINING || !ending_.saved() || AwaitsEvaluation()) return;
  for (WaitingJoin& join : members_.TakeWaiting(v1::WORKER)) join.done(NothingLeftFor(join.request));
}

void Coordinator::EndAgain() {
  const v1::CoordinatorState& job = checkpoints_.newest()->job();
  if (job.total_batches() < size().batches) {
    evaluations_.StoppedBefore();
    declared_.Shorten(job.total_examples(), job.total_batches());
  }
  LogInfo("all ", size().examples, " examples were done before; the result is ",
          checkpoints_.newest_folder());
  ending_.EndAgain();
  state_ = v1::DRAINING;
  TrainingStarts();
  meter_.EndAtStart();
  shards_.Open();
}

void Coordinator::MaybeFinish() {
  if (state_ != v1::DRAINING || shards_.final_ping_sent() || !members_.workers().empty() ||
      !members_.readers().empty())
    return;
  if (!ending_.saved() || ending_.drained() || AwaitsEvaluation() || ending_.AwaitsWorkers()) return;
  if (ending_.ends_again()) return EndJob(absl::OkStatus());
  shards_.SendFinalPing(options_.config.tables_size());
}

void Coordinator::EndJob(const absl::Status& failure, bool asked) {
  if (over()) return asked ? ending_.WaitNoLonger() : void();
  const bool done = failure.ok();
  state_ = done ? v1::DONE : v1::FAILED;
  ending_.End(failure);
  meter_.OnEnd(now());
  if (asked || KindOf(failure) == v1::FAILURE_DRAINED) {
    LogInfo("the job ends: ", failure.message());
  } else if (!done) {
    LogError(failure.message());
  }
  v1::ControlMessage message;
  SetFailure(failure, message.mutable_shutdown());
  std::set<uint32_t> told = shards_.TellEnd(std::move(message));
  members_.Changed();
  AnswerParked(done ? NothingLeft() : ending_.ForJoin(),
               done ? absl::FailedPreconditionError("the job is done") : failure);
  // An end that a caller asked for waits for no process. A server that is cut off waits for ps:0 for
  // cluster.server_wait_seconds, too.
  const absl::Duration limit = asked  ? absl::ZeroDuration()
                               : done ? absl::Seconds(options_.config.cluster().server_wait_seconds())
                                      : JobEnding::kTellFailure;
  ending_.Await(std::move(told), limit, asked || done ? std::set<uint64_t>() : members_.Connected());
}

void Coordinator::HandleServerGone(uint32_t index, const absl::Status& status) {
  // If a server confirms the end and then ends, its connection may break before the confirmation arrives.
  // Then no process is there to be told again.
  const bool gone = absl::IsUnavailable(status) && !shards_[index].connected;
  if (status.ok() || gone) return ending_.OnServerKnows(index);
  shards_.Drop(index);
  // The next tick opens a new link.
  if (!ending_.OnServerBroke(index)) return;
  LogInfo("the link to ", shards_.name(index), " broke as the job ended: ", status.message());
}

void Coordinator::StepAside(const std::string& why) {
  if (over()) return;
  state_ = v1::FAILED;
  ending_.End(Replaced(why));
  meter_.OnEnd(now());
  LogError(ending_.failure().message());
  // Callers may find the other coordinator at this address, so they get the error that they retry.
  AnswerParked(ending_.ForCall(), ending_.ForCall());
  ending_.Await({}, absl::ZeroDuration(), {});
}

void Coordinator::AnswerParked(const absl::Status& joins, const absl::Status& others) {
  members_.AnswerAll(joins, others);
  shards_.RefuseAnnounces(absl::UnavailableError(others.message()));
  pins_.DropAll(others, now());
  ending_.Refuse(others);
}

void Coordinator::HandleDrain(const std::string& reason) {
  if (over() || ending_.drained()) return;
  if (!checkpoints_.enabled()) return EndJob(LostPeer(reason));
  ending_.Drain();
  const auto end = [this, reason] {
    EndJob(Drained(
        absl::StrCat(reason, "; started again, the job goes on from ", checkpoints_.newest_folder())));
  };
  if (state_ != v1::RUNNING && state_ != v1::DRAINING) {
    // The shards hold nothing more than the newest checkpoint, or have lost it already.
    return checkpoints_.any() ? end() : EndJob(LostPeer(reason));
  }
  // From here on nothing is acknowledged that the checkpoint would not save.
  LogInfo("saving the job, since ", reason);
  FenceAll(absl::StrCat("the job is being saved and ends, since ", reason));
  checkpoints_.Request(
      /*of_now=*/true, [this, reason, end](const absl::StatusOr<v1::CheckpointReply>& reply) {
        if (over()) return;
        if (reply.ok()) return end();
        EndJob(LostPeer(absl::StrCat(reason, "; it could not be saved: ", reply.status().message())));
      });
}

}  // namespace weir
