#include "ps_server/shard/restore/shard_loader.h"

#include <algorithm>
#include <new>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/config/job_config.h"
#include "common/config/server_memory.h"
#include "common/model/wire_model.h"
#include "common/protocol/job_failure.h"
#include "common/protocol/mode_traits.h"
#include "common/telemetry/logging.h"
#include "ps_server/shard/restore/table_files.h"

namespace weir {

namespace {

// Tells a full disk from a lack of memory.
absl::Status OfDisk(const absl::Status& status) {
  return MayPass(status) ? JobFailure(v1::FAILURE_RESOURCE, status.message()) : status;
}

// If the disk had no room for a load, the load is tried again after this time.
constexpr absl::Duration kLoadAgain = absl::Seconds(1);

}  // namespace

ShardLoader::ShardLoader(Options options) : options_(std::move(options)) {}

absl::StatusOr<BlockStore::Options> ShardLoader::Check(const v1::Install& install) const {
  const v1::JobConfig& config = *options_.config;
  BlockStore::Options options = options_.store;
  WEIR_ASSIGN_OR_RETURN(options.model, FromProto(install.model()));
  v1::JobConfig theirs;
  if (!theirs.ParseFromString(install.job_config())) {
    return absl::InvalidArgumentError("job_config does not parse");
  }
  if (const std::string difference = FirstDifference(theirs, config); !difference.empty()) {
    // The caller may be a stranger, so the reply names only the field.
    LogError("refused to take part: this server's config differs from that of ps:0: ", difference);
    return absl::InvalidArgumentError(absl::StrCat("its config differs from that of ps:0 in ",
                                                   difference.substr(0, difference.find(':')),
                                                   "; its log says how"));
  }
  if (install.num_shards() == 0 || install.shard() >= install.num_shards()) {
    return absl::InvalidArgumentError("bad shard number");
  }
  if (options_.index.has_value() && install.shard() != *options_.index) {
    return absl::InvalidArgumentError(absl::StrCat("it is ps:", *options_.index,
                                                   ", but ps:0 takes it for ps:", install.shard(),
                                                   "; check the cluster spec of ps:0"));
  }
  WEIR_RETURN_IF_ERROR(CheckServerMemory(config, install.workers(), options.model.elements(),
                                         install.num_shards(), options_.memory_bytes));
  options.shard = install.shard();
  options.num_shards = install.num_shards();
  options.seed = config.seed();
  options.optimizer = config.optimizer();
  options.total_steps = install.total_steps();
  options.pushes_per_step = TraitsOf(config).commits_steps ? 1 : std::max<uint32_t>(1, install.workers());
  options.clock = options_.clock;
  return options;
}

void ShardLoader::Abandon() {
  ++generation_;
  under_way_ = false;
  next_.reset();
  late_.reset();
}

void ShardLoader::Load(v1::Install install, v1::JobIdentity job, BlockStore::Options store, Done done) {
  Task task{std::move(install), std::move(job), std::move(store), std::move(done)};
  under_way_ = true;
  if (logs() && loading_) {
    next_ = std::move(task);
    return;
  }
  Start(std::move(task));
}

void ShardLoader::Start(Task task) {
  loading_ = true;
  options_.background([this, generation = generation(), task = std::move(task)] {
    // std::function requires a copyable closure.
    auto loaded = std::make_shared<absl::StatusOr<Loaded>>(Make(task, generation));
    options_.queue->Post([this, generation, task, loaded] {
      loading_ = false;
      if (next_.has_value()) return Start(*std::exchange(next_, std::nullopt));
      if (generation != generation_) return;
      const bool full = KindOf(loaded->status()) == v1::FAILURE_RESOURCE;
      const absl::Status why = full ? LoadLater(task, loaded->status()) : loaded->status();
      if (!full || !why.ok()) {
        late_.reset();
        task.done(full ? absl::StatusOr<Loaded>(why) : std::move(*loaded));
      }
      under_way_ = false;
    });
  });
}

absl::Status ShardLoader::LoadLater(const Task& task, const absl::Status& why) {
  const absl::Time now = options_.clock->Now();
  const double limit = options_.config->checkpoint().save_wait_seconds();
  if (!late_.has_value()) {
    late_ = Late{task, now, now};
    LogWarning("shard ", task.install.shard(), " cannot begin its log yet: ", why.message(),
               "; it is tried again for ", limit, " s (checkpoint.save_wait_seconds), make room meanwhile");
  }
  late_->next = now + kLoadAgain;
  if (now - late_->since < absl::Seconds(limit)) return absl::OkStatus();
  return JobFailure(
      v1::FAILURE_RESOURCE,
      absl::StrCat("there was no room within checkpoint.save_wait_seconds = ", limit, ": ", why.message()));
}

void ShardLoader::Tick() {
  if (!late_.has_value() || under_way_ || options_.clock->Now() < late_->next) return;
  under_way_ = true;
  Start(late_->task);
}

absl::StatusOr<ShardLoader::Loaded> ShardLoader::Make(const Task& task, uint64_t generation) const {
  // Memory may be short although the model was found to fit, because other processes use it too.
  const auto failed = [&](const char* why) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for its part of the model, ",
                                                     task.store.model.elements(), " elements on ",
                                                     task.store.num_shards, " servers (", why, ")"));
  };
  try {
    return MakeParts(task, generation);
  } catch (const std::bad_alloc& e) {
    return failed(e.what());
  } catch (const std::length_error& e) {
    return failed(e.what());
  }
}

