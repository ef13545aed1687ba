#include "ps_server/coordinator/member_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/job_identity.h"
#include "common/protocol/limit_reached.h"
#include "common/protocol/limits.h"
#include "common/protocol/protocol_version.h"

namespace weir {
namespace {

// The most Joins of one task that wait at once (restarted processes and repeats), and the most readers.
constexpr int kMaxWaitingOfTask = 64;
constexpr size_t kMaxReaders = 256;
// The most departures that are shown, and the most instances whose Joins are refused.
constexpr size_t kMaxDeparted = 100, kMaxRefused = 4096;

void Fill(const v1::JoinRequest& request, uint64_t incarnation, absl::Time now, absl::Time lease_end,
          MemberTable::Process* process) {
  process->task = request.task();
  process->instance = request.instance();
  process->says_instance = SaysInstance(request.protocol());
  process->evaluates = request.evaluates();
  process->incarnation = incarnation;
  process->last_heard = now;
  process->lease_end = lease_end;
}

template <typename Map>
auto* Find(Map& map, const v1::Caller& caller) {
  const auto it = map.find(caller.worker());
  return it != map.end() && it->second.incarnation == caller.incarnation() ? &it->second : nullptr;
}

}  // namespace

MemberTable::Worker& MemberTable::Admit(WaitingJoin join, uint64_t incarnation, absl::Time now,
                                        absl::Time lease_end) {
  Worker& worker = workers_[join.request.rank()];
  Fill(join.request, incarnation, now, lease_end, &worker);
  worker.join = std::move(join);
  return worker;
}

std::pair<uint32_t, MemberTable::Reader*> MemberTable::AdmitReader(const v1::JoinRequest& request,
                                                                   uint64_t incarnation, absl::Time now,
                                                                   absl::Time lease_end) {
  const uint32_t id = kFirstReader + readers_so_far_++;
  Reader& reader = readers_[id];
  Fill(request, incarnation, now, lease_end, &reader);
  return {id, &reader};
}

MemberTable::Worker* MemberTable::FindWorker(const v1::Caller& caller) { return Find(workers_, caller); }
MemberTable::Reader* MemberTable::FindReader(const v1::Caller& caller) { return Find(readers_, caller); }

absl::Status MemberTable::CheckJob(uint64_t job) const {
  if (MayBeSame(job, job_.id())) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("this ps:0 is of ", Describe(job_), "; the caller is of ",
                                         DescribeJob(job), ", which is over, or has its ps:0 elsewhere"));
}

absl::Status MemberTable::CheckCaller(const v1::Caller& caller) const {
  WEIR_RETURN_IF_ERROR(CheckJob(caller.job()));
  const Process* process = nullptr;
  if (const auto worker = workers_.find(caller.worker()); worker != workers_.end()) {
    process = &worker->second;
  } else if (const auto reader = readers_.find(caller.worker()); reader != readers_.end()) {
    process = &reader->second;
  }
  if (process == nullptr) return absl::AbortedError("the caller is no member of the job, or not any more");
  if (process->incarnation != caller.incarnation()) {
    return absl::AbortedError(absl::StrCat(process->task, " is a different incarnation from the caller, ",
                                           caller.incarnation(), ", which is out of the job"));
  }
  if (!process->says_instance || process->instance == caller.instance()) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("the caller is not the process that joined as ", process->task, " (Caller.instance)"));
}

absl::Status MemberTable::CheckRoom(const v1::JoinRequest& request) const {
  const auto waiting = std::count_if(waiting_.begin(), waiting_.end(), [&](const WaitingJoin& join) {
    return join.request.role() == request.role() &&
           (request.role() == v1::READER || join.request.rank() == request.rank());
  });
  // Unavailable: a process that waits may go, so the caller may try again.
  if (request.role() == v1::READER && waiting + readers_.size() >= kMaxReaders) {
    return LimitReached(
        Limit::kReaders, absl::StatusCode::kUnavailable,
        absl::StrCat("the job has ", kMaxReaders, " readers, as many as it may have; try again"));
  }
  if (request.role() == v1::WORKER && waiting >= kMaxWaitingOfTask) {
    return LimitReached(Limit::kWaitingJoins, absl::StatusCode::kUnavailable,
                        absl::StrCat(waiting, " processes wait already to be ", request.task(),
                                     "; is the same task index used again and again?"));
  }
  return absl::OkStatus();
}

bool MemberTable::Admitting() const {
  return std::any_of(workers_.begin(), workers_.end(),
                     [](const auto& entry) { return !entry.second.admitted(); });
}

