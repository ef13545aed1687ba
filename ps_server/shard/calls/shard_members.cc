#include "ps_server/shard/calls/shard_members.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/telemetry/logging.h"

namespace weir {

absl::StatusOr<Verdict> ShardMembers::Check(const v1::Caller& caller) const {
  const auto it = members_.find(caller.worker());
  const bool live = it != members_.end() && it->second.incarnation == caller.incarnation();
  if (live && epoch_ != 0) return Verdict();
  if (epoch_ == 0 || caller.epoch() > epoch_) {
    return absl::UnavailableError("this shard does not know the caller's membership epoch yet");
  }
  return Verdict{v1::FENCED, absl::StrCat("worker ", caller.worker(), " with incarnation ",
                                          caller.incarnation(), " is not in membership epoch ", epoch_)};
}

std::string ShardMembers::TaskOf(uint32_t worker) const {
  const auto member = members_.find(worker);
  return member == members_.end() || member->second.task.empty() ? absl::StrCat("worker ", worker)
                                                                 : member->second.task;
}

ShardMembers::Change ShardMembers::Follow(const v1::Membership& membership, ConsistencyPolicy& policy) {
  epoch_ = membership.epoch();
  Change change;
  change.floor = policy.JoinClock();
  std::map<uint32_t, uint64_t> now;  // incarnations by rank
  for (const v1::Member& member : membership.members()) now[member.worker()] = member.incarnation();
  for (auto it = members_.begin(); it != members_.end();) {
    const auto found = now.find(it->first);
    if (found != now.end() && found->second == it->second.incarnation) {
      ++it;
      continue;
    }
    policy.Remove(it->first);
    change.gone.push_back({it->first, std::move(it->second.task)});
    it = members_.erase(it);
  }
  for (const v1::Member& named : membership.members()) {
    const uint32_t worker = named.worker();
    // Whether the worker's first start clock is decided.
    const bool has_begun = named.first_clock_plus_one() > 0;
    Member& member = members_[worker];
    member.task = named.task();
    if (member.incarnation != named.incarnation()) {
      member.incarnation = named.incarnation();
      policy.Forget(worker);
      member.unheard = keeps_clocks_ && has_begun;
    }
    // On no shard does the worker have pushes below its first clock.
    if (member.unheard && has_begun) policy.Skip(worker, named.first_clock_plus_one() - 1);
    if (named.idle()) {
      policy.Remove(worker);
      continue;
    }
    const uint64_t start = named.joining() ? change.floor : named.start_clock();
    if (member.unheard && (has_begun || !named.joining())) {
      const uint64_t known = policy.Skip(worker, start);
      if (known < start) member.passed.Insert(known, start);
    }
    policy.Admit(worker, start);
    policy.SetShare(worker, named.share());
  }
  return change;
}

void ShardMembers::FollowRecord(const v1::Caller& caller, ConsistencyPolicy& policy) {
  Member& member = members_[caller.worker()];
  if (member.incarnation == caller.incarnation()) return;
  policy.Forget(caller.worker());
  member = Member();
  member.incarnation = caller.incarnation();
}

uint64_t ShardMembers::DeclareLost(uint32_t worker, uint64_t answered_clock, ConsistencyPolicy& policy) {
  Member& member = members_.at(worker);
  uint64_t count = 0;
  const auto lose = [&](uint64_t begin, uint64_t end) {
    if (begin >= end) return;
    count += end - begin;
    member.lost.Insert(begin, end);
    LogWarning("lost the acknowledged pushes of ", member.task, " at clocks ", begin, " to ", end - 1, ", ",
               end - begin, " at most: this shard was restored from before them");
  };
  member.unheard = false;
  const IntervalSet passed = member.passed.TakeBelow(answered_clock);
  for (const auto& [begin, end] : passed.intervals()) lose(begin, end);
  lose(policy.Skip(worker, answered_clock), answered_clock);
  return count;
}

const v1::PushReply* ShardMembers::AnswerAt(uint32_t worker, uint64_t clock) const {
  const auto& answers = members_.at(worker).answers;
  const auto answer = answers.find(clock);
  return answer == answers.end() ? nullptr : &answer->second;
}

void ShardMembers::Record(uint32_t worker, uint64_t clock, const v1::PushReply& reply) {
  auto& answers = members_.at(worker).answers;
  answers[clock] = reply;
  if (answers.size() > kRecorded) answers.erase(answers.begin());
}

void ShardMembers::Save(v1::WorkerState& worker) const {
  const auto found = members_.find(worker.worker());
  if (found == members_.end()) return;
  const Member& member = found->second;
  worker.set_incarnation(member.incarnation);
  worker.set_task(member.task);
  *worker.mutable_lost() = member.lost.ToProto();
  *worker.mutable_passed() = member.passed.ToProto();
  for (const auto& [clock, reply] : member.answers) {
    v1::RecordedAnswer* answer = worker.add_answers();
    answer->set_clock(clock);
    *answer->mutable_reply() = reply;
  }
}

uint64_t ShardMembers::Restore(const v1::WorkerState& worker) {
  Member member;
  member.task = worker.task();
  member.incarnation = worker.incarnation();
  member.passed.Insert(worker.passed());
  for (const v1::RecordedAnswer& answer : worker.answers()) member.answers[answer.clock()] = answer.reply();
  member.lost.Insert(worker.lost());
  const uint64_t lost = member.lost.size();
  // The first membership will say which of these members are still there.
  if (member.incarnation != 0) members_[worker.worker()] = std::move(member);
  return lost;
}

void ShardMembers::EndRestore() {
  epoch_ = 0;
  for (auto& [worker, member] : members_) member.unheard = keeps_clocks_;
}

}  // namespace weir
