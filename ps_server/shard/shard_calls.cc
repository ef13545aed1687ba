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

// How long a reader may hold an old version while others wait for its memory.
constexpr absl::Duration kReaderPatience = absl::Seconds(5);

// Answers and drops those calls of a list for which `which` holds.
template <typename Calls, typename Which, typename Answer>
void EndIf(Calls& calls, const Which& which, const Answer& answer) {
  for (auto it = calls.begin(); it != calls.end();) {
    if (!which(*it)) {
      ++it;
      continue;
    }
    answer(*it);
    it = calls.erase(it);
  }
}

}  // namespace

// ---- pushes

absl::Status Shard::CheckHeader(const v1::PushRequest& header) const {
  if (store_ == nullptr) return absl::UnavailableError("this shard has no model yet");
  if (header.caller().model_hash() != model_hash_) {
    return absl::InvalidArgumentError("the push is for another model than this job's (model_hash differs)");
  }
  if (static_cast<int64_t>(header.elements()) != store_->elements()) {
    return absl::InvalidArgumentError(absl::StrCat("elements: the push has ", header.elements(),
                                                   " values; this shard has ", store_->elements()));
  }
  if (header.examples() == 0) return absl::InvalidArgumentError("examples: must be at least 1");
  if (!v1::Dtype_IsValid(header.dtype())) {
    return absl::InvalidArgumentError(
        absl::StrCat("dtype: ", static_cast<int>(header.dtype()), " is none that this server knows"));
  }
  return absl::OkStatus();
}

absl::optional<absl::StatusOr<v1::PushReply>> Shard::Judge(const v1::PushRequest& header) {
  if (sync()) {
    const uint64_t batch = header.clock() * install_.parts() + header.part();
    const uint64_t first = batch * options_.config.data().batch_size();
    const uint64_t examples =
        std::min<uint64_t>(options_.config.data().batch_size(), install_.total_examples() - first);
    if (header.batch_plus_one() != batch + 1 || header.examples() != examples) {
      return absl::StatusOr<v1::PushReply>(absl::InvalidArgumentError(
          absl::StrCat("part ", header.part(), " of step ", header.clock(), " is batch ", batch, " of ",
                       examples, " examples; got batch ", static_cast<int64_t>(header.batch_plus_one()) - 1,
                       " of ", header.examples())));
    }
    if (header.base().incarnation() == options_.incarnation && header.base().count() == header.clock())
      return {};
    return absl::StatusOr<v1::PushReply>(NewReply(
        v1::STALE_VERSION, absl::StrCat("a part of step ", header.clock(), " must be computed from version ",
                                        header.clock(), " of incarnation ", options_.incarnation)));
  }
  if (header.base().incarnation() != options_.incarnation) {
    return absl::StatusOr<v1::PushReply>(NewReply(
        v1::STALE_VERSION,
        absl::StrCat("the gradient was computed from a version of incarnation ", header.base().incarnation(),
                     " of this shard, which is now incarnation ", options_.incarnation)));
  }
  if (header.base().count() > store_->count()) {
    return absl::StatusOr<v1::PushReply>(absl::InvalidArgumentError(
        absl::StrCat("base: version ", header.base().count(), " is yet to come; the shard is at version ",
                     store_->count())));
  }
  if (header.batch_plus_one() > 0 && batches_.Contains(header.batch_plus_one() - 1)) {
    ++counters_.pushes_refused;
    return absl::StatusOr<v1::PushReply>(Complete(
        header, NewReply(v1::DUPLICATE_BATCH,
                         absl::StrCat("batch ", header.batch_plus_one() - 1, " was applied before"))));
  }
  return {};
}

void Shard::HandleBegin(HeldPush push) {
  const v1::PushRequest& header = push.header;
  if (over_) return push.done(NewReply(v1::JOB_OVER, failure_));
  if (absl::Status status = CheckHeader(header); !status.ok()) return push.done(status);
  switch (Check(header.caller())) {
    case CallerCheck::kUnknownYet:
      return push.done(absl::UnavailableError("this shard does not know the caller's membership epoch yet"));
    case CallerCheck::kFenced:
      return push.done(NewReply(v1::FENCED, Fenced(header.caller())));
    case CallerCheck::kLive:
      break;
  }
  switch (policy_->OnPush(KeyOf(header))) {
    case PushDecision::kApply:
    case PushDecision::kStage: {
      if (auto answer = Judge(header); answer.has_value()) {
        push.done(answer->ok() ? absl::StatusOr<PushBegin>(**std::move(answer)) : answer->status());
        return Wake();
      }
      std::unique_ptr<PushArrival> arrival = Arrive(header);
      if (arrival == nullptr) break;
      return push.done(std::move(arrival));
    }
    case PushDecision::kRepeat:
      return RepeatPush(
          push.session, header, [done = std::move(push.done)](absl::StatusOr<PushAnswer> answer) {
            done(answer.ok() ? absl::StatusOr<PushBegin>(std::move(answer->reply)) : answer.status());
          });
    case PushDecision::kHold:
      break;
    case PushDecision::kInvalid:
      return push.done(absl::InvalidArgumentError(absl::StrCat(
          "no push of worker ", header.caller().worker(), " can come with clock ", header.clock(),
          " and part ", header.part(), " while this shard is at version ", store_->count())));
  }
  held_.push_back(std::move(push));
}

