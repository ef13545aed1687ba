#include "ps_server/coordinator/job_status.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/statistics.h"
#include "common/config/proto_json.h"
#include "common/model/table_digest.h"
#include "common/protocol/job_failure.h"
#include "common/protocol/limits.h"

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
std::string TablesHash(const JobParts& job) {
  std::map<std::string, std::string> digests;
  for (int i = 0; i < job.config().tables_size(); ++i) {
    std::string& sum = digests[job.config().tables(i).name()];
    sum.resize(TableDigest::kBytes);
    for (const ShardFleet::Shard& shard : job.shards) {
      if (!job.shards.AnsweredFinalPing(shard) || !TableDigest::Add(shard.stats.table_digests(i), sum))
        return "";
    }
  }
  return digests.empty() || job.shards.empty() ? "" : TablesSha256(digests);
}

// Whether the server is connected, but has said nothing for kSilentSeconds.
bool IsSilent(const JobParts& job, const ShardFleet::Shard& server) {
  // A server may be busy for long while it makes its part of the model.
  return server.connected && !server.installing &&
         job.now() - server.last_heard > absl::Seconds(kSilentSeconds);
}

// What the servers have last reported.
void DescribeShards(const JobParts& job, v1::ClusterStatus* status) {
  IntHistogram staleness, lead;
  uint64_t pushed = 0, pulled = 0, lost = 0, refused = 0;
  for (const ShardFleet::Shard& shard : job.shards) {
    Merge(shard.stats.version_staleness(), staleness);
    Merge(shard.stats.lead(), lead);
    pushed += shard.stats.bytes_pushed();
    pulled += shard.stats.bytes_pulled();
    uint64_t lacks = shard.stats.pushes_lost();
    // At the end no batch is under way, so the counts also show losses that no worker was left to report.
    if (!job.mode.commits_steps && job.shards.AnsweredFinalPing(shard)) {
      const uint64_t batches = job.size().batches;
      lacks = std::max(lacks, batches - std::min(batches, shard.stats.batches_settled()));
    }
    lost += lacks;
    refused = std::max(refused, shard.stats.pushes_refused());
  }
  Describe(staleness, status->mutable_version_staleness());
  Describe(lead, status->mutable_lead());
  status->set_bytes_pushed(pushed);
  status->set_bytes_pulled(pulled);
  status->set_pushes(job.progress.pushes());
  const bool finished = job.state == v1::DRAINING || job.state == v1::DONE;
  status->set_lost_pushes(lost);
  status->set_pushes_refused(refused);
  status->set_step(!job.mode.commits_steps && finished ? job.size().steps : job.progress.steps_done());
  for (uint32_t i = 0; i < job.shards.size() && !job.context.over(); ++i) {
    const v1::ShardStats& stats = job.shards[i].stats;
    // If the server is gone, its last report says nothing of its waits. If it is silent, the report does,
    // with the age in TaskStatus.seconds_since_heard.
    for (int w = 0; w < stats.waits_size() && job.shards[i].connected; ++w) {
      *status->add_waits() = stats.waits(w);
      status->mutable_waits(status->waits_size() - 1)->set_server(absl::StrCat("ps:", i));
    }
    double quiet = stats.seconds_since_update();
    if (job.shards[i].stats_since > absl::InfinitePast()) {
      quiet += absl::ToDoubleSeconds(job.now() - job.shards[i].stats_since);
    }
    status->set_seconds_since_update(i == 0 ? quiet : std::min(quiet, status->seconds_since_update()));
  }
}

void DescribeTables(const JobParts& job, v1::ClusterStatus* status) {
  for (int t = 0; t < job.config().tables_size(); ++t) {
    v1::TableStatus& table = *status->add_tables();
    table.set_name(job.config().tables(t).name());
    table.set_dim(job.config().tables(t).dim());
    for (const ShardFleet::Shard& shard : job.shards) {
      AddTable(t < shard.stats.tables_size() ? shard.stats.tables(t) : v1::TableStats(), &table);
    }
    KeepHottest(table.mutable_all());
  }
}

