#include "cli/report/wait_chain.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/report/format.h"

namespace weir {
namespace {

std::string Sentence(const v1::Wait& wait) {
  return absl::StrCat(Printable(wait.calls()), wait.waiting_size() > 1 ? " wait " : " waits ",
                      FormatSeconds(wait.seconds()), " on ", Printable(wait.server()), " for ",
                      Printable(wait.reason()));
}

// What is known about a task that waits for nothing on any server.
std::string EndOfChain(const v1::ClusterStatus& status, const std::string& task) {
  const std::string name = Printable(task);
  for (const v1::TaskStatus& known : status.tasks()) {
    if (known.task() != task) continue;
    if (known.phase() != v1::TASK_LIVE) return absl::StrCat(name, " is ", Printable(known.state()));
    return absl::StrCat(name, " has no call that waits: it computes, or has stopped. It was heard ",
                        FormatSeconds(known.seconds_since_heard()), " ago");
  }
  return absl::StrCat(name, " is not in the job");
}

}  // namespace

std::string WaitChain(const v1::ClusterStatus& status) {
  std::string out;
  for (const std::string& what : status.waiting_for()) {
    // The servers' own waits are reported in full below.
    if (status.waits_size() == 0) absl::StrAppend(&out, "the job waits for ", Printable(what), "\n");
  }
  if (status.waits_size() == 0) {
    return out.empty() ? absl::StrCat("no call waits on any server; the last update was ",
                                      FormatSeconds(status.seconds_since_update()), " ago\n")
                       : out;
  }
  absl::StrAppend(&out, "last update       ", FormatSeconds(status.seconds_since_update()), " ago\n");
  for (const v1::Wait& wait : status.waits()) absl::StrAppend(&out, Sentence(wait), "\n");

  const auto longest =
      std::max_element(status.waits().begin(), status.waits().end(),
                       [](const v1::Wait& a, const v1::Wait& b) { return a.seconds() < b.seconds(); });
  absl::StrAppend(&out, "\nthe chain of the longest wait:\n");
  std::set<std::string> seen;
  const v1::Wait* wait = &*longest;
  while (wait != nullptr) {
    absl::StrAppend(&out, "  ", Sentence(*wait), "\n");
    for (const std::string& task : wait->waiting()) seen.insert(task);
    const v1::Wait* next = nullptr;
    for (const std::string& task : wait->awaited()) {
      if (seen.count(task) > 0) continue;
      const auto found = std::find_if(status.waits().begin(), status.waits().end(), [&](const v1::Wait& w) {
        return std::find(w.waiting().begin(), w.waiting().end(), task) != w.waiting().end();
      });
      if (found == status.waits().end()) {
        absl::StrAppend(&out, "  ", EndOfChain(status, task), "\n");
      } else if (next == nullptr) {
        next = &*found;
      }
      seen.insert(task);
    }
    wait = next;
  }
  return out;
}

}  // namespace weir