absl::StatusOr<ShardLoader::Loaded> ShardLoader::MakeParts(const Task& task, uint64_t generation) const {
  const v1::Install& install = task.install;
  const v1::CheckpointConfig& checkpoint = options_.config->checkpoint();
  Loaded loaded;
  WEIR_ASSIGN_OR_RETURN(loaded.tables, NewTables(*options_.config, task.store, install.parts()));
  LogPosition position;
  const auto read = [&](const BlockStore& store, ShardVersion& version) -> absl::Status {
    WEIR_ASSIGN_OR_RETURN(const CheckpointReader reader,
                          OpenRestored(*options_.files, checkpoint, install.restore()));
    const bool weights_only = install.restore().weights_only();
    WEIR_RETURN_IF_ERROR(LoadCheckpoint(reader, weights_only, install.shard(), install.num_shards(), store,
                                        version, &loaded.state, &position));
    return LoadTables(reader, weights_only, install.shard(), install.num_shards(), loaded.tables.get());
  };
  const auto restore = [&](const BlockStore& store, ShardVersion& version) {
    const absl::Status status = read(store, version);
    return IsDamage(status) ? absl::DataLossError(status.message()) : status;
  };
  WEIR_ASSIGN_OR_RETURN(
      loaded.store,
      BlockStore::Create(task.store, install.has_restore() ? BlockStore::Restore(restore) : nullptr));
  if (!checkpoint.has_directory()) return loaded;
  if (!TraitsOf(*options_.config).applies_alone) {
    const absl::Status none = CheckNoLog(*options_.files, checkpoint.directory(), task.job, position);
    // The error is not DataLoss, because another checkpoint would not help.
    if (absl::IsDataLoss(none)) return absl::FailedPreconditionError(none.message());
    WEIR_RETURN_IF_ERROR(none);
    return loaded;
  }
  // The log of an earlier incarnation counts, whether or not this incarnation keeps one.
  WEIR_RETURN_IF_ERROR(OpenLog(task, position, generation, &loaded));
  if (task.store.model.uploaded() && !install.has_restore() && loaded.store->count() > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(checkpoint.directory(), " holds a log of pushes, but not the checkpoint that the job ",
                     "began with: a worker had uploaded its initial values. Use another folder"));
  }
  return loaded;
}

absl::Status ShardLoader::OpenLog(const Task& task, const LogPosition& position, uint64_t generation,
                                  Loaded* loaded) const {
  const v1::Install& install = task.install;
  const std::string& directory = options_.config->checkpoint().directory();
  PushLog::Options options;
  options.files = options_.files;
  options.folder = LogFolder(directory, install.shard(), install.num_shards());
  options.description.set_shard(install.shard());
  options.description.set_num_shards(install.num_shards());
  options.description.set_model_hash(loaded->store->model().Hash());
  options.description.set_checkpoint(position.checkpoint);
  options.description.set_coordinator(install.coordinator());
  options.description.set_install(install.number());
  *options.description.mutable_job() = task.job;
  for (const v1::TableConfig& table : options_.config->tables()) {
    v1::LoggedTable& logged = *options.description.add_tables();
    logged.set_name(table.name());
    logged.set_dim(table.dim());
  }
  options.executor = options_.background;
  // This thread may have hung until now, and the log may belong to another process.
  const auto still_wanted = [&] {
    return generation == generation_
               ? absl::OkStatus()
               : absl::AbortedError("this incarnation of the shard was replaced before it started");
  };
  WEIR_RETURN_IF_ERROR(still_wanted());
  if (logs()) {
    WEIR_RETURN_IF_ERROR(OfDisk(options_.files->MakeFolder(ParentFolder(options.folder))));
    WEIR_RETURN_IF_ERROR(OfDisk(options_.files->SyncFolder(directory)));
  }
  // An earlier incarnation may have kept a log although this one keeps none, and may still run.
  if (logs() || options_.files->List(options.folder).ok()) {
    WEIR_RETURN_IF_ERROR(OfDisk(ClaimPushLog(*options_.files, options.folder, options.description)));
  }
  absl::StatusOr<Replayed> replayed =
      ReplayLog(*options_.files, directory, task.job, install.shard(), install.num_shards(), position,
                *loaded->store, loaded->tables.get());
  if (absl::IsDataLoss(replayed.status())) {
    return absl::FailedPreconditionError(absl::StrCat(
        replayed.status().message(),
        ". Pushes that were acknowledged would be lost. Put the file back from a ",
        "copy; or, to go on from the newest whole checkpoint without what the log of any server has, move ",
        ParentFolder(options.folder), " and newer checkpoints away"));
  }
  WEIR_RETURN_IF_ERROR(replayed.status());
  loaded->records = std::move(replayed->records);
  if (loaded->tables == nullptr &&
      std::any_of(loaded->records.begin(), loaded->records.end(),
                  [](const v1::LoggedPush& record) { return record.push().rows_size() > 0; })) {
    return absl::FailedPreconditionError(
        absl::StrCat(options.folder,
                     " holds rows of embedding tables, and this job's config has no tables. Use another "
                     "folder, or the config that the job began with"));
  }
  if (!logs()) return absl::OkStatus();
  options.segment = replayed->end.next_segment;
  options.description.set_previous_bytes(replayed->end.previous_bytes);
  WEIR_RETURN_IF_ERROR(still_wanted());
  absl::StatusOr<std::shared_ptr<PushLog>> log = PushLog::Begin(std::move(options));
  WEIR_RETURN_IF_ERROR(OfDisk(log.status()));
  loaded->log = *std::move(log);
  return absl::OkStatus();
}

}  // namespace weir