std::unique_ptr<PushArrival> Shard::Arrive(v1::PushRequest header) {
  const PushKey key = KeyOf(header);
  // Twice: a connection may have broken, and its other end not yet know.
  constexpr size_t kAtOnce = 2;
  auto& same = arriving_[{key.worker, key.clock, key.part}];
  same.erase(std::remove_if(same.begin(), same.end(), [](const auto& arrival) { return arrival.expired(); }),
             same.end());
  if (same.size() >= kAtOnce) return nullptr;
  auto presence = std::make_shared<const char>();
  same.push_back(presence);

  const MemberState& member = members_.at(key.worker);
  std::shared_ptr<VersionBuilder> builder;
  if (!sync() && options_.config.server().apply() == v1::ServerConfig::APPLY_STREAMED &&
      member.overtaken != key.clock) {
    builder = store_->Build();
  }
  Slab gradient;
  if (builder == nullptr) {
    gradient = store_->TakeSlab();
  } else {
    streamed_ = key;
  }
  return std::make_unique<PushArrival>(std::move(header), kernels(), std::move(builder), std::move(gradient),
                                       std::move(presence));
}

bool Shard::AnswersAfter(const v1::PushRequest& push) const {
  if (sync()) return false;
  const uint32_t worker = push.caller().worker();
  const std::vector<uint32_t> awaited = policy_->WaitingFor(worker, push.clock() + 1);
  return std::all_of(awaited.begin(), awaited.end(), [worker](uint32_t other) { return other == worker; });
}

void Shard::HandlePush(Session session, std::unique_ptr<PushArrival> arrival, PushDone done, bool waited) {
  const v1::PushRequest& header = arrival->header();
  const auto forget = [&] { arriving_.erase({header.caller().worker(), header.clock(), header.part()}); };
  if (over_) return done(PushAnswer{NewReply(v1::JOB_OVER, failure_), {}, nullptr});
  // Again: much may have happened while it arrived.
  if (Check(header.caller()) != CallerCheck::kLive) {
    return done(PushAnswer{NewReply(v1::FENCED, Fenced(header.caller())), {}, nullptr});
  }
  const PushDecision decision = policy_->OnPush(KeyOf(header));
  if (decision == PushDecision::kRepeat) return RepeatPush(session, header, std::move(done));
  if (decision != PushDecision::kApply && decision != PushDecision::kStage) {
    return done(absl::UnavailableError(absl::StrCat("the push at clock ", header.clock(),
                                                    " has lost its turn while it arrived; send it again")));
  }
  if (auto answer = Judge(header); answer.has_value()) {
    forget();
    done(answer->ok() ? absl::StatusOr<PushAnswer>(PushAnswer{**std::move(answer), {}, nullptr})
                      : answer->status());
    return Wake();
  }
  if (decision == PushDecision::kStage) {
    forget();
    return StagePush(*arrival, session, std::move(done));
  }
  if (arrival->overtaken()) return done(PushAnswer{NewReply(v1::SEND_AGAIN), {}, nullptr});
  if (!waited && (!ready_.empty() || !store_->CanPublish())) {
    if (ready_.empty()) short_since_ = options_.clock->Now();
    ready_.push_back({session, std::move(arrival), std::move(done)});
    short_of_memory_ = true;
    return;
  }
  forget();
  ApplyPush(*arrival, done);
  arrival = nullptr;
  Wake();
}

