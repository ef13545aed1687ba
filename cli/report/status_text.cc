#include "cli/report/status_text.h"

#include <algorithm>
#include <cstdint>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/report/format.h"
#include "common/protocol/limits.h"

namespace weir {
namespace {

// A server's tables are counted with slots and indexes, which are not hashed. SHA-256 hashes several hundred
// MB/s even without instructions of its own, but the machine may be busy.
constexpr double kBytesPerSecond = 50e6;

std::string StateName(v1::JobState state) {
  static_assert(v1::JobState_MAX == v1::RECOVERING, "a new state of a job needs its name here");
  constexpr const char* kNames[] = {"unknown", "starting", "running",   "finishing",
                                    "done",    "failed",   "recovering"};
  // A newer version of the protocol may have a further state.
  return kNames[v1::JobState_IsValid(state) ? state : v1::JOB_STATE_UNSPECIFIED];
}

std::string Spread(const v1::Distribution& d) { return absl::StrCat("p50 ", d.p50(), " max ", d.max()); }

int LiveWorkers(const v1::ClusterStatus& status) { return status.membership().members_size(); }

// Workers report their loss with their heartbeats.
std::string Loss(const v1::ClusterStatus& status) {
  return status.has_train_loss() ? FormatLoss(status.train_loss()) : "-";
}

std::string Rate(const v1::ClusterStatus& status) {
  return status.examples_per_second() > 0 ? FormatRate(status.examples_per_second()) : "-";
}

bool Evaluated(const v1::ClusterStatus& status) { return status.evaluation().examples() > 0; }

// Of the newest evaluation.
const char* Set(const v1::ClusterStatus& status) {
  return status.evaluation().validation() ? "validation" : "test";
}

double SecondsLeft(const v1::ClusterStatus& status) {
  if (status.examples_per_second() <= 0 || status.examples() > status.total_examples()) return -1;
  return static_cast<double>(status.total_examples() - status.examples()) / status.examples_per_second();
}

std::string Waiting(const v1::ClusterStatus& status) {
  std::vector<std::string> names;
  for (const auto& name : status.waiting_for()) names.push_back(Printable(name));
  return absl::StrJoin(names, ", ");
}

// The last part of the folder's name: "step-00001200".
std::string GoesBackTo(const v1::ClusterStatus& status) {
  if (status.checkpoint().empty()) return "the start";
  return Printable(status.checkpoint().substr(status.checkpoint().rfind('/') + 1));
}

std::string Title(const v1::ClusterStatus& status) {
  return absl::StrCat(Printable(status.name()), " ", ModeName(status.mode(), status.staleness_bound()));
}

// Writes the lines of WaitChain() about one status.
class Chain {
 public:
  explicit Chain(const v1::ClusterStatus& status) : status_(status), silent_(SilentTasks(status)) {}

  std::string Text() const {
    std::string out;
    for (const v1::TaskStatus* task : silent_) absl::StrAppend(&out, StandsStill(*task), "\n");
    if (status_.waits_size() > 0) {
      absl::StrAppend(&out, "last update       ", FormatSeconds(status_.seconds_since_update()), " ago\n");
      for (const v1::Wait& wait : status_.waits()) absl::StrAppend(&out, Sentence(wait), "\n");
      FollowLongest(&out);
      return out;
    }
    // Said only where the servers have no waits of their own to report.
    for (const std::string& what : status_.waiting_for()) {
      const bool told = absl::c_any_of(silent_, [&](const v1::TaskStatus* task) {
        return absl::StartsWith(what, absl::StrCat(task->task(), " at "));
      });
      if (!told) absl::StrAppend(&out, "the job waits for ", Printable(what), "\n");
    }
    if (!out.empty()) return out;
    return absl::StrCat("no call waits on any server; the last update was ",
                        FormatSeconds(status_.seconds_since_update()), " ago\n");
  }

