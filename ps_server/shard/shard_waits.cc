// The part of Shard that looks after what waits: lets go on what can, ends what has waited for too long, and
// says what the rest waits for.
//
// What may wait for what; each only for what stands below it, so the order has no cycle:
//
//   a pull                           for pushes of other workers (parked_)
//   a push of a later clock          for those of its worker before it (held_)
//   a push that has not begun        for one that is streaming in: 25 ms, and one that stands still is passed
//   sync: a part's answer            for the other parts of its step, and the coordinator's commit (staged_)
//   a control message                for the log (deferred_), which fails the shard when its disk hangs
//   a push that has arrived whole,   for those before it and, with the log, their records on the disk
//   (ready_, a commit                         logging_); then for memory of weights (late_commit_) memory of
//   weights                for readers: at most VersionReaders::kPatience a reader for nobody: what it holds
//   is taken from the count when its time is over
//
// A push that is still arriving stands outside of this order: nobody waits for it but calls of its own worker
// and of who needs that worker's clock, which its lease ends. A push that was overtaken waits for nothing: it
// is answered at once, and what was made of it holds up nobody.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/planted_bug.h"
#include "common/telemetry/logging.h"
#include "ps_server/shard/shard.h"

namespace weir {
namespace {

// So many calls of a kind are looked at when it is to be told what waits.
constexpr size_t kMostDescribed = 16;

// Answers and drops those calls of a list for which `which` holds.
template <typename Calls, typename Which, typename Answer>
void EndIf(Calls& calls, const Which& which, const Answer& answer) {
  for (auto it = calls.begin(); it != calls.end();) {
    if (!which(*it)) {
      ++it;
      continue;
    }
    answer(*it);
    it = calls.erase(it);
  }
}

// Calls that wait, together with those of the same kind that wait for the same thing.
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
  return log_ == nullptr ? !ready_.empty() : !logging_.empty() && logging_.front().durable;
}

bool Shard::MakeRoom() {
  if (store_->readers().MayPublish()) return true;
  RevokeLate();
  return store_->readers().MayPublish();
}

void Shard::RevokeLate() {
  const std::vector<VersionReaders::Held> written_off = store_->readers().RevokeLate();
  if (written_off.empty()) return;
  for (const VersionReaders::Held& held : written_off) {
    LogWarning("nobody waits any more for who holds ", Describe(held));
  }
  counters_.versions_written_off += written_off.size();
  for (auto it = pins_.begin(); it != pins_.end();) {
    it = it->second.version->revoked ? pins_.erase(it) : std::next(it);
  }
  if (options_.on_revoke) options_.on_revoke();
}

// ---- what can go on

void Shard::Wake() {
  wake_again_ = true;
  if (waking_) return;
  waking_ = true;
  while (std::exchange(wake_again_, false)) LetGoOn();
  waking_ = false;
}

void Shard::LetGoOn() {
  Settle();
  while (true) {
    EndIf(
        ready_,
        [](const ReadyPush& push) {
          return push.arrival->overtaken() && !Planted("dead versions are waited for");
        },
        [&](const ReadyPush& push) {
          push.done(PushAnswer{NewReply(v1::SEND_AGAIN), {}});
        });
    if (ready_.empty() || !CanDecide(ready_.front().arrival->header())) break;
    ReadyPush ready = std::move(ready_.front());
    ready_.pop_front();
    HandlePush(ready.session, std::move(ready.arrival), std::move(ready.done), /*waited=*/true);
  }
  if (late_commit_.has_value() && MakeRoom()) {
    const v1::CommitStep commit = *std::move(late_commit_);
    late_commit_.reset();
    HandleCommit(commit);
  }
  short_of_memory_ = ShortOfMemory();
  std::list<HeldPush> held;
  held.swap(held_);
  for (HeldPush& push : held) HandleBegin(std::move(push));
  for (auto it = parked_.begin(); it != parked_.end();) {
    it = TryAnswerPull(*it) ? parked_.erase(it) : std::next(it);
  }
  counters_.parked_pulls = parked_.size();
}

absl::Status Shard::CheckRoomToWait(uint32_t worker) const {
  // As a rule few wait at all; workers need not be told apart.
  if (held_.size() + ready_.size() + parked_.size() < kMaxWaiting) return absl::OkStatus();
  const auto of_worker = [worker](const v1::Caller& caller) { return caller.worker() == worker; };
  size_t waiting = 0;
  for (const HeldPush& push : held_) waiting += of_worker(push.header.caller());
  for (const ReadyPush& push : ready_) waiting += of_worker(push.arrival->header().caller());
  for (const ParkedPull& pull : parked_) waiting += of_worker(pull.request.caller());
  if (waiting < kMaxWaiting) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      TaskOf(worker), " has ", waiting, " calls that wait on this shard; at most ", kMaxWaiting, " may"));
}

