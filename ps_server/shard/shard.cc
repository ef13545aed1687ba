#include "ps_server/shard/shard.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/handshake.h"
#include "common/protocol/job_failure.h"
#include "common/protocol/mode_traits.h"
#include "common/telemetry/logging.h"

namespace weir {
std::unique_ptr<ConsistencyPolicy> Shard::PolicyFromConfig(const v1::JobConfig& config,
                                                           const v1::Install& install) {
  switch (config.consistency().mode()) {
    case v1::ConsistencyConfig::MODE_SYNC:
      return MakeSyncPolicy(install.parts(), install.total_batches(), config.consistency().backup_workers());
    case v1::ConsistencyConfig::MODE_BOUNDED:
      return MakeBoundedPolicy(config.consistency().staleness(), config.consistency().prefetch());
    case v1::ConsistencyConfig::MODE_ASYNC:
      return MakeAsyncPolicy();
    case v1::ConsistencyConfig::MODE_UNSPECIFIED:
      break;
  }
  std::abort();  // the reader of configs admits no other mode
}

Shard::Shard(Options options)
    : options_(std::move(options)),
      reporter_([](v1::ShardReport) {}),
      loader_(LoaderOptions()),
      room_({&options_.config, options_.clock, &now_, &counters_.versions_written_off, options_.memory_bytes,
             options_.nudge, options_.on_revoke, options_.on_short,
             [this] { return checkpoint_.RowsKept(now_.tables()); }}),
      now_(options_.config, install_, counters_),
      log_(options_.clock, &queue_,
           [this](const absl::Status& status) {
             if (!status.ok()) FailLog(status);
             calls_.WakeMoved();
           }),
      checkpoint_({options_.files, &log_, options_.config.checkpoint().directory(),
                   TraitsOf(options_.config).commits_steps, &queue_, options_.background,
                   [this] { return loader_.generation(); },
                   [this](bool ok, std::optional<v1::ShardReport> report) {
                     if (ok) ++counters_.checkpoints_written;
                     if (report.has_value()) Report(*std::move(report));
                     if (now_.store() != nullptr)
                       calls_.Wake();  // updates may have waited for the memory of former rows
                   }}),
      answers_({options_.config, now_, room_, initial_, over_, counters_}, options_.weights_source),
      calls_({options_.config, *options_.clock, now_, room_, log_, initial_, answers_, over_, counters_},
             {options_.chunk_unit, options_.nudge, options_.on_short,
              [this](v1::ShardReport report) { Report(std::move(report)); },
              [this](const absl::Status& failure) { Fail(failure); },
              [this](const v1::ControlMessage& message) { Handle(message); }, [this] { ContinueCommit(); }}) {
}

ShardLoader::Options Shard::LoaderOptions() {
  ShardLoader::Options options;
  options.config = &options_.config;
  options.files = options_.files;
  options.queue = &queue_;
  options.clock = options_.clock;
  options.background = options_.background;
  options.index = options_.index;
  options.memory_bytes = options_.memory_bytes;
  options.store.kernels = options_.kernels;
  options.store.threads = options_.threads;
  options.store.weights_source = options_.weights_source;
  options.store.reader_limits = options_.reader_limits;
  options.store.on_release = [this] { room_.OnRelease(); };
  return options;
}

Shard::~Shard() {
  queue_.Post([this] {
    v1::Shutdown shutdown;
    shutdown.set_failure("the server stops");
    HandleShutdown(shutdown);
  });
}

void Shard::SetReporter(std::function<void(v1::ShardReport)> reporter) {
  queue_.Post([this, reporter = std::move(reporter)] { reporter_ = reporter; });
}

void Shard::Control(v1::ControlMessage message) {
  queue_.Post([this, message = std::move(message)]() mutable {
    // Pins and pings change nothing, and the answer to a ping keeps the shard from being given up.
    const bool reads = message.has_pin() || message.has_unpin();
    if (message.has_ping() || (!log_.defers() && (log_.settled() || reads))) return Handle(message);
    log_.Defer(std::move(message));
  });
}

void Shard::Handle(const v1::ControlMessage& message) {
  switch (message.message_case()) {
    case v1::ControlMessage::kInstall:
      return HandleInstall(message.install());
    case v1::ControlMessage::kMembership:
      return HandleMembership(message.membership());
    case v1::ControlMessage::kMeasure:
      return HandleMeasure(message.measure());
    case v1::ControlMessage::kCommit:
      return HandleCommit(message.commit());
    case v1::ControlMessage::kPin:
      return HandlePin(message.pin());
    case v1::ControlMessage::kUnpin:
      return HandleUnpin(message.unpin());
    case v1::ControlMessage::kHello:
      return HandleHello(message.hello());
    case v1::ControlMessage::kFreeze:
      return HandleFreeze(message.freeze());
    case v1::ControlMessage::kCheckpoint:
      return HandleCheckpoint(message.checkpoint());
    case v1::ControlMessage::kPing:
      return HandlePing(message.ping());
    case v1::ControlMessage::kShutdown:
      return HandleShutdown(message.shutdown());
    case v1::ControlMessage::MESSAGE_NOT_SET:
      return;
  }
}

absl::Status Shard::CheckAddressee(uint64_t job, uint32_t shard_plus_one) const {
  return weir::CheckAddressee(job_, options_.index.value_or(install_.shard()), job, shard_plus_one);
}

void Shard::Begin(Session session, v1::PushRequest header, BeginDone done, PushFill fill) {
  queue_.Post(
      [this, session, header = std::move(header), done = std::move(done), fill = std::move(fill)]() mutable {
        const v1::Caller& caller = header.caller();
        if (absl::Status addressee = CheckAddressee(caller.job(), caller.shard_plus_one()); !addressee.ok())
          return done(addressee);
        calls_.Begin({session, std::move(header), std::move(done), options_.clock->Now(), std::move(fill)});
      });
}

void Shard::Push(Session session, std::unique_ptr<PushArrival> arrival, PushDone done) {
  calls_.CountPushed(arrival->header());
  // std::function requires a copyable closure.
  auto shared = std::make_shared<std::unique_ptr<PushArrival>>(std::move(arrival));
  queue_.Post([this, session, shared, done = std::move(done)]() mutable {
    calls_.Push({session, std::move(*shared), std::move(done), absl::Time()});
  });
}

void Shard::Pull(Session session, v1::PullRequest request, PullDone done, RowKeys rows) {
  // std::function requires a copyable closure.
  auto keys = std::make_shared<const RowKeys>(std::move(rows));
  queue_.Post([this, session, request = std::move(request), done = std::move(done), keys]() mutable {
    const v1::Caller& caller = request.caller();
    if (absl::Status addressee = CheckAddressee(caller.job(), caller.shard_plus_one()); !addressee.ok())
      return done(addressee);
    calls_.Pull({session, std::move(request), std::move(done), options_.clock->Now(), std::move(keys)});
  });
}

void Shard::ShowRows(v1::ReadRowsRequest request, ReadRowsDone done) {
  queue_.Post([this, request = std::move(request), done = std::move(done)] {
    if (absl::Status addressee = CheckAddressee(request.job(), request.shard_plus_one()); !addressee.ok())
      return done(addressee);
    if (over_) return done(absl::UnavailableError(absl::StrCat("the job is over: ", over_->message())));
    if (now_.store() == nullptr) return done(absl::UnavailableError("this shard has no model yet"));
    done(table_report_.Read(request));
  });
}

void Shard::End(Session session) {
  queue_.Post([this, session] { calls_.End(session); });
}

void Shard::Tick() {
  queue_.Post([this] {
    if (!over_) loader_.Tick();
    calls_.Tick();
    const absl::Duration waited = options_.clock->Now() - log_.moved();
    if (log_.writes() > 0 && waited >= absl::Seconds(options_.config.cluster().wait_seconds())) {
      FailLog(absl::DeadlineExceededError(absl::StrCat("the disk has answered none of ", log_.writes(),
                                                       " writes for ", absl::FormatDuration(waited))));
    }
    table_report_.Update();
    room_.SetTableBytes(table_report_.bytes());
  });
}

void Shard::Quiesce() {
  queue_.Run([] {});
}

// ---- control

void Shard::HandleMembership(const v1::SetMembership& message) {
  const v1::Membership& membership = message.membership();
  if (now_.store() == nullptr || over_ || membership.epoch() <= now_.members().epoch()) return;
  // The record tells a restored shard whose clocks the pushes after the membership complete.
  if (log_.kept()) log_.Append(membership);
  const ShardMembers::Change change = now_.members().Follow(membership, *now_.policy());
  for (const ShardMembers::Gone& gone : change.gone) {
    calls_.FailWorker(gone.worker,
                      {v1::FENCED, absl::StrCat(gone.task, " was taken out of the job by membership epoch ",
                                                membership.epoch())});
  }
  if (initial_.awaited()) {
    const std::optional<Verdict> upload = initial_.Follow(message);
    if (!initial_.awaited()) calls_.waits().Mark();
    if (upload.has_value()) {
      initial_.EndWaiter([](const auto&) { return true; },
                         [&](const StagedParts::Waiter& waiter) { answers_.Answer(waiter.done, *upload); });
    }
  }
  v1::ShardReport report;
  report.mutable_membership()->set_epoch(now_.members().epoch());
  report.mutable_membership()->set_floor(change.floor);
  Report(std::move(report));
  calls_.Wake();
}

void Shard::HandleCommit(const v1::CommitStep& commit) {
  if (over_ || now_.store() == nullptr) return;
  std::optional<StagedParts::LateCommit>& late = now_.staged().late_commit;
  const bool waits = late.has_value() && late->commit.step() == commit.step();
  if (waits || commit.step() < now_.policy()->JoinClock()) return;  // a repeat
  const absl::StatusOr<StagedParts::Gradients> gradients =
      now_.staged().GradientsOf(commit.step(), commit.parts(), *now_.policy());
  if (!gradients.ok()) return FailStep("commit", commit.step(), gradients.status());
  if (!room_.Make()) {
    late = StagedParts::LateCommit{commit, options_.clock->Now(), {}, {}, {}};
    room_.SetShort(true);
    return;
  }
  const auto answer = [this](const Verdict& verdict, const std::vector<StagedParts::Waiter>& waiters) {
    for (const StagedParts::Waiter& waiter : waiters) answers_.Answer(waiter.done, verdict);
  };
  if (const absl::Status status = now_.Commit(commit, *gradients, answer); !status.ok()) return Fail(status);
  calls_.waits().Mark();
  calls_.Wake();
}

void Shard::HandleMeasure(const v1::MeasureStep& measure) {
  if (over_ || now_.store() == nullptr || measure.step() < now_.policy()->JoinClock()) return;
  const absl::StatusOr<StagedParts::Gradients> gradients =
      now_.staged().GradientsOf(measure.step(), measure.parts(), *now_.policy());
  if (!gradients.ok()) return FailStep("measure", measure.step(), gradients.status());
  v1::ShardReport report;
  *report.mutable_measured() = now_.Measure(measure, *gradients);
  Report(std::move(report));
}

void Shard::FailStep(const char* task, uint64_t step, const absl::Status& why) {
  // The other shards commit the step, and this shard would stay behind for ever.
  Fail(JobFailure(v1::FAILURE_INTERNAL, absl::StrCat("shard ", install_.shard(), " cannot ", task, " step ",
                                                     step, " as ps:0 decided: ", why.message())));
}

void Shard::ContinueCommit() {
  if (!room_.Make()) return;
  const StagedParts::LateCommit late = *std::exchange(now_.staged().late_commit, std::nullopt);
  HandleCommit(late.commit);
  for (const v1::PinVersion& pin : late.pins) HandlePin(pin);
  if (late.freeze.has_value()) HandleFreeze(*late.freeze);
  if (late.checkpoint.has_value()) HandleCheckpoint(*late.checkpoint);
}

void Shard::HandlePin(const v1::PinVersion& pin) {
  if (now_.store() == nullptr) return;
  if (now_.staged().late_commit.has_value()) {
    now_.staged().late_commit->pins.push_back(pin);
    return;
  }
  v1::ShardReport report;
  report.mutable_pinned()->set_pin(pin.pin());
  report.mutable_pinned()->mutable_version()->set_incarnation(now_.number());
  report.mutable_pinned()->mutable_version()->set_count(room_.Hold(pin).version->count);
  Report(std::move(report));
}

void Shard::HandleUnpin(const v1::UnpinVersion& unpin) {
  room_.Release(unpin.pin());
  if (!now_.staged().late_commit.has_value()) return;
  std::vector<v1::PinVersion>& late = now_.staged().late_commit->pins;
  late.erase(std::remove_if(late.begin(), late.end(),
                            [&](const v1::PinVersion& pin) { return pin.pin() == unpin.pin(); }),
             late.end());
}

void Shard::HandlePing(const v1::Ping& ping) {
  last_ping_ = ping.sequence();
  if (ping.with_table_digests() && table_report_.BeginDigests()) {
    queue_.Post([this, incarnation = now_.number()] { GoOnWithDigests(incarnation); });
  }
  ReportStats();
}

void Shard::GoOnWithDigests(uint64_t incarnation) {
  if (over_ || incarnation != now_.number() || !table_report_.digesting()) return;
  table_report_.StepDigests();
  if (!table_report_.digesting()) return ReportStats();
  queue_.Post([this, incarnation] { GoOnWithDigests(incarnation); });
}

void Shard::ReportStats() {
  v1::ShardReport report;
  v1::ShardStats& stats = *report.mutable_stats();
  stats.set_sequence(last_ping_);
  now_.Describe(&stats);
  stats.set_bytes_pushed(counters_.bytes_pushed);
  stats.set_bytes_pulled(counters_.bytes_pulled);
  for (v1::Wait& wait : calls_.waits().All()) *stats.add_waits() = std::move(wait);
  stats.set_seconds_since_update(absl::ToDoubleSeconds(options_.clock->Now() - calls_.waits().marked()));
  table_report_.Describe(&stats);
  Report(std::move(report));
}

void Shard::HandleFreeze(const v1::FreezeCheckpoint& freeze) {
  ForgetCheckpoint();
  if (freeze.release()) return;
  if (now_.staged().late_commit.has_value()) {
    // The coordinator sent this step's commit before.
    now_.staged().late_commit->freeze = freeze;
    return;
  }
  std::optional<uint64_t> follows;
  if (freeze.follows() > 0) follows = freeze.follows() - 1;
  // If the shard cannot keep the version, it reports the reason when the checkpoint is to be written.
  KeepForCheckpoint(freeze.step(), follows).IgnoreError();
}

void Shard::HandleCheckpoint(const v1::TakeCheckpoint& take) {
  if (take.complete() > 0) log_.DropBefore(take.complete() - 1);
  if (!checkpoint_.keeps(take.step())) {
    if (now_.staged().late_commit.has_value()) {
      now_.staged().late_commit->checkpoint = take;
      return;
    }
    // A coordinator of protocol 1.5 sends no FreezeCheckpoint.
    checkpoint_.Forget();
    if (const absl::Status status = KeepForCheckpoint(take.step(), std::nullopt); !status.ok()) {
      return Report(ShardCheckpoint::ReportOf(take.step(), take.attempt(), status));
    }
  }
  checkpoint_.Write(take.attempt());
}

absl::Status Shard::KeepForCheckpoint(uint64_t step, std::optional<uint64_t> follows) {
  if (now_.store() == nullptr) return absl::FailedPreconditionError("this shard has no model yet");
  return checkpoint_.Keep(step, follows, *now_.store(), now_.tables(), now_.State());
}

void Shard::ForgetCheckpoint() {
  checkpoint_.Forget();
  if (!now_.staged().late_commit.has_value()) return;
  now_.staged().late_commit->freeze.reset();
  now_.staged().late_commit->checkpoint.reset();
}

void Shard::HandleShutdown(const v1::Shutdown& shutdown) {
  if (over_) return;
  loader_.Abandon();
  over_ = JobFailure(shutdown.failure_kind(), shutdown.failure());
  calls_.FailAll(answers_.JobOver());
}

void Shard::Fail(const absl::Status& failure) {
  if (failed_) return;
  failed_ = true;
  over_ = failure;
  LogError(over_->message());
  calls_.FailAll(answers_.JobOver());
  ReportFailed();
}

void Shard::FailLog(const absl::Status& status) {
  if (!log_.Fail(status)) return;
  const std::string why =
      absl::StrCat("shard ", install_.shard(), " cannot write its log: ", std::string(status.message()));
  Fail(log_.taken() ? LostPeer(why) : StorageFailure(why));
  // The shard must not acknowledge the pending pushes, since their records may not be on disk.
  log_.Abandon();
}

void Shard::ReportFailed() {
  v1::ShardReport report;
  report.mutable_failed()->set_error(std::string(over_->message()));
  report.mutable_failed()->set_replaced(log_.taken());
  report.mutable_failed()->set_kind(KindOf(*over_));
  Report(std::move(report));
}

void Shard::HandleHello(const v1::Hello& hello) {
  if (job_.id() == 0) job_ = hello.job();
  loader_.Abandon();
  ForgetCheckpoint();
  if (failed_) ReportFailed();
  v1::ShardReport report;
  v1::Attached& attached = *report.mutable_attached();
  attached.set_measures_steps(true);
  // While its initial values are awaited, the shard is of no use to a new coordinator.
  if (now_.store() != nullptr && !initial_.awaited()) {
    attached.set_incarnation(now_.number());
    attached.mutable_version()->set_incarnation(now_.number());
    attached.mutable_version()->set_count(now_.store()->count());
    attached.set_epoch(now_.members().epoch());
    attached.set_model_hash(now_.model_hash());
    attached.set_num_shards(install_.num_shards());
    *attached.mutable_batches() = now_.tally().batches.ToProto();
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
  if (now_.store() == nullptr) return;
  LogInfo("incarnation ", now_.number(), " of the shard ends at version ", now_.store()->count(), ": ",
          reason);
  calls_.Drop({v1::FENCED, reason});
  initial_ = InitialValues();
  room_.End();
  log_.End();
  table_report_.SetTables(nullptr);
  elements_ = 0;
  now_.End();
}

void Shard::FinishInstall(const v1::Install& install, ShardLoader::Loaded loaded) {
  install_ = install;
  log_.Begin(std::move(loaded.log));
  now_.Begin(options_.new_incarnation(), std::move(loaded), options_.make_policy(options_.config, install));
  room_.Begin(install);
  table_report_.SetTables(now_.tables());
  room_.SetTableBytes(table_report_.bytes());
  if (options_.own_thread && (now_.tables() != nullptr || now_.store()->elements() > kMaxElementsOfCallers)) {
    queue_.StartThread();
  }
  elements_ = now_.store()->elements();
  calls_.waits().Mark();
  if (now_.store()->model().uploaded() && !install.has_restore()) initial_.Await();
  if (install.has_restore()) {
    LogInfo("incarnation ", now_.number(), " of the shard starts at version ", now_.store()->count(),
            ", from step ", install.restore().step(), " in checkpoint.",
            install.restore().init_from() ? "init_from" : "directory");
  }
}

void Shard::ReportInstalled(const absl::Status& status) {
  v1::ShardReport report;
  report.mutable_installed()->set_error(std::string(status.message()));
  report.mutable_installed()->set_permanent(
      absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status) || absl::IsUnimplemented(status));
  report.mutable_installed()->set_damaged(absl::IsDataLoss(status));
  report.mutable_installed()->set_incarnation(now_.number());
  *report.mutable_installed()->mutable_batches() = now_.tally().batches.ToProto();
  Report(std::move(report));
}

}  // namespace weir
