#include "tests/history/history_checker.h"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"

namespace weir {
namespace {

using Mode = HistoryRules::Mode;
using Rule = HistoryRule;

constexpr uint64_t kUnknown = std::numeric_limits<uint64_t>::max();
constexpr uint64_t kExamplesOfRule = 3;

// The possible clocks of a worker at some version.
struct Interval {
  uint64_t least = 0;
  uint64_t most = kUnknown;
};

// The pushes of one incarnation of a worker on one shard.
struct Track {
  // Applied, by rising clock.
  std::vector<const HistoryEvent*> applied;
  // Completed without an update (refused, duplicate batch). `version` is the shard's at that moment.
  std::vector<const HistoryEvent*> disposed;

  uint64_t first_version() const { return applied.empty() ? kUnknown : applied.front()->version; }
  uint64_t last_version() const { return applied.empty() ? 0 : applied.back()->version; }
};

struct ShardLog {
  // worker -> incarnation -> its pushes. An incarnation without a push has an empty track.
  std::map<uint32_t, std::map<uint64_t, Track>> tracks;
  std::vector<const HistoryEvent*> pulls;
  std::vector<const HistoryEvent*> row_reads;
  // (worker, incarnation, clock) -> the version that was read there.
  std::map<std::tuple<uint32_t, uint64_t, uint64_t>, uint64_t> read;
  // The largest acknowledged version.
  uint64_t last_version = 0;
};

class Checker {
 public:
  explicit Checker(const HistoryRules& rules) : rules_(rules) {}

  HistoryReport Check(absl::Span<const HistoryEvent> events) {
    Sort(events);
    for (auto& [key, log] : shards_) {
      const uint32_t shard = key.first;
      CheckVersions(shard, log);
      for (const auto& [worker, tracks] : log.tracks) {
        if (fixed() && tracks.size() > 1) {
          Violation(Rule::kClocks, absl::StrCat("shard ", shard), "worker ", worker, " has ", tracks.size(),
                    " incarnations");
        }
        for (const auto& [incarnation, track] : tracks) CheckTrack(track);
      }
      CheckReads(log);
      if (rules_.rows_of_batch) CheckRows(log);
      if (rules_.mode != Mode::kSync) CheckLeads(log);
    }
    CheckBatches();
    return std::move(report_);
  }

 private:
  void Sort(absl::Span<const HistoryEvent> events);
  void CheckVersions(uint32_t shard, const ShardLog& log);
  void CheckTrack(const Track& track);
  void CheckBatches();
  void CheckReads(const ShardLog& log);
  void CheckPull(const ShardLog& log, const HistoryEvent& pull);
  // The version that was read is one that a pull at this clock may read.
  void CheckVersion(const ShardLog& log, const HistoryEvent& pull);
  void CheckRows(const ShardLog& log);
  void CheckWatermarks(const ShardLog& log, const HistoryEvent& pull);
  void CheckStaleness(const Track& track,
                      const std::map<std::tuple<uint32_t, uint64_t, uint64_t>, uint64_t>& read);
  void CheckLeads(const ShardLog& log);

  bool fixed() const { return !rules_.membership_changes; }
  Interval ClockOfTrack(const Track& track, uint64_t version) const;
  Interval ClockAt(const ShardLog& log, uint32_t worker, uint64_t version) const;
  bool Counts(const ShardLog& log, uint32_t worker, uint64_t version) const;

  template <typename... Text>
  void Violation(Rule rule, const std::string& where, const Text&... text) {
    if (++report_.violations[rule] > kExamplesOfRule) return;
    report_.examples.push_back(absl::StrCat(where, ": ", Name(rule), ": ", text...));
  }

