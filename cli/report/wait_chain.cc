#include "cli/report/wait_chain.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/report/format.h"
#include "cli/report/status_text.h"

namespace weir {
namespace {

// Writes the lines about one status.
class Chain {
 public:
  explicit Chain(const v1::ClusterStatus& status) : status_(status), silent_(SilentTasks(status)) {}

  std::string Text();

 private:
  // Null: it is not silent.
  const v1::TaskStatus* Silent(const std::string& task) const {
    const auto found = std::find_if(silent_.begin(), silent_.end(),
                                    [&](const v1::TaskStatus* known) { return known->task() == task; });
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
  std::string EndOfChain(const std::string& task) const;
  void FollowLongest(std::string* out) const;

  const v1::ClusterStatus& status_;
  const std::vector<const v1::TaskStatus*> silent_;
};

std::string Chain::EndOfChain(const std::string& task) const {
  if (const v1::TaskStatus* const silent = Silent(task); silent != nullptr) return StandsStill(*silent);
  const std::string name = Printable(task);
  for (const v1::TaskStatus& known : status_.tasks()) {
    if (known.task() != task) continue;
    if (known.phase() != v1::TASK_LIVE) return absl::StrCat(name, " is ", Printable(known.state()));
    const bool server_silent = std::any_of(silent_.begin(), silent_.end(), [](const v1::TaskStatus* other) {
      return absl::StartsWith(other->task(), "ps:");
    });
    return absl::StrCat(name, " has no call that waits",
                        server_silent
                            ? " on a server that answers: it computes, or waits for one that does not"
                            : ": it computes, or has stopped",
                        ". It was heard ", FormatSeconds(known.seconds_since_heard()), " ago");
  }
  return absl::StrCat(name, " is not in the job");
}

void Chain::FollowLongest(std::string* out) const {
  const auto longest = std::max_element(
      status_.waits().begin(), status_.waits().end(), [this](const v1::Wait& a, const v1::Wait& b) {
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
      const auto found = std::find_if(status_.waits().begin(), status_.waits().end(), [&](const v1::Wait& w) {
        return std::find(w.waiting().begin(), w.waiting().end(), task) != w.waiting().end();
      });
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

std::string Chain::Text() {
  std::string out;
  for (const v1::TaskStatus* task : silent_) absl::StrAppend(&out, StandsStill(*task), "\n");
  for (const std::string& what : status_.waiting_for()) {
    const bool told = std::any_of(silent_.begin(), silent_.end(), [&](const v1::TaskStatus* task) {
      return absl::StartsWith(what, absl::StrCat(task->task(), " at "));
    });
    // The servers' own waits are reported in full below.
    if (status_.waits_size() == 0 && !told) {
      absl::StrAppend(&out, "the job waits for ", Printable(what), "\n");
    }
  }
  if (status_.waits_size() == 0) {
    return out.empty() ? absl::StrCat("no call waits on any server; the last update was ",
                                      FormatSeconds(status_.seconds_since_update()), " ago\n")
                       : out;
  }
  absl::StrAppend(&out, "last update       ", FormatSeconds(status_.seconds_since_update()), " ago\n");
  for (const v1::Wait& wait : status_.waits()) absl::StrAppend(&out, Sentence(wait), "\n");
  FollowLongest(&out);
  return out;
}

}  // namespace

std::string WaitChain(const v1::ClusterStatus& status) { return Chain(status).Text(); }

}  // namespace weir