// ---- what ends

void Shard::HandleEnd(Session session) {
  const auto ended = [session](const auto& call) { return call.session == session; };
  const auto cancel = [](const auto& call) { call.done(absl::CancelledError("the connection has ended")); };
  EndIf(held_, ended, cancel);
  EndIf(ready_, ended, cancel);
  EndIf(parked_, ended, cancel);
  for (auto& [part, staged] : staged_) EndIf(staged.waiters, ended, cancel);
  for (Decision& decision : logging_) {
    // It is decided on all the same.
    if (!decision.done || !ended(decision)) continue;
    cancel(decision);
    decision.done = nullptr;
  }
  counters_.parked_pulls = parked_.size();
}

void Shard::HandleTick() {
  const absl::Time now = options_.clock->Now();
  const auto late = [&](const auto& call) { return call.since <= now - wait_limit(); };
  const auto waited = [now](absl::Time since) { return absl::FormatDuration(now - since); };
  EndIf(parked_, late, [&](const ParkedPull& pull) {
    const uint64_t clock = pull.request.clock();
    pull.done(absl::DeadlineExceededError(absl::StrCat("a pull at clock ", clock, " waited ",
                                                       waited(pull.since), " for ",
                                                       WhoIsAwaited(pull.request.caller().worker(), clock))));
  });
  EndIf(held_, late, [](const HeldPush& push) {
    push.done(absl::DeadlineExceededError(
        absl::StrCat("the push at clock ", push.header.clock(),
                     " waited for the pushes of the same worker before it, which did not come")));
  });
  EndIf(ready_, late, [&](const ReadyPush& push) {
    push.done(
        absl::DeadlineExceededError(absl::StrCat("the push at clock ", push.arrival->header().clock(),
                                                 " waited ", waited(push.since), " for ", ReasonOfReady())));
  });
  if (writes_ > 0 && log_moved_ <= now - wait_limit()) {
    FailLog(absl::DeadlineExceededError(
        absl::StrCat("the disk has answered none of ", writes_, " writes for ", waited(log_moved_))));
  }
  for (auto& [part, staged] : staged_) {
    // The part stays staged: a repeat of the push finds it.
    EndIf(staged.waiters, late, [&, part = part](const StagedPart::Waiter& waiter) {
      waiter.done(absl::DeadlineExceededError(
          absl::StrCat("part ", part, " waited ", waited(waiter.since), " for ", MissingParts())));
    });
  }
  for (auto it = pins_.begin(); it != pins_.end();) {
    it = it->second.deadline <= now ? pins_.erase(it) : std::next(it);
  }
  // Arrivals are given up without a word.
  if (store_ != nullptr) {
    RevokeLate();
    Wake();
  }
  WatchProgress(now);
}

