// The part of Shard that handles waiting calls: it continues those that can go on, ends those that have
// waited too long, and says what the others wait for.
//
// What may wait for what. Each entry waits only for entries below it, so the order has no cycle:
//
//   a pull                           for pushes of other workers (calls_.parked)
//   a push of a later clock          for its worker's earlier pushes (calls_.held)
//   a push that has not begun        for one that is streaming in: 25 ms; one that stands still is passed
//                                    (calls_.behind_stream)
//   sync: a part's answer            for the other parts of its step, and the coordinator's commit (staged_)
//   the upload of initial values     for the other shards' parts of it, and the coordinator's word (initial_)
//   a push that has arrived whole    for those before it; for memory of rows; with the log for decisions
//   (calls_.ready)                   (log_), else for memory of weights
//   a commit (late_commit_)          for memory of rows and of weights
//   memory of rows                   for the checkpoint for which former rows are kept, which is written or
//                                    given up
//   a control message, so a          with the log, for its writes and for the decisions that are pending
//   checkpoint, too                  (DecisionLog::Defer)
//   a decision                       for its record on the disk: a disk that hangs fails the shard; then for
//                                    memory of weights
//   memory of weights                for readers: at most ReaderLimits::patience
//   a reader                         for nothing: its version no longer counts when its time is over
//
// A push that is still arriving is outside of this order: only calls of its own worker wait for it, and calls
// that need that worker's clock; both waits end with the worker's lease. A push that was overtaken waits for
// nothing: it is answered at once, and its version delays no call.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/telemetry/logging.h"
#include "ps_server/shard/shard.h"

namespace weir {
namespace {

// At most this many calls of each kind are described when the waits are reported.
constexpr size_t kMostDescribed = 16;

// What an upload that is whole on this shard waits for.
constexpr char kOtherUploads[] =
    "the other servers to have theirs, and, in a job with checkpoints, for the first one";

// Waiting calls, grouped by their kind and by what they wait for.
class WaitList {
 public:
  explicit WaitList(absl::Time now) : now_(now) {}

  void Add(const std::string& kind, const std::string& first, const std::string& task, absl::Time since,
           const std::string& reason, const std::vector<std::string>& awaited) {
    auto entry = std::find_if(entries_.begin(), entries_.end(),
                              [&](const Entry& e) { return e.kind == kind && e.wait.reason() == reason; });
    if (entry == entries_.end()) {
      entries_.push_back({kind, first, 0, {}});
      entry = std::prev(entries_.end());
      entry->wait.set_reason(reason);
      for (const std::string& name : awaited) entry->wait.add_awaited(name);
    }
    ++entry->calls;
    entry->wait.set_seconds(std::max(entry->wait.seconds(), absl::ToDoubleSeconds(now_ - since)));
    const auto& waiting = entry->wait.waiting();
    if (!task.empty() && std::find(waiting.begin(), waiting.end(), task) == waiting.end()) {
      entry->wait.add_waiting(task);
    }
  }

  std::vector<v1::Wait> Take() {
    std::vector<v1::Wait> waits;
    for (Entry& entry : entries_) {
      entry.wait.set_calls(entry.calls == 1
                               ? absl::StrCat("a ", entry.kind, entry.first)
                               : absl::StrCat(entry.calls, " ", entry.kind, entry.kind == "push" ? "es" : "s",
                                              ", the first", entry.first));
      waits.push_back(std::move(entry.wait));
    }
    std::stable_sort(waits.begin(), waits.end(),
                     [](const v1::Wait& a, const v1::Wait& b) { return a.seconds() > b.seconds(); });
    return waits;
  }

