#include "cli/local_cluster/first_cause.h"

#include <signal.h>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/report/format.h"
#include "common/program/exit_codes.h"

namespace weir {
namespace {

// The meaning of an exit code, and what to do about it.
struct CodeText {
  int code;
  const char* meaning;
  const char* hint;
};

constexpr CodeText kCodes[] = {
    {kExitUsage, "bad command line",
     "the task refused its flags: are `weir`, `ps_server` and `worker` of the same build?"},
    {kExitInternal, "a fault of its own, or training that cannot go on",
     "if the lines above speak of a loss or gradient that is not finite, lower optimizer.learning_rate or "
     "set "
     "train.clip_norm; else it is a fault of the program, and its whole log helps to find it"},
    {kExitStorage, "what the job has to leave could not be written",
     "make room on the disk that the lines above name, then start again: with --resume a job goes on from "
     "its last complete checkpoint"},
    {kExitConfig, "bad config, data or address",
     "trying again will not help: correct what the lines above name; `weir config check` looks at the "
     "config, at the data's files and at whether the model fits them"},
    {kExitPeerLost, "a peer was lost",
     "the lines above name the peer; look at its log, and at whether this machine was overloaded; then start "
     "again"},
    {kExitDrained, "ended by SIGTERM", "something outside of `weir` ended it"},
};

const CodeText* Find(int code) {
  for (const auto& text : kCodes) {
    if (text.code == code) return &text;
  }
  return nullptr;
}

bool IsServer(const TaskExit& exit) { return absl::StartsWith(exit.task, "ps:"); }

// Returns whether a program in Python says that a package is not there.
bool LacksPackage(const TaskExit& exit) {
  return absl::c_any_of(exit.last_lines, [](const std::string& line) {
    return absl::StartsWith(line, "ModuleNotFoundError: ");
  });
}

bool EndedFromOutside(const ProcessExit& exit) {
  return exit.signal == SIGKILL || exit.signal == SIGTERM || exit.code == kExitDrained;
}

// A worker that was cut off, or stopped for long, loses the other tasks, which continue without the worker.
// If those tasks were lost themselves, the servers' own ends say so.
bool MayDoWithout(const TaskExit& exit) {
  return !IsServer(exit) && (EndedFromOutside(exit.exit) || exit.exit.code == kExitPeerLost);
}

// What the exit would mean if the task had not been started again.
ExitMeaning MeaningOfLast(const TaskExit& exit) {
  if (exit.exit.ok() || exit.was_ended) return ExitMeaning::kExpected;
  return exit.skipped || exit.job_done || MayDoWithout(exit) ? ExitMeaning::kSurvivable : ExitMeaning::kFatal;
}

enum Rank { kOwnFault, kOwnOrHeard, kRestarted, kConsequence, kLostOthers, kOnlyLost, kNone };

Rank RankOf(const TaskExit& exit) {
  const ExitMeaning meaning = MeaningOfLast(exit);
  // ps:0 reports what could not be stored; the other tasks learn this from ps:0.
  const bool consequence =
      exit.exit.code == kExitPeerLost || (exit.exit.code == kExitStorage && exit.task != "ps:0");
  if (meaning == ExitMeaning::kExpected) return kNone;
  if (meaning == ExitMeaning::kSurvivable)
    return consequence && !exit.job_done && !exit.restarted ? kLostOthers : kOnlyLost;
  if (exit.restarted) return consequence ? kOnlyLost : kRestarted;
  if (consequence) return kConsequence;
  return MayHaveHeard(exit) ? kOwnOrHeard : kOwnFault;
}

// The end of a hint: how a job outlives the loss of this task.
std::string AfterLossOf(const std::string& task) {
  return absl::StartsWith(task, "ps:") ? ". With checkpoint.directory and --restart a job outlives a server"
                                       : "";
}

}  // namespace

bool MayHaveHeard(const TaskExit& exit) {
  return exit.exit.code == kExitPeerLost ||
         (exit.exit.code == kExitInternal && !absl::StartsWith(exit.task, "worker:"));
}

ExitMeaning MeaningOf(const TaskExit& exit) {
  return exit.restarted ? ExitMeaning::kSurvivable : MeaningOfLast(exit);
}

bool IsWorthRestart(const TaskExit& exit) {
  return !exit.was_ended && (exit.exit.signal != 0 || exit.exit.code > 127);
}

std::optional<size_t> FirstCause(const std::vector<TaskExit>& exits) {
  std::optional<size_t> best;
  for (size_t i = 0; i < exits.size(); ++i) {
    const Rank rank = RankOf(exits[i]);
    if (rank == kNone) continue;
    const Rank so_far = best.has_value() ? RankOf(exits[*best]) : kNone;
    // Of the servers that end with a job, ps:0 knows why.
    const bool says_why = rank == kConsequence && exits[i].task == "ps:0";
    if (rank < so_far || (rank == so_far && (rank == kRestarted || says_why))) best = i;
  }
  return best;
}

std::string TaskAndHost(const TaskExit& exit) {
  return exit.host.empty() ? exit.task : absl::StrCat(exit.task, " on ", exit.host);
}

std::string DescribeExit(const TaskExit& exit) {
  const std::string task = TaskAndHost(exit);
  std::string after = absl::StrCat(" after ", FormatSeconds(exit.seconds));
  if (exit.restarts > 0) {
    absl::StrAppend(&after, ", started again ",
                    exit.restarts == 1 ? "once" : absl::StrCat(exit.restarts, " times"), " before");
  }
  if (!exit.lost.empty()) return absl::StrCat(task, " was lost with its host", after, ": ", exit.lost);
  if (exit.exit.signal != 0) return absl::StrCat(task, " was killed by ", exit.exit.ToString(), after);
  const CodeText* text = Find(exit.exit.code);
  return absl::StrCat(task, " exited with ", exit.exit.code,
                      text == nullptr ? "" : absl::StrCat(" (", text->meaning, ")"), after);
}

std::string HintFor(const TaskExit& exit) {
  if (!exit.lost.empty()) return "look at that host, and at the network between it and this machine";
  switch (exit.exit.signal) {
    case 0: {
      if (LacksPackage(exit)) {
        return exit.host.empty()
                   ? "this Python lacks the package: install it, or write the path of a Python that has it"
                   : "the Python of this host lacks the package: install it there, or write the path of a "
                     "Python that has it on each host, since each looks for the program on a PATH of its own";
      }
      const CodeText* text = Find(exit.exit.code);
      return text == nullptr ? "" : text->hint;
    }
    case SIGKILL:
      return absl::StrCat("killed from outside; if by the kernel for want of memory, `dmesg` says so",
                          AfterLossOf(exit.task));
    case SIGTERM:
      return absl::StrCat("something outside of `weir` ended it", AfterLossOf(exit.task));
    case SIGSEGV:
    case SIGABRT:
    case SIGBUS:
    case SIGFPE:
    case SIGILL:
      return "it crashed, which is a fault of the program; its whole log helps to find it";
    default:
      return "";
  }
}

int ExitCodeFor(const TaskExit& cause) { return cause.exit.signal != 0 ? kExitPeerLost : cause.exit.code; }

}  // namespace weir
