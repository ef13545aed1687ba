#include "cli/report/status_text.h"

#include <algorithm>
#include <cstdint>
#include <vector>

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
  static_assert(v1::JobState_MAX == v1::RECOVERING, "a new state of a job needs its case here");
  switch (state) {
    case v1::STARTING:
      return "starting";
    case v1::RUNNING:
      return "running";
    case v1::DRAINING:
      return "finishing";
    case v1::DONE:
      return "done";
    case v1::FAILED:
      return "failed";
    case v1::RECOVERING:
      return "recovering";
    case v1::JOB_STATE_UNSPECIFIED:
    default:  // a state of a newer version of the protocol
      return "unknown";
  }
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
    pieces.push_back(absl::StrCat("test accuracy ", FormatPercent(status.evaluation().test_accuracy())));
  }
  if (Evaluated(status) && status.evaluation().has_test_auc()) {
    pieces.push_back(absl::StrCat("test AUC ", FormatLoss(status.evaluation().test_auc())));
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
    line("test",
         absl::StrCat(
             evaluation.test_accuracy() < 0
                 ? ""
                 : absl::StrCat("accuracy ", FormatPercent(evaluation.test_accuracy()), ", "),
             evaluation.has_test_auc() ? absl::StrCat("AUC ", FormatLoss(evaluation.test_auc()), ", ") : "",
             "loss ", FormatLoss(evaluation.test_loss()), " at version ", evaluation.version()));
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
  line("workers", absl::StrCat(LiveWorkers(status), " of ", status.configured_workers(), ", epoch ",
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
    const bool is_silent = std::find(silent.begin(), silent.end(), &task) != silent.end();
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
  return absl::Seconds(static_cast<double>(*std::max_element(bytes.begin(), bytes.end())) / kBytesPerSecond);
}

}  // namespace weir