void Shard::FailWaiting(const std::function<bool(uint32_t)>& which, v1::Outcome outcome,
                        const std::string& reason) {
  const auto push_answer = [&] { return PushAnswer{NewReply(outcome, reason), {}}; };
  EndIf(
      held_, [&](const HeldPush& push) { return which(push.header.caller().worker()); },
      [&](const HeldPush& push) { push.done(PushBegin(NewReply(outcome, reason))); });
  EndIf(
      ready_, [&](const ReadyPush& push) { return which(push.arrival->header().caller().worker()); },
      [&](const ReadyPush& push) { push.done(push_answer()); });
  for (Decision& decision : logging_) {
    if (!decision.done || !which(decision.header.caller().worker())) continue;
    decision.done(push_answer());
    decision.done = nullptr;
  }
  EndIf(
      parked_, [&](const ParkedPull& pull) { return which(pull.request.caller().worker()); },
      [&](const ParkedPull& pull) {
        pull.done(PullAnswer{NewPullReply(outcome, reason), nullptr});
      });
  counters_.parked_pulls = parked_.size();
}

void Shard::FailAll(v1::Outcome outcome, const std::string& reason) {
  FailWaiting([](uint32_t) { return true; }, outcome, reason);
  // Staged parts have no owner: whoever computed them, they are the step's. Only its end ends their wait.
  for (auto& [part, staged] : staged_) {
    for (const StagedPart::Waiter& waiter : staged.waiters) {
      waiter.done(PushAnswer{NewReply(outcome, reason), {}});
    }
    staged.waiters.clear();
  }
}

// ---- what is said of it

std::vector<v1::Wait> Shard::Waits() const {
  if (store_ == nullptr) return {};
  WaitList list(options_.clock->Now());
  const auto of = [&](uint32_t worker, uint64_t clock) {
    return absl::StrCat(" of ", TaskOf(worker), " at clock ", clock);
  };
  const auto add_push = [&](const v1::PushRequest& push, absl::Time since, const std::string& reason,
                            const std::vector<std::string>& awaited) {
    const uint32_t worker = push.caller().worker();
    list.Add("push", of(worker, push.clock()), TaskOf(worker), since, reason, awaited);
  };
  size_t seen = 0;
  for (const ParkedPull& pull : parked_) {
    if (++seen > kMostDescribed) break;
    const uint32_t worker = pull.request.caller().worker();
    const uint64_t clock = pull.request.clock();
    list.Add("pull", of(worker, clock), TaskOf(worker), pull.since, WhoIsAwaited(worker, clock),
             TasksAwaited(worker, clock));
  }
  seen = 0;
  for (const HeldPush& push : held_) {
    if (++seen > kMostDescribed) break;
    const uint32_t worker = push.header.caller().worker();
    if (OnItsWay(worker)) {
      add_push(push.header, push.since, "the push before it, whose record is on its way to the log's disk",
               {});
    } else if (policy_->OnPush(KeyOf(push.header)) == PushDecision::kHold) {
      add_push(push.header, push.since, "pushes of the same worker before it", {TaskOf(worker)});
    } else if (streamed_.has_value()) {
      add_push(push.header, push.since,
               absl::StrCat("the push of ", TaskOf(streamed_->worker), " that is arriving"),
               {TaskOf(streamed_->worker)});
    } else {
      add_push(push.header, push.since, "the same push, which is arriving twice already", {TaskOf(worker)});
    }
  }
  const std::vector<std::string> holders =
      log_ == nullptr ? TasksHoldingMemory() : std::vector<std::string>();
  seen = 0;
  for (const ReadyPush& push : ready_) {
    if (++seen > kMostDescribed) break;
    add_push(push.arrival->header(), push.since, ReasonOfReady(), holders);
  }
  seen = 0;
  for (const Decision& decision : logging_) {
    if (++seen > kMostDescribed) break;
    add_push(decision.header, decision.since, ReasonOfLogged(decision),
             decision.durable ? TasksHoldingMemory() : std::vector<std::string>());
  }
  if (!deferred_.empty()) {
    list.Add("message", " of the coordinator", "", log_moved_, "what is on its way to the log's disk", {});
  }
  if (late_commit_.has_value()) {
    list.Add("commit", absl::StrCat(" of step ", late_commit_->step()), "", late_since_, MemoryHolders(),
             TasksHoldingMemory());
  }
  for (const auto& [part, staged] : staged_) {
    for (const StagedPart::Waiter& waiter : staged.waiters) {
      list.Add("push", absl::StrCat(" of part ", part, " of step ", policy_->JoinClock()), "", waiter.since,
               MissingParts(), TasksAwaited(0, policy_->JoinClock() + 1));
    }
  }
  return list.Take();
}

