#include "ps_server/shard/shard_checkpoint.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_writer.h"
#include "ps_server/shard/restore/table_files.h"

namespace weir {

// A version that is kept for a checkpoint.
struct ShardCheckpoint::Work {
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

absl::Status ShardCheckpoint::Keep(uint64_t step, std::optional<uint64_t> follows, BlockStore& store,
                                   const std::shared_ptr<ShardTables>& tables, v1::ShardState state) {
  if (options_.directory.empty()) {
    return absl::FailedPreconditionError("this server's config has no checkpoint.directory");
  }
  // The checkpoint's name may be above its version, but not below. The coordinator checks at the commit of
  // the checkpoint that all shards have the intended version.
  if (options_.commits_steps && store.count() > step) {
    return absl::FailedPreconditionError(
        absl::StrCat("this shard is at step ", store.count(), ", not ", step));
  }
  // A version is released before writing_ is reset.
  if (writing_) return absl::FailedPreconditionError("this shard still writes an earlier checkpoint");
  const auto work = std::make_shared<Work>();
  work->step = step;
  work->frozen = store.Freeze();
  work->snapshot.model = store.model();
  work->snapshot.state = std::move(state);
  const auto values = [elements = static_cast<size_t>(store.elements())](const Slab& slab) {
    return absl::MakeConstSpan(slab.get(), elements);
  };
  work->snapshot.weights = values(work->frozen->weights);
  for (size_t i = 0; i < work->frozen->slots.size(); ++i) {
    work->snapshot.slots.push_back({store.slots()[i], values(work->frozen->slots[i])});
  }
  if (tables != nullptr) {
    const uint64_t dense = (1 + work->snapshot.slots.size()) * work->snapshot.weights.size() * sizeof(float);
    work->tables = std::make_unique<PinnedTables>(tables, step, follows, dense);
  }
  frozen_ = work;
  kept_ = work;
  if (!options_.log->kept()) {
    work->logged = true;
    return absl::OkStatus();
  }
  // The log's next segment begins right after this version. Then the file that names it is written.
  const uint64_t segment = options_.log->Rotate(step, [this, work] {
    work->logged = true;
    WriteWhenLogged(work);
  });
  work->snapshot.state.set_log_segment(segment);
  return absl::OkStatus();
}

bool ShardCheckpoint::keeps(uint64_t step) const { return frozen_ != nullptr && frozen_->step == step; }

void ShardCheckpoint::Forget() {
  if (frozen_ == nullptr) return;
  // The log may still refer to the work.
  frozen_->frozen = nullptr;
  frozen_->tables = nullptr;
  frozen_ = nullptr;
}

void ShardCheckpoint::Write(uint64_t attempt) {
  const std::shared_ptr<Work> work = std::exchange(frozen_, nullptr);
  work->attempt = attempt;
  work->begun = true;
  writing_ = true;
  WriteWhenLogged(work);
}

void ShardCheckpoint::WriteWhenLogged(const std::shared_ptr<Work>& work) {
  if (!work->logged || !work->begun) return;
  options_.background([this, generation = options_.generation(), work] {
    const absl::StatusOr<v1::CheckpointFile> file = WriteFiles(*work, generation);
    options_.queue->Post([this, generation, work, file] {
      writing_ = false;
      work->tables = nullptr;
      std::optional<v1::ShardReport> report;
      if (generation == options_.generation()) report = ReportOf(work->step, work->attempt, file);
      options_.done(file.ok(), std::move(report));
    });
  });
}

absl::StatusOr<v1::CheckpointFile> ShardCheckpoint::WriteFiles(Work& work, uint64_t generation) const {
  absl::StatusOr<v1::CheckpointFile> file =
      WriteShardFile(*options_.files, options_.directory, work.step, work.snapshot);
  work.frozen = nullptr;
  if (!file.ok() || work.tables == nullptr) return file;
  TableFiles to;
  to.files = options_.files;
  to.directory = options_.directory;
  to.step = work.step;
  to.shard = {work.snapshot.state.shard(), work.snapshot.state.num_shards(),
              work.snapshot.state.version().incarnation()};
  to.in_order = [this](const std::function<void()>& function) { options_.queue->Run(function); };
  to.wanted = [this, generation] { return generation == options_.generation(); };
  WEIR_ASSIGN_OR_RETURN(const std::vector<v1::CheckpointTable> tables, WriteTables(*work.tables, to));
  for (const v1::CheckpointTable& table : tables) *file->add_tables() = table;
  return file;
}

v1::ShardReport ShardCheckpoint::ReportOf(uint64_t step, uint64_t attempt,
                                          const absl::StatusOr<v1::CheckpointFile>& file) {
  v1::ShardReport report;
  report.mutable_checkpoint()->set_step(step);
  report.mutable_checkpoint()->set_attempt(attempt);
  if (file.ok()) {
    *report.mutable_checkpoint()->mutable_record() = *file;
  } else {
    report.mutable_checkpoint()->set_error(std::string(file.status().message()));
  }
  return report;
}

std::optional<uint64_t> ShardCheckpoint::RowsKept(const std::shared_ptr<ShardTables>& tables) const {
  const std::shared_ptr<const Work> work = kept_.lock();
  // An earlier incarnation's tables may still be written.
  if (work == nullptr || work->tables == nullptr || work->tables->tables != tables) return std::nullopt;
  return work->tables->pinned->version();
}

}  // namespace weir