std::set<uint64_t> MemberTable::Waiting(uint32_t rank) const {
  std::set<uint64_t> instances;
  for (const WaitingJoin& join : waiting_) {
    if (join.worker() && join.request.rank() == rank) instances.insert(join.request.instance());
  }
  return instances;
}

bool MemberTable::AnyWorkerWaits() const {
  return std::any_of(waiting_.begin(), waiting_.end(), [](const WaitingJoin& join) { return join.worker(); });
}

std::set<uint32_t> MemberTable::Ranks() const {
  std::set<uint32_t> ranks;
  for (const WaitingJoin& join : waiting_) {
    if (join.worker()) ranks.insert(join.request.rank());
  }
  for (const auto& [rank, worker] : workers_) ranks.insert(rank);
  return ranks;
}

std::string MemberTable::NameOf(uint32_t rank) const {
  return rank < names_.size() ? names_[rank] : absl::StrCat("the worker of rank ", rank);
}

std::string MemberTable::TaskOf(uint64_t incarnation) const {
  for (const auto& [rank, worker] : workers_) {
    if (worker.incarnation == incarnation) return worker.task;
  }
  for (const auto& [id, reader] : readers_) {
    if (reader.incarnation == incarnation) return reader.task;
  }
  return "";
}

std::vector<uint64_t> MemberTable::Evaluators() const {
  std::vector<uint64_t> found;
  for (const auto& [id, reader] : readers_) {
    if (reader.evaluates) found.push_back(reader.incarnation);
  }
  for (auto it = workers_.rbegin(); it != workers_.rend(); ++it) {
    if (it->second.admitted() && it->second.evaluates) found.push_back(it->second.incarnation);
  }
  return found;
}

std::set<uint64_t> MemberTable::Connected() const {
  std::set<uint64_t> incarnations;
  for (const auto& [rank, worker] : workers_) {
    if (worker.admitted() && !worker.disconnected) incarnations.insert(worker.incarnation);
  }
  for (const auto& [id, reader] : readers_) incarnations.insert(reader.incarnation);
  return incarnations;
}

MemberTable::Worker MemberTable::Remove(uint32_t rank, bool left) {
  const auto it = workers_.find(rank);
  Worker worker = std::move(it->second);
  workers_.erase(it);
  v1::TaskStatus& status = departed_.emplace_back();
  status.set_task(worker.task);
  status.set_phase(left ? v1::TASK_LEFT : v1::TASK_LOST);
  status.set_incarnation(worker.incarnation);
  if (departed_.size() > kMaxDeparted) departed_.pop_front();
  return worker;
}

bool MemberTable::Left(uint64_t incarnation) const {
  return std::any_of(departed_.begin(), departed_.end(), [&](const v1::TaskStatus& task) {
    return task.incarnation() == incarnation && task.phase() == v1::TASK_LEFT;
  });
}

void MemberTable::ForgetLeft() {
  departed_.erase(std::remove_if(departed_.begin(), departed_.end(),
                                 [](const v1::TaskStatus& task) { return task.phase() == v1::TASK_LEFT; }),
                  departed_.end());
}

void MemberTable::Refuse(uint64_t instance) {
  refused_.push_back(instance);
  if (refused_.size() > kMaxRefused) refused_.pop_front();
}

bool MemberTable::Refuses(uint64_t instance) const {
  return std::find(refused_.begin(), refused_.end(), instance) != refused_.end();
}

v1::Membership MemberTable::ForShards(uint64_t epoch) const {
  v1::Membership membership;
  membership.set_epoch(epoch);
  for (const auto& [rank, worker] : workers_) {
    v1::Member* member = membership.add_members();
    member->set_worker(rank);
    member->set_incarnation(worker.incarnation);
    member->set_task(worker.task);
    member->set_start_clock(worker.start_clock);
    if (worker.first_clock.has_value()) member->set_first_clock_plus_one(*worker.first_clock + 1);
    member->set_joining(worker.phase == Phase::kJoining);
    member->set_idle(worker.phase == Phase::kIdle);
  }
  return membership;
}

v1::Membership MemberTable::ForMembers(uint64_t epoch) const {
  v1::Membership membership;
  membership.set_epoch(epoch);
  for (const auto& [rank, worker] : workers_) {
    if (!worker.admitted()) continue;
    v1::Member* member = membership.add_members();
    member->set_worker(rank);
    member->set_incarnation(worker.incarnation);
    member->set_task(worker.task);
    member->set_start_clock(worker.start_clock);
    member->set_idle(worker.phase == Phase::kIdle);
  }
  return membership;
}

}  // namespace weir