 private:
  // Null: it is not silent.
  const v1::TaskStatus* Silent(const std::string& task) const {
    const auto found =
        absl::c_find_if(silent_, [&](const v1::TaskStatus* known) { return known->task() == task; });
    return found == silent_.end() ? nullptr : *found;
  }
  static std::string StandsStill(const v1::TaskStatus& task) {
    return absl::StrCat(Printable(task.task()), task.address().empty() ? "" : " at ",
                        Printable(task.address()),
                        " stands still, or is cut off: nothing was heard of it for ",
                        FormatSeconds(task.seconds_since_heard()));
  }
  std::string Sentence(const v1::Wait& wait) const {
    const v1::TaskStatus* const silent = Silent(wait.server());
    return absl::StrCat(
        Printable(wait.calls()), wait.waiting_size() > 1 ? " wait " : " waits ",
        FormatSeconds(wait.seconds()), " on ", Printable(wait.server()), " for ", Printable(wait.reason()),
        silent == nullptr ? ""
                          : absl::StrCat(" (as of ", FormatSeconds(silent->seconds_since_heard()), " ago)"));
  }
  // Tells what is known about a task that waits for nothing on any server.
  std::string EndOfChain(const std::string& task) const {
    if (const v1::TaskStatus* const silent = Silent(task); silent != nullptr) return StandsStill(*silent);
    const std::string name = Printable(task);
    for (const v1::TaskStatus& known : status_.tasks()) {
      if (known.task() != task) continue;
      if (known.phase() != v1::TASK_LIVE) return absl::StrCat(name, " is ", Printable(known.state()));
      const bool server_silent = absl::c_any_of(
          silent_, [](const v1::TaskStatus* other) { return absl::StartsWith(other->task(), "ps:"); });
      return absl::StrCat(name, " has no call that waits",
                          server_silent
                              ? " on a server that answers: it computes, or waits for one that does not"
                              : ": it computes, or has stopped",
                          ". It was heard ", FormatSeconds(known.seconds_since_heard()), " ago");
    }
    return absl::StrCat(name, " is not in the job");
  }
  void FollowLongest(std::string* out) const {
    const auto longest = absl::c_max_element(status_.waits(), [this](const v1::Wait& a, const v1::Wait& b) {
      // The report of a silent server is old, so the chain begins elsewhere if it can.
      const bool a_old = Silent(a.server()) != nullptr, b_old = Silent(b.server()) != nullptr;
      return a_old != b_old ? a_old : a.seconds() < b.seconds();
    });
    absl::StrAppend(out, "\nthe chain of the longest wait:\n");
    // Tasks that are in the chain already.
    std::set<std::string> seen;
    const v1::Wait* wait = &*longest;
    while (wait != nullptr) {
      absl::StrAppend(out, "  ", Sentence(*wait), "\n");
      for (const std::string& task : wait->waiting()) seen.insert(task);
      const v1::Wait* next = nullptr;
      for (const std::string& task : wait->awaited()) {
        if (seen.count(task) > 0) continue;
        const auto found = absl::c_find_if(
            status_.waits(), [&](const v1::Wait& w) { return absl::c_linear_search(w.waiting(), task); });
        if (found == status_.waits().end()) {
          absl::StrAppend(out, "  ", EndOfChain(task), "\n");
        } else if (next == nullptr) {
          next = &*found;
        }
        seen.insert(task);
      }
      wait = next;
    }
    for (const v1::TaskStatus* task : silent_) {
      // A task that computes or commits needs all servers.
      if (absl::StartsWith(task->task(), "ps:") && seen.count(task->task()) == 0) {
        absl::StrAppend(out, "  ", StandsStill(*task), "\n");
      }
    }
  }