void DescribeTasks(const JobParts& job, v1::ClusterStatus* status) {
  for (uint32_t i = 0; i < job.shards.servers().size(); ++i) {
    const ShardFleet::Shard& server = job.shards[i];
    v1::TaskStatus* task = status->add_tasks();
    task->set_task(absl::StrCat("ps:", i));
    task->set_address(server.address);
    task->set_phase(server.lost_since.has_value() && !server.connected ? v1::TASK_LOST
                    : !server.connected                                ? v1::TASK_EXPECTED
                    : job.shards.stands_by(i)                          ? v1::TASK_STANDBY
                                                                       : v1::TASK_LIVE);
    task->set_incarnation(server.incarnation);
    task->set_version(server.stats.version().count());
    if (server.last_heard > absl::InfinitePast()) {
      task->set_seconds_since_heard(absl::ToDoubleSeconds(job.now() - server.last_heard));
    }
  }
  double utilization = 0;
  int measured = 0;
  for (const auto& [rank, member] : job.members.workers()) {
    v1::TaskStatus* task = status->add_tasks();
    if (const std::optional<double> share = member.compute_share.Value(); share.has_value()) {
      task->set_utilization(*share);
      utilization += *share;
      ++measured;
    }
    task->set_task(member.task);
    // While a worker is being admitted, it cannot call.
    task->set_phase(member.join.has_value() ? v1::TASK_WAITING : v1::TASK_LIVE);
    task->set_incarnation(member.incarnation);
    task->set_seconds_since_heard(absl::ToDoubleSeconds(job.now() - member.last_heard));
    task->set_clock(job.progress.steps().committed());
    if (job.mode.keeps_clocks && !job.shards.empty()) {
      for (const v1::WorkerClock& clock : job.shards[0].stats.clocks()) {
        if (clock.worker() == rank) task->set_clock(clock.clock());
      }
    }
  }
  if (measured > 0) status->set_worker_utilization(utilization / measured);
  for (const auto& [id, reader] : job.members.readers()) {
    v1::TaskStatus* task = status->add_tasks();
    task->set_task(reader.task);
    task->set_phase(v1::TASK_LIVE);
    task->set_incarnation(reader.incarnation);
    task->set_seconds_since_heard(absl::ToDoubleSeconds(job.now() - reader.last_heard));
  }
  size_t waiting = 0;
  for (const MemberTable::WaitingJoin& join : job.members.waiting()) {
    if (++waiting > kWaitingShown) break;
    v1::TaskStatus* task = status->add_tasks();
    task->set_task(join.request.task());
    task->set_phase(v1::TASK_WAITING);
  }
  for (const v1::TaskStatus& departed : job.members.departed()) *status->add_tasks() = departed;
  for (v1::TaskStatus& task : *status->mutable_tasks()) {
    task.set_state(EnumWord(task.phase()));
  }
}

}  // namespace

v1::ClusterStatus StatusOf(const JobParts& job) {
  const JobSize& size = job.size();
  v1::ClusterStatus status;
  status.set_state(job.state);
  status.set_name(job.config().name());
  *status.mutable_job() = job.identity;
  status.set_mode(EnumWord(job.config().consistency().mode()));
  status.set_staleness_bound(job.config().consistency().staleness());
  status.set_tables_async(RowsOnArrival(job.config()));
  status.set_tls(job.options.tls);
  status.set_num_shards(job.shards.known_servers());
  status.set_configured_workers(job.context.workers);
  *status.mutable_membership() = job.Membership();
  status.set_total_steps(size.steps);
  status.set_total_examples(size.examples);
  status.set_examples(job.progress.examples());
  // In a job that was stopped early no worker knew which epoch was the last.
  const bool whole =
      job.mode.commits_steps && job.progress.all_done() && job.evaluations.stopped_early().empty();
  job.meter.Describe(job.now(), whole, &status);
  job.logged.Describe(&status);
  *status.mutable_evaluation() = job.evaluations.newest();
  for (const v1::EpochEvaluation& entry : job.evaluations.entries()) *status.add_evaluations() = entry;
  SetFailure(job.ending.failure(), &status);
  status.set_stopped_early(job.evaluations.stopped_early());
  if (const auto& best = job.evaluations.best(); best.has_value() && job.checkpoints.enabled()) {
    *status.mutable_best() = *best;
    status.set_best_checkpoint(job.checkpoints.FolderOf(best->checkpoint()));
  }
  if (job.checkpoints.enabled()) {
    status.set_checkpoint(job.checkpoints.newest_folder());
    if (job.checkpoints.any()) {
      status.set_checkpoint_age_seconds(absl::ToDoubleSeconds(job.now() - job.checkpoints.newest_since()));
    }
  }
  status.set_recoveries(job.shards.recoveries());
  status.set_tables_sha256(TablesHash(job));
  for (const std::string& name : WaitingFor(job)) status.add_waiting_for(name);
  DescribeShards(job, &status);
  DescribeTables(job, &status);
  DescribeTasks(job, &status);
  return status;
}

