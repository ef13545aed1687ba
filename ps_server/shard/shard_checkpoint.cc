// The part of Shard that writes checkpoints: it captures a version and its state in one turn of the queue,
// and writes them to a file while training goes on.
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_writer.h"
#include "common/telemetry/logging.h"
#include "ps_server/shard/shard.h"
#include "ps_server/shard/table_files.h"

namespace weir {

// A version that is kept for a checkpoint.
struct CheckpointWork {
  uint64_t step = 0;
  uint64_t attempt = 0;  // of its TakeCheckpoint
  std::shared_ptr<const ShardVersion> frozen;
  ShardSnapshot snapshot;
  // Released in the shard's order. Null: the job has no tables.
  std::unique_ptr<PinnedTables> tables;
  // The log's next segment has begun.
  bool logged = false;
  // The checkpoint's folder is there.
  bool begun = false;
};

void Shard::HandleFreeze(const v1::FreezeCheckpoint& freeze) {
  ForgetCheckpoint();
  if (freeze.release()) return;
  if (staged_.late_commit.has_value()) {
    // The coordinator sent this step's commit before.
    staged_.late_commit->freeze = freeze;
    return;
  }
  std::optional<uint64_t> follows;
  if (freeze.follows() > 0) follows = freeze.follows() - 1;
  // What prevents it is told when the checkpoint is to be written.
  FreezeFor(freeze.step(), follows).IgnoreError();
}

void Shard::HandleCheckpoint(const v1::TakeCheckpoint& take) {
  if (take.complete() > 0) log_.DropBefore(take.complete() - 1);
  const bool kept = frozen_ != nullptr && frozen_->step == take.step();
  if (!kept && staged_.late_commit.has_value()) {
    staged_.late_commit->checkpoint = take;
    return;
  }
  if (!kept) {
    // A coordinator of protocol 1.5 sends no FreezeCheckpoint.
    ForgetCheckpoint();
    if (const absl::Status status = FreezeFor(take.step(), std::nullopt); !status.ok()) {
      return ReportCheckpoint(take.step(), take.attempt(), status);
    }
  }
  const std::shared_ptr<CheckpointWork> work = std::exchange(frozen_, nullptr);
  work->attempt = take.attempt();
  work->begun = true;
  writing_ = true;
  WriteCheckpoint(work);
}

absl::Status Shard::FreezeFor(uint64_t step, std::optional<uint64_t> follows) {
  if (store_ == nullptr) return absl::FailedPreconditionError("this shard has no model yet");
  if (!options_.config.checkpoint().has_directory()) {
    return absl::FailedPreconditionError("this server's config has no checkpoint.directory");
  }
  // The checkpoint's name may be above its version, but not below. Whether all shards have the version that
  // is meant is seen when the checkpoint is committed.
  if (mode_.commits_steps && store_->count() > step) {
    return absl::FailedPreconditionError(
        absl::StrCat("this shard is at step ", store_->count(), ", not ", step));
  }
  // A version is released before writing_ is reset.
  if (writing_) return absl::FailedPreconditionError("this shard still writes an earlier checkpoint");
  const auto work = std::make_shared<CheckpointWork>();
  work->step = step;
  work->frozen = store_->Freeze();
  work->snapshot.model = store_->model();
  work->snapshot.state = StateNow();
  const auto values = [elements = static_cast<size_t>(store_->elements())](const Slab& slab) {
    return absl::MakeConstSpan(slab.get(), elements);
  };
  work->snapshot.weights = values(work->frozen->weights);
  for (size_t i = 0; i < work->frozen->slots.size(); ++i) {
    work->snapshot.slots.push_back({store_->slots()[i].name, values(work->frozen->slots[i])});
  }
  if (tables_ != nullptr) {
    const uint64_t dense = (1 + work->snapshot.slots.size()) * work->snapshot.weights.size() * sizeof(float);
    work->tables = std::make_unique<PinnedTables>(tables_, step, follows, dense);
  }
  frozen_ = work;
  kept_ = work;
  if (!log_.kept()) {
    work->logged = true;
    return absl::OkStatus();
  }
  // The log's next segment begins right after this version; the file that names the segment is written after
  // that.
  const uint64_t segment = log_.Rotate(step, [this, work] {
    work->logged = true;
    WriteCheckpoint(work);
  });
  work->snapshot.state.set_log_segment(segment);
  return absl::OkStatus();
}

void Shard::ForgetCheckpoint() {
  // The log may have the work still.
  if (frozen_ != nullptr) {
    const std::shared_ptr<CheckpointWork> work = std::exchange(frozen_, nullptr);
    work->frozen = nullptr;
    work->tables = nullptr;
  }
  if (!staged_.late_commit.has_value()) return;
  staged_.late_commit->freeze.reset();
  staged_.late_commit->checkpoint.reset();
}

void Shard::WriteCheckpoint(const std::shared_ptr<CheckpointWork>& work) {
  if (!work->logged || !work->begun) return;
  options_.background([this, generation = loader_.generation(), work] {
    const absl::StatusOr<v1::CheckpointFile> file = WriteFiles(*work, generation);
    queue_.Post([this, generation, work, file] {
      writing_ = false;
      work->tables = nullptr;
      if (file.ok()) ++counters_.checkpoints_written;
      if (generation == loader_.generation())
        ReportCheckpoint(work->step, work->attempt, file);  // otherwise no coordinator waits for it any more
      if (store_ != nullptr) Wake();  // updates may have waited for the memory of former rows
    });
  });
}

absl::StatusOr<v1::CheckpointFile> Shard::WriteFiles(CheckpointWork& work, uint64_t generation) {
  const std::string& directory = options_.config.checkpoint().directory();
  absl::StatusOr<v1::CheckpointFile> file =
      WriteShardFile(*options_.files, directory, work.step, work.snapshot);
  work.frozen = nullptr;
  if (!file.ok() || work.tables == nullptr) return file;
  TableFiles to;
  to.files = options_.files;
  to.directory = directory;
  to.step = work.step;
  to.shard = {work.snapshot.state.shard(), work.snapshot.state.num_shards(),
              work.snapshot.state.version().incarnation()};
  to.in_order = [this](const std::function<void()>& function) { queue_.Run(function); };
  to.wanted = [this, generation] { return generation == loader_.generation(); };
  WEIR_ASSIGN_OR_RETURN(const std::vector<v1::CheckpointTable> tables, WriteTables(*work.tables, to));
  for (const v1::CheckpointTable& table : tables) *file->add_tables() = table;
  return file;
}

void Shard::ReportCheckpoint(uint64_t step, uint64_t attempt,
                             const absl::StatusOr<v1::CheckpointFile>& file) {
  v1::ShardReport report;
  report.mutable_checkpoint()->set_step(step);
  report.mutable_checkpoint()->set_attempt(attempt);
  if (file.ok()) {
    *report.mutable_checkpoint()->mutable_record() = *file;
  } else {
    report.mutable_checkpoint()->set_error(std::string(file.status().message()));
  }
  Report(std::move(report));
}

std::optional<uint64_t> Shard::RowsKept() const {
  const std::shared_ptr<const CheckpointWork> work = kept_.lock();
  // An earlier incarnation's tables may still be written.
  if (work == nullptr || work->tables == nullptr || work->tables->tables != tables_) return std::nullopt;
  return work->tables->pinned->version();
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

}  // namespace weir
