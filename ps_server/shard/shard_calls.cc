// The part of Shard that answers pulls and composes the answers.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/job_failure.h"
#include "common/protocol/job_identity.h"
#include "common/telemetry/logging.h"
#include "ps_server/shard/shard.h"

namespace weir {
absl::Status Shard::CheckAddressee(uint64_t job, uint32_t shard_plus_one) const {
  return weir::CheckAddressee(job_, options_.index.value_or(install_.shard()), job, shard_plus_one);
}

void Shard::HandlePull(ParkedPull pull) {
  const v1::PullRequest& request = pull.request;
  if (absl::Status addressee = CheckAddressee(request.caller().job(), request.caller().shard_plus_one());
      !addressee.ok()) {
    return pull.done(addressee);
  }
  bool lost = false;
  if (mode_.keeps_clocks && store_ != nullptr && request.pin() == 0 &&
      members_.Check(request.caller()) == ShardMembers::Standing::kLive) {
    if (request.answered_clock() > request.clock()) {
      return pull.done(absl::InvalidArgumentError(absl::StrCat(
          "answered_clock: ", request.answered_clock(), " is above the pull's clock ", request.clock())));
    }
    // If a push of this worker is pending in the log, the pull waits for it, and the clock must not change
    // until then.
    const uint32_t worker = request.caller().worker();
    lost = !log_.OnItsWay(worker) && DeclareLost(worker, request.answered_clock());
  }
  if (!TryAnswerPull(pull)) {
    if (absl::Status full = CheckRoomToWait(pull.worker()); !full.ok()) return pull.done(full);
    pull.turn = calls_.NewTurn();
    calls_.parked.Add(std::move(pull));
    counters_.parked_pulls = calls_.parked.size();
  }
  if (lost) Wake();
}

bool Shard::DeclareLost(uint32_t worker, uint64_t answered_clock) {
  const uint64_t lost = members_.DeclareLost(worker, answered_clock, *policy_);
  counters_.pushes_lost += lost;
  return lost > 0;
}

bool Shard::TryAnswerPull(const ParkedPull& pull) {
  const v1::PullRequest& request = pull.request;
  // `at`: the version of the rows; null: the newest one.
  const auto answer = [&](v1::Outcome outcome, std::string reason, std::shared_ptr<const LentVersion> version,
                          const ShardTables::Pinned* at = nullptr) {
    PullAnswer out;
    out.header = NewPullReply(outcome, std::move(reason), request.with_clocks());
    if (version != nullptr && !pull.rows->empty()) {
      absl::StatusOr<std::shared_ptr<const ReadRows>> rows = tables_->Read(*pull.rows, row_memory_, at);
      if (!rows.ok()) {
        pull.done(rows.status());
        return true;
      }
      out.rows = *std::move(rows);
      for (const TableKeys& of : *pull.rows) {
        CountPulled(of.count * tables_->table(of.table).dim(), request.dtype());
      }
    }
    if (version != nullptr) {
      if (RowsOnArrival(options_.config)) {
        out.header.set_table_version(at == nullptr ? tables_->version() : at->version());
      }
      out.header.mutable_version()->set_count(version->count);
      if (!request.header_only()) {
        CountPulled(static_cast<uint64_t>(store_->elements()), request.dtype());
        out.version = std::move(version);
      }
    }
    pull.done(std::move(out));
    return true;
  };
  const auto holder = [&] { return Holder{pull.session, request.caller().worker(), request.pin()}; };
  if (over_) return answer(v1::JOB_OVER, std::string(failure_.message()), nullptr);
  if (store_ == nullptr) {
    pull.done(absl::UnavailableError("this shard has no model yet"));
    return true;
  }
  if (request.caller().model_hash() != model_hash_) {
    pull.done(
        absl::InvalidArgumentError("the pull is for a different model from this job's (model_hash differs)"));
    return true;
  }
  if (initial_.awaited()) {
    pull.done(absl::UnavailableError("this shard has no initial values yet"));
    return true;
  }
  if (request.pin() != 0) {
    const UpdateRoom::Pin* const pin = room_.Find(request.pin());
    if (pin == nullptr) {
      pull.done(absl::FailedPreconditionError(
          absl::StrCat("pin ", request.pin(), " is not held here; its lease may have ended")));
      return true;
    }
    return answer(v1::OK, "", store_->LendAgain(*pin->version, holder()), pin->tables.get());
  }
  switch (members_.Check(request.caller())) {
    case ShardMembers::Standing::kUnknownYet:
      pull.done(absl::UnavailableError("this shard does not know the caller's membership epoch yet"));
      return true;
    case ShardMembers::Standing::kFenced:
      return answer(v1::FENCED, Fenced(request.caller()), nullptr);
    case ShardMembers::Standing::kLive:
      break;
  }
  // The rows are the newest, whatever the weights are.
  if (request.header_only() && request.rows_alone() && RowsOnArrival(options_.config)) {
    return answer(v1::OK, "", store_->Lend(holder()));
  }
  switch (policy_->OnPull(request.caller().worker(), request.clock())) {
    case PullDecision::kWait:
      return false;
    case PullDecision::kPast:
      return answer(v1::STEP_PAST, absl::StrCat("step ", request.clock(), " is past"), nullptr);
    case PullDecision::kReady:
      return answer(v1::OK, "", store_->Lend(holder()));
  }
  return false;
}

// ---- words

std::string Shard::Fenced(const v1::Caller& caller) const {
  return absl::StrCat("worker ", caller.worker(), " with incarnation ", caller.incarnation(),
                      " is not in membership epoch ", members_.epoch());
}

std::string Shard::NonFinite(const PushArrival& arrival) const {
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
                       batch, batch * options_.config.data().batch_size(),
                       push.batch_plus_one() == 0 ? 0 : push.examples());
}

v1::PushReply Shard::NewReply(v1::Outcome outcome, std::string reason) const {
  v1::PushReply reply;
  reply.set_outcome(outcome);
  reply.set_reason(std::move(reason));
  if (outcome == v1::JOB_OVER) reply.set_failure_kind(KindOf(failure_));
  reply.set_epoch(members_.epoch());
  reply.mutable_version()->set_incarnation(incarnation_);
  if (store_ != nullptr) reply.mutable_version()->set_count(store_->count());
  return reply;
}

v1::PullReply Shard::NewPullReply(v1::Outcome outcome, std::string reason, bool with_clocks) const {
  v1::PullReply reply;
  reply.set_outcome(outcome);
  reply.set_reason(std::move(reason));
  if (outcome == v1::JOB_OVER) reply.set_failure_kind(KindOf(failure_));
  reply.set_epoch(members_.epoch());
  reply.mutable_version()->set_incarnation(incarnation_);
  if (store_ == nullptr) return reply;
  reply.mutable_version()->set_count(store_->count());
  reply.set_elements(store_->elements());
  if (with_clocks && mode_.keeps_clocks) {
    for (const WorkerClockValue& value : policy_->Clocks()) {
      v1::WorkerClock* clock = reply.add_clocks();
      clock->set_worker(value.worker);
      clock->set_clock(value.clock);
    }
  }
  return reply;
}

}  // namespace weir