std::vector<std::string> WaitingFor(const JobParts& job) {
  std::vector<std::string> names;
  // The waits of other servers may be due to silent and absent servers.
  for (uint32_t i = 0; i < job.shards.size() && !job.context.over(); ++i) {
    if (!IsSilent(job, job.shards[i])) continue;
    names.push_back(absl::StrCat(
        job.shards.name(i), " to answer (nothing was heard of it for ",
        absl::FormatDuration(absl::Trunc(job.now() - job.shards[i].last_heard, absl::Seconds(1))),
        ": it stands still, or is cut off)"));
  }
  for (uint32_t i = 0; i < job.shards.servers().size(); ++i) {
    const ShardFleet::Shard& shard = job.shards[i];
    if (job.context.over()) break;
    if (i < job.shards.size() && IsSilent(job, shard)) continue;
    if (shard.lost_since.has_value()) {
      names.push_back(absl::StrCat(job.shards.name(i),
                                   shard.installing             ? " to load its part of the model"
                                   : shard.attached.has_value() ? " to go on"
                                                                : " to come back",
                                   " (it was lost: ", shard.lost_why, ")"));
    } else if (job.state == v1::STARTING && (!shard.attached.has_value() || shard.installing)) {
      names.push_back(shard.lost_why.empty() ? job.shards.name(i)
                                             : absl::StrCat(job.shards.name(i), " (", shard.lost_why, ")"));
    } else if (job.state == v1::RECOVERING && shard.installing) {
      names.push_back(absl::StrCat(job.shards.name(i), " to load its part of the model"));
    } else if (job.state == v1::RUNNING && shard.stats.waits_size() > 0) {
      names.push_back(absl::StrCat(shard.stats.waits(0).reason(), " (on ps:", i, ")"));
    }
  }
  if (job.state == v1::RUNNING) {
    std::string evaluator = job.evaluations.WaitingFor(job.members, job.now());
    if (!evaluator.empty()) names.push_back(std::move(evaluator));
  }
  if (job.state == v1::STARTING || job.state == v1::RECOVERING) {
    const std::set<uint32_t> here = job.members.Ranks();
    if (here.empty() && job.state == v1::RECOVERING) {
      names.push_back("a worker to join again");
    } else if (job.state == v1::STARTING && here.size() < job.declared.needed_workers()) {
      for (uint32_t rank = 0; rank < job.context.workers; ++rank) {
        if (here.count(rank) > 0) continue;
        names.push_back(job.members.NameOf(rank));
      }
    }
  }
  if (job.upload.saving() || (job.upload.awaited() && !job.members.workers().empty())) {
    names.push_back(job.upload.WaitingFor(job.members.TaskOf(job.upload.uploader())));
  }
  if (job.state == v1::DRAINING && !job.ending.save_trouble().empty()) {
    names.push_back(absl::StrCat("its last checkpoint to be written (", job.ending.save_trouble(), ")"));
  }
  if (job.state == v1::DRAINING && job.ending.saved() && job.members.workers().empty()) {
    for (const std::string& task : job.ending.MayCome()) {
      names.push_back(absl::StrCat(task, " to be told that the job is done"));
    }
  }
  if (job.checkpoints.enabled() && !job.context.over()) {
    if (std::string waiting = job.checkpoints.WaitingFor(); !waiting.empty())
      names.push_back(std::move(waiting));
    if (job.source.searching() && !job.source.found()) {
      names.push_back(
          absl::StrCat("ps:0 to find a whole checkpoint before ", job.checkpoints.newest_folder()));
    }
    if (job.numbers.needed()) names.push_back("membership epochs to be reserved in checkpoint.directory");
  }
  return names;
}

}  // namespace weir
