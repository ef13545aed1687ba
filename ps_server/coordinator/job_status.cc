#include "ps_server/coordinator/job_status.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/statistics.h"
#include "common/config/proto_json.h"
#include "common/model/table_digest.h"
#include "common/protocol/job_failure.h"
#include "common/protocol/limits.h"
#include "common/protocol/mode_traits.h"

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
std::string TablesHash(const JobView& of) {
  std::map<std::string, std::string> digests;
  for (int i = 0; i < of.job.config.tables_size(); ++i) {
    std::string& sum = digests[of.job.config.tables(i).name()];
    sum.resize(TableDigest::kBytes);
    for (const ShardFleet::Shard& shard : of.shards) {
      if (!of.shards.AnsweredFinalPing(shard) || !TableDigest::Add(shard.stats.table_digests(i), sum))
        return "";
    }
  }
  return digests.empty() || of.shards.empty() ? "" : TablesSha256(digests);
}

// Whether the server is connected, but has said nothing for kSilentSeconds.
bool IsSilent(const JobView& of, const ShardFleet::Shard& server) {
  // A server may be busy for long while it makes its part of the model.
  return server.connected && !server.installing &&
         of.job.now() - server.last_heard > absl::Seconds(kSilentSeconds);
}

}  // namespace

v1::ClusterStatus StatusOf(const JobView& of, v1::Membership membership) {
  const ModeTraits& mode = TraitsOf(of.job.config);
  const JobSize& size = of.declared.size();
  v1::ClusterStatus status;
  status.set_state(of.state);
  status.set_name(of.job.config.name());
  *status.mutable_job() = of.identity;
  status.set_mode(EnumWord(
      *v1::ConsistencyConfig::Mode_descriptor()->FindValueByNumber(of.job.config.consistency().mode())));
  status.set_staleness_bound(of.job.config.consistency().staleness());
  status.set_tables_async(RowsOnArrival(of.job.config));
  status.set_tls(of.tls);
  status.set_num_shards(of.shards.known_servers());
  status.set_configured_workers(of.job.workers);
  *status.mutable_membership() = std::move(membership);
  status.set_total_steps(size.steps);
  status.set_total_examples(size.examples);
  status.set_examples(of.progress.examples());
  of.meter.Describe(of.job.now(), /*whole=*/mode.commits_steps && of.progress.all_done(), &status);
  *status.mutable_evaluation() = of.evaluations.newest();
  for (const v1::EpochEvaluation& entry : of.evaluations.entries()) *status.add_evaluations() = entry;

  IntHistogram staleness, lead;
  uint64_t pushed = 0, pulled = 0, lost = 0, refused = 0;
  for (const ShardFleet::Shard& shard : of.shards) {
    Merge(shard.stats.version_staleness(), staleness);
    Merge(shard.stats.lead(), lead);
    pushed += shard.stats.bytes_pushed();
    pulled += shard.stats.bytes_pulled();
    uint64_t lacks = shard.stats.pushes_lost();
    // At the end no batch is under way, so the counts also show losses that no worker was left to report.
    if (!mode.commits_steps && of.shards.AnsweredFinalPing(shard)) {
      lacks = std::max(lacks, size.batches - std::min(size.batches, shard.stats.batches_settled()));
    }
    lost += lacks;
    refused = std::max(refused, shard.stats.pushes_refused());
  }
  Describe(staleness, status.mutable_version_staleness());
  Describe(lead, status.mutable_lead());
  status.set_bytes_pushed(pushed);
  status.set_bytes_pulled(pulled);
  status.set_pushes(of.progress.pushes());
  const bool finished = of.state == v1::DRAINING || of.state == v1::DONE;
  status.set_step(!mode.commits_steps && finished ? size.steps : of.progress.steps_done());
  for (const std::string& name : WaitingFor(of)) status.add_waiting_for(name);
  for (uint32_t i = 0; i < of.shards.size() && !of.job.over(); ++i) {
    const v1::ShardStats& stats = of.shards[i].stats;
    // If the server is gone, its last report says nothing of its waits. If it is silent, the report does,
    // with the age in TaskStatus.seconds_since_heard.
    for (int w = 0; w < stats.waits_size() && of.shards[i].connected; ++w) {
      *status.add_waits() = stats.waits(w);
      status.mutable_waits(status.waits_size() - 1)->set_server(absl::StrCat("ps:", i));
    }
    double quiet = stats.seconds_since_update();
    if (of.shards[i].stats_since > absl::InfinitePast()) {
      quiet += absl::ToDoubleSeconds(of.job.now() - of.shards[i].stats_since);
    }
    status.set_seconds_since_update(i == 0 ? quiet : std::min(quiet, status.seconds_since_update()));
  }
  for (int t = 0; t < of.job.config.tables_size(); ++t) {
    v1::TableStatus& table = *status.add_tables();
    table.set_name(of.job.config.tables(t).name());
    table.set_dim(of.job.config.tables(t).dim());
    for (const ShardFleet::Shard& shard : of.shards) {
      AddTable(t < shard.stats.tables_size() ? shard.stats.tables(t) : v1::TableStats(), &table);
    }
    KeepHottest(table.mutable_all());
  }
  SetFailure(of.ending.failure(), &status);
  status.set_stopped_early(of.evaluations.stopped_early());
  if (const auto& best = of.evaluations.best(); best.has_value() && of.checkpoints.enabled()) {
    *status.mutable_best() = *best;
    status.set_best_checkpoint(of.checkpoints.FolderOf(best->checkpoint()));
  }
  if (of.checkpoints.enabled()) {
    status.set_checkpoint(of.checkpoints.newest_folder());
    if (of.checkpoints.any()) {
      status.set_checkpoint_age_seconds(absl::ToDoubleSeconds(of.job.now() - of.checkpoints.newest_since()));
    }
  }
  status.set_recoveries(of.shards.recoveries());
  status.set_lost_pushes(lost);
  status.set_pushes_refused(refused);
  status.set_tables_sha256(TablesHash(of));

  for (uint32_t i = 0; i < of.shards.servers().size(); ++i) {
    const ShardFleet::Shard& server = of.shards[i];
    v1::TaskStatus* task = status.add_tasks();
    task->set_task(absl::StrCat("ps:", i));
    task->set_address(server.address);
    task->set_phase(server.lost_since.has_value() && !server.connected ? v1::TASK_LOST
                    : !server.connected                                ? v1::TASK_EXPECTED
                    : of.shards.stands_by(i)                           ? v1::TASK_STANDBY
                                                                       : v1::TASK_LIVE);
    task->set_incarnation(server.incarnation);
    task->set_version(server.stats.version().count());
    if (server.last_heard > absl::InfinitePast()) {
      task->set_seconds_since_heard(absl::ToDoubleSeconds(of.job.now() - server.last_heard));
    }
  }
  double utilization = 0;
  int measured = 0;
  for (const auto& [rank, member] : of.members.workers()) {
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
    task->set_seconds_since_heard(absl::ToDoubleSeconds(of.job.now() - member.last_heard));
    task->set_clock(of.progress.steps().committed());
    if (mode.keeps_clocks && !of.shards.empty()) {
      for (const v1::WorkerClock& clock : of.shards[0].stats.clocks()) {
        if (clock.worker() == rank) task->set_clock(clock.clock());
      }
    }
  }
  if (measured > 0) status.set_worker_utilization(utilization / measured);
  for (const auto& [id, reader] : of.members.readers()) {
    v1::TaskStatus* task = status.add_tasks();
    task->set_task(reader.task);
    task->set_phase(v1::TASK_LIVE);
    task->set_incarnation(reader.incarnation);
    task->set_seconds_since_heard(absl::ToDoubleSeconds(of.job.now() - reader.last_heard));
  }
  size_t waiting = 0;
  for (const MemberTable::WaitingJoin& join : of.members.waiting()) {
    if (++waiting > kWaitingShown) break;
    v1::TaskStatus* task = status.add_tasks();
    task->set_task(join.request.task());
    task->set_phase(v1::TASK_WAITING);
  }
  for (const v1::TaskStatus& departed : of.members.departed()) *status.add_tasks() = departed;
  for (v1::TaskStatus& task : *status.mutable_tasks()) {
    task.set_state(EnumWord(*v1::TaskPhase_descriptor()->FindValueByNumber(task.phase())));
  }
  return status;
}