  const HistoryRules rules_;
  HistoryReport report_;
  // (shard, its incarnation; one for all without `server_restarts`).
  std::map<std::pair<uint32_t, uint64_t>, ShardLog> shards_;
  // By table and key: the shard that it was read from.
  std::map<std::pair<uint32_t, uint64_t>, uint32_t> shard_of_;
  // The largest batch that was applied anywhere.
  uint64_t last_batch_ = 0;
};

void Checker::Sort(absl::Span<const HistoryEvent> events) {
  std::map<uint32_t, uint64_t> incarnations;
  // (worker, its incarnation, shard) -> the shard's incarnations in the order in which this worker met them.
  std::map<std::tuple<uint32_t, uint64_t, uint32_t>, std::vector<uint64_t>> met;
  for (const HistoryEvent& event : events) {
    const bool ok = event.outcome == "OK";
    const bool disposed = event.outcome == "REFUSED" || event.outcome == "DUPLICATE_BATCH";
    if (!ok && !(event.is_push && disposed)) continue;  // it ended, or waits for another try
    ShardLog& log = shards_[{event.shard, rules_.server_restarts ? event.incarnation : 0}];
    const auto [first, added] = incarnations.emplace(event.shard, event.incarnation);
    // A read under a pin, for an evaluation, goes beside the training's exchanges: an answer of a server that
    // has died since may come after it. Rows are written down when the program takes them.
    if (rules_.server_restarts && event.pin == 0 && !event.is_rows) {
      std::vector<uint64_t>& in_order = met[{event.worker, event.worker_incarnation, event.shard}];
      if (in_order.empty() || in_order.back() != event.incarnation) {
        if (std::find(in_order.begin(), in_order.end(), event.incarnation) != in_order.end()) {
          Violation(Rule::kVersions, event.where, "shard ", event.shard, " answers in its incarnation ",
                    event.incarnation, " again, after its incarnation ", in_order.back());
        }
        in_order.push_back(event.incarnation);
      }
    } else if (!rules_.server_restarts && first->second != event.incarnation) {
      Violation(Rule::kVersions, event.where, "shard ", event.shard, " answers in its incarnation ",
                event.incarnation, " after its incarnation ", first->second);
    }
    if (event.is_rows) {
      log.tracks[event.worker][event.worker_incarnation];
      log.row_reads.push_back(&event);
      continue;
    }
    if (!event.is_push) {
      if (event.pin != 0) continue;  // a reader's pull, outside the training
      log.tracks[event.worker][event.worker_incarnation];
      log.pulls.push_back(&event);
      log.read[{event.worker, event.worker_incarnation, event.clock}] = event.version;
      ++report_.pulls;
      continue;
    }
    Track& track = log.tracks[event.worker][event.worker_incarnation];
    (ok ? track.applied : track.disposed).push_back(&event);
    if (ok) {
      last_batch_ = std::max(last_batch_, event.batch);
      log.last_version = std::max(log.last_version, event.version);
      ++report_.pushes;
    }
  }
  for (auto& [shard, log] : shards_) {
    for (auto& [worker, tracks] : log.tracks) {
      for (auto& [incarnation, track] : tracks) {
        std::stable_sort(track.applied.begin(), track.applied.end(),
                         [](const HistoryEvent* a, const HistoryEvent* b) { return a->clock < b->clock; });
      }
    }
  }
}

void Checker::CheckVersions(uint32_t shard, const ShardLog& log) {
  // (version, part; 0 but in sync) -> its push.
  std::map<std::pair<uint64_t, uint32_t>, const HistoryEvent*> made;
  for (const auto& [worker, tracks] : log.tracks) {
    for (const auto& [incarnation, track] : tracks) {
      for (const HistoryEvent* push : track.applied) {
        const uint32_t part = rules_.mode == Mode::kSync ? push->part : 0;
        const auto [other, added] = made.emplace(std::make_pair(push->version, part), push);
        // When a worker dies, two workers may push its part; the servers take one push and acknowledge both.
        if (added || (rules_.mode == Mode::kSync && !fixed())) continue;
        Violation(Rule::kVersions, push->where, "version ", push->version, " of shard ", shard,
                  " was made by this push and by that of ", other->second->where);
      }
    }
  }
  const uint64_t of_version = rules_.mode == Mode::kSync ? rules_.parts : 1;
  // The first versions of a restored incarnation are in the checkpoint, and in the log of another
  // incarnation.
  const uint64_t begin = rules_.server_restarts && !made.empty() ? made.begin()->first.first : 1;
  for (uint64_t version = begin; version <= log.last_version; ++version) {
    uint64_t found = 0;
    for (auto it = made.lower_bound({version, 0}); it != made.end() && it->first.first == version; ++it) {
      ++found;
    }
    // The last step of a sync job may be short.
    if (found == of_version || (found > 0 && version == log.last_version)) continue;
    ++report_.unaccounted_versions;
    if (!fixed()) continue;
    Violation(Rule::kVersions, absl::StrCat("shard ", shard), "version ", version, " was made by ", found,
              " acknowledged pushes instead of ", of_version);
  }
}

void Checker::CheckTrack(const Track& track) {
  std::set<uint64_t> disposed;
  for (const HistoryEvent* push : track.disposed) disposed.insert(push->clock);
  const HistoryEvent* last = nullptr;
  for (const HistoryEvent* push : track.applied) {
    uint64_t next = last == nullptr ? 0 : last->clock + 1;
    while (disposed.count(next) > 0) ++next;
    // In sync a worker may have several parts of a step, or none.
    if (rules_.mode == Mode::kSync) {
      if (push->version != push->clock + 1) {
        Violation(Rule::kClocks, push->where, "a part of step ", push->clock, " is said to be in version ",
                  push->version);
      }
    } else if (fixed() ? push->clock != next : push->clock < next) {
      Violation(Rule::kClocks, push->where, "after ", next, " pushes of worker ", push->worker, " on shard ",
                push->shard, " comes the one with clock ", push->clock);
    } else if (last != nullptr && push->version <= last->version) {
      Violation(Rule::kClocks, push->where, "the push at clock ", push->clock, " made version ",
                push->version, ", the one before it ", last->version);
    }
    last = push;
  }
}

void Checker::CheckBatches() {
  // (worker, incarnation, clock, part) -> its push on the first shard in the map.
  std::map<std::tuple<uint32_t, uint64_t, uint64_t, uint32_t>, const HistoryEvent*> first;
  for (const auto& [key, log] : shards_) {
    const uint32_t shard = key.first;
    std::map<uint64_t, const HistoryEvent*> applied;
    std::set<uint64_t> refused;
    for (const auto& [worker, tracks] : log.tracks) {
      for (const auto& [incarnation, track] : tracks) {
        for (const HistoryEvent* push : track.disposed) refused.insert(push->batch);
        for (const HistoryEvent* push : track.applied) {
          const auto [same, is_first] =
              first.emplace(std::make_tuple(worker, incarnation, push->clock, push->part), push);
          if (!is_first && same->second->batch != push->batch) {
            Violation(Rule::kBatches, push->where, "the push at clock ", push->clock, " is batch ",
                      push->batch, " on shard ", shard, " and batch ", same->second->batch, " at ",
                      same->second->where);
          }
          const auto [other, added] = applied.emplace(push->batch, push);
          if (added || (rules_.mode == Mode::kSync && !fixed())) continue;
          Violation(Rule::kBatches, push->where, "batch ", push->batch, " was applied on shard ", shard,
                    " by this push and by that of ", other->second->where);
        }
      }
    }
    for (uint64_t batch = 0; fixed() && batch <= last_batch_; ++batch) {
      if (applied.count(batch) > 0 || refused.count(batch) > 0) continue;
      Violation(Rule::kBatches, absl::StrCat("shard ", shard), "batch ", batch, " of 0 to ", last_batch_,
                " was never applied");
    }
  }
}

void Checker::CheckReads(const ShardLog& log) {
  // (worker, incarnation) -> its last read; (worker, incarnation, clock) -> the version read there.
  std::map<std::pair<uint32_t, uint64_t>, uint64_t> newest;
  std::map<std::tuple<uint32_t, uint64_t, uint64_t>, uint64_t> read;
  for (const HistoryEvent* pull : log.pulls) {
    uint64_t& before = newest[{pull->worker, pull->worker_incarnation}];
    if (pull->version < before) {
      Violation(Rule::kMonotonic, pull->where, "worker ", pull->worker, " read version ", pull->version,
                " of shard ", pull->shard, " after version ", before);
    }
    before = std::max(before, pull->version);
    read[{pull->worker, pull->worker_incarnation, pull->clock}] = pull->version;
    CheckPull(log, *pull);
  }
  for (const auto& [worker, tracks] : log.tracks) {
    for (const auto& [incarnation, track] : tracks) CheckStaleness(track, read);
  }
}

void Checker::CheckPull(const ShardLog& log, const HistoryEvent& pull) {
  CheckVersion(log, pull);
  if (rules_.mode != Mode::kSync) CheckWatermarks(log, pull);
}

void Checker::CheckVersion(const ShardLog& log, const HistoryEvent& pull) {
  if (rules_.mode == Mode::kSync) {
    if (pull.version != pull.clock) {
      Violation(Rule::kStep, pull.where, "a pull at clock ", pull.clock, " read version ", pull.version,
                " of shard ", pull.shard);
    }
    return;
  }
  if (fixed() && pull.version > log.last_version) {
    Violation(Rule::kVersions, pull.where, "a pull read version ", pull.version, " of shard ", pull.shard,
              ", which no push made; the last is ", log.last_version);
  }
  const Interval own = ClockOfTrack(log.tracks.at(pull.worker).at(pull.worker_incarnation), pull.version);
  const uint64_t own_allowance = rules_.prefetch ? rules_.staleness : 0;
  if (own.most != kUnknown && own.most + own_allowance < pull.clock) {
    Violation(Rule::kOwnPushes, pull.where, "a pull at clock ", pull.clock, " read version ", pull.version,
              " of shard ", pull.shard, ", which lacks the worker's own pushes from clock ", own.most, " on");
  }
  if (rules_.mode == Mode::kBounded) {
    for (const auto& [worker, tracks] : log.tracks) {
      if (!Counts(log, worker, pull.version)) continue;
      const Interval clock = ClockAt(log, worker, pull.version);
      if (clock.most == kUnknown || clock.most + rules_.staleness >= pull.clock) continue;
      Violation(Rule::kFreshness, pull.where, "a pull at clock ", pull.clock, " read version ", pull.version,
                " of shard ", pull.shard, ", where worker ", worker, " was at clock ", clock.most);
    }
  }
}

void Checker::CheckRows(const ShardLog& log) {
  using Key = std::pair<uint32_t, uint64_t>;  // table, key
  // What the acknowledged pushes have added, by version. A batch counts once, whoever pushed it.
  std::map<Key, std::map<uint64_t, double>> added;
  std::set<uint64_t> batches;
  for (const auto& [worker, tracks] : log.tracks) {
    for (const auto& [incarnation, track] : tracks) {
      for (const HistoryEvent* push : track.applied) {
        if (!batches.insert(push->batch).second) continue;
        for (const HistoryRow& row : rules_.rows_of_batch(push->batch)) {
          added[{row.table, row.key}][push->version] += row.most;
        }
      }
    }
  }
  const auto sum = [&](const Key& key, uint64_t after, uint64_t up_to) {
    double all = 0;
    for (auto it = added[key].upper_bound(after); it != added[key].end() && it->first <= up_to; ++it) {
      all += it->second;
    }
    return all;
  };
  std::map<Key, std::map<uint64_t, double>> read;  // by version
  std::map<std::pair<uint32_t, uint64_t>, std::map<uint64_t, const HistoryEvent*>> reads_of;
  for (const HistoryEvent* event : log.row_reads) {
    CheckVersion(log, *event);
    // Rows of one clock may be read in several pulls.
    const HistoryEvent*& newest = reads_of[{event->worker, event->worker_incarnation}][event->clock];
    if (newest == nullptr || newest->version < event->version) newest = event;
    for (const HistoryRow& row : event->rows) {
      ++report_.rows;
      const Key key{row.table, row.key};
      const auto violation = [&](const auto&... text) {
        Violation(Rule::kRows, event->where, "key ", row.key, " of table ", row.table, " at version ",
                  event->version, " of shard ", event->shard, " ", text...);
      };
      const auto [shard, first] = shard_of_.emplace(key, event->shard);
      if (!first && shard->second != event->shard)
        violation("was read from shard ", shard->second, " before");
      if (row.least != row.most) violation("is torn: it has the values ", row.least, " and ", row.most);
      const double known = sum(key, 0, event->version);
      if (fixed() ? row.most != known : row.most < known) {
        violation("has ", row.most, ", and pushes have added ", known);
      }
      const auto [same, added_now] = read[key].emplace(event->version, row.most);
      if (!added_now && same->second != row.most) violation("has ", row.most, ", and had ", same->second);
    }
  }
  for (const auto& [key, versions] : read) {
    for (auto it = versions.begin(); it != versions.end() && std::next(it) != versions.end(); ++it) {
      const auto next = std::next(it);
      const double least = sum(key, it->first, next->first);
      if (next->second - it->second >= least) continue;
      Violation(Rule::kRows, absl::StrCat("table ", key.first), "key ", key.second, " goes from ", it->second,
                " at version ", it->first, " to ", next->second, " at version ", next->first,
                ", and pushes have added ", least);
    }
  }
  for (const auto& [worker, by_clock] : reads_of) {
    const HistoryEvent* before = nullptr;
    for (const auto& [clock, event] : by_clock) {
      if (before != nullptr && event->version < before->version) {
        Violation(Rule::kRows, event->where, "rows for clock ", clock, " were read at version ",
                  event->version, " of shard ", event->shard, ", those for clock ", before->clock,
                  " at version ", before->version);
      }
      before = event;
    }
  }
}

void Checker::CheckWatermarks(const ShardLog& log, const HistoryEvent& pull) {
  std::set<uint32_t> listed;
  for (const auto& [worker, clock] : pull.clocks) {
    if (!listed.insert(worker).second) {
      Violation(Rule::kWatermarks, pull.where, "worker ", worker, " is listed twice");
    }
    if (rules_.mode == Mode::kBounded && clock + rules_.staleness < pull.clock) {
      Violation(Rule::kWatermarks, pull.where, "a pull at clock ", pull.clock, " was answered with worker ",
                worker, " at clock ", clock);
    }
    const Interval known = ClockAt(log, worker, pull.version);
    if (clock < known.least || clock > known.most) {
      Violation(Rule::kWatermarks, pull.where, "worker ", worker, " is said to be at clock ", clock,
                " at version ", pull.version, " of shard ", pull.shard, "; its pushes say ", known.least);
    }
  }
  for (const auto& [worker, tracks] : log.tracks) {
    if (listed.count(worker) > 0 || !Counts(log, worker, pull.version)) continue;
    Violation(Rule::kWatermarks, pull.where, "worker ", worker, " is not listed at version ", pull.version,
              " of shard ", pull.shard, ", and went on pushing");
  }
}

void Checker::CheckStaleness(const Track& track,
                             const std::map<std::tuple<uint32_t, uint64_t, uint64_t>, uint64_t>& read) {
  for (const HistoryEvent* push : track.applied) {
    const auto base = read.find({push->worker, push->worker_incarnation, push->clock});
    if (base == read.end()) {
      Violation(Rule::kStaleness, push->where, "a push at clock ", push->clock, " on shard ", push->shard,
                " without a pull at that clock");
      continue;
    }
    if (push->version != base->second + push->staleness + 1) {
      Violation(Rule::kStaleness, push->where, "a push computed from version ", base->second,
                " made version ", push->version, " of shard ", push->shard, " and was told staleness ",
                push->staleness);
    }
  }
}

void Checker::CheckLeads(const ShardLog& log) {
  for (const auto& [worker, tracks] : log.tracks) {
    for (const auto& [incarnation, track] : tracks) {
      for (const HistoryEvent* push : track.applied) {
        const uint64_t clock = push->clock + 1;
        for (const auto& [other, other_tracks] : log.tracks) {
          if (!Counts(log, other, push->version)) continue;
          const uint64_t behind = ClockAt(log, other, push->version).most;
          if (behind >= clock) continue;
          report_.max_lead = std::max(report_.max_lead, clock - behind);
          if (rules_.mode != Mode::kBounded || clock - behind <= rules_.staleness + 1) continue;
          Violation(Rule::kLead, push->where, "worker ", worker, " came to clock ", clock, " at version ",
                    push->version, " of shard ", push->shard, " with worker ", other, " at clock ", behind);
        }
      }
    }
  }
}

Interval Checker::ClockOfTrack(const Track& track, uint64_t version) const {
  const auto later = std::upper_bound(track.applied.begin(), track.applied.end(), version,
                                      [](uint64_t v, const HistoryEvent* push) { return v < push->version; });
  Interval clock;
  clock.least = later == track.applied.begin() ? 0 : (*std::prev(later))->clock + 1;
  for (const HistoryEvent* push : track.disposed) {
    if (push->version < version) clock.least = std::max(clock.least, push->clock + 1);
  }
  if (fixed()) {
    clock.most = clock.least;
    // A push that was disposed of at this version may or may not have been there already.
    for (const HistoryEvent* push : track.disposed) {
      if (push->version <= version) clock.most = std::max(clock.most, push->clock + 1);
    }
  } else if (later != track.applied.end()) {
    // A worker that was idle for a while goes on at a higher clock than it had.
    clock.most = (*later)->clock;
  }
  return clock;
}

Interval Checker::ClockAt(const ShardLog& log, uint32_t worker, uint64_t version) const {
  const auto tracks = log.tracks.find(worker);
  if (tracks == log.tracks.end()) return fixed() ? Interval{0, 0} : Interval{};
  // Before the worker's first push a restored server may show the clock of an earlier incarnation, from the
  // checkpoint. After its last push it may show the clock of a later incarnation, which was killed before it
  // could write anything down.
  if (tracks->second.size() == 1) {
    const Track& only = tracks->second.begin()->second;
    const bool known = fixed() || (only.first_version() <= version && version < only.last_version()) ||
                       (!rules_.server_restarts && version < only.last_version());
    if (known) return ClockOfTrack(only, version);
  }
  for (const auto& [incarnation, track] : tracks->second) {
    if (track.first_version() <= version && version < track.last_version())
      return ClockOfTrack(track, version);
  }
  return {};
}

bool Checker::Counts(const ShardLog& log, uint32_t worker, uint64_t version) const {
  const auto tracks = log.tracks.find(worker);
  if (tracks == log.tracks.end()) return false;
  for (const auto& [incarnation, track] : tracks->second) {
    if (version >= track.last_version()) continue;
    if (fixed()) return true;
    // Between a push and its next pull a worker may have had no work, and then it does not count.
    const auto next =
        std::upper_bound(track.applied.begin(), track.applied.end(), version,
                         [](uint64_t v, const HistoryEvent* push) { return v < push->version; });
    const auto read = log.read.find({worker, incarnation, (*next)->clock});
    // At the version that it read it may just have come.
    if (read != log.read.end() && read->second < version) return true;
  }
  return false;
}

}  // namespace

const char* Name(HistoryRule rule) {
  switch (rule) {
    case Rule::kVersions:
      return "versions";
    case Rule::kClocks:
      return "clocks";
    case Rule::kBatches:
      return "batches";
    case Rule::kFreshness:
      return "freshness";
    case Rule::kOwnPushes:
      return "own pushes";
    case Rule::kStep:
      return "step";
    case Rule::kWatermarks:
      return "watermarks";
    case Rule::kMonotonic:
      return "monotonic";
    case Rule::kStaleness:
      return "staleness";
    case Rule::kLead:
      return "lead";
    case Rule::kRows:
      return "rows";
  }
  return "?";
}

uint64_t HistoryReport::total() const {
  uint64_t sum = 0;
  for (const auto& [rule, count] : violations) sum += count;
  return sum;
}

uint64_t HistoryReport::count(HistoryRule rule) const {
  const auto it = violations.find(rule);
  return it == violations.end() ? 0 : it->second;
}

std::string HistoryReport::ToString() const {
  std::string out = absl::StrCat(
      pulls, " pulls, ", pushes, " pushes, ", rows > 0 ? absl::StrCat(rows, " rows, ") : "", "largest lead ",
      max_lead, ", ", unaccounted_versions, " versions unaccounted for, ", total(), " violations");
  for (const auto& [rule, count] : violations) absl::StrAppend(&out, "\n  ", Name(rule), ": ", count);
  for (const std::string& example : examples) absl::StrAppend(&out, "\n", example);
  return out;
}

HistoryReport CheckHistory(absl::Span<const HistoryEvent> events, const HistoryRules& rules) {
  return Checker(rules).Check(events);
}

}  // namespace weir
