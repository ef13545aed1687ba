#include "tests/chaos/abusers.h"

#include <chrono>
#include <csignal>
#include <cstdio>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace weir {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kBeginLimit{30}, kEndLimit{60};
constexpr char kBegins[] = "begins";

// Where ps:0 serves HTTP.
absl::StatusOr<std::string> HttpAddress(const ChaosJob& job) {
  const std::string log = job.Log("ps:0"), mark = "metrics at http://";
  const size_t at = log.find(mark);
  if (at == std::string::npos) return absl::InternalError("ps:0 does not say where its metrics are");
  const size_t begin = at + mark.size();
  return log.substr(begin, log.find('/', begin) - begin);
}

}  // namespace

std::string AbuseReport::Taken() const {
  if (taken.empty()) return "";
  return absl::StrCat(" (taken: ", absl::StrJoin(taken, ", ", absl::PairFormatter(" ")), ")");
}

absl::Status Abusers::Start(const std::string& kind, int count, bool insiders) {
  std::vector<std::string> servers;
  for (const std::string& task : job_.tasks()) {
    if (task.rfind("ps:", 0) == 0) servers.push_back(job_.address(task));
  }
  WEIR_ASSIGN_OR_RETURN(const std::string http, HttpAddress(job_));
  std::vector<std::string> args = {program_, "--abuser=" + kind, "--servers=" + absl::StrJoin(servers, ","),
                                   "--http=" + http};
  if (insiders) {
    args.push_back("--config=" + job_.config_path());
    const std::vector<std::string> proofs = job_.Prove(kind == "flood" ? Role::kWorker : Role::kReader, 0);
    args.insert(args.end(), proofs.begin(), proofs.end());
  }
  for (int i = 0; i < count; ++i) {
    auto abuser = std::make_unique<Abuser>();
    abuser->kind = kind;
    Subprocess::Options process;
    process.args = args;
    process.on_line = [abuser = abuser.get()](absl::string_view line) {
      if (line == kBegins) abuser->begun = true;
      abuser->last_line = std::string(line);
    };
    WEIR_ASSIGN_OR_RETURN(abuser->process, Subprocess::Start(std::move(process)));
    abusers_.push_back(std::move(abuser));
  }
  return absl::OkStatus();
}

absl::Status Abusers::AwaitBegin() const {
  const auto deadline = Clock::now() + kBeginLimit;
  for (const auto& abuser : abusers_) {
    while (!abuser->begun) {
      if (Clock::now() > deadline) {
        return absl::DeadlineExceededError(absl::StrCat("abuser ", abuser->kind, " does not begin"));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  return absl::OkStatus();
}

absl::Status Abusers::End(AbuseReport* report) {
  for (const auto& abuser : abusers_) abuser->process->Signal(SIGTERM);
  for (const auto& abuser : abusers_) {
    if (!abuser->process->Wait(Clock::now() + kEndLimit).has_value()) {
      return absl::InternalError(absl::StrCat("abuser ", abuser->kind, " does not end"));
    }
    const auto said = nlohmann::json::parse(abuser->last_line, nullptr, /*allow_exceptions=*/false);
    if (!said.is_object()) {
      return absl::InternalError(absl::StrCat("abuser ", abuser->kind, " failed: ", abuser->last_line));
    }
    report->acts += said["acts"].get<uint64_t>();
    for (const auto& [what, count] : said["taken"].items()) report->taken[what] += count.get<uint64_t>();
  }
  abusers_.clear();
  return absl::OkStatus();
}

void Abusers::SayThatItBegins() {
  std::printf("%s\n", kBegins);
  std::fflush(stdout);
}

void Abusers::SayWhatWasDone(const Acts& acts) {
  const nlohmann::json said = {{"acts", acts.count()}, {"taken", acts.taken()}};
  std::printf("%s\n", said.dump().c_str());
  std::fflush(stdout);
}

}  // namespace weir