void Shard::ApplyPush(PushArrival& arrival, const PushDone& done) {
  const v1::PushRequest& header = arrival.header();
  if (arrival.non_finite() >= 0) {
    ++counters_.pushes_refused;
    return done(PushAnswer{Complete(header, NewReply(v1::REFUSED, NonFinite(arrival))), {}, nullptr});
  }
  const uint64_t count = store_->count();
  if (arrival.streamed()) {
    // It was not overtaken, and nobody can have done so since.
    store_->Publish(arrival.builder());
    streamed_.reset();
  } else {
    const Slab gradient = arrival.TakeGradient();
    const WeightedGradient weighted{gradient.get(), header.examples()};
    if (streamed_.has_value()) {
      const auto member = members_.find(streamed_->worker);
      if (member != members_.end()) member->second.overtaken = streamed_->clock;
      streamed_.reset();
    }
    store_->Update(absl::MakeConstSpan(&weighted, 1));
  }
  if (header.batch_plus_one() > 0) batches_.Insert(header.batch_plus_one() - 1);
  ++counters_.pushes_applied;
  counters_.version = count + 1;
  v1::PushReply reply = NewReply(v1::OK);
  reply.set_staleness(count - header.base().count());
  staleness_.Add(reply.staleness());
  PushAnswer answer{Complete(header, std::move(reply)), {}, nullptr};
  if (arrival.streamed() &&
      policy_->OnPull(header.caller().worker(), header.clock() + 1) == PullDecision::kReady) {
    answer.made = NewPullReply(v1::OK);
    answer.revoked = Lease(store_->Current());
    counters_.bytes_pulled += static_cast<uint64_t>(store_->elements()) * sizeof(float);
  }
  const std::vector<WorkerClockValue> clocks = policy_->Clocks();
  uint64_t slowest = header.clock() + 1;
  for (const WorkerClockValue& value : clocks) slowest = std::min(slowest, value.clock);
  lead_.Add(header.clock() + 1 - slowest);
  done(std::move(answer));
}

v1::PushReply Shard::Complete(const v1::PushRequest& header, v1::PushReply reply) {
  policy_->Complete(KeyOf(header));
  MemberState& member = members_.at(header.caller().worker());
  member.answers[header.clock()] = reply;
  if (member.answers.size() > kRecorded) member.answers.erase(member.answers.begin());
  member.overtaken.reset();
  return reply;
}

