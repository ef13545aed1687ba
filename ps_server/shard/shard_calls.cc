// The part of Shard that takes pushes and pulls, lets those wait that have to, and words the answers.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ps_server/shard/shard.h"

namespace weir {
namespace {

PushKey KeyOf(const v1::PushRequest& header) {
  return {header.caller().worker(), header.clock(), header.part()};
}

}  // namespace

// ---- pushes

void Shard::HandlePush(ArrivedPush push, PushDone done) {
  const v1::PushRequest& header = push.header;
  if (over_) return done(NewReply(v1::JOB_OVER, failure_));
  switch (Check(header.caller())) {
    case CallerCheck::kUnknownYet:
      return done(absl::UnavailableError("this shard does not know the caller's membership epoch yet"));
    case CallerCheck::kFenced:
      return done(NewReply(v1::FENCED, Fenced(header.caller())));
    case CallerCheck::kLive:
      break;
  }
  switch (policy_->OnPush(KeyOf(header))) {
    case PushDecision::kApply:
      ApplyPush(std::move(push), done);
      return Wake();
    case PushDecision::kStage:
      StagePush(std::move(push), std::move(done));
      return;
    case PushDecision::kRepeat:
      return RepeatPush(header, std::move(done));
    case PushDecision::kHold:
      held_.push_back({std::move(push), std::move(done), options_.clock->Now() + wait_limit()});
      return;
    case PushDecision::kInvalid:
      return done(absl::InvalidArgumentError(absl::StrCat(
          "no push of worker ", header.caller().worker(), " can come with clock ", header.clock(),
          " and part ", header.part(), " while this shard is at version ", store_->Current()->count)));
  }
}

void Shard::ApplyPush(ArrivedPush push, const PushDone& done) {
  const v1::PushRequest& header = push.header;
  const uint64_t count = store_->Current()->count;
  if (header.base().incarnation() != options_.incarnation) {
    return done(NewReply(
        v1::STALE_VERSION,
        absl::StrCat("the gradient was computed from a version of incarnation ", header.base().incarnation(),
                     " of this shard, which is now incarnation ", options_.incarnation)));
  }
  if (header.base().count() > count) {
    return done(absl::InvalidArgumentError(absl::StrCat("base: version ", header.base().count(),
                                                        " is yet to come; the shard is at version ", count)));
  }
  if (header.batch_plus_one() > 0 && batches_.Contains(header.batch_plus_one() - 1)) {
    ++counters_.pushes_refused;
    return Complete(header,
                    NewReply(v1::DUPLICATE_BATCH,
                             absl::StrCat("batch ", header.batch_plus_one() - 1, " was applied before")),
                    done);
  }
  if (push.non_finite >= 0) {
    ++counters_.pushes_refused;
    return Complete(header, NewReply(v1::REFUSED, NonFinite(push)), done);
  }
  const WeightedGradient gradient{push.gradient.get(), header.examples()};
  store_->Update(absl::MakeConstSpan(&gradient, 1));
  if (header.batch_plus_one() > 0) batches_.Insert(header.batch_plus_one() - 1);
  ++counters_.pushes_applied;
  counters_.version = count + 1;
  v1::PushReply reply = NewReply(v1::OK);
  reply.set_staleness(count - header.base().count());
  staleness_.Add(reply.staleness());
  Complete(header, std::move(reply), done);
  const std::vector<WorkerClockValue> clocks = policy_->Clocks();
  uint64_t slowest = header.clock() + 1;
  for (const WorkerClockValue& value : clocks) slowest = std::min(slowest, value.clock);
  lead_.Add(header.clock() + 1 - slowest);
}

void Shard::Complete(const v1::PushRequest& header, v1::PushReply reply, const PushDone& done) {
  policy_->Complete(KeyOf(header));
  auto& answers = members_.at(header.caller().worker()).answers;
  answers[header.clock()] = reply;
  if (answers.size() > kRecorded) answers.erase(answers.begin());
  done(std::move(reply));
}

void Shard::StagePush(ArrivedPush push, PushDone done) {
  const v1::PushRequest& header = push.header;
  const uint64_t batch = header.clock() * install_.parts() + header.part();
  const uint64_t first = batch * options_.config.data().batch_size();
  const uint64_t examples =
      std::min<uint64_t>(options_.config.data().batch_size(), install_.total_examples() - first);
  if (header.batch_plus_one() != batch + 1 || header.examples() != examples) {
    return done(absl::InvalidArgumentError(
        absl::StrCat("part ", header.part(), " of step ", header.clock(), " is batch ", batch, " of ",
                     examples, " examples; got batch ", static_cast<int64_t>(header.batch_plus_one()) - 1,
                     " of ", header.examples())));
  }
  if (header.base().incarnation() != options_.incarnation || header.base().count() != header.clock()) {
    return done(NewReply(v1::STALE_VERSION,
                         absl::StrCat("a part of step ", header.clock(), " must be computed from version ",
                                      header.clock(), " of incarnation ", options_.incarnation)));
  }
  StagedPart& staged = staged_[header.part()];
  staged.gradient = std::move(push.gradient);
  staged.examples = examples;
  staged.waiters.push_back({std::move(done), options_.clock->Now()});
  if (push.non_finite >= 0) staged.refusal = NonFinite(push);
  policy_->Complete(KeyOf(header));

  const std::optional<uint64_t> complete = policy_->CompleteStep();
  if (!complete.has_value() || reported_staged_) return;
  reported_staged_ = true;
  v1::ShardReport report;
  report.mutable_staged()->set_step(*complete);
  for (const auto& [part, entry] : staged_) {
    if (entry.refusal.empty()) continue;
    report.mutable_staged()->add_refused_parts(part);
    if (report.staged().reason().empty()) report.mutable_staged()->set_reason(entry.refusal);
  }
  Report(std::move(report));
}

void Shard::RepeatPush(const v1::PushRequest& header, PushDone done) {
  ++counters_.pushes_repeated;
  if (sync()) {
    const auto staged = staged_.find(header.part());
    if (policy_->JoinClock() == header.clock() && staged != staged_.end()) {
      staged->second.waiters.push_back({std::move(done), options_.clock->Now()});
      return;
    }
    const auto commit = commits_.find(header.clock());
    if (commit == commits_.end()) {
      return done(NewReply(v1::STEP_PAST, absl::StrCat("step ", header.clock(), " is long past")));
    }
    const auto& parts = commit->second;
    if (std::find(parts.begin(), parts.end(), header.part()) == parts.end()) {
      return done(NewReply(
          v1::REFUSED, absl::StrCat("step ", header.clock(), " was committed without part ", header.part())));
    }
    v1::PushReply reply = NewReply(v1::OK);
    reply.mutable_version()->set_count(header.clock() + 1);
    return done(std::move(reply));
  }
  const auto& answers = members_.at(header.caller().worker()).answers;
  const auto answer = answers.find(header.clock());
  if (answer != answers.end()) return done(answer->second);
  // Beyond what is recorded, or before this life's first clock.
  done(absl::InvalidArgumentError(absl::StrCat("clock ", header.clock(), " of worker ",
                                               header.caller().worker(),
                                               " is long completed and its answer no longer on record")));
}

// ---- pulls

void Shard::HandlePull(v1::PullRequest request, PullDone done) {
  ParkedPull pull{std::move(request), std::move(done), options_.clock->Now()};
  if (!TryAnswerPull(pull)) {
    parked_.push_back(std::move(pull));
    counters_.parked_pulls = parked_.size();
  }
}

bool Shard::TryAnswerPull(const ParkedPull& pull) {
  const v1::PullRequest& request = pull.request;
  const auto answer = [&](v1::Outcome outcome, std::string reason,
                          std::shared_ptr<const ShardVersion> version) {
    PullAnswer out;
    out.header = NewPullReply(outcome, std::move(reason));
    if (version != nullptr) {
      out.header.mutable_version()->set_count(version->count);
      if (!request.header_only()) {
        counters_.bytes_pulled += static_cast<uint64_t>(store_->elements()) * sizeof(float);
        out.version = std::move(version);
      }
    }
    pull.done(std::move(out));
    return true;
  };
  if (over_) return answer(v1::JOB_OVER, failure_, nullptr);
  if (store_ == nullptr) {
    pull.done(absl::UnavailableError("this shard has no model yet"));
    return true;
  }
  if (request.caller().model_hash() != model_hash_.load()) {
    pull.done(
        absl::InvalidArgumentError("the pull is for another model than this job's (model_hash differs)"));
    return true;
  }
  if (request.pin() != 0) {
    const auto pin = pins_.find(request.pin());
    if (pin == pins_.end()) {
      pull.done(absl::FailedPreconditionError(
          absl::StrCat("pin ", request.pin(), " is not held here; its lease may have ended")));
      return true;
    }
    return answer(v1::OK, "", pin->second.version);
  }
  switch (Check(request.caller())) {
    case CallerCheck::kUnknownYet:
      pull.done(absl::UnavailableError("this shard does not know the caller's membership epoch yet"));
      return true;
    case CallerCheck::kFenced:
      return answer(v1::FENCED, Fenced(request.caller()), nullptr);
    case CallerCheck::kLive:
      break;
  }
  switch (policy_->OnPull(request.caller().worker(), request.clock())) {
    case PullDecision::kWait:
      return false;
    case PullDecision::kPast:
      return answer(v1::STEP_PAST, absl::StrCat("step ", request.clock(), " is past"), nullptr);
    case PullDecision::kReady:
      return answer(v1::OK, "", store_->Current());
  }
  return false;
}

// ---- waiting

void Shard::Wake() {
  // A held push that can go may let others go.
  for (bool progress = true; progress;) {
    progress = false;
    for (auto it = held_.begin(); it != held_.end(); ++it) {
      if (policy_->OnPush(KeyOf(it->push.header)) == PushDecision::kHold) continue;
      HeldPush held = std::move(*it);
      held_.erase(it);
      if (policy_->OnPush(KeyOf(held.push.header)) == PushDecision::kApply) {
        ApplyPush(std::move(held.push), held.done);
      } else {
        HandlePush(std::move(held.push), std::move(held.done));
      }
      progress = true;
      break;
    }
  }
  for (auto it = parked_.begin(); it != parked_.end();) {
    it = TryAnswerPull(*it) ? parked_.erase(it) : std::next(it);
  }
  counters_.parked_pulls = parked_.size();
}

void Shard::HandleTick() {
  const absl::Time now = options_.clock->Now();
  const absl::Time since_limit = now - wait_limit();
  for (auto it = parked_.begin(); it != parked_.end();) {
    if (it->since > since_limit) {
      ++it;
      continue;
    }
    it->done(absl::DeadlineExceededError(absl::StrCat("a pull at clock ", it->request.clock(), " waited ",
                                                      absl::FormatDuration(now - it->since), " for ",
                                                      WhoIsAwaited(it->request))));
    it = parked_.erase(it);
  }
  counters_.parked_pulls = parked_.size();
  for (auto it = held_.begin(); it != held_.end();) {
    if (it->deadline > now) {
      ++it;
      continue;
    }
    it->done(absl::DeadlineExceededError(
        absl::StrCat("the push at clock ", it->push.header.clock(),
                     " waited for the pushes of the same worker before it, which did not come")));
    it = held_.erase(it);
  }
  for (auto& [part, staged] : staged_) {
    // The part stays staged: a repeat of the push finds it.
    for (auto it = staged.waiters.begin(); it != staged.waiters.end();) {
      if (it->since > since_limit) {
        ++it;
        continue;
      }
      it->done(absl::DeadlineExceededError(absl::StrCat(
          "part ", part, " waited ", absl::FormatDuration(now - it->since), " for ", MissingParts())));
      it = staged.waiters.erase(it);
    }
  }
  for (auto it = pins_.begin(); it != pins_.end();) {
    it = it->second.deadline <= now ? pins_.erase(it) : std::next(it);
  }
}

void Shard::FailWaiting(const std::function<bool(uint32_t)>& which, v1::Outcome outcome,
                        const std::string& reason) {
  for (auto it = held_.begin(); it != held_.end();) {
    if (!which(it->push.header.caller().worker())) {
      ++it;
      continue;
    }
    it->done(NewReply(outcome, reason));
    it = held_.erase(it);
  }
  for (auto it = parked_.begin(); it != parked_.end();) {
    if (!which(it->request.caller().worker())) {
      ++it;
      continue;
    }
    it->done(PullAnswer{NewPullReply(outcome, reason), nullptr});
    it = parked_.erase(it);
  }
  counters_.parked_pulls = parked_.size();
  if (!over_) return;
  // Staged parts have no owner: whoever computed them, they are the step's. Only the end of the job ends
  // their wait.
  for (auto& [part, staged] : staged_) {
    for (const StagedPart::Waiter& waiter : staged.waiters) waiter.done(NewReply(outcome, reason));
    staged.waiters.clear();
  }
}

// ---- words

Shard::CallerCheck Shard::Check(const v1::Caller& caller) const {
  const auto it = members_.find(caller.worker());
  if (it != members_.end() && it->second.incarnation == caller.incarnation()) return CallerCheck::kLive;
  return caller.epoch() > epoch_ ? CallerCheck::kUnknownYet : CallerCheck::kFenced;
}

std::string Shard::WhoIsAwaited(const v1::PullRequest& request) const {
  if (policy_ == nullptr) return "the coordinator";
  std::vector<std::string> names;
  const std::vector<WorkerClockValue> clocks = policy_->Clocks();
  for (uint32_t worker : policy_->WaitingFor(request.caller().worker(), request.clock())) {
    const auto member = members_.find(worker);
    std::string name = member == members_.end() ? absl::StrCat("worker ", worker) : member->second.task;
    for (const WorkerClockValue& value : clocks) {
      if (value.worker == worker) absl::StrAppend(&name, " (at clock ", value.clock, ")");
    }
    names.push_back(std::move(name));
  }
  return names.empty() ? "the coordinator's commit" : absl::StrJoin(names, ", ");
}

std::string Shard::MissingParts() const {
  v1::PullRequest next;
  next.set_clock(policy_->JoinClock() + 1);
  return WhoIsAwaited(next);
}

std::string Shard::Fenced(const v1::Caller& caller) const {
  return absl::StrCat("worker ", caller.worker(), " with incarnation ", caller.incarnation(),
                      " is not in membership epoch ", epoch_);
}

std::string Shard::NonFinite(const ArrivedPush& push) const {
  return absl::StrCat("the gradient of ", store_->Describe(push.non_finite), " is not finite");
}

v1::PushReply Shard::NewReply(v1::Outcome outcome, std::string reason) const {
  v1::PushReply reply;
  reply.set_outcome(outcome);
  reply.set_reason(std::move(reason));
  reply.set_epoch(epoch_);
  reply.mutable_version()->set_incarnation(options_.incarnation);
  if (store_ != nullptr) reply.mutable_version()->set_count(store_->Current()->count);
  return reply;
}

v1::PullReply Shard::NewPullReply(v1::Outcome outcome, std::string reason) const {
  v1::PullReply reply;
  reply.set_outcome(outcome);
  reply.set_reason(std::move(reason));
  reply.set_epoch(epoch_);
  reply.mutable_version()->set_incarnation(options_.incarnation);
  if (store_ == nullptr) return reply;
  reply.mutable_version()->set_count(store_->Current()->count);
  reply.set_elements(store_->elements());
  if (!sync()) {
    for (const WorkerClockValue& value : policy_->Clocks()) {
      v1::WorkerClock* clock = reply.add_clocks();
      clock->set_worker(value.worker);
      clock->set_clock(value.clock);
    }
  }
  return reply;
}

}  // namespace weir
