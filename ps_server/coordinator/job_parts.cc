#include "ps_server/coordinator/job_parts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/bounded.h"
#include "common/protocol/handshake.h"
#include "common/protocol/job_failure.h"
#include "ps_server/coordinator/job_status.h"

namespace weir {
namespace {

// The results of the job in a checkpoint, beside the shards' state and the job's progress.
std::string ResultsIn(const v1::CoordinatorState& job) {
  v1::CoordinatorState results;
  results.set_done(job.done());
  results.set_total_batches(job.total_batches());
  *results.mutable_evaluations() = job.evaluations();
  if (job.has_best()) *results.mutable_best() = job.best();
  return results.SerializeAsString();
}

}  // namespace

JobParts::JobParts(Options given, Events calls, std::unique_ptr<JobStore> store)
    : options(std::move(given)),
      events(std::move(calls)),
      identity(store == nullptr ? options.job : store->opened().job),
      mode(TraitsOf(options.config)),
      context{options.config, options.workers, options.clock, events.post, [this] { return over(); },
              events.fail,    events.replaced},
      checkpoints(
          context, std::move(store),
          {[this] { return Snapshot(); },
           [this](const v1::ControlMessage& message) { shards.Broadcast(message); }, events.may_install}),
      numbers(context, checkpoints.opened(),
              {checkpoints.enabled()
                   ? [this](const JobStore::Numbers& up_to,
                            JobNumbers::Done done) { checkpoints.Reserve(up_to, std::move(done)); }
                   : decltype(JobNumbers::Options::reserve)(),
               events.reserved}),
      shards(context, options.shard_addresses,
             {checkpoints.opened().coordinator_incarnation, identity, options.open_link, events.shard_report,
              events.link_ended}),
      members(context, {identity, options.worker_names,
                        [this](const MemberTable::ParkedHeartbeat& heartbeat, bool news,
                               v1::HeartbeatReply* reply) { FillIn(heartbeat, news, reply); }}),
      ending(context, checkpoints,
             {[this](uint32_t rank) { return members.NameOf(rank); },
              [this](std::function<void(const absl::Status&)> done) {
                checkpoints.Reserve(numbers.reserved(), std::move(done));
              },
              [this] { return shards.AllInstalled(); }, events.saved, [this] { TellEnd(); }}),
      declared(context, checkpoints, members, shards, options.memory_bytes,
               /*size_changed=*/
               [this] {
                 meter.SetTrainExamples(size().train_examples);
                 evaluations.SetLength(size());
               }),
      source(context, checkpoints,
             {options.init_from, options.init_from_before, events.may_install,
              [this](const absl::Status& failure) { ending.FailUnlessReplaced(failure); }}),
      upload(context, checkpoints, events.values_there),
      progress(context, declared, checkpoints, shards),
      losses(config().train().divergence()),
      evaluations(context, checkpoints, events.may_continue),
      pins(context, checkpoints.enabled() ? (checkpoints.opened().coordinator_incarnation << 32) + 1 : 1,
           [this](const v1::ControlMessage& message) { shards.Broadcast(message); }) {
  if (checkpoints.enabled()) members.Fence(numbers.incarnation(), "ps:0 was started again");
  if (!checkpoints.any()) return;
  const v1::CoordinatorState& saved = checkpoints.newest()->job();
  declared.Restore();
  progress.steps().GoTo(saved.committed_steps());
  evaluations.Restore(saved);
  losses.Restore(saved.losses());
}

std::optional<uint64_t> JobParts::WorkEnd() const {
  const std::optional<uint64_t> end = progress.end(), evaluated = evaluations.work_end();
  if (!end.has_value() || !evaluated.has_value()) return end.has_value() ? end : evaluated;
  return std::min(*end, *evaluated);
}

void JobParts::OnTrainingStarts() {
  ending.OnStart();
  meter.OnStart(now(), progress.examples());
}

void JobParts::FillIn(const MemberTable::ParkedHeartbeat& heartbeat, bool news,
                      v1::HeartbeatReply* reply) const {
  reply->set_state(state);
  if (news) {
    *reply->mutable_membership() = Membership();
    *reply->mutable_moved() = shards.Moved();
  }
  reply->set_evaluated(evaluations.final());
  if (auto order = evaluations.OrderFor(heartbeat.incarnation)) *reply->mutable_evaluate() = *order;
  reply->set_awaits_evaluation(evaluations.awaited());
  if (const auto end = WorkEnd(); end.has_value()) reply->set_work_end(*end);
  if (!ending.failure().ok()) SetFailure(ending.failure(), reply);
  // Who is fenced now, and finds no ps:0 when it joins again, can tell why.
  if (reply->fenced() && ending.drained()) reply->set_failure_kind(v1::FAILURE_DRAINED);
}

void JobParts::TellEnd() const {
  if (state == v1::DONE && !ending.awaited_servers().empty()) {
    std::vector<std::string> names;
    for (const uint32_t index : ending.awaited_servers()) names.push_back(shards.name(index));
    LogWarning("the job is done, but ", ShortList(names), " may not know that: no answer within ",
               "cluster.server_wait_seconds = ", config().cluster().server_wait_seconds());
  }
  options.on_end(StatusOf(*this), ending.failure());
}

bool JobParts::KeepsState(uint32_t index) const {
  const ShardFleet::Shard& shard = shards[index];
  // In sync a shard that was away may have missed a step.
  if (mode.commits_steps || !checkpoints.enabled() || shard.attached->incarnation() == 0) return false;
  if (shard.attached->model_hash() != declared.model()->Hash()) return false;
  if (const uint32_t of = shard.attached->num_shards(); of != 0 && of != shards.size()) return false;
  if (shard.incarnation != 0) return shard.attached->incarnation() == shard.incarnation;
  // This coordinator has never seen the shard, but an earlier one on the same store has.
  return shard.attached->epoch() > 0 && shard.attached->epoch() <= checkpoints.opened().used.epoch;
}

bool JobParts::EnoughWorkers() const {
  if (size().batches == 0) return false;
  if (mode.commits_steps && progress.all_done()) return true;
  // Only step 0 of a new job waits for all its workers.
  return members.Ranks().size() >= (GoesOn() ? 1 : declared.needed_workers());
}

bool JobParts::GoesOn() const {
  bool goes_on = state == v1::RECOVERING || checkpoints.any();
  for (uint32_t shard = 0; shard < shards.size(); ++shard) goes_on |= KeepsState(shard);
  return goes_on;
}

absl::StatusOr<Checkpoints::Snapshot> JobParts::Snapshot() const {
  if (state != v1::RUNNING && state != v1::DRAINING && !upload.saving()) {
    return absl::UnavailableError(
        absl::StrCat("the job is ", v1::JobState_Name(state), "; there is nothing to save"));
  }
  for (uint32_t shard = 0; shard < shards.size(); ++shard) {
    if (!shards[shard].installed) return absl::UnavailableError(absl::StrCat(shards.name(shard), " is away"));
  }
  Checkpoints::Snapshot snapshot;
  const auto& newest = checkpoints.newest();
  snapshot.progress = progress.steps_done();
  // Complete batches are known at once, the work of shard 0 only as of its last report.
  const uint64_t complete = progress.done() / std::max<uint32_t>(1, options.workers);
  if (!mode.commits_steps) {
    snapshot.step = std::max({progress.steps_done(), complete, checkpoints.next_step()});
  } else if (newest.has_value()) {
    // The step is above the newest checkpoint's, which may be of this very step.
    snapshot.step = std::max(progress.steps().committed(), newest->step() + 1);
  } else {
    snapshot.step = progress.steps().committed();
  }
  snapshot.num_shards = shards.size();
  declared.Describe(&snapshot);
  v1::CoordinatorState& job = snapshot.job;
  *job.mutable_identity() = identity;
  job.set_committed_steps(progress.steps().committed());
  // If it said `done`, a coordinator that starts from it would not have the last epoch evaluated.
  const bool evaluated = !evaluations.waits() || !evaluations.open();
  // The same holds where the job ends early and is not shortened yet.
  const bool whole = evaluations.stopped_early().empty();
  job.set_done(state == v1::DRAINING || (progress.all_done() && evaluated && whole));
  job.set_examples(progress.examples());
  job.set_epoch(numbers.epoch());
  job.set_last_incarnation(numbers.incarnation());
  const v1::Membership membership = Membership();
  *job.mutable_members() = membership.members();
  for (uint32_t rank : ending.gave_up()) job.add_gave_up(rank);
  evaluations.Save(snapshot.step, &job);
  *job.mutable_losses() = losses.history();
  // The results count, too. A checkpoint of this state may have been taken before an epoch's evaluation was
  // known, or before the last range was reported. Then a coordinator that starts from it would not know the
  // best epoch, or would wait for workers that were told of the end and are gone.
  snapshot.saved = progress.saved() && ResultsIn(newest->job()) == ResultsIn(job);
  return snapshot;
}

v1::Membership JobParts::Membership() const {
  v1::Membership membership = members.ForMembers(numbers.epoch());
  for (const ShardFleet::Shard& shard : shards) membership.add_shard_incarnations(shard.incarnation);
  // The uploader is named until the shards have confirmed that they have their values.
  if (state == v1::STARTING) membership.set_uploader(upload.uploader());
  return membership;
}

v1::JoinReply JobParts::JoinReply(uint32_t worker, uint64_t incarnation, uint64_t start_clock) const {
  v1::JoinReply reply;
  reply.set_worker(worker);
  reply.set_incarnation(incarnation);
  *reply.mutable_membership() = Membership();
  reply.set_start_clock(start_clock);
  reply.set_num_shards(shards.size());
  for (const ShardFleet::Shard& shard : shards) reply.add_ps_addresses(shard.address);
  *reply.mutable_moved() = shards.Moved();
  declared.Describe(&reply);
  reply.set_lease_seconds(config().cluster().lease_seconds());
  *reply.mutable_protocol() = OwnProtocol();
  *reply.mutable_job() = identity;
  if (const auto end = WorkEnd(); end.has_value()) reply.set_work_end(*end);
  return reply;
}

}  // namespace weir
