#include "ps_server/coordinator/job_parts.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/bounded.h"
#include "common/base/statistics.h"
#include "common/config/proto_json.h"
#include "common/model/table_digest.h"
#include "common/protocol/handshake.h"
#include "common/protocol/job_failure.h"
#include "common/protocol/limits.h"
#include "common/telemetry/logging.h"

namespace weir {
namespace {

// The status lists at most this many waiting processes.
constexpr size_t kWaitingShown = 100;

void Merge(const v1::Samples& samples, IntHistogram& into) {
  for (int value = 0; value < samples.counts_size(); ++value) into.Add(value, samples.counts(value));
  if (samples.overflow() > 0) into.Add(samples.max(), samples.overflow());
}

// The status names at most this many keys of a table.
constexpr int kHottest = 16;

// Adds the statistics of one shard. No two shards have a key in common.
void AddTable(const v1::TableStats& of_shard, v1::TableStatus* table) {
  v1::TableStats& all = *table->mutable_all();
  all.set_rows(all.rows() + of_shard.rows());
  all.set_bytes(all.bytes() + of_shard.bytes());
  all.set_former_bytes(all.former_bytes() + of_shard.former_bytes());
  all.set_keys_counted(all.keys_counted() + of_shard.keys_counted());
  all.set_admitted(all.admitted() + of_shard.admitted());
  all.set_expired(all.expired() + of_shard.expired());
  all.set_evicted(all.evicted() + of_shard.evicted());
  all.mutable_hottest()->MergeFrom(of_shard.hottest());
  v1::TableStats& shard = *table->add_shards();
  shard = of_shard;
  shard.clear_hottest();
}

void KeepHottest(v1::TableStats* stats) {
  auto& keys = *stats->mutable_hottest();
  std::sort(keys.begin(), keys.end(), [](const v1::HotKey& a, const v1::HotKey& b) {
    return a.share() != b.share() ? a.share() > b.share() : a.key() < b.key();
  });
  while (keys.size() > kHottest) keys.RemoveLast();
}

void Describe(const IntHistogram& histogram, v1::Distribution* out) {
  out->set_p50(histogram.Quantile(0.5));
  out->set_p99(histogram.Quantile(0.99));
  out->set_max(histogram.max());
  out->set_count(histogram.count());
}

// ClusterStatus.tables_sha256.
std::string TablesHash(const JobParts& of) {
  std::map<std::string, std::string> digests;
  for (int i = 0; i < of.context.config.tables_size(); ++i) {
    std::string& sum = digests[of.context.config.tables(i).name()];
    sum.resize(TableDigest::kBytes);
    for (const ShardFleet::Shard& shard : of.shards) {
      if (!of.shards.AnsweredFinalPing(shard) || !TableDigest::Add(shard.stats.table_digests(i), sum))
        return "";
    }
  }
  return digests.empty() || of.shards.empty() ? "" : TablesSha256(digests);
}

// Whether the server is connected, but has said nothing for kSilentSeconds.
bool IsSilent(const JobParts& of, const ShardFleet::Shard& server) {
  // A server may be busy for long while it makes its part of the model.
  return server.connected && !server.installing &&
         of.now() - server.last_heard > absl::Seconds(kSilentSeconds);
}

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
  options.on_end(Status(), ending.failure());
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

// ---- for people

v1::ClusterStatus JobParts::Status() const {
  const JobSize& size = declared.size();
  v1::ClusterStatus status;
  status.set_state(state);
  status.set_name(context.config.name());
  *status.mutable_job() = identity;
  status.set_mode(EnumWord(
      *v1::ConsistencyConfig::Mode_descriptor()->FindValueByNumber(context.config.consistency().mode())));
  status.set_staleness_bound(context.config.consistency().staleness());
  status.set_tables_async(RowsOnArrival(context.config));
  status.set_tls(options.tls);
  status.set_num_shards(shards.known_servers());
  status.set_configured_workers(context.workers);
  *status.mutable_membership() = Membership();
  status.set_total_steps(size.steps);
  status.set_total_examples(size.examples);
  status.set_examples(progress.examples());
  // In a job that was stopped early no worker knew which epoch was the last.
  const bool whole = mode.commits_steps && progress.all_done() && evaluations.stopped_early().empty();
  meter.Describe(now(), whole, &status);
  logged.Describe(&status);
  *status.mutable_evaluation() = evaluations.newest();
  for (const v1::EpochEvaluation& entry : evaluations.entries()) *status.add_evaluations() = entry;

  IntHistogram staleness, lead;
  uint64_t pushed = 0, pulled = 0, lost = 0, refused = 0;
  for (const ShardFleet::Shard& shard : shards) {
    Merge(shard.stats.version_staleness(), staleness);
    Merge(shard.stats.lead(), lead);
    pushed += shard.stats.bytes_pushed();
    pulled += shard.stats.bytes_pulled();
    uint64_t lacks = shard.stats.pushes_lost();
    // At the end no batch is under way, so the counts also show losses that no worker was left to report.
    if (!mode.commits_steps && shards.AnsweredFinalPing(shard)) {
      lacks = std::max(lacks, size.batches - std::min(size.batches, shard.stats.batches_settled()));
    }
    lost += lacks;
    refused = std::max(refused, shard.stats.pushes_refused());
  }
  Describe(staleness, status.mutable_version_staleness());
  Describe(lead, status.mutable_lead());
  status.set_bytes_pushed(pushed);
  status.set_bytes_pulled(pulled);
  status.set_pushes(progress.pushes());
  const bool finished = state == v1::DRAINING || state == v1::DONE;
  status.set_step(!mode.commits_steps && finished ? size.steps : progress.steps_done());
  for (const std::string& name : WaitingFor()) status.add_waiting_for(name);
  for (uint32_t i = 0; i < shards.size() && !context.over(); ++i) {
    const v1::ShardStats& stats = shards[i].stats;
    // If the server is gone, its last report says nothing of its waits. If it is silent, the report does,
    // with the age in TaskStatus.seconds_since_heard.
    for (int w = 0; w < stats.waits_size() && shards[i].connected; ++w) {
      *status.add_waits() = stats.waits(w);
      status.mutable_waits(status.waits_size() - 1)->set_server(absl::StrCat("ps:", i));
    }
    double quiet = stats.seconds_since_update();
    if (shards[i].stats_since > absl::InfinitePast()) {
      quiet += absl::ToDoubleSeconds(now() - shards[i].stats_since);
    }
    status.set_seconds_since_update(i == 0 ? quiet : std::min(quiet, status.seconds_since_update()));
  }
  for (int t = 0; t < context.config.tables_size(); ++t) {
    v1::TableStatus& table = *status.add_tables();
    table.set_name(context.config.tables(t).name());
    table.set_dim(context.config.tables(t).dim());
    for (const ShardFleet::Shard& shard : shards) {
      AddTable(t < shard.stats.tables_size() ? shard.stats.tables(t) : v1::TableStats(), &table);
    }
    KeepHottest(table.mutable_all());
  }
  SetFailure(ending.failure(), &status);
  status.set_stopped_early(evaluations.stopped_early());
  if (const auto& best = evaluations.best(); best.has_value() && checkpoints.enabled()) {
    *status.mutable_best() = *best;
    status.set_best_checkpoint(checkpoints.FolderOf(best->checkpoint()));
  }
  if (checkpoints.enabled()) {
    status.set_checkpoint(checkpoints.newest_folder());
    if (checkpoints.any()) {
      status.set_checkpoint_age_seconds(absl::ToDoubleSeconds(now() - checkpoints.newest_since()));
    }
  }
  status.set_recoveries(shards.recoveries());
  status.set_lost_pushes(lost);
  status.set_pushes_refused(refused);
  status.set_tables_sha256(TablesHash(*this));

  for (uint32_t i = 0; i < shards.servers().size(); ++i) {
    const ShardFleet::Shard& server = shards[i];
    v1::TaskStatus* task = status.add_tasks();
    task->set_task(absl::StrCat("ps:", i));
    task->set_address(server.address);
    task->set_phase(server.lost_since.has_value() && !server.connected ? v1::TASK_LOST
                    : !server.connected                                ? v1::TASK_EXPECTED
                    : shards.stands_by(i)                              ? v1::TASK_STANDBY
                                                                       : v1::TASK_LIVE);
    task->set_incarnation(server.incarnation);
    task->set_version(server.stats.version().count());
    if (server.last_heard > absl::InfinitePast()) {
      task->set_seconds_since_heard(absl::ToDoubleSeconds(now() - server.last_heard));
    }
  }
  double utilization = 0;
  int measured = 0;
  for (const auto& [rank, member] : members.workers()) {
    v1::TaskStatus* task = status.add_tasks();
    if (const std::optional<double> share = member.compute_share.Value(); share.has_value()) {
      task->set_utilization(*share);
      utilization += *share;
      ++measured;
    }
    task->set_task(member.task);
    // While a worker is being admitted, it cannot call.
    task->set_phase(member.join.has_value() ? v1::TASK_WAITING : v1::TASK_LIVE);
    task->set_incarnation(member.incarnation);
    task->set_seconds_since_heard(absl::ToDoubleSeconds(now() - member.last_heard));
    task->set_clock(progress.steps().committed());
    if (mode.keeps_clocks && !shards.empty()) {
      for (const v1::WorkerClock& clock : shards[0].stats.clocks()) {
        if (clock.worker() == rank) task->set_clock(clock.clock());
      }
    }
  }
  if (measured > 0) status.set_worker_utilization(utilization / measured);
  for (const auto& [id, reader] : members.readers()) {
    v1::TaskStatus* task = status.add_tasks();
    task->set_task(reader.task);
    task->set_phase(v1::TASK_LIVE);
    task->set_incarnation(reader.incarnation);
    task->set_seconds_since_heard(absl::ToDoubleSeconds(now() - reader.last_heard));
  }
  size_t waiting = 0;
  for (const MemberTable::WaitingJoin& join : members.waiting()) {
    if (++waiting > kWaitingShown) break;
    v1::TaskStatus* task = status.add_tasks();
    task->set_task(join.request.task());
    task->set_phase(v1::TASK_WAITING);
  }
  for (const v1::TaskStatus& departed : members.departed()) *status.add_tasks() = departed;
  for (v1::TaskStatus& task : *status.mutable_tasks()) {
    task.set_state(EnumWord(*v1::TaskPhase_descriptor()->FindValueByNumber(task.phase())));
  }
  return status;
}

std::vector<std::string> JobParts::WaitingFor() const {
  std::vector<std::string> names;
  // The waits of other servers may be due to silent and absent servers.
  for (uint32_t i = 0; i < shards.size() && !context.over(); ++i) {
    if (!IsSilent(*this, shards[i])) continue;
    names.push_back(
        absl::StrCat(shards.name(i), " to answer (nothing was heard of it for ",
                     absl::FormatDuration(absl::Trunc(now() - shards[i].last_heard, absl::Seconds(1))),
                     ": it stands still, or is cut off)"));
  }
  for (uint32_t i = 0; i < shards.servers().size(); ++i) {
    const ShardFleet::Shard& shard = shards[i];
    if (context.over()) break;
    if (i < shards.size() && IsSilent(*this, shard)) continue;
    if (shard.lost_since.has_value()) {
      names.push_back(absl::StrCat(shards.name(i),
                                   shard.installing             ? " to load its part of the model"
                                   : shard.attached.has_value() ? " to go on"
                                                                : " to come back",
                                   " (it was lost: ", shard.lost_why, ")"));
    } else if (state == v1::STARTING && (!shard.attached.has_value() || shard.installing)) {
      names.push_back(shard.lost_why.empty() ? shards.name(i)
                                             : absl::StrCat(shards.name(i), " (", shard.lost_why, ")"));
    } else if (state == v1::RECOVERING && shard.installing) {
      names.push_back(absl::StrCat(shards.name(i), " to load its part of the model"));
    } else if (state == v1::RUNNING && shard.stats.waits_size() > 0) {
      names.push_back(absl::StrCat(shard.stats.waits(0).reason(), " (on ps:", i, ")"));
    }
  }
  if (state == v1::RUNNING) {
    std::string evaluator = evaluations.WaitingFor(members, now());
    if (!evaluator.empty()) names.push_back(std::move(evaluator));
  }
  if (state == v1::STARTING || state == v1::RECOVERING) {
    const std::set<uint32_t> here = members.Ranks();
    if (here.empty() && state == v1::RECOVERING) {
      names.push_back("a worker to join again");
    } else if (state == v1::STARTING && here.size() < declared.needed_workers()) {
      for (uint32_t rank = 0; rank < context.workers; ++rank) {
        if (here.count(rank) > 0) continue;
        names.push_back(members.NameOf(rank));
      }
    }
  }
  if (upload.saving() || (upload.awaited() && !members.workers().empty())) {
    names.push_back(upload.WaitingFor(members.TaskOf(upload.uploader())));
  }
  if (state == v1::DRAINING && !ending.save_trouble().empty()) {
    names.push_back(absl::StrCat("its last checkpoint to be written (", ending.save_trouble(), ")"));
  }
  if (state == v1::DRAINING && ending.saved() && members.workers().empty()) {
    for (const std::string& task : ending.MayCome()) {
      names.push_back(absl::StrCat(task, " to be told that the job is done"));
    }
  }
  if (checkpoints.enabled() && !context.over()) {
    if (std::string waiting = checkpoints.WaitingFor(); !waiting.empty()) names.push_back(std::move(waiting));
    if (source.searching() && !source.found()) {
      names.push_back(absl::StrCat("ps:0 to find a whole checkpoint before ", checkpoints.newest_folder()));
    }
    if (numbers.needed()) names.push_back("membership epochs to be reserved in checkpoint.directory");
  }
  return names;
}

}  // namespace weir