void Shard::StagePush(PushArrival& arrival, Session session, PushDone done) {
  const v1::PushRequest& header = arrival.header();
  StagedPart& staged = staged_[header.part()];
  staged.gradient = arrival.TakeGradient();
  staged.examples = header.examples();
  staged.waiters.push_back({session, std::move(done), options_.clock->Now()});
  if (arrival.non_finite() >= 0) staged.refusal = NonFinite(arrival);
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

void Shard::RepeatPush(Session session, const v1::PushRequest& header, PushDone done) {
  ++counters_.pushes_repeated;
  if (sync()) {
    const auto staged = staged_.find(header.part());
    if (policy_->JoinClock() == header.clock() && staged != staged_.end()) {
      staged->second.waiters.push_back({session, std::move(done), options_.clock->Now()});
      return;
    }
    const auto commit = commits_.find(header.clock());
    if (commit == commits_.end()) {
      return done(PushAnswer{
          NewReply(v1::STEP_PAST, absl::StrCat("step ", header.clock(), " is long past")), {}, nullptr});
    }
    const auto& parts = commit->second;
    if (std::find(parts.begin(), parts.end(), header.part()) == parts.end()) {
      return done(PushAnswer{
          NewReply(v1::REFUSED,
                   absl::StrCat("step ", header.clock(), " was committed without part ", header.part())),
          {},
          nullptr});
    }
    v1::PushReply reply = NewReply(v1::OK);
    reply.mutable_version()->set_count(header.clock() + 1);
    return done(PushAnswer{std::move(reply), {}, nullptr});
  }
  const auto& answers = members_.at(header.caller().worker()).answers;
  const auto answer = answers.find(header.clock());
  if (answer != answers.end()) return done(PushAnswer{answer->second, {}, nullptr});
  // Beyond what is recorded, or before this life's first clock.
  done(absl::InvalidArgumentError(absl::StrCat("clock ", header.clock(), " of worker ",
                                               header.caller().worker(),
                                               " is long completed and its answer no longer on record")));
}

// ---- pulls

void Shard::HandlePull(ParkedPull pull) {
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
        out.revoked = Lease(version);
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
  if (request.caller().model_hash() != model_hash_) {
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

std::shared_ptr<const std::atomic<bool>> Shard::Lease(const std::shared_ptr<const ShardVersion>& version) {
  readings_.remove_if([](const Reading& reading) { return reading.version.expired(); });
  for (const Reading& reading : readings_) {
    if (reading.version.lock() == version) return reading.revoked;
  }
  readings_.push_back({version, std::make_shared<std::atomic<bool>>(false)});
  return readings_.back().revoked;
}

// ---- waiting

void Shard::Wake() {
  while (!ready_.empty() && store_->CanPublish()) {
    ReadyPush ready = std::move(ready_.front());
    ready_.pop_front();
    short_since_ = options_.clock->Now();
    HandlePush(ready.session, std::move(ready.arrival), std::move(ready.done), /*waited=*/true);
  }
  if (late_commit_.has_value() && store_->CanPublish()) {
    const v1::CommitStep commit = *std::move(late_commit_);
    late_commit_.reset();
    HandleCommit(commit);
  }
  short_of_memory_ = !ready_.empty() || late_commit_.has_value();
  std::list<HeldPush> held;
  held.swap(held_);
  for (HeldPush& push : held) HandleBegin(std::move(push));
  for (auto it = parked_.begin(); it != parked_.end();) {
    it = TryAnswerPull(*it) ? parked_.erase(it) : std::next(it);
  }
  counters_.parked_pulls = parked_.size();
}

void Shard::HandleEnd(Session session) {
  const auto ended = [session](const auto& call) { return call.session == session; };
  const auto cancel = [](const auto& call) { call.done(absl::CancelledError("the connection has ended")); };
  EndIf(held_, ended, cancel);
  EndIf(ready_, ended, cancel);
  EndIf(parked_, ended, cancel);
  for (auto& [part, staged] : staged_) EndIf(staged.waiters, ended, cancel);
  counters_.parked_pulls = parked_.size();
}

void Shard::HandleTick() {
  const absl::Time now = options_.clock->Now();
  const auto late = [&](const auto& call) { return call.since <= now - wait_limit(); };
  EndIf(parked_, late, [&](const ParkedPull& pull) {
    pull.done(absl::DeadlineExceededError(absl::StrCat("a pull at clock ", pull.request.clock(), " waited ",
                                                       absl::FormatDuration(now - pull.since), " for ",
                                                       WhoIsAwaited(pull.request))));
  });
  EndIf(held_, late, [](const HeldPush& push) {
    push.done(absl::DeadlineExceededError(
        absl::StrCat("the push at clock ", push.header.clock(),
                     " waited for the pushes of the same worker before it, which did not come")));
  });
  for (auto& [part, staged] : staged_) {
    // The part stays staged: a repeat of the push finds it.
    EndIf(staged.waiters, late, [&, part = part](const StagedPart::Waiter& waiter) {
      waiter.done(absl::DeadlineExceededError(absl::StrCat(
          "part ", part, " waited ", absl::FormatDuration(now - waiter.since), " for ", MissingParts())));
    });
  }
  for (auto it = pins_.begin(); it != pins_.end();) {
    it = it->second.deadline <= now ? pins_.erase(it) : std::next(it);
  }
  if ((!ready_.empty() || late_commit_.has_value()) && now - short_since_ > kReaderPatience) {
    readings_.remove_if([](const Reading& reading) { return reading.version.expired(); });
    if (!readings_.empty()) *readings_.front().revoked = true;
  }
  // Arrivals are given up without a word.
  if (store_ != nullptr) Wake();
}

void Shard::FailWaiting(const std::function<bool(uint32_t)>& which, v1::Outcome outcome,
                        const std::string& reason) {
  const auto push_answer = [&] { return PushAnswer{NewReply(outcome, reason), {}, nullptr}; };
  EndIf(
      held_, [&](const HeldPush& push) { return which(push.header.caller().worker()); },
      [&](const HeldPush& push) { push.done(PushBegin(NewReply(outcome, reason))); });
  EndIf(
      ready_, [&](const ReadyPush& push) { return which(push.arrival->header().caller().worker()); },
      [&](const ReadyPush& push) { push.done(push_answer()); });
  EndIf(
      parked_, [&](const ParkedPull& pull) { return which(pull.request.caller().worker()); },
      [&](const ParkedPull& pull) {
        pull.done(PullAnswer{NewPullReply(outcome, reason), nullptr, nullptr});
      });
  counters_.parked_pulls = parked_.size();
  if (!over_) return;
  // Staged parts have no owner: whoever computed them, they are the step's. Only the end of the job ends
  // their wait.
  for (auto& [part, staged] : staged_) {
    for (const StagedPart::Waiter& waiter : staged.waiters) waiter.done(push_answer());
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

std::string Shard::NonFinite(const PushArrival& arrival) const {
  return absl::StrCat("the gradient of ", store_->Describe(arrival.non_finite()), " is not finite");
}

v1::PushReply Shard::NewReply(v1::Outcome outcome, std::string reason) const {
  v1::PushReply reply;
  reply.set_outcome(outcome);
  reply.set_reason(std::move(reason));
  reply.set_epoch(epoch_);
  reply.mutable_version()->set_incarnation(options_.incarnation);
  if (store_ != nullptr) reply.mutable_version()->set_count(store_->count());
  return reply;
}

v1::PullReply Shard::NewPullReply(v1::Outcome outcome, std::string reason) const {
  v1::PullReply reply;
  reply.set_outcome(outcome);
  reply.set_reason(std::move(reason));
  reply.set_epoch(epoch_);
  reply.mutable_version()->set_incarnation(options_.incarnation);
  if (store_ == nullptr) return reply;
  reply.mutable_version()->set_count(store_->count());
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
