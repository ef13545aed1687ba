#include "ps_server/shard/incarnation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/exchange_layout.h"
#include "common/protocol/job_failure.h"
#include "common/protocol/limits.h"
#include "common/protocol/part_assignment.h"
#include "common/protocol/push_weight.h"
#include "common/telemetry/logging.h"

namespace weir {
namespace {

// The verdict on a push that the shard would take: OK, unless its header says that a value is not finite.
Verdict AsClaimed(const v1::PushRequest& header) {
  return header.refused().empty() ? Verdict{} : Verdict{v1::REFUSED, header.refused()};
}

// The form of a histogram in messages and checkpoints.
v1::Samples ToSamples(const IntHistogram& histogram) {
  v1::Samples out;
  out.mutable_counts()->Add(histogram.counts().begin(), histogram.counts().end());
  out.set_overflow(histogram.overflow());
  out.set_max(histogram.max());
  return out;
}

StalenessRule StalenessRuleOf(const v1::StalenessPolicy& policy) {
  StalenessRule rule;
  rule.scales = policy.type() == v1::StalenessPolicy::STALENESS_SCALE;
  if (policy.type() == v1::StalenessPolicy::STALENESS_DROP) rule.limit = policy.limit();
  return rule;
}

void AddSamples(const v1::Samples& samples, IntHistogram& into) {
  for (int value = 0; value < samples.counts_size(); ++value) {
    if (samples.counts(value) > 0) into.Add(static_cast<uint64_t>(value), samples.counts(value));
  }
  if (samples.overflow() > 0) into.Add(samples.max(), samples.overflow());
}

}  // namespace

void Incarnation::Begin(uint64_t number, ShardLoader::Loaded loaded,
                        std::unique_ptr<ConsistencyPolicy> policy) {
  number_ = number;
  staleness_rule_ = StalenessRuleOf(config_.consistency().staleness_policy());
  store_ = std::move(loaded.store);
  tables_ = std::move(loaded.tables);
  policy_ = std::move(policy);
  model_hash_ = store_->model().Hash();
  counters_.version = store_->count();
  Restore(loaded.state);
  for (const v1::LoggedPush& record : loaded.records) Replay(record);
  if (!loaded.records.empty()) LogInfo("replayed ", loaded.records.size(), " records of the log");
  members_.EndRestore();
}

void Incarnation::End() {
  number_ = model_hash_ = 0;
  staged_ = StagedParts();
  early_rows_ = EarlyRows();
  tally_ = PushTally();
  members_ = ShardMembers(TraitsOf(config_).keeps_clocks);
  policy_ = nullptr;
  store_->Retire();
  store_ = nullptr;
  tables_ = nullptr;
}

void Incarnation::Restore(const v1::ShardState& state) {
  counters_.pushes_applied = state.pushes_applied();
  counters_.pushes_refused = state.pushes_refused();
  counters_.pushes_dropped = state.pushes_dropped();
  AddSamples(state.version_staleness(), tally_.staleness);
  AddSamples(state.lead(), tally_.lead);
  tally_.batches.Insert(state.batches());
  tally_.stale_batches.Insert(state.stale_batches());
  staged_.Restore(state);
  early_rows_.Begin(install_.shard(), install_.num_shards(), state);
  uint64_t lost = 0;
  std::vector<WorkerRecord> records;
  for (const v1::WorkerState& worker : state.workers()) {
    records.push_back({worker.worker(), worker.next_clock(), worker.counts()});
    lost += members_.Restore(worker);
  }
  // If the state was combined from the states of other shards, it has only the workers' counts.
  counters_.pushes_lost = std::max(lost, state.pushes_lost());
  policy_->Restore(store_->count(), records);
}

void Incarnation::Replay(const v1::LoggedPush& record) {
  if (record.has_membership()) {
    members_.Follow(record.membership(), *policy_);
    return;
  }
  const v1::PushRequest& push = record.push();
  members_.FollowRecord(push.caller(), *policy_);
  // If the incarnation that wrote this record did not know a clock of the worker, the clock was lost.
  DeclareLost(push.caller().worker(), push.clock());
  v1::PushReply reply;
  reply.set_outcome(record.outcome());
  reply.set_reason(record.reason());
  reply.set_staleness(record.staleness());
  reply.mutable_version()->set_incarnation(push.base().incarnation());
  // As ShardAnswers has it: of a push without an update the version that the shard was at.
  reply.mutable_version()->set_count(record.outcome() == v1::OK ? record.version()
                                                                : counters_.version.load());
  Record(push, &reply);
}

v1::ShardState Incarnation::State() const {
  v1::ShardState state;
  state.set_shard(install_.shard());
  state.set_num_shards(install_.num_shards());
  state.mutable_version()->set_incarnation(number_);
  state.mutable_version()->set_count(store_->count());
  state.set_epoch(members_.epoch());
  for (const WorkerRecord& record : policy_->Records()) {
    v1::WorkerState& worker = *state.add_workers();
    worker.set_worker(record.worker);
    worker.set_next_clock(record.clock);
    worker.set_counts(record.counts);
    members_.Save(worker);
  }
  *state.mutable_batches() = tally_.batches.ToProto();
  *state.mutable_stale_batches() = tally_.stale_batches.ToProto();
  staged_.Save(state);
  early_rows_.Save(state);
  state.set_pushes_applied(counters_.pushes_applied);
  state.set_pushes_refused(counters_.pushes_refused);
  state.set_pushes_dropped(counters_.pushes_dropped);
  state.set_pushes_lost(counters_.pushes_lost);
  *state.mutable_version_staleness() = ToSamples(tally_.staleness);
  *state.mutable_lead() = ToSamples(tally_.lead);
  return state;
}

void Incarnation::Describe(v1::ShardStats* stats) const {
  stats->mutable_version()->set_incarnation(number_);
  stats->mutable_version()->set_count(counters_.version);
  stats->set_pushes_applied(counters_.pushes_applied);
  stats->set_pushes_refused(counters_.pushes_refused);
  stats->set_pushes_dropped(counters_.pushes_dropped);
  stats->set_pushes_lost(counters_.pushes_lost);
  stats->set_batches_settled(tally_.batches_settled());
  *stats->mutable_version_staleness() = ToSamples(tally_.staleness);
  *stats->mutable_lead() = ToSamples(tally_.lead);
  if (policy_ != nullptr) AddClocks(*stats->mutable_clocks());
}

void Incarnation::AddClocks(google::protobuf::RepeatedPtrField<v1::WorkerClock>& clocks) const {
  for (const WorkerClockValue& value : policy_->Clocks()) {
    v1::WorkerClock& clock = *clocks.Add();
    clock.set_worker(value.worker);
    clock.set_clock(value.clock);
  }
}

absl::Status Incarnation::CheckModel(const v1::PushRequest& header) const {
  if (store_ == nullptr) return absl::UnavailableError("this shard has no model yet");
  if (header.caller().model_hash() != model_hash_) {
    return absl::InvalidArgumentError(
        "the push is for a different model from this job's (model_hash differs)");
  }
  if (static_cast<int64_t>(header.elements()) != store_->elements()) {
    return absl::InvalidArgumentError(absl::StrCat("elements: the push has ", header.elements(),
                                                   " values; this shard has ", store_->elements()));
  }
  return absl::OkStatus();
}

absl::Status Incarnation::CheckHeader(const v1::PushRequest& header) const {
  if (header.examples() == 0) return absl::InvalidArgumentError("examples: must be at least 1");
  WEIR_RETURN_IF_ERROR(CheckPushWeight(header.weight(), TraitsOf(config_).commits_steps));
  if (header.refused().size() > kMaxRefusalBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "refused: ", header.refused().size(), " bytes of reason; at most ", kMaxRefusalBytes, " are taken"));
  }
  return CheckPushType(header);
}

