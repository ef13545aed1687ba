// The part of Shard that begins and ends its incarnations: Install makes one, from nothing or from a
// checkpoint, and drops the one before.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/job_failure.h"
#include "common/telemetry/logging.h"
#include "ps_server/shard/shard.h"

namespace weir {
void Shard::HandleHello(const v1::Hello& hello) {
  if (job_.id() == 0) job_ = hello.job();
  loader_.Abandon();
  ForgetCheckpoint();
  if (failed_) ReportFailed();
  v1::ShardReport report;
  v1::Attached& attached = *report.mutable_attached();
  // A shard whose initial values are awaited is of no use to another coordinator.
  if (store_ != nullptr && !initial_.awaited()) {
    attached.set_incarnation(incarnation_);
    attached.mutable_version()->set_incarnation(incarnation_);
    attached.mutable_version()->set_count(store_->count());
    attached.set_epoch(members_.epoch());
    attached.set_model_hash(model_hash_);
    attached.set_num_shards(install_.num_shards());
    *attached.mutable_batches() = tally_.batches.ToProto();
  }
  Report(std::move(report));
}

void Shard::HandleInstall(const v1::Install& install) {
  absl::StatusOr<BlockStore::Options> store = loader_.Check(install);
  if (!store.ok()) return ReportInstalled(store.status());
  Drop(install.has_restore() ? "this shard goes back to a checkpoint" : "this shard starts anew");
  loader_.Load(install, job_, *std::move(store), [this, install](absl::StatusOr<ShardLoader::Loaded> loaded) {
    if (over_) return;
    if (KindOf(loaded.status()) == v1::FAILURE_RESOURCE) {
      install_ = install;
      return FailLog(loaded.status());
    }
    if (loaded.ok()) FinishInstall(install, *std::move(loaded));
    ReportInstalled(loaded.status());
  });
}

void Shard::Drop(const std::string& reason) {
  loader_.Abandon();
  ForgetCheckpoint();
  if (store_ == nullptr) return;
  LogInfo("incarnation ", incarnation_, " of the shard ends at version ", store_->count(), ": ", reason);
  FailAll({v1::FENCED, reason});
  staged_ = StagedParts();
  early_rows_ = EarlyRows();
  initial_ = InitialValues();
  arrivals_ = PushArrivals();
  room_.End();
  tally_ = PushTally();
  members_ = ShardMembers(mode_.keeps_clocks);
  model_hash_ = 0;
  incarnation_ = 0;
  elements_ = 0;
  policy_ = nullptr;
  log_.End();
  store_->Retire();
  store_ = nullptr;
  table_report_.SetTables(nullptr);
  tables_ = nullptr;
}

void Shard::FinishInstall(const v1::Install& install, ShardLoader::Loaded loaded) {
  install_ = install;
  incarnation_ = options_.new_incarnation();
  store_ = std::move(loaded.store);
  tables_ = std::move(loaded.tables);
  room_.Begin(install, store_, tables_);
  table_report_.SetTables(tables_);
  room_.SetTableBytes(table_report_.bytes());
  if (options_.own_thread && (tables_ != nullptr || store_->elements() > kMaxElementsOfCallers)) {
    queue_.StartThread();
  }
  log_.Begin(std::move(loaded.log));
  policy_ = options_.make_policy(options_.config, install);
  model_hash_ = store_->model().Hash();
  elements_ = store_->elements();
  counters_.version = store_->count();
  waits_.Mark();
  if (store_->model().uploaded() && !install.has_restore()) initial_.Await();
  RestoreState(loaded.state);
  for (const v1::LoggedPush& record : loaded.records) Replay(record);
  if (!loaded.records.empty()) LogInfo("replayed ", loaded.records.size(), " records of the log");
  members_.EndRestore();
  if (install.has_restore()) {
    LogInfo("incarnation ", incarnation_, " of the shard starts at version ", store_->count(), ", from step ",
            install.restore().step(), " in checkpoint.",
            install.restore().init_from() ? "init_from" : "directory");
  }
}

v1::ShardState Shard::StateNow() const {
  v1::ShardState state;
  state.set_shard(install_.shard());
  state.set_num_shards(install_.num_shards());
  state.mutable_version()->set_incarnation(incarnation_);
  state.mutable_version()->set_count(store_->count());
  state.set_epoch(members_.epoch());
  for (const WorkerRecord& record : policy_->Records()) {
    v1::WorkerState& worker = *state.add_workers();
    worker.set_worker(record.worker);
    worker.set_next_clock(record.clock);
    worker.set_counts(record.counts);
    members_.Save(worker);
  }
  *state.mutable_batches() = tally_.batches.ToProto();
  *state.mutable_stale_batches() = tally_.stale_batches.ToProto();
  staged_.Save(state);
  early_rows_.Save(state);
  state.set_pushes_applied(counters_.pushes_applied);
  state.set_pushes_refused(counters_.pushes_refused);
  state.set_pushes_lost(counters_.pushes_lost);
  *state.mutable_version_staleness() = ToSamples(tally_.staleness);
  *state.mutable_lead() = ToSamples(tally_.lead);
  return state;
}

void Shard::RestoreState(const v1::ShardState& state) {
  counters_.pushes_applied = state.pushes_applied();
  counters_.pushes_refused = state.pushes_refused();
  AddSamples(state.version_staleness(), tally_.staleness);
  AddSamples(state.lead(), tally_.lead);
  tally_.batches.Insert(state.batches());
  tally_.stale_batches.Insert(state.stale_batches());
  staged_.Restore(state);
  early_rows_.Begin(install_.shard(), install_.num_shards(), state);
  uint64_t lost = 0;
  std::vector<WorkerRecord> records;
  for (const v1::WorkerState& worker : state.workers()) {
    records.push_back({worker.worker(), worker.next_clock(), worker.counts()});
    lost += members_.Restore(worker);
  }
  // A state that was combined from those of other shards has only the workers' counts.
  counters_.pushes_lost = std::max(lost, state.pushes_lost());
  policy_->Restore(store_->count(), records);
}

void Shard::ReportInstalled(const absl::Status& status) {
  v1::ShardReport report;
  report.mutable_installed()->set_error(std::string(status.message()));
  report.mutable_installed()->set_permanent(
      absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status) || absl::IsUnimplemented(status));
  report.mutable_installed()->set_damaged(absl::IsDataLoss(status));
  report.mutable_installed()->set_incarnation(incarnation_);
  *report.mutable_installed()->mutable_batches() = tally_.batches.ToProto();
  Report(std::move(report));
}

void Shard::Replay(const v1::LoggedPush& record) {
  if (record.has_membership()) {
    members_.Follow(record.membership(), *policy_);
    return;
  }
  const v1::PushRequest& push = record.push();
  members_.FollowRecord(push.caller(), *policy_);
  // The incarnation that wrote this record had declared lost those of the worker's clocks that it did not
  // know.
  DeclareLost(push.caller().worker(), push.clock());
  v1::PushReply reply;
  reply.set_outcome(record.outcome());
  reply.set_reason(record.reason());
  reply.mutable_version()->set_incarnation(push.base().incarnation());
  reply.mutable_version()->set_count(record.version());
  Account(push, &reply);
}

}  // namespace weir
