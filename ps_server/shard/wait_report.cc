#include "ps_server/shard/wait_report.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/telemetry/logging.h"

namespace weir {
namespace {

// A report of the waits describes at most this many calls of each kind.
constexpr size_t kMostDescribed = 16;

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

// Visits the first calls of a list.
template <typename Calls, typename Visit>
void ForFirst(const Calls& calls, const Visit& visit) {
  size_t seen = 0;
  for (const auto& call : calls) {
    if (++seen > kMostDescribed) return;
    visit(call);
  }
}

}  // namespace

std::vector<v1::Wait> WaitReport::All() const {
  if (of_.now.policy() == nullptr) return {};
  WaitList list(of_.clock.Now());
  const auto task = [&](uint32_t worker) { return of_.now.members().TaskOf(worker); };
  const auto at = [&](uint32_t worker, uint64_t clock) {
    return absl::StrCat(" of ", task(worker), " at clock ", clock);
  };
  const auto add_push = [&](const v1::PushRequest& push, absl::Time since, const std::string& reason,
                            const std::vector<std::string>& awaited) {
    const uint32_t worker = push.caller().worker();
    list.Add("push", at(worker, push.clock()), task(worker), since, reason, awaited);
  };
  ForFirst(of_.calls.parked.by_turn(), [&](const auto& turn) {
    const ParkedPull& pull = turn.second;
    const uint32_t worker = pull.worker();
    const uint64_t clock = pull.request.clock();
    list.Add("pull", at(worker, clock), task(worker), pull.since, OfPull(worker, clock),
             TasksAwaited(worker, clock));
  });
  ForFirst(of_.calls.held.by_turn(), [&](const auto& turn) {
    const HeldPush& push = turn.second;
    const uint32_t worker = push.worker();
    if (of_.log.OnItsWay(worker)) {
      add_push(push.header, push.since, "the push before it, whose record is on its way to the log's disk",
               {});
    } else if (of_.now.policy()->OnPush(KeyOf(push.header)) == PushDecision::kHold) {
      add_push(push.header, push.since, "pushes of the same worker before it", {task(worker)});
    } else {
      add_push(push.header, push.since, "the same push, which is arriving twice already", {task(worker)});
    }
  });
  // These pushes continue once the stream has ended.
  if (of_.arrivals.streamed().has_value()) {
    const std::string streaming = task(of_.arrivals.streamed()->worker);
    ForFirst(of_.calls.behind_stream.by_turn(), [&](const auto& turn) {
      add_push(turn.second.header, turn.second.since,
               absl::StrCat("the push of ", streaming, " that is arriving"), {streaming});
    });
  }
  const std::vector<std::string> holders = of_.log.kept() ? std::vector<std::string>() : of_.room.Tasks();
  ForFirst(of_.calls.ready,
           [&](const ReadyPush& push) { add_push(push.arrival->header(), push.since, OfReady(), holders); });
  ForFirst(of_.log.decisions(), [&](const Decision& decision) {
    if (decision.durable) {
      add_push(decision.header, decision.since, of_.room.Holders(), of_.room.Tasks());
    } else {
      add_push(decision.header, decision.since, "its record, which is on its way to the log's disk", {});
    }
  });
  if (of_.log.defers()) {
    list.Add("message", " of the coordinator", "", of_.log.moved(), "what is on its way to the log's disk",
             {});
  }
  if (const auto& late = of_.now.staged().late_commit; late.has_value()) {
    list.Add("commit", absl::StrCat(" of step ", late->commit.step()), "", late->since, of_.room.Holders(),
             of_.room.Tasks());
  }
  if (!of_.now.staged().empty()) {
    // All staged parts wait for the commit of this step.
    const uint64_t step = of_.now.policy()->JoinClock();
    const std::string missing = OfPart();
    const std::vector<std::string> missed = TasksAwaited(0, step + 1);
    size_t seen = 0;
    of_.now.staged().ForEachWaiter([&](uint32_t part, const StagedParts::Waiter& waiter) {
      if (++seen > kMostDescribed) return;
      list.Add("push", absl::StrCat(" of part ", part, " of step ", step), "", waiter.since, missing, missed);
    });
  }
  if (of_.initial.waiter().has_value()) {
    list.Add("push", " of the initial values", "", of_.initial.waiter()->since, OfUpload(), {});
  }
  return list.Take();
}

absl::Time WaitReport::Oldest() const {
  absl::Time oldest = of_.calls.oldest();
  const auto see = [&](absl::Time since) { oldest = std::min(oldest, since); };
  if (!of_.log.decisions().empty()) see(of_.log.decisions().front().since);
  of_.now.staged().ForEachWaiter([&](uint32_t, const StagedParts::Waiter& waiter) { see(waiter.since); });
  if (of_.initial.waiter().has_value()) see(of_.initial.waiter()->since);
  if (of_.now.staged().late_commit.has_value()) see(of_.now.staged().late_commit->since);
  return oldest;
}

absl::Duration WaitReport::Longest() const {
  return std::max(of_.clock.Now() - Oldest(), absl::ZeroDuration());
}

void WaitReport::Mark() {
  const absl::Time now = of_.clock.Now();
  if (told_) {
    LogInfo("goes on after ", absl::FormatDuration(now - marked_));
    limit_ = std::clamp(2 * (now - marked_), limit_, kTellAtLast);
    told_ = false;
  }
  marked_ = now;
}

void WaitReport::Watch() {
  const absl::Time now = of_.clock.Now();
  if (told_ || now - std::max(Oldest(), marked_) < limit_) return;
  told_ = true;
  for (const v1::Wait& waiting : All()) {
    LogWarning("nothing was applied for ", absl::FormatDuration(absl::Floor(now - marked_, absl::Seconds(1))),
               ": ", waiting.calls(), " waits for ", waiting.reason());
  }
}

std::vector<std::string> WaitReport::TasksAwaited(uint32_t worker, uint64_t clock) const {
  std::vector<std::string> tasks;
  for (uint32_t other : of_.now.policy()->WaitingFor(worker, clock)) {
    if (tasks.size() == kMostDescribed) break;
    tasks.push_back(of_.now.members().TaskOf(other));
  }
  return tasks;
}

std::string WaitReport::OfPull(uint32_t worker, uint64_t clock) const {
  if (of_.now.policy() == nullptr) return "the coordinator";
  std::vector<std::string> names;
  const std::vector<WorkerClockValue> clocks = of_.now.policy()->Clocks();
  const std::vector<uint32_t> awaited = of_.now.policy()->WaitingFor(worker, clock);
  for (uint32_t other : awaited) {
    if (names.size() == kMostDescribed) {
      names.push_back(absl::StrCat(awaited.size() - kMostDescribed, " more"));
      break;
    }
    std::string name = of_.now.members().TaskOf(other);
    const auto at =
        std::lower_bound(clocks.begin(), clocks.end(), other,
                         [](const WorkerClockValue& value, uint32_t of) { return value.worker < of; });
    if (at != clocks.end() && at->worker == other) absl::StrAppend(&name, " (at clock ", at->clock, ")");
    names.push_back(std::move(name));
  }
  return names.empty() ? "the coordinator's commit" : absl::StrJoin(names, ", ");
}

std::string WaitReport::OfReady() const {
  if (!of_.log.kept()) return of_.room.Holders();
  return of_.room.RowsFit() ? "pushes before it, whose records are on their way to the log's disk"
                            : of_.room.RowHolders();
}

std::string WaitReport::OfUpload() {
  return "the other servers to have theirs, and, in a job with checkpoints, for the first one";
}

}  // namespace weir