absl::StatusOr<Verdict> Incarnation::VerdictOn(const v1::PushRequest& header, uint64_t pending) const {
  if (TraitsOf(config_).commits_steps) {
    const uint64_t batch = BatchOf(header.clock(), header.part(), install_.parts());
    const uint64_t first = batch * ExamplesOfBatch(config_);
    const uint64_t examples = std::min<uint64_t>(ExamplesOfBatch(config_), install_.total_examples() - first);
    if (header.batch_plus_one() != batch + 1 || header.examples() != examples) {
      return absl::InvalidArgumentError(
          absl::StrCat("part ", header.part(), " of step ", header.clock(), " is batch ", batch, " of ",
                       examples, " examples; got batch ", static_cast<int64_t>(header.batch_plus_one()) - 1,
                       " of ", header.examples()));
    }
    if (header.base().incarnation() == number_ && header.base().count() == header.clock()) {
      return AsClaimed(header);
    }
    return absl::InvalidArgumentError(
        absl::StrCat("base: a part of step ", header.clock(), " must be computed from version ",
                     header.clock(), " of incarnation ", number_, "; got version ", header.base().count(),
                     " of incarnation ", header.base().incarnation()));
  }
  if (header.base().incarnation() != number_) {
    return Verdict{v1::STALE_VERSION, absl::StrCat("the gradient was computed from a version of incarnation ",
                                                   header.base().incarnation(),
                                                   " of this shard, which is now incarnation ", number_)};
  }
  if (header.base().count() > store_->count()) {
    return absl::InvalidArgumentError(absl::StrCat("base: version ", header.base().count(),
                                                   " is yet to come; the shard is at version ",
                                                   store_->count()));
  }
  if (header.batch_plus_one() > 0 && tally_.batches.Contains(header.batch_plus_one() - 1)) {
    return Verdict{v1::DUPLICATE_BATCH,
                   absl::StrCat("batch ", header.batch_plus_one() - 1, " was done before")};
  }
  const Verdict claimed = AsClaimed(header);
  const uint64_t staleness = StalenessOf(header, pending);
  if (claimed.outcome != v1::OK || !staleness_rule_.Drops(staleness)) return claimed;
  return Verdict{v1::REFUSED,
                 absl::StrCat("too stale: the shard has made ", staleness,
                              " versions since the worker pulled, and consistency.staleness_policy.limit is ",
                              staleness_rule_.limit),
                 staleness};
}