void Shard::MarkProgress() {
  const absl::Time now = options_.clock->Now();
  if (standstill_told_) {
    LogInfo("goes on after ", absl::FormatDuration(now - last_progress_));
    standstill_limit_ = std::clamp(2 * (now - last_progress_), standstill_limit_, kTellAtLast);
    standstill_told_ = false;
  }
  last_progress_ = now;
}

void Shard::WatchProgress(absl::Time now) {
  absl::Time oldest = absl::InfiniteFuture();
  const auto see = [&](const auto& calls) {
    if (!calls.empty()) oldest = std::min(oldest, calls.front().since);
  };
  see(parked_);
  see(held_);
  see(ready_);
  see(logging_);
  for (const auto& [part, staged] : staged_) see(staged.waiters);
  if (late_commit_.has_value()) oldest = std::min(oldest, late_since_);
  const absl::Duration wait = std::max(now - oldest, absl::ZeroDuration());
  counters_.longest_wait_ms = static_cast<uint64_t>(absl::ToInt64Milliseconds(wait));
  if (standstill_told_ || over_ || now - std::max(oldest, last_progress_) < standstill_limit_) return;
  standstill_told_ = true;
  for (const v1::Wait& wait : Waits()) {
    LogWarning("nothing was applied for ",
               absl::FormatDuration(absl::Floor(now - last_progress_, absl::Seconds(1))), ": ", wait.calls(),
               " waits for ", wait.reason());
  }
}

std::string Shard::TaskOf(uint32_t worker) const {
  const auto member = members_.find(worker);
  return member == members_.end() || member->second.task.empty() ? absl::StrCat("worker ", worker)
                                                                 : member->second.task;
}

std::vector<std::string> Shard::TasksAwaited(uint32_t worker, uint64_t clock) const {
  std::vector<std::string> tasks;
  for (uint32_t other : policy_->WaitingFor(worker, clock)) tasks.push_back(TaskOf(other));
  return tasks;
}

std::string Shard::WhoIsAwaited(uint32_t worker, uint64_t clock) const {
  if (policy_ == nullptr) return "the coordinator";
  std::vector<std::string> names;
  const std::vector<WorkerClockValue> clocks = policy_->Clocks();
  for (uint32_t other : policy_->WaitingFor(worker, clock)) {
    std::string name = TaskOf(other);
    for (const WorkerClockValue& value : clocks) {
      if (value.worker == other) absl::StrAppend(&name, " (at clock ", value.clock, ")");
    }
    names.push_back(std::move(name));
  }
  return names.empty() ? "the coordinator's commit" : absl::StrJoin(names, ", ");
}

std::string Shard::MissingParts() const { return WhoIsAwaited(0, policy_->JoinClock() + 1); }

std::string Shard::ReasonOfReady() const {
  if (log_ == nullptr) return MemoryHolders();
  return "pushes before it, whose records are on their way to the log's disk";
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
      name = TaskOf(*holder.worker);
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
  std::vector<std::string> versions;
  for (const VersionReaders::Held& held : store_->readers().held()) {
    if (!held.dead) versions.push_back(Describe(held));
  }
  return absl::StrCat("memory of weights, which readers hold: ", absl::StrJoin(versions, "; "));
}

std::vector<std::string> Shard::TasksHoldingMemory() const {
  std::vector<std::string> tasks;
  for (const VersionReaders::Held& held : store_->readers().held()) {
    for (const Holder& holder : held.holders) {
      if (held.dead || !holder.worker.has_value() || holder.pin != 0) continue;
      std::string task = TaskOf(*holder.worker);
      if (std::find(tasks.begin(), tasks.end(), task) == tasks.end()) tasks.push_back(std::move(task));
    }
  }
  return tasks;
}

}  // namespace weir