  const v1::ClusterStatus& status_;
  const std::vector<const v1::TaskStatus*> silent_;
};

}  // namespace

std::string ModeName(const std::string& mode, uint32_t staleness_bound) {
  return mode == "bounded" ? absl::StrCat(mode, "(", staleness_bound, ")") : mode;
}

std::string StatusLine(const v1::ClusterStatus& status) {
  std::vector<std::string> pieces = {Title(status)};
  if (status.state() == v1::FAILED) {
    return absl::StrCat(pieces[0], "  failed: ", Printable(status.failure()));
  }
  if (status.state() == v1::STARTING || status.state() == v1::RECOVERING) {
    pieces.push_back(StateName(status.state()));
    if (status.state() == v1::RECOVERING) pieces.push_back(absl::StrCat("from ", GoesBackTo(status)));
    pieces.push_back(absl::StrCat("workers ", LiveWorkers(status), "/", status.configured_workers()));
    if (status.waiting_for_size() > 0) pieces.push_back(absl::StrCat("waiting for ", Waiting(status)));
    return absl::StrJoin(pieces, "  ");
  }
  const double done = status.total_examples() == 0 ? 0
                                                   : static_cast<double>(status.examples()) /
                                                         static_cast<double>(status.total_examples());
  pieces.push_back(absl::StrFormat("step %s/%s (%.0f%%)", FormatCount(status.step()),
                                   FormatCount(status.total_steps()), 100 * std::min(done, 1.0)));
  pieces.push_back(absl::StrCat("loss ", Loss(status)));
  pieces.push_back(absl::StrCat(Rate(status), " examples/s"));
  pieces.push_back(absl::StrCat("staleness ", Spread(status.version_staleness())));
  pieces.push_back(absl::StrCat("workers ", LiveWorkers(status), "/", status.configured_workers()));
  if (status.state() == v1::RUNNING) {
    pieces.push_back(absl::StrCat("ETA ", FormatSeconds(SecondsLeft(status))));
  } else {
    pieces.push_back(StateName(status.state()));
  }
  if (status.state() == v1::DRAINING && status.waiting_for_size() > 0) {
    pieces.push_back(absl::StrCat("waiting for ", Waiting(status)));
  }
  for (const v1::TaskStatus* task : SilentTasks(status)) {
    pieces.push_back(
        absl::StrCat(Printable(task->task()), " silent for ", FormatSeconds(task->seconds_since_heard())));
  }
  if (Evaluated(status) && status.evaluation().test_accuracy() >= 0) {
    pieces.push_back(
        absl::StrCat(Set(status), " accuracy ", FormatPercent(status.evaluation().test_accuracy())));
  }
  if (Evaluated(status) && status.evaluation().has_test_auc()) {
    pieces.push_back(absl::StrCat(Set(status), " AUC ", FormatLoss(status.evaluation().test_auc())));
  }
  if (status.recoveries() > 0) pieces.push_back(absl::StrCat("recoveries ", status.recoveries()));
  if (status.lost_pushes() > 0)
    pieces.push_back(absl::StrCat("lost pushes ", FormatCount(status.lost_pushes())));
  if (status.pushes_refused() > 0)
    pieces.push_back(absl::StrCat("refused pushes ", FormatCount(status.pushes_refused())));
  return absl::StrJoin(pieces, "  ");
}

std::string StatusReport(const v1::ClusterStatus& status) {
  std::string out;
  const auto line = [&](absl::string_view name, absl::string_view value) {
    absl::StrAppend(&out, absl::StrFormat("%-18s", name), value, "\n");
  };
  line("job", absl::StrCat(Title(status), ", ", StateName(status.state())));
  if (status.job().id() != 0) line("id", absl::StrFormat("%016x", status.job().id()));
  if (!status.failure().empty()) line("failure", Printable(status.failure()));
  if (status.waiting_for_size() > 0) line("waiting for", Waiting(status));
  line("step", absl::StrCat(FormatCount(status.step()), " of ", FormatCount(status.total_steps())));
  line("examples", absl::StrCat(FormatCount(status.examples()), " of ", FormatCount(status.total_examples()),
                                ", ", Rate(status), " a second"));
  line("time", absl::StrCat(FormatSeconds(status.seconds()), " of training in this run, ",
                            FormatSeconds(SecondsLeft(status)), " to go"));
  line("train loss", Loss(status));
  if (Evaluated(status)) {
    const auto& evaluation = status.evaluation();
    line(Set(status),
         absl::StrCat(
             evaluation.test_accuracy() < 0
                 ? ""
                 : absl::StrCat("accuracy ", FormatPercent(evaluation.test_accuracy()), ", "),
             evaluation.has_test_auc() ? absl::StrCat("AUC ", FormatLoss(evaluation.test_auc()), ", ") : "",
             "loss ", FormatLoss(evaluation.test_loss()), " at version ", evaluation.version()));
  }
  for (int i = 0; i < status.metrics_size(); ++i) {
    const v1::LoggedMetric& metric = status.metrics(i);
    line(i == 0 ? "logged" : "", absl::StrFormat("%s %.6g", Printable(metric.name()), metric.last()));
  }
  if (!status.stopped_early().empty()) line("stopped early", Printable(status.stopped_early()));
  if (status.has_best()) {
    line("best epoch",
         absl::StrCat(status.best().evaluation().epoch(), ", in ", Printable(status.best_checkpoint())));
  }
  line("version staleness", Spread(status.version_staleness()));
  line("lead", absl::StrCat(Spread(status.lead()), " clocks"));
  line("traffic",
       absl::StrCat(FormatBytes(status.bytes_pushed()), " pushed, ", FormatBytes(status.bytes_pulled()),
                    " pulled, ", FormatCount(status.pushes()), " pushes",
                    status.pushes_refused() > 0
                        ? absl::StrCat(", ", FormatCount(status.pushes_refused()), " refused")
                        : ""));
  if (status.tables_async()) {
    line("tables", absl::StrCat("rows take effect on arrival",
                                status.mode() == "sync" ? ", so the run does not repeat bit for bit" : ""));
  }
  for (const v1::TableStatus& table : status.tables()) {
    line("table", absl::StrCat(Printable(table.name()), ": ", FormatCount(table.all().rows()), " rows, ",
                               FormatBytes(table.all().bytes())));
  }
  line("workers", absl::StrCat(LiveWorkers(status), " of ", status.configured_workers(), ", membership ",
                               status.membership().epoch()));
  line("connections", status.tls() ? "TLS 1.3 over TCP; within one machine Unix sockets and shared memory"
                                   : "not encrypted");
  if (!status.checkpoint().empty()) line("checkpoint", Printable(status.checkpoint()));
  if (status.recoveries() > 0) {
    line("recoveries", absl::StrCat(FormatCount(status.recoveries()), " of lost servers, ",
                                    FormatCount(status.lost_pushes()), " pushes lost"));
  }
  if (status.tasks_size() == 0) return out;
  Table table({"task", "state", "clock", "version", "last heard", "address"});
  table.AlignLeft(1);
  table.AlignLeft(5);
  const std::vector<const v1::TaskStatus*> silent = SilentTasks(status);
  for (const auto& task : status.tasks()) {
    const bool heard = task.phase() != v1::TASK_EXPECTED && task.phase() != v1::TASK_WAITING;
    const bool server = absl::StartsWith(task.task(), "ps:");
    // ps:0 keeps no time for a worker that is gone.
    const bool gone = task.phase() == v1::TASK_LEFT || task.phase() == v1::TASK_LOST;
    const bool timed = heard && (!gone || task.seconds_since_heard() > 0);
    const bool is_silent = absl::c_linear_search(silent, &task);
    table.AddRow({Printable(task.task()), is_silent ? "silent" : Printable(task.state()),
                  heard && !server ? FormatCount(task.clock()) : "-",
                  heard && server ? FormatCount(task.version()) : "-",
                  timed ? absl::StrCat(FormatSeconds(task.seconds_since_heard()), " ago") : "-",
                  Printable(task.address())});
  }
  return absl::StrCat(out, "\n", table.ToString());
}

std::vector<const v1::TaskStatus*> SilentTasks(const v1::ClusterStatus& status) {
  std::vector<const v1::TaskStatus*> silent;
  if (status.state() != v1::RUNNING && status.state() != v1::DRAINING) return silent;
  // The status lists servers first.
  for (const v1::TaskStatus& task : status.tasks()) {
    const bool member = task.phase() == v1::TASK_LIVE || task.phase() == v1::TASK_STANDBY;
    if (member && task.seconds_since_heard() > kSilentSeconds) silent.push_back(&task);
  }
  return silent;
}

absl::Duration TimeForDigests(const v1::ClusterStatus& status) {
  std::vector<uint64_t> bytes;  // by shard
  for (const v1::TableStatus& table : status.tables()) {
    bytes.resize(std::max(bytes.size(), static_cast<size_t>(table.shards_size())));
    for (int shard = 0; shard < table.shards_size(); ++shard) {
      bytes[static_cast<size_t>(shard)] += table.shards(shard).bytes();
    }
  }
  if (bytes.empty()) return absl::ZeroDuration();
  return absl::Seconds(static_cast<double>(*absl::c_max_element(bytes)) / kBytesPerSecond);
}

std::string WaitChain(const v1::ClusterStatus& status) { return Chain(status).Text(); }

}  // namespace weir