double Incarnation::FactorOf(const v1::PushRequest& header, uint64_t pending) const {
  return staleness_rule_.scales ? staleness_rule_.Factor(StalenessOf(header, pending)) : 1;
}

std::string Incarnation::NonFinite(const PushArrival& arrival) const {
  const v1::PushRequest& push = arrival.header();
  const auto found = [&] {
    if (!arrival.non_finite().has_value()) {
      return NonFiniteValue(arrival.non_finite_row()->what, arrival.non_finite_row()->value);
    }
    const auto& [at, value] = *arrival.non_finite();
    return NonFiniteValue(absl::StrCat("the gradient of ", store_->Describe(at)), value);
  };
  const uint64_t batch = push.batch_plus_one() - 1;
  return NonFinitePush(push.caller().worker(), members_.TaskOf(push.caller().worker()), found(), push.clock(),
                       batch, batch * ExamplesOfBatch(config_),
                       push.batch_plus_one() == 0 ? 0 : push.examples());
}

bool Incarnation::DeclareLost(uint32_t worker, uint64_t answered_clock) {
  const uint64_t lost = members_.DeclareLost(worker, answered_clock, *policy_);
  counters_.pushes_lost += lost;
  return lost > 0;
}

absl::Status Incarnation::Apply(const Decision& decision) {
  if (decision.verdict.outcome != v1::OK) return absl::OkStatus();
  if (decision.builder != nullptr) {
    // The push was not overtaken, and nothing can have overtaken it since.
    store_->Publish(*decision.builder);
  } else {
    const WeightedGradient weighted{decision.gradient.get()};
    StepFactors factors;
    factors.gradient = decision.gradient_factor;
    store_->Update(absl::MakeConstSpan(&weighted, 1), factors);
  }
  if (tables_ == nullptr) return absl::OkStatus();
  const WeightedRows weighted{decision.rows.get()};
  return tables_->Update(absl::MakeConstSpan(&weighted, 1), decision.gradient_factor);
}

