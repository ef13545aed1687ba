// The part of Coordinator that tells people what is going on.
#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/config/proto_json.h"
#include "common/model/table_digest.h"
#include "common/protocol/job_failure.h"
#include "common/protocol/part_assignment.h"
#include "common/protocol/silence.h"
#include "ps_server/coordinator/coordinator.h"

namespace weir {
namespace {

// The most waiting processes that the status lists.
constexpr size_t kWaitingShown = 100;

void Merge(const v1::Samples& samples, IntHistogram& into) {
  for (int value = 0; value < samples.counts_size(); ++value) into.Add(value, samples.counts(value));
  if (samples.overflow() > 0) into.Add(samples.max(), samples.overflow());
}

// The most keys of a table that the status names.
constexpr int kHottest = 16;

// The keys of shards differ.
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

}  // namespace

uint64_t Coordinator::batches_done() const {
  if (mode_.commits_steps) return BatchesIn(steps_.committed(), size().parts, size().batches);
  const uint64_t batch = options_.config.data().batch_size();
  uint64_t batches = 0;
  // The checkpoint says what was done before this incarnation began, until shard 0 says how much it has
  // applied.
  if (checkpoints_.any()) {
    batches = (checkpoints_.newest()->job().examples() + batch - 1) / batch;
  }
  if (shards_.empty()) return batches;
  uint64_t held_at_start = 0;
  for (const v1::Interval& held : shards_[0].batches) held_at_start += held.end() - held.begin();
  return std::max({batches, held_at_start, shards_[0].stats.pushes_applied()});
}

uint64_t Coordinator::examples_done() const {
  return std::min(size().examples, batches_done() * options_.config.data().batch_size());
}

uint64_t Coordinator::steps_done() const {
  if (mode_.commits_steps) return steps_.committed();
  return std::min(size().steps, batches_done() / std::max<uint32_t>(1, options_.workers));
}

uint64_t Coordinator::pushes_done() const {
  if (shards_.empty()) return 0;
  const uint64_t pushes = shards_[0].stats.pushes_applied();
  // The shard's stats are a little old, but the step is the current one.
  return pushes + steps_.PushesSince(shards_[0].stats.version().count());
}

void Coordinator::TrainingStarts() {
  ending_.OnStart();
  meter_.OnStart(now(), examples_done());
}

void Coordinator::SampleProgress() { meter_.Sample(now(), examples_done(), state_ == v1::RUNNING); }

bool Coordinator::AllDone() const {
  return mode_.commits_steps ? size().steps > 0 && steps_.committed() >= size().steps
                             : ranges_.has_value() && ranges_->done();
}

std::string Coordinator::TablesHash() const {
  std::map<std::string, std::string> digests;
  for (int i = 0; i < options_.config.tables_size(); ++i) {
    std::string& sum = digests[options_.config.tables(i).name()];
    sum.resize(TableDigest::kBytes);
    for (const ShardFleet::Shard& shard : shards_) {
      if (!shards_.AnsweredFinalPing(shard) || !TableDigest::Add(shard.stats.table_digests(i), sum))
        return "";
    }
  }
  return digests.empty() || shards_.empty() ? "" : TablesSha256(digests);
}

v1::ClusterStatus Coordinator::MakeStatus() const {
  v1::ClusterStatus status;
  status.set_state(state_);
  status.set_name(options_.config.name());
  *status.mutable_job() = job_;
  status.set_mode(EnumWord(
      *v1::ConsistencyConfig::Mode_descriptor()->FindValueByNumber(options_.config.consistency().mode())));
  status.set_staleness_bound(options_.config.consistency().staleness());
  status.set_tables_async(RowsOnArrival(options_.config));
  status.set_tls(options_.tls);
  status.set_num_shards(shards_.known_servers());
  status.set_configured_workers(options_.workers);
  *status.mutable_membership() = MembershipNow();
  status.set_total_steps(size().steps);
  status.set_total_examples(size().examples);
  status.set_examples(examples_done());
  meter_.Describe(now(), /*whole=*/mode_.commits_steps && AllDone(), &status);
  *status.mutable_evaluation() = evaluations_.newest();
  for (const v1::EpochEvaluation& entry : evaluations_.epochs().entries()) *status.add_evaluations() = entry;

  IntHistogram staleness, lead;
  uint64_t pushed = 0, pulled = 0, lost = 0, refused = 0;
  for (const ShardFleet::Shard& shard : shards_) {
    Merge(shard.stats.version_staleness(), staleness);
    Merge(shard.stats.lead(), lead);
    pushed += shard.stats.bytes_pushed();
    pulled += shard.stats.bytes_pulled();
    uint64_t lacks = shard.stats.pushes_lost();
    // At the end nothing is under way, so this also shows losses that no worker was left to report.
    if (!mode_.commits_steps && shards_.AnsweredFinalPing(shard)) {
      lacks = std::max(lacks, size().batches - std::min(size().batches, shard.stats.batches_settled()));
    }
    lost += lacks;
    refused = std::max(refused, shard.stats.pushes_refused());
  }
  Describe(staleness, status.mutable_version_staleness());
  Describe(lead, status.mutable_lead());
  status.set_bytes_pushed(pushed);
  status.set_bytes_pulled(pulled);
  status.set_pushes(pushes_done());
  const bool finished = state_ == v1::DRAINING || state_ == v1::DONE;
  status.set_step(!mode_.commits_steps && finished ? size().steps : steps_done());
  for (const std::string& name : WaitingFor()) status.add_waiting_for(name);
  for (uint32_t i = 0; i < shards_.size() && !over(); ++i) {
    const v1::ShardStats& stats = shards_[i].stats;
    // The server's last report tells nothing of one that is gone; of a silent one it does, with its age,
    // which is TaskStatus.seconds_since_heard.
    for (int w = 0; w < stats.waits_size() && shards_[i].connected; ++w) {
      *status.add_waits() = stats.waits(w);
      status.mutable_waits(status.waits_size() - 1)->set_server(absl::StrCat("ps:", i));
    }
    double quiet = stats.seconds_since_update();
    if (shards_[i].stats_since > absl::InfinitePast()) {
      quiet += absl::ToDoubleSeconds(now() - shards_[i].stats_since);
    }
    status.set_seconds_since_update(i == 0 ? quiet : std::min(quiet, status.seconds_since_update()));
  }
  for (int t = 0; t < options_.config.tables_size(); ++t) {
    v1::TableStatus& table = *status.add_tables();
    table.set_name(options_.config.tables(t).name());
    table.set_dim(options_.config.tables(t).dim());
    for (const ShardFleet::Shard& shard : shards_) {
      AddTable(t < shard.stats.tables_size() ? shard.stats.tables(t) : v1::TableStats(), &table);
    }
    KeepHottest(table.mutable_all());
  }
  SetFailure(ending_.failure(), &status);
  status.set_stopped_early(evaluations_.stopped_early());
  if (const auto& best = evaluations_.best(); best.has_value() && checkpoints_.enabled()) {
    *status.mutable_best() = *best;
    status.set_best_checkpoint(checkpoints_.FolderOf(best->checkpoint()));
  }
  if (checkpoints_.enabled()) {
    status.set_checkpoint(checkpoints_.newest_folder());
    if (checkpoints_.any()) {
      status.set_checkpoint_age_seconds(absl::ToDoubleSeconds(now() - checkpoints_.newest_since()));
    }
  }
  status.set_recoveries(shards_.recoveries());
  status.set_lost_pushes(lost);
  status.set_pushes_refused(refused);
  status.set_tables_sha256(TablesHash());

  for (uint32_t i = 0; i < shards_.servers().size(); ++i) {
    const ShardFleet::Shard& server = shards_[i];
    v1::TaskStatus* task = status.add_tasks();
    task->set_task(absl::StrCat("ps:", i));
    task->set_address(server.address);
    task->set_phase(server.lost_since.has_value() && !server.connected ? v1::TASK_LOST
                    : !server.connected                                ? v1::TASK_EXPECTED
                    : shards_.stands_by(i)                             ? v1::TASK_STANDBY
                                                                       : v1::TASK_LIVE);
    task->set_incarnation(server.incarnation);
    task->set_version(server.stats.version().count());
    if (server.last_heard > absl::InfinitePast()) {
      task->set_seconds_since_heard(absl::ToDoubleSeconds(now() - server.last_heard));
    }
  }
  double utilization = 0;
  int measured = 0;
  for (const auto& [rank, member] : members_.workers()) {
    v1::TaskStatus* task = status.add_tasks();
    if (const std::optional<double> share = member.compute_share.Value(); share.has_value()) {
      task->set_utilization(*share);
      utilization += *share;
      ++measured;
    }
    task->set_task(member.task);
    // While it is admitted it cannot call.
    task->set_phase(member.join.has_value() ? v1::TASK_WAITING : v1::TASK_LIVE);
    task->set_incarnation(member.incarnation);
    task->set_seconds_since_heard(absl::ToDoubleSeconds(now() - member.last_heard));
    task->set_clock(steps_.committed());
    if (mode_.keeps_clocks && !shards_.empty()) {
      for (const v1::WorkerClock& clock : shards_[0].stats.clocks()) {
        if (clock.worker() == rank) task->set_clock(clock.clock());
      }
    }
  }
  if (measured > 0) status.set_worker_utilization(utilization / measured);
  for (const auto& [id, reader] : members_.readers()) {
    v1::TaskStatus* task = status.add_tasks();
    task->set_task(reader.task);
    task->set_phase(v1::TASK_LIVE);
    task->set_incarnation(reader.incarnation);
    task->set_seconds_since_heard(absl::ToDoubleSeconds(now() - reader.last_heard));
  }
  size_t waiting = 0;
  for (const WaitingJoin& join : members_.waiting()) {
    if (++waiting > kWaitingShown) break;
    v1::TaskStatus* task = status.add_tasks();
    task->set_task(join.request.task());
    task->set_phase(v1::TASK_WAITING);
  }
  for (const v1::TaskStatus& departed : members_.departed()) *status.add_tasks() = departed;
  for (v1::TaskStatus& task : *status.mutable_tasks()) {
    task.set_state(EnumWord(*v1::TaskPhase_descriptor()->FindValueByNumber(task.phase())));
  }
  return status;
}

bool Coordinator::IsSilent(const ShardFleet::Shard& server) const {
  // A server may be busy for long as it makes its part of the model.
  return server.connected && !server.installing && now() - server.last_heard > absl::Seconds(kSilentSeconds);
}

std::vector<std::string> Coordinator::WaitingFor() const {
  std::vector<std::string> names;
  // What the other servers wait for may be due to these.
  for (uint32_t i = 0; i < shards_.size() && !over(); ++i) {
    if (!IsSilent(shards_[i])) continue;
    names.push_back(
        absl::StrCat(shards_.name(i), " to answer (nothing was heard of it for ",
                     absl::FormatDuration(absl::Trunc(now() - shards_[i].last_heard, absl::Seconds(1))),
                     ": it stands still, or is cut off)"));
  }
  for (uint32_t i = 0; i < shards_.servers().size(); ++i) {
    const ShardFleet::Shard& shard = shards_[i];
    if (over()) break;
    if (i < shards_.size() && IsSilent(shard)) continue;
    if (shard.lost_since.has_value()) {
      names.push_back(absl::StrCat(shards_.name(i),
                                   shard.installing             ? " to load its part of the model"
                                   : shard.attached.has_value() ? " to go on"
                                                                : " to come back",
                                   " (it was lost: ", shard.lost_why, ")"));
    } else if (state_ == v1::STARTING && (!shard.attached.has_value() || shard.installing)) {
      names.push_back(shard.lost_why.empty() ? shards_.name(i)
                                             : absl::StrCat(shards_.name(i), " (", shard.lost_why, ")"));
    } else if (state_ == v1::RECOVERING && shard.installing) {
      names.push_back(absl::StrCat(shards_.name(i), " to load its part of the model"));
    } else if (state_ == v1::RUNNING && shard.stats.waits_size() > 0) {
      names.push_back(absl::StrCat(shard.stats.waits(0).reason(), " (on ps:", i, ")"));
    }
  }
  if (state_ == v1::RUNNING) {
    std::string evaluator = evaluations_.WaitingFor(members_, now());
    if (!evaluator.empty()) names.push_back(std::move(evaluator));
  }
  if (state_ == v1::STARTING || state_ == v1::RECOVERING) {
    const std::set<uint32_t> here = members_.Ranks();
    if (here.empty() && state_ == v1::RECOVERING) {
      names.push_back("a worker to join again");
    } else if (state_ == v1::STARTING && here.size() < needed_workers()) {
      for (uint32_t rank = 0; rank < options_.workers; ++rank) {
        if (here.count(rank) > 0) continue;
        names.push_back(WorkerName(rank));
      }
    }
  }
  if (upload_.saving() || (upload_.awaited() && !members_.workers().empty())) {
    names.push_back(upload_.WaitingFor(members_.TaskOf(upload_.uploader())));
  }
  if (state_ == v1::DRAINING && !ending_.save_trouble().empty()) {
    names.push_back(absl::StrCat("its last checkpoint to be written (", ending_.save_trouble(), ")"));
  }
  if (state_ == v1::DRAINING && ending_.saved() && members_.workers().empty()) {
    for (const std::string& task : ending_.MayCome()) {
      names.push_back(absl::StrCat(task, " to be told that the job is done"));
    }
  }
  if (checkpoints_.enabled() && !over()) {
    if (std::string waiting = checkpoints_.WaitingFor(); !waiting.empty())
      names.push_back(std::move(waiting));
    if (search_ == Search::kUnderWay) {
      names.push_back(absl::StrCat("ps:0 to find a whole checkpoint before ", checkpoints_.newest_folder()));
    }
    if (numbers_.needed()) names.push_back("membership epochs to be reserved in checkpoint.directory");
  }
  return names;
}

}  // namespace weir