std::vector<std::string> WaitingFor(const JobView& of) {
  std::vector<std::string> names;
  // The waits of other servers may be due to silent and absent servers.
  for (uint32_t i = 0; i < of.shards.size() && !of.job.over(); ++i) {
    if (!IsSilent(of, of.shards[i])) continue;
    names.push_back(absl::StrCat(
        of.shards.name(i), " to answer (nothing was heard of it for ",
        absl::FormatDuration(absl::Trunc(of.job.now() - of.shards[i].last_heard, absl::Seconds(1))),
        ": it stands still, or is cut off)"));
  }
  for (uint32_t i = 0; i < of.shards.servers().size(); ++i) {
    const ShardFleet::Shard& shard = of.shards[i];
    if (of.job.over()) break;
    if (i < of.shards.size() && IsSilent(of, shard)) continue;
    if (shard.lost_since.has_value()) {
      names.push_back(absl::StrCat(of.shards.name(i),
                                   shard.installing             ? " to load its part of the model"
                                   : shard.attached.has_value() ? " to go on"
                                                                : " to come back",
                                   " (it was lost: ", shard.lost_why, ")"));
    } else if (of.state == v1::STARTING && (!shard.attached.has_value() || shard.installing)) {
      names.push_back(shard.lost_why.empty() ? of.shards.name(i)
                                             : absl::StrCat(of.shards.name(i), " (", shard.lost_why, ")"));
    } else if (of.state == v1::RECOVERING && shard.installing) {
      names.push_back(absl::StrCat(of.shards.name(i), " to load its part of the model"));
    } else if (of.state == v1::RUNNING && shard.stats.waits_size() > 0) {
      names.push_back(absl::StrCat(shard.stats.waits(0).reason(), " (on ps:", i, ")"));
    }
  }
  if (of.state == v1::RUNNING) {
    std::string evaluator = of.evaluations.WaitingFor(of.members, of.job.now());
    if (!evaluator.empty()) names.push_back(std::move(evaluator));
  }
  if (of.state == v1::STARTING || of.state == v1::RECOVERING) {
    const std::set<uint32_t> here = of.members.Ranks();
    if (here.empty() && of.state == v1::RECOVERING) {
      names.push_back("a worker to join again");
    } else if (of.state == v1::STARTING && here.size() < of.declared.needed_workers()) {
      for (uint32_t rank = 0; rank < of.job.workers; ++rank) {
        if (here.count(rank) > 0) continue;
        names.push_back(of.members.NameOf(rank));
      }
    }
  }
  if (of.upload.saving() || (of.upload.awaited() && !of.members.workers().empty())) {
    names.push_back(of.upload.WaitingFor(of.members.TaskOf(of.upload.uploader())));
  }
  if (of.state == v1::DRAINING && !of.ending.save_trouble().empty()) {
    names.push_back(absl::StrCat("its last checkpoint to be written (", of.ending.save_trouble(), ")"));
  }
  if (of.state == v1::DRAINING && of.ending.saved() && of.members.workers().empty()) {
    for (const std::string& task : of.ending.MayCome()) {
      names.push_back(absl::StrCat(task, " to be told that the job is done"));
    }
  }
  if (of.checkpoints.enabled() && !of.job.over()) {
    if (std::string waiting = of.checkpoints.WaitingFor(); !waiting.empty())
      names.push_back(std::move(waiting));
    if (of.searches) {
      names.push_back(
          absl::StrCat("ps:0 to find a whole checkpoint before ", of.checkpoints.newest_folder()));
    }
    if (of.numbers.needed()) names.push_back("membership epochs to be reserved in checkpoint.directory");
  }
  return names;
}

}  // namespace weir