void Incarnation::Record(const v1::PushRequest& header, v1::PushReply* reply) {
  const bool applied = reply->outcome() == v1::OK;
  ++(applied ? counters_.pushes_applied : counters_.pushes_refused);
  // Only a push that is too stale is refused with its staleness.
  if (!applied && reply->staleness() > 0) ++counters_.pushes_dropped;
  // A refused batch counts as done, since it would be refused again.
  const bool batch_done = applied || reply->outcome() == v1::REFUSED;
  if (batch_done && header.batch_plus_one() > 0) tally_.batches.Insert(header.batch_plus_one() - 1);
  // With the log, this incarnation knows every push that was answered. Without the log, this push may be a
  // repeat of a push that an earlier incarnation has acknowledged.
  const bool stale = reply->outcome() == v1::STALE_VERSION;
  if (stale && logs() && header.batch_plus_one() > 0) {
    tally_.stale_batches.Insert(header.batch_plus_one() - 1);
  }
  if (applied) {
    counters_.version = reply->version().count();
    reply->set_staleness(reply->version().count() - 1 - header.base().count());
    tally_.staleness.Add(reply->staleness());
  }
  policy_->Complete(KeyOf(header));
  const uint32_t worker = header.caller().worker();
  members_.Record(worker, header.clock(), *reply);
  if (stale && !logs()) {
    members_.AddLost(worker, header.clock());
    ++counters_.pushes_lost;
  }
  if (!applied) return;
  // If no worker counts, JoinClock() is the highest clock on record, which is not below this one.
  const uint64_t completed = header.clock() + 1;
  tally_.lead.Add(completed - std::min(completed, policy_->JoinClock()));
}

absl::StatusOr<std::optional<v1::ShardReport>> Incarnation::Stage(const v1::PushRequest& header,
                                                                  Slab gradient, PushedRows rows,
                                                                  std::string refusal,
                                                                  StagedParts::Waiter& waiter) {
  if (rows_early()) {
    if (refusal.empty() && early_rows_.Take(header.part(), rows)) {
      const WeightedRows weighted{&rows};
      const absl::Status taken = tables_->Update(absl::MakeConstSpan(&weighted, 1));
      if (!taken.ok()) return taken;
    }
    rows = {};
  }
  staged_.Stage(header, std::move(gradient), std::move(rows), std::move(refusal), std::move(waiter));
  policy_->Complete(KeyOf(header));
  std::optional<v1::ShardReport> report;
  if (const std::optional<uint64_t> complete = policy_->CompleteStep(); complete.has_value()) {
    *report.emplace().mutable_staged() = staged_.Report(*complete);
  }
  return report;
}

v1::StepMeasured Incarnation::Measure(const v1::MeasureStep& measure,
                                      const StagedParts::Gradients& gradients) const {
  const StepSquares squares = store_->Measure(gradients.dense, measure.gradient_factor());
  v1::StepMeasured measured;
  measured.set_step(measure.step());
  *measured.mutable_parts() = measure.parts();
  measured.set_gradient_factor(measure.gradient_factor());
  measured.set_gradient(squares.gradient.Serialize());
  for (const auto& [tensor, of] : squares.tensors) {
    v1::TensorSums& sums = *measured.add_tensors();
    sums.set_tensor(static_cast<uint32_t>(tensor));
    sums.set_weights(of.weights.Serialize());
    sums.set_update(of.update.Serialize());
  }
  return measured;
}

absl::Status Incarnation::Commit(
    const v1::CommitStep& commit, const StagedParts::Gradients& gradients,
    const std::function<void(const Verdict& verdict, std::vector<StagedParts::Waiter>& waiters)>& answer) {
  StepFactors factors;
  if (commit.gradient_factor() != 0) factors.gradient = commit.gradient_factor();
  factors.tensors.assign(commit.tensor_factors().begin(), commit.tensor_factors().end());
  if (!factors.tensors.empty() && factors.tensors.size() != store_->model().tensors.size()) {
    return JobFailure(
        v1::FAILURE_INTERNAL,
        absl::StrCat("the commit of step ", commit.step(), " has factors of ", factors.tensors.size(),
                     " tensors, but the model has ", store_->model().tensors.size()));
  }
  store_->Update(gradients.dense, factors);
  absl::Status rows;
  if (rows_early()) {
    // On every shard the versions of tables count all parts of a step, also parts that came too late.
    for (size_t part = early_rows_.taken(); part < install_.parts(); ++part) rows.Update(tables_->Update({}));
    early_rows_.Commit();
  } else if (tables_ != nullptr) {
    rows = tables_->Update(gradients.rows);
  }
  if (!rows.ok()) return rows;
  policy_->Commit();
  counters_.version = commit.step() + 1;
  staged_.Commit(commit, [&](const Verdict& verdict, std::vector<StagedParts::Waiter>& waiters) {
    const bool applied = verdict.outcome == v1::OK;
    ++(applied ? counters_.pushes_applied : counters_.pushes_refused);
    if (applied) {
      tally_.staleness.Add(0);
      tally_.lead.Add(0);
    }
    answer(verdict, waiters);
  });
  return absl::OkStatus();
}

}  // namespace weir