 private:
  struct Entry {
    std::string kind, first;
    size_t calls;
    v1::Wait wait;
  };
  const absl::Time now_;
  std::vector<Entry> entries_;
};

}  // namespace

// ---- memory

bool Shard::ShortOfMemory() const {
  if (late_commit_.has_value()) return true;
  return log_.kept() ? log_.NextDurable() != nullptr : !calls_.ready.empty();
}

bool Shard::MakeRoomForWeights() {
  if (store_->readers().MayPublish()) return true;
  if (options_.on_short) options_.on_short();
  RevokeLate();
  return store_->readers().MayPublish();
}

double Shard::RowBytesLeft() const {
  return std::max(0.0, row_budget_.Left(table_bytes_) - static_cast<double>(staged_.row_bytes()));
}

bool Shard::RowsFit() const {
  return tables_ == nullptr || !row_budget_.limited() ||
         static_cast<double>(tables_->former_bytes()) <= RowBytesLeft();
}

bool Shard::MakeRoomForRows() {
  // Readers delay no update. But rows of a version that a checkpoint keeps, and later ones, stay anyway.
  const uint64_t kept = RowsKept().value_or(UINT64_MAX);
  while (!pins_.empty() && !RowsFit()) {
    const auto oldest = std::min_element(pins_.begin(), pins_.end(), [](const auto& a, const auto& b) {
      return a.second.tables->version() < b.second.tables->version();
    });
    if (oldest->second.tables->version() >= kept) break;
    LogWarning("pin ", oldest->first, " of version ", oldest->second.version->count,
               " ends, since former rows are kept for it. ", row_budget_.Describe(table_bytes_));
    pins_.erase(oldest);
  }
  return RowsFit();
}

void Shard::RevokeLate() {
  const std::vector<VersionReaders::Held> written_off = store_->readers().RevokeLate();
  if (written_off.empty()) return;
  for (const VersionReaders::Held& held : written_off) {
    LogWarning("pushes no longer wait for the readers of ", Describe(held));
  }
  counters_.versions_written_off += written_off.size();
  for (auto it = pins_.begin(); it != pins_.end();) {
    it = it->second.version->revoked ? pins_.erase(it) : std::next(it);
  }
  if (options_.on_revoke) options_.on_revoke();
}

// ---- what can go on

void Shard::Wake() {
  wake_all_ = true;
  WakeMoved();
}

void Shard::WakeMoved() {
  wake_again_ = true;
  if (waking_) return;
  waking_ = true;
  while (std::exchange(wake_again_, false)) {
    const bool all = std::exchange(wake_all_, false);
    const bool held = std::exchange(wake_held_, false);
    ResumeWaiting(all, all || held);
  }
  waking_ = false;
}

void Shard::ResumeWaiting(bool all, bool held) {
  ApplyDurable();
  while (true) {
    EndIf(
        calls_.ready, [](const ReadyPush& push) { return push.arrival->overtaken(); },
        [&](const ReadyPush& push) {
          push.done(PushAnswer{NewReply(v1::SEND_AGAIN), {}});
        });
    if (calls_.ready.empty() || !CanDecide(calls_.ready.front().arrival->header())) break;
    ReadyPush ready = std::move(calls_.ready.front());
    calls_.ready.pop_front();
    HandlePush(ready.session, std::move(ready.arrival), std::move(ready.done), /*waited=*/true);
  }
  if (late_commit_.has_value() && MakeRoom()) {
    const LateCommit late = *std::move(late_commit_);
    late_commit_.reset();
    HandleCommit(late.commit);
    for (const v1::PinVersion& pin : late.pins) HandlePin(pin);
    if (late.freeze.has_value()) HandleFreeze(*late.freeze);
    if (late.checkpoint.has_value()) HandleCheckpoint(*late.checkpoint);
  }
  short_of_memory_ = ShortOfMemory();
  // A pull may wait for the slowest worker, whoever that is.
  if (policy_ == nullptr) return;
  const uint64_t slowest = policy_->JoinClock();
  all |= std::exchange(resumed_at_, slowest) != slowest;
  const std::vector<uint32_t> moved = std::exchange(moved_, {});
  if (held || log_.kept()) {
    // With the log, a push may wait for another worker's push of the same batch.
    ResumeHeld(calls_.held.Turns());
  } else {
    for (const uint32_t worker : moved) ResumeHeld(calls_.held.TurnsOf(worker));
  }
  ResumeBehindStream();
  if (all) {
    ResumeParked(calls_.parked.Turns());
  } else {
    for (const uint32_t worker : moved) ResumeParked(calls_.parked.TurnsOf(worker));
  }
  counters_.parked_pulls = calls_.parked.size();
}

void Shard::ResumeHeld(const std::vector<uint64_t>& turns) {
  for (const uint64_t turn : turns) {
    if (calls_.held.Find(turn) != nullptr) HandleBegin(calls_.held.Take(turn));
  }
}

void Shard::ResumeBehindStream() {
  for (const uint64_t turn : calls_.behind_stream.Turns()) {
    HandleBegin(calls_.behind_stream.Take(turn));
    if (calls_.behind_stream.Find(turn) != nullptr) return;
  }
}

void Shard::ResumeParked(const std::vector<uint64_t>& turns) {
  for (const uint64_t turn : turns) {
    const ParkedPull* const pull = calls_.parked.Find(turn);
    if (pull != nullptr && TryAnswerPull(*pull)) calls_.parked.Take(turn);
  }
}

absl::Status Shard::CheckRoomToWait(uint32_t worker) const {
  return calls_.CheckRoom(worker, members_.TaskOf(worker));
}

// ---- what ends

void Shard::HandleEnd(Session session) {
  const auto cancel = [](const auto& call) { call.done(absl::CancelledError("the connection has ended")); };
  const auto ended = [session](const auto& call) { return call.session == session; };
  calls_.EndSession(session, {cancel, cancel, cancel});
  staged_.EndWaiters(ended, [&](uint32_t, const StagedParts::Waiter& waiter) { cancel(waiter); });
  initial_.EndWaiter(ended, cancel);
  log_.AnswerIf(ended, cancel);
  counters_.parked_pulls = calls_.parked.size();
}

void Shard::HandleTick() {
  TickLateLoad();
  const absl::Time now = options_.clock->Now();
  const absl::Time limit = now - wait_limit();
  const auto waited = [now](absl::Time since) { return absl::FormatDuration(now - since); };
  const auto late = [](const auto& call, const auto&... why) {
    call.done(absl::DeadlineExceededError(absl::StrCat(why...)));
  };
  WaitingCalls::Answers answers;
  answers.parked = [&](const ParkedPull& pull) {
    const uint64_t clock = pull.request.clock();
    late(pull, "a pull at clock ", clock, " waited ", waited(pull.since), " for ",
         WhoIsAwaited(pull.worker(), clock));
  };
  answers.held = [&](const HeldPush& push) {
    late(push, "the push at clock ", push.header.clock(),
         " waited for the pushes of the same worker before it, which did not come");
  };
  answers.ready = [&](const ReadyPush& push) {
    late(push, "the push at clock ", push.arrival->header().clock(), " waited ", waited(push.since), " for ",
         ReasonOfReady());
  };
  calls_.EndFromBefore(limit, answers);
  if (log_.writes() > 0 && log_.moved() <= limit) {
    FailLog(absl::DeadlineExceededError(
        absl::StrCat("the disk has answered none of ", log_.writes(), " writes for ", waited(log_.moved()))));
  }
  // The part stays staged, so a repeat of the push finds it.
  staged_.EndWaiters([&](const StagedParts::Waiter& waiter) { return waiter.since <= limit; },
                     [&](uint32_t part, const StagedParts::Waiter& waiter) {
                       late(waiter, "part ", part, " waited ", waited(waiter.since), " for ", MissingParts());
                     });
  // The values stay, too.
  initial_.EndWaiter([&](const InitialValues::Waiter& waiter) { return waiter.since <= limit; },
                     [&](const InitialValues::Waiter& waiter) {
                       late(waiter, "the upload of the initial values waited ", waited(waiter.since), " for ",
                            kOtherUploads);
                     });
  for (auto it = pins_.begin(); it != pins_.end();) {
    it = it->second.deadline <= now ? pins_.erase(it) : std::next(it);
  }
  // Arrivals are destroyed without notice to the shard, so a held push may now be able to begin.
  if (store_ != nullptr) {
    RevokeLate();
    wake_held_ = true;
    WakeMoved();
  }
  UpdateTableStats();
  WatchProgress(now);
}

void Shard::UpdateTableStats() {
  std::vector<Table::Stats> stats;
  for (size_t i = 0; tables_ != nullptr && i < tables_->size(); ++i) {
    stats.push_back(tables_->table(i).stats());
  }
  table_bytes_ = 0;
  for (const Table::Stats& of : stats) table_bytes_ += of.bytes;
  MutexLock lock(table_stats_mutex_);
  table_stats_ = std::move(stats);
}

void Shard::FailWaiting(const std::function<bool(uint32_t)>& which, v1::Outcome outcome,
                        const std::string& reason) {
  const auto answer = [&](const auto& push) { push.done(PushAnswer{NewReply(outcome, reason), {}}); };
  WaitingCalls::Answers answers;
  answers.held = [&](const HeldPush& push) { push.done(PushBegin(NewReply(outcome, reason))); };
  answers.ready = answer;
  answers.parked = [&](const ParkedPull& pull) {
    pull.done(PullAnswer{NewPullReply(outcome, reason), nullptr});
  };
  calls_.EndWorkers(which, answers);
  log_.AnswerIf([&](const Decision& decision) { return which(decision.worker()); }, answer);
  counters_.parked_pulls = calls_.parked.size();
}

void Shard::FailAll(v1::Outcome outcome, const std::string& reason) {
  FailWaiting([](uint32_t) { return true; }, outcome, reason);
  // Waits for a commit do not belong to a worker: they end only with the step.
  staged_.EndWaiters([](const StagedParts::Waiter&) { return true; },
                     [&](uint32_t, const StagedParts::Waiter& waiter) {
                       waiter.done(PushAnswer{NewReply(outcome, reason), {}});
                     });
  initial_.EndWaiter([](const InitialValues::Waiter&) { return true; },
                     [&](const InitialValues::Waiter& waiter) {
                       waiter.done(PushAnswer{NewReply(outcome, reason), {}});
                     });
}

// ---- what is said of it

std::vector<v1::Wait> Shard::Waits() const {
  if (store_ == nullptr) return {};
  WaitList list(options_.clock->Now());
  const auto of = [&](uint32_t worker, uint64_t clock) {
    return absl::StrCat(" of ", members_.TaskOf(worker), " at clock ", clock);
  };
  const auto add_push = [&](const v1::PushRequest& push, absl::Time since, const std::string& reason,
                            const std::vector<std::string>& awaited) {
    const uint32_t worker = push.caller().worker();
    list.Add("push", of(worker, push.clock()), members_.TaskOf(worker), since, reason, awaited);
  };
  size_t seen = 0;
  for (const auto& [turn, pull] : calls_.parked.by_turn()) {
    if (++seen > kMostDescribed) break;
    const uint32_t worker = pull.worker();
    const uint64_t clock = pull.request.clock();
    list.Add("pull", of(worker, clock), members_.TaskOf(worker), pull.since, WhoIsAwaited(worker, clock),
             TasksAwaited(worker, clock));
  }
  seen = 0;
  for (const auto& [turn, push] : calls_.held.by_turn()) {
    if (++seen > kMostDescribed) break;
    const uint32_t worker = push.worker();
    if (log_.OnItsWay(worker)) {
      add_push(push.header, push.since, "the push before it, whose record is on its way to the log's disk",
               {});
    } else if (policy_->OnPush(KeyOf(push.header)) == PushDecision::kHold) {
      add_push(push.header, push.since, "pushes of the same worker before it", {members_.TaskOf(worker)});
    } else {
      add_push(push.header, push.since, "the same push, which is arriving twice already",
               {members_.TaskOf(worker)});
    }
  }
  seen = 0;
  for (const auto& [turn, push] : calls_.behind_stream.by_turn()) {
    // Once the stream has ended they go on.
    if (!arrivals_.streamed().has_value() || ++seen > kMostDescribed) break;
    const std::string task = members_.TaskOf(arrivals_.streamed()->worker);
    add_push(push.header, push.since, absl::StrCat("the push of ", task, " that is arriving"), {task});
  }
  const std::vector<std::string> holders = log_.kept() ? std::vector<std::string>() : TasksHoldingMemory();
  seen = 0;
  for (const ReadyPush& push : calls_.ready) {
    if (++seen > kMostDescribed) break;
    add_push(push.arrival->header(), push.since, ReasonOfReady(), holders);
  }
  seen = 0;
  for (const Decision& decision : log_.decisions()) {
    if (++seen > kMostDescribed) break;
    add_push(decision.header, decision.since, ReasonOfLogged(decision),
             decision.durable ? TasksHoldingMemory() : std::vector<std::string>());
  }
  if (log_.defers()) {
    list.Add("message", " of the coordinator", "", log_.moved(), "what is on its way to the log's disk", {});
  }
  if (late_commit_.has_value()) {
    list.Add("commit", absl::StrCat(" of step ", late_commit_->commit.step()), "", late_commit_->since,
             MemoryHolders(), TasksHoldingMemory());
  }
  // All of them wait for the same.
  const std::string missing = staged_.empty() ? "" : MissingParts();
  const std::vector<std::string> missed =
      staged_.empty() ? std::vector<std::string>() : TasksAwaited(0, policy_->JoinClock() + 1);
  seen = 0;
  staged_.ForEachWaiter([&](uint32_t part, const StagedParts::Waiter& waiter) {
    if (++seen > kMostDescribed) return;
    list.Add("push", absl::StrCat(" of part ", part, " of step ", policy_->JoinClock()), "", waiter.since,
             missing, missed);
  });
  if (initial_.waiter().has_value()) {
    list.Add("push", " of the initial values", "", initial_.waiter()->since, kOtherUploads, {});
  }
  return list.Take();
}

void Shard::WatchProgress(absl::Time now) {
  absl::Time oldest = calls_.oldest();
  if (!log_.decisions().empty()) oldest = std::min(oldest, log_.decisions().front().since);
  staged_.ForEachWaiter(
      [&](uint32_t, const StagedParts::Waiter& waiter) { oldest = std::min(oldest, waiter.since); });
  if (initial_.waiter().has_value()) oldest = std::min(oldest, initial_.waiter()->since);
  if (late_commit_.has_value()) oldest = std::min(oldest, late_commit_->since);
  const absl::Duration wait = std::max(now - oldest, absl::ZeroDuration());
  counters_.longest_wait_ms = static_cast<uint64_t>(absl::ToInt64Milliseconds(wait));
  if (over_ || !progress_.StandsStill(oldest, now)) return;
  for (const v1::Wait& waiting : Waits()) {
    LogWarning("nothing was applied for ",
               absl::FormatDuration(absl::Floor(now - progress_.last(), absl::Seconds(1))), ": ",
               waiting.calls(), " waits for ", waiting.reason());
  }
}

std::vector<std::string> Shard::TasksAwaited(uint32_t worker, uint64_t clock) const {
  std::vector<std::string> tasks;
  for (uint32_t other : policy_->WaitingFor(worker, clock)) {
    if (tasks.size() == kMostDescribed) break;
    tasks.push_back(members_.TaskOf(other));
  }
  return tasks;
}

std::string Shard::WhoIsAwaited(uint32_t worker, uint64_t clock) const {
  if (policy_ == nullptr) return "the coordinator";
  std::vector<std::string> names;
  const std::vector<WorkerClockValue> clocks = policy_->Clocks();
  const std::vector<uint32_t> awaited = policy_->WaitingFor(worker, clock);
  for (uint32_t other : awaited) {
    if (names.size() == kMostDescribed) {
      names.push_back(absl::StrCat(awaited.size() - kMostDescribed, " more"));
      break;
    }
    std::string name = members_.TaskOf(other);
    const auto at =
        std::lower_bound(clocks.begin(), clocks.end(), other,
                         [](const WorkerClockValue& value, uint32_t of) { return value.worker < of; });
    if (at != clocks.end() && at->worker == other) absl::StrAppend(&name, " (at clock ", at->clock, ")");
    names.push_back(std::move(name));
  }
  return names.empty() ? "the coordinator's commit" : absl::StrJoin(names, ", ");
}

std::string Shard::MissingParts() const { return WhoIsAwaited(0, policy_->JoinClock() + 1); }

std::string Shard::ReasonOfReady() const {
  if (!log_.kept()) return MemoryHolders();
  return RowsFit() ? "pushes before it, whose records are on their way to the log's disk" : HoldersOfRows();
}

std::string Shard::ReasonOfLogged(const Decision& decision) const {
  return decision.durable ? MemoryHolders() : "its record, which is on its way to the log's disk";
}

std::string Shard::Describe(const VersionReaders::Held& held) const {
  std::vector<std::string> names;
  for (const Holder& holder : held.holders) {
    std::string& name = names.emplace_back();
    if (holder.pin != 0) {
      name = absl::StrCat("pin ", holder.pin);
    } else if (holder.worker.has_value()) {
      name = members_.TaskOf(*holder.worker);
    }
    if (holder.session != 0) absl::StrAppend(&name, name.empty() ? "" : " ", "on stream ", holder.session);
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  std::string since = "the newest";
  if (held.superseded.has_value()) {
    since =
        absl::StrFormat("old for %.1f s", absl::ToDoubleSeconds(options_.clock->Now() - *held.superseded));
  }
  return absl::StrCat("version ", held.count, " (", since, "): ", absl::StrJoin(names, ", "));
}

std::string Shard::MemoryHolders() const {
  if (store_->readers().MayPublish() && !RowsFit()) return HoldersOfRows();
  std::vector<std::string> versions;
  for (const VersionReaders::Held& held : store_->readers().held()) {
    if (!held.dead) versions.push_back(Describe(held));
  }
  return absl::StrCat("memory of weights, which readers hold: ", absl::StrJoin(versions, "; "));
}

std::string Shard::HoldersOfRows() const {
  return absl::StrCat("memory of rows: ", MemoryText(static_cast<double>(tables_->former_bytes())),
                      " of former rows are kept for a checkpoint that is being written. ",
                      row_budget_.Describe(table_bytes_));
}

std::vector<std::string> Shard::TasksHoldingMemory() const {
  std::vector<std::string> tasks;
  for (const VersionReaders::Held& held : store_->readers().held()) {
    for (const Holder& holder : held.holders) {
      if (held.dead || !holder.worker.has_value() || holder.pin != 0) continue;
      std::string task = members_.TaskOf(*holder.worker);
      if (std::find(tasks.begin(), tasks.end(), task) == tasks.end()) tasks.push_back(std::move(task));
    }
  }
  return tasks;
}

}  // namespace weir
