#include "ps_server/shard/shard_answers.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/codec/value_codec.h"
#include "common/protocol/job_failure.h"
#include "common/protocol/mode_traits.h"

namespace weir {

Verdict ShardAnswers::JobOver() const { return {v1::JOB_OVER, std::string(of_.over->message())}; }

template <typename Reply>
void ShardAnswers::Fill(const Verdict& verdict, Reply& reply) const {
  reply.set_outcome(verdict.outcome);
  reply.set_reason(verdict.reason);
  if (verdict.outcome == v1::JOB_OVER) reply.set_failure_kind(KindOf(*of_.over));
  reply.set_epoch(of_.now.members().epoch());
  reply.mutable_version()->set_incarnation(of_.now.number());
  if (of_.now.store() != nullptr) reply.mutable_version()->set_count(of_.now.store()->count());
}

PushAnswer ShardAnswers::ToPush(const Verdict& verdict) const {
  PushAnswer answer;
  Fill(verdict, answer.reply);
  answer.reply.set_staleness(verdict.staleness);
  return answer;
}

void ShardAnswers::Answer(const PushDone& done, const absl::StatusOr<Verdict>& verdict) const {
  done(verdict.ok() ? absl::StatusOr<PushAnswer>(ToPush(*verdict)) : verdict.status());
}

v1::PullReply ShardAnswers::ToPull(const Verdict& verdict, bool with_clocks) const {
  v1::PullReply reply;
  Fill(verdict, reply);
  if (of_.now.store() == nullptr) return reply;
  reply.set_elements(of_.now.store()->elements());
  if (with_clocks && TraitsOf(of_.config).keeps_clocks) of_.now.AddClocks(*reply.mutable_clocks());
  return reply;
}

void ShardAnswers::CountPulled(uint64_t elements, v1::Dtype dtype) {
  of_.counters.bytes_pulled += elements * static_cast<uint64_t>(BytesPerValue(dtype));
}

bool ShardAnswers::TryPull(const ParkedPull& pull) {
  const v1::PullRequest& request = pull.request;
  // `at`: the version of the rows; null: the newest one.
  const auto answer = [&](const Verdict& verdict, std::shared_ptr<const LentVersion> version,
                          const ShardTables::Pinned* at = nullptr) {
    PullAnswer out;
    out.header = ToPull(verdict, request.with_clocks());
    if (version != nullptr && !pull.rows->empty()) {
      absl::StatusOr<std::shared_ptr<const ReadRows>> rows =
          of_.now.tables()->Read(*pull.rows, row_memory_, at);
      if (!rows.ok()) {
        pull.done(rows.status());
        return true;
      }
      out.rows = *std::move(rows);
      for (const TableKeys& of : *pull.rows) {
        CountPulled(of.count * of_.now.tables()->table(of.table).dim(), request.dtype());
      }
    }
    if (version != nullptr) {
      if (RowsOnArrival(of_.config)) {
        out.header.set_table_version(at == nullptr ? of_.now.tables()->version() : at->version());
      }
      out.header.mutable_version()->set_count(version->count);
      if (!request.header_only()) {
        CountPulled(static_cast<uint64_t>(of_.now.store()->elements()), request.dtype());
        out.version = std::move(version);
      }
    }
    pull.done(std::move(out));
    return true;
  };
  const auto holder = [&] { return Holder{pull.session, request.caller().worker(), request.pin()}; };
  if (of_.over) return answer(JobOver(), nullptr);
  if (of_.now.store() == nullptr) {
    pull.done(absl::UnavailableError("this shard has no model yet"));
    return true;
  }
  if (request.caller().model_hash() != of_.now.model_hash()) {
    pull.done(
        absl::InvalidArgumentError("the pull is for a different model from this job's (model_hash differs)"));
    return true;
  }
  if (of_.initial.awaited()) {
    pull.done(absl::UnavailableError("this shard has no initial values yet"));
    return true;
  }
  if (request.pin() != 0) {
    const UpdateRoom::Pin* const pin = of_.room.Find(request.pin());
    if (pin == nullptr) {
      pull.done(absl::FailedPreconditionError(
          absl::StrCat("pin ", request.pin(), " is not held here; its lease may have ended")));
      return true;
    }
    return answer({}, of_.now.store()->LendAgain(*pin->version, holder()), pin->tables.get());
  }
  if (const absl::StatusOr<Verdict> standing = of_.now.members().Check(request.caller()); !standing.ok()) {
    pull.done(standing.status());
    return true;
  } else if (standing->outcome != v1::OK) {
    return answer(*standing, nullptr);
  }
  // The rows are the newest, whatever the weights are.
  if (request.header_only() && request.rows_alone() && RowsOnArrival(of_.config)) {
    return answer({}, of_.now.store()->Lend(holder()));
  }
  switch (of_.now.policy()->OnPull(request.caller().worker(), request.clock())) {
    case PullDecision::kWait:
      return false;
    case PullDecision::kPast:
      return answer({v1::STEP_PAST, absl::StrCat("step ", request.clock(), " is past")}, nullptr);
    case PullDecision::kReady:
      return answer({}, of_.now.store()->Lend(holder()));
  }
  return false;
}

}  // namespace weir
