#include "ps_server/coordinator/members/member_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/handshake.h"
#include "common/protocol/limits.h"
#include "common/protocol/mode_traits.h"

namespace weir {
namespace {

constexpr absl::Duration kWindow = absl::Seconds(10);
// Reports that come sooner are left out, so that a worker's heartbeats cost no memory.
constexpr absl::Duration kInterval = absl::Milliseconds(250);

// Limits of the Joins of one task that wait at once (restarted processes, repeats), and of the readers.
constexpr int kMaxWaitingOfTask = 64;
constexpr size_t kMaxReaders = 256;
// Limits of the workers on record that left or were lost, and of the instances whose Joins are refused.
constexpr size_t kMaxDeparted = 100, kMaxRefused = 4096;

// After this time a waiting heartbeat or NextRange call is answered even if nothing happened.
constexpr absl::Duration kLongestPark = absl::Milliseconds(500);

void Fill(const v1::JoinRequest& request, uint64_t incarnation, absl::Time now, absl::Duration lease,
          MemberTable::Process* process) {
  process->task = request.task();
  process->instance = request.instance();
  process->says_instance = SaysInstance(request.protocol());
  process->evaluates = request.evaluates();
  process->incarnation = incarnation;
  process->last_heard = now;
  process->lease_end = now + lease;
}

template <typename Map>
auto* Find(Map& map, const v1::Caller& caller) {
  const auto it = map.find(caller.worker());
  return it != map.end() && it->second.incarnation == caller.incarnation() ? &it->second : nullptr;
}

}  // namespace

void ComputeShare::OnReport(absl::Time now, double compute_seconds) {
  if (!samples_.empty() && now - samples_.back().first < kInterval) return;
  samples_.emplace_back(now, compute_seconds);
  while (samples_.size() > 2 && now - samples_[1].first >= kWindow) samples_.pop_front();
}

std::optional<double> ComputeShare::Value() const {
  if (samples_.size() < 2) return std::nullopt;
  const double seconds = absl::ToDoubleSeconds(samples_.back().first - samples_.front().first);
  const double share = (samples_.back().second - samples_.front().second) / seconds;
  return share > 0 ? std::min(share, 1.0) : 0;  // NaN is 0
}

bool MemberTable::Repeat(
    const v1::JoinRequest& request, uint64_t call, Done<v1::JoinReply>& done,
    absl::FunctionRef<v1::JoinReply(uint32_t id, uint64_t incarnation, uint64_t start_clock)> reply) {
  const absl::Status again = absl::CancelledError("the same process called again");
  for (WaitingJoin& join : waiting_) {
    if (join.request.instance() != request.instance()) continue;
    join.done(again);
    join.done = std::move(done);
    join.call = call;
    return true;
  }
  for (auto& [rank, worker] : workers_) {
    if (worker.instance != request.instance()) continue;
    if (worker.admitted()) {
      done(reply(rank, worker.incarnation, worker.start_clock));
      return true;
    }
    if (worker.join.has_value()) worker.join->done(again);
    // These are the fields of the Join that was checked; the repeat's fields were not.
    v1::JoinRequest same;
    same.set_role(v1::WORKER);
    same.set_task(worker.task);
    same.set_rank(rank);
    same.set_instance(worker.instance);
    same.set_evaluates(worker.evaluates);
    worker.join = WaitingJoin{std::move(same), std::move(done), call, job_.now()};
    return true;
  }
  for (const auto& [id, reader] : readers_) {
    if (reader.instance != request.instance()) continue;
    done(reply(id, reader.incarnation, 0));
    return true;
  }
  return false;
}

std::optional<v1::JoinRequest> MemberTable::Cancel(uint64_t instance, uint64_t call) {
  const auto join = std::find_if(waiting_.begin(), waiting_.end(), [&](const WaitingJoin& waiting) {
    return waiting.request.instance() == instance && waiting.call == call;
  });
  if (join == waiting_.end()) return std::nullopt;
  join->done(absl::CancelledError("the caller went away"));
  v1::JoinRequest request = std::move(join->request);
  waiting_.erase(join);
  return request;
}

MemberTable::Worker& MemberTable::Admit(WaitingJoin join, uint64_t incarnation) {
  Worker& worker = workers_[join.request.rank()];
  Fill(join.request, incarnation, job_.now(), job_.lease(), &worker);
  worker.knows_shares = SharesParts(join.request.protocol());
  worker.join = std::move(join);
  return worker;
}

std::pair<uint32_t, MemberTable::Reader*> MemberTable::AdmitReader(const v1::JoinRequest& request,
                                                                   uint64_t incarnation) {
  const uint32_t id = kFirstReader + readers_so_far_++;
  Reader& reader = readers_[id];
  Fill(request, incarnation, job_.now(), job_.lease(), &reader);
  return {id, &reader};
}

std::vector<MemberTable::WaitingJoin> MemberTable::TakeWaiting(v1::Role role) {
  std::vector<WaitingJoin> taken;
  for (WaitingJoin& join : std::exchange(waiting_, {})) {
    (join.request.role() == role ? taken : waiting_).push_back(std::move(join));
  }
  return taken;
}

std::vector<MemberTable::WaitingJoin> MemberTable::TakeForFreeRanks() {
  std::vector<WaitingJoin> taken;
  std::set<uint32_t> ranks;
  for (WaitingJoin& join : std::exchange(waiting_, {})) {
    const uint32_t rank = join.request.rank();
    const bool free = join.worker() && workers_.count(rank) == 0 && ranks.insert(rank).second;
    (free ? taken : waiting_).push_back(std::move(join));
  }
  return taken;
}

void MemberTable::AnswerAll(const absl::Status& joins, const absl::Status& others) {
  for (WaitingJoin& join : std::exchange(waiting_, {})) join.done(joins);
  for (auto& [rank, worker] : workers_) {
    if (worker.join.has_value()) std::exchange(worker.join, std::nullopt)->done(joins);
    if (worker.next_range) std::exchange(worker.next_range, nullptr)(others);
  }
}

MemberTable::Worker* MemberTable::FindWorker(const v1::Caller& caller) { return Find(workers_, caller); }
MemberTable::Reader* MemberTable::FindReader(const v1::Caller& caller) { return Find(readers_, caller); }
MemberTable::Process* MemberTable::FindProcess(const v1::Caller& caller) {
  Process* const worker = FindWorker(caller);
  return worker != nullptr ? worker : FindReader(caller);
}

absl::Status MemberTable::CheckJob(uint64_t job) const {
  if (MayBeSame(job, options_.identity.id())) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("this ps:0 is of ", Describe(options_.identity),
                                         "; the caller is of ", DescribeJob(job),
                                         ", which is over, or has its ps:0 elsewhere"));
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
  // The error is Unavailable, because a process that waits may go, so the caller may try again.
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

bool MemberTable::AllKnow(uint64_t revision) const {
  return std::all_of(workers_.begin(), workers_.end(), [&](const auto& entry) {
    return entry.second.join.has_value() || entry.second.known_revision >= revision;
  });
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
  return rank < options_.names.size() ? options_.names[rank] : absl::StrCat("the worker of rank ", rank);
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

// ---- heartbeats and leases

void MemberTable::Changed() {
  ++revision_;
  for (auto& [rank, worker] : workers_) Answer(worker.heartbeat, false);
  for (auto& [id, reader] : readers_) Answer(reader.heartbeat, false);
}

void MemberTable::Answer(ParkedHeartbeat& heartbeat, bool fenced, const std::string& why) {
  if (!heartbeat.done) return;
  v1::HeartbeatReply reply;
  reply.set_revision(revision_);
  reply.set_fenced(fenced);
  reply.set_failure(why);
  options_.describe(heartbeat, /*news=*/heartbeat.known_revision != revision_, &reply);
  std::exchange(heartbeat.done, nullptr)(std::move(reply));
}

void MemberTable::OnReport(const v1::WorkerReport& report, Worker* worker) {
  if (report.has_compute_seconds()) worker->compute_share.OnReport(job_.now(), report.compute_seconds());
  if (report.batches() <= worker->batches) return;
  worker->batches = report.batches();
  worker->share_at_work = worker->compute_share.Value();
}

bool MemberTable::Renew(const v1::HeartbeatRequest& request) {
  const absl::Time now = job_.now();
  if (Worker* const worker = FindWorker(request.caller()); worker != nullptr) {
    worker->last_heard = now;
    worker->heard = true;
    // This heartbeat may have been on its way when the process was killed. The next one, after our answer,
    // was not.
    const bool at_once = worker->disconnected && !worker->answered_since;
    worker->answered_since = worker->disconnected = at_once;
    const absl::Duration again = std::min(job_.lease(), std::max(job_.grace(), kComesBack));
    worker->lease_end = now + (at_once ? again : job_.lease());
    worker->known_revision = std::max(worker->known_revision, request.known_revision());
    OnReport(request.report(), worker);
    return at_once;
  }
  if (Reader* const reader = FindReader(request.caller()); reader != nullptr) {
    reader->last_heard = now;
    reader->lease_end = now + job_.lease();
  }
  return false;
}

void MemberTable::Park(const v1::HeartbeatRequest& request, bool at_once, Done<v1::HeartbeatReply> done) {
  const v1::Caller& caller = request.caller();
  ParkedHeartbeat heartbeat{std::move(done), caller.incarnation(),
                            request.only_news() ? request.known_revision() : 0, ParkUntil()};
  Process* const process = FindProcess(caller);
  if (process == nullptr) return Answer(heartbeat, !job_.over(), WhyOut(caller.incarnation()));
  Answer(process->heartbeat, false);
  if (request.known_revision() != revision_ || job_.over() || at_once) return Answer(heartbeat, false);
  process->heartbeat = std::move(heartbeat);
}

void MemberTable::Disconnect(Process& process) {
  process.lease_end = std::min(process.lease_end, job_.now() + job_.grace());
  process.disconnected = true;
  process.answered_since = false;
  Answer(process.heartbeat, false);
}

absl::Time MemberTable::ParkUntil() const { return job_.now() + std::min(job_.lease() / 3, kLongestPark); }

void MemberTable::Tick(bool installed, bool stood_still) {
  const absl::Time now = job_.now();
  const auto extend = [&](Process& process) {
    process.lease_end = std::max(process.lease_end, now + job_.lease());
  };
  for (auto& [rank, worker] : workers_) {
    // A worker that is being admitted cannot send heartbeats.
    if (stood_still || (worker.join.has_value() && !installed)) extend(worker);
    if (worker.heartbeat.until <= now) Answer(worker.heartbeat, false);
    if (worker.next_range && worker.next_range_until <= now) {
      std::exchange(worker.next_range, nullptr)(v1::NextRangeReply());
    }
  }
  for (auto& [id, reader] : readers_) {
    if (stood_still) extend(reader);
    if (reader.heartbeat.until <= now) Answer(reader.heartbeat, false);
  }
}

void MemberTable::RefuseSecond() {
  for (WaitingJoin& join : std::exchange(waiting_, {})) {
    const auto holder = join.worker() ? workers_.find(join.request.rank()) : workers_.end();
    // Two processes of one task may wait for the job's start, and one of them may be dead. So an admission
    // does not show that the admitted process is alive.
    if (holder == workers_.end() ||
        holder->second.last_heard - std::max(join.since, holder->second.live_since) <= 2 * job_.lease()) {
      waiting_.push_back(std::move(join));
      continue;
    }
    const absl::Duration ago = job_.now() - holder->second.last_heard;
    join.done(absl::AlreadyExistsError(absl::StrCat(
        "another live process is ", holder->second.task, "; is the same task index used twice? It was heard ",
        absl::FormatDuration(absl::Trunc(ago, absl::Milliseconds(100))),
        " ago: end one of the two, or give this one another index")));
  }
}

// ---- memberships that have ended

MemberTable::Worker MemberTable::Remove(uint32_t rank, bool left) {
  const auto it = workers_.find(rank);
  Worker worker = std::move(it->second);
  workers_.erase(it);
  v1::TaskStatus& status = departed_.emplace_back();
  status.set_task(worker.task);
  status.set_phase(left ? v1::TASK_LEFT : v1::TASK_LOST);
  status.set_incarnation(worker.incarnation);
  if (worker.share_at_work.has_value()) status.set_utilization(*worker.share_at_work);
  if (TraitsOf(job_.config).keeps_clocks) status.set_clock(worker.start_clock + worker.batches);
  if (departed_.size() > kMaxDeparted) departed_.pop_front();
  return worker;
}

MemberTable::Reader MemberTable::RemoveReader(uint32_t id) {
  const auto it = readers_.find(id);
  Reader reader = std::move(it->second);
  readers_.erase(it);
  return reader;
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

v1::Membership MemberTable::Members(uint64_t epoch, bool for_shards) const {
  v1::Membership membership;
  membership.set_epoch(epoch);
  for (const auto& [rank, worker] : workers_) {
    if (!for_shards && !worker.admitted()) continue;
    v1::Member* member = membership.add_members();
    member->set_worker(rank);
    member->set_incarnation(worker.incarnation);
    member->set_task(worker.task);
    member->set_start_clock(worker.start_clock);
    member->set_idle(worker.phase == Phase::kIdle);
    member->set_share(worker.share);
    if (!for_shards) continue;
    if (worker.first_clock.has_value()) member->set_first_clock_plus_one(*worker.first_clock + 1);
    member->set_joining(worker.phase == Phase::kJoining);
  }
  return membership;
}

}  // namespace weir
