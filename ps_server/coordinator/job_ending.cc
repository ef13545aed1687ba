#include "ps_server/coordinator/job_ending.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/protocol/job_failure.h"
#include "ps_server/coordinator/members/member_table.h"

namespace weir {
namespace {

// The store may take this long to say which coordinator has the job.
constexpr absl::Duration kConfirmed = absl::Seconds(5);
// The time between two tries to save the end.
constexpr absl::Duration kTryAgain = absl::Seconds(1);

}  // namespace

// ---- why the job ends

void JobEnding::FailUnlessReplaced(const absl::Status& failure) {
  if (!checkpoints_.enabled()) return job_.fail(failure);
  if (suspected_.has_value()) return;
  suspected_ = failure;
  suspected_until_ = now() + kConfirmed;
  // If this coordinator failed, it would be started again and take the job back from the other one.
  options_.confirm([this](const absl::Status& ours) {
    if (job_.over()) return;
    absl::IsAborted(ours) ? job_.replaced(std::string(ours.message())) : job_.fail(*suspected_);
  });
}

void JobEnding::EndAgain() { ends_again_ = saved_ = true; }

absl::Status JobEnding::ForJoin() const {
  if (failure_.ok()) return absl::OutOfRangeError("the job's examples are done; there is nothing left to do");
  // Not Unavailable: the caller would try again, find no coordinator, and hide the reason.
  if (!absl::IsUnavailable(failure_)) return failure_;
  const absl::Status answer = absl::AbortedError(failure_.message());
  return KindOf(failure_) == v1::FAILURE_DRAINED ? MarkDrained(answer) : answer;
}

absl::Status JobEnding::ForCall() const {
  return absl::UnavailableError(failure_.ok() ? "the job is done" : failure_.message());
}

// ---- whether the end is saved

void JobEnding::Save(uint64_t examples) {
  saving_ = examples;
  trouble_.clear();
  checkpoints_.enabled() ? Try() : OnSaved();
}

void JobEnding::Try() {
  next_try_ = now() + kTryAgain;
  checkpoints_.Request(/*of_now=*/true, [this](const absl::StatusOr<v1::CheckpointReply>& reply) {
    if (job_.over() || saved_ || !saving_.has_value()) return;
    if (reply.ok()) return OnSaved();
    if (!options_.all_installed()) return trouble_.clear();
    CannotSave(std::string(reply.status().message()));
  });
}

void JobEnding::TickSave() {
  if (job_.over() || saved_ || !saving_.has_value()) return;
  if (!checkpoints_.busy()) return now() >= next_try_ ? Try() : void();
  if (const std::string hangs = checkpoints_.StoreHangs(); !hangs.empty()) return CannotSave(hangs);
  // Shards still write their parts of a checkpoint that has failed, so the trouble persists.
  if (!trouble_.empty() && !checkpoints_.unsettled()) return CannotSave(std::string(trouble_));
  if (const std::string what = checkpoints_.WaitingFor(); !what.empty() && complaints_.Due(now())) {
    LogInfo("all ", *saving_, " examples are done; waiting for ", what);
  }
}

void JobEnding::CannotSave(const std::string& why) {
  const bool first = trouble_.empty();
  if (first) trouble_since_ = now();
  trouble_ = why;
  const double limit = job_.config.checkpoint().save_wait_seconds();
  const absl::Duration left = trouble_since_ + absl::Seconds(limit) - now();
  const std::string done = absl::StrCat("all ", *saving_, " examples are done, but ");
  if (left <= absl::ZeroDuration()) {
    return job_.fail(StorageFailure(absl::StrCat(
        done, "they could not be saved within checkpoint.save_wait_seconds = ", limit, ": ", why,
        checkpoints_.any()
            ? absl::StrCat("; once there is room, the job goes on from ", checkpoints_.newest_folder())
            : "")));
  }
  if (first) {
    complaints_.Begin(now());
  } else if (!complaints_.Due(now())) {
    return;
  }
  LogWarning(done, "the job cannot be saved yet: ", why, "; it is tried again for another ",
             absl::FormatDuration(absl::Ceil(left, absl::Seconds(1))),
             " (checkpoint.save_wait_seconds = ", limit, "), make room meanwhile");
}

void JobEnding::OnSaved() {
  if (!trouble_.empty()) LogInfo("the job is saved: there is room again");
  trouble_.clear();
  saved_ = true;
  saved_at_ = now();
  for (Leave& leave : std::exchange(leaving_, {})) leave(v1::LeaveReply());
  options_.saved();
}

void JobEnding::Refuse(const absl::Status& why) {
  for (Leave& leave : std::exchange(leaving_, {})) leave(why);
}

// ---- workers that may still come

void JobEnding::OnMember(uint32_t rank) {
  gave_up_.erase(rank);
  lost_.erase(rank);
}

void JobEnding::OnLost(uint32_t rank, std::string task, bool disconnected, std::set<uint64_t> others) {
  lost_[rank] = {std::move(task), now(), disconnected, /*member=*/true, std::move(others)};
}

void JobEnding::OnJoinBroken(uint32_t rank, std::string task) {
  const auto [lost, first] =
      lost_.try_emplace(rank, Lost{std::move(task), now(), /*disconnected=*/true, false, {}});
  // If a silent process of this rank was lost, it is awaited anyway, and for longer.
  if (!first && lost->second.disconnected) lost->second.since = now();
}

void JobEnding::OnTold(uint32_t rank, uint64_t instance) {
  told_.insert(rank);
  const auto lost = lost_.find(rank);
  if (lost != lost_.end() && lost->second.others.count(instance) == 0) lost_.erase(lost);
}

void JobEnding::OnMore(const absl::Status& why) {
  saving_.reset();
  saved_ = false;
  told_.clear();
  Refuse(why);
}

std::vector<std::string> JobEnding::MayCome() const {
  std::vector<std::string> names;
  for (uint32_t rank = 0; rank < job_.workers; ++rank) {
    const auto lost = lost_.find(rank);
    if (lost != lost_.end() && now() < ComesUntil(lost->second)) {
      names.push_back(absl::StrCat(lost->second.task, " (lost before)"));
      continue;
    }
    const bool was_there =
        told_.count(rank) + gave_up_.count(rank) > 0 || (lost != lost_.end() && lost->second.member);
    if (now() < expected_until_ && !was_there) {
      names.push_back(absl::StrCat(options_.worker_name(rank), " (not there yet)"));
    }
  }
  return names;
}

absl::Time JobEnding::ComesUntil(const Lost& lost) const {
  return lost.disconnected ? lost.since + MemberTable::kComesBack
                           : std::max(lost.since, saved_at_) + job_.lease();
}

bool JobEnding::AwaitsWorkers() {
  const std::vector<std::string> names = MayCome();
  if (names.empty()) return false;
  if (!std::exchange(said_waiting_, true)) {
    LogInfo("the job is done; waiting for ", absl::StrJoin(names, ", "),
            " to be told so, for a lease at most");
  }
  return true;
}

// ---- processes that have yet to hear that the job is over

void JobEnding::Await(std::set<uint32_t> servers, absl::Duration limit, std::set<uint64_t> members) {
  awaited_servers_ = std::move(servers);
  awaited_members_ = std::move(members);
  servers_until_ = now() + limit;
  members_until_ = now() + kTellFailure;
  awaits_ = true;
  Settle();
}

void JobEnding::OnLeft(uint64_t incarnation) {
  awaited_members_.erase(incarnation);
  Settle();
}

void JobEnding::OnServerKnows(uint32_t server) {
  awaited_servers_.erase(server);
  Settle();
}

bool JobEnding::OnServerBroke(uint32_t server) {
  if (awaited_servers_.count(server) == 0 || AllKnow()) return false;
  servers_until_ = std::min(servers_until_, now() + kTellFailure);
  return true;
}

void JobEnding::WaitNoLonger() {
  members_until_ = servers_until_ = absl::InfinitePast();
  Settle();
}

void JobEnding::Tick() {
  if (!job_.over() && suspected_.has_value() && now() >= suspected_until_) job_.fail(*suspected_);
  Settle();
}

bool JobEnding::AllKnow() const {
  return (awaited_members_.empty() || now() >= members_until_) &&
         (awaited_servers_.empty() || now() >= servers_until_);
}

void JobEnding::Settle() {
  if (awaits_ && AllKnow() && !std::exchange(said_over_, true)) options_.settled();
}

}  // namespace weir
