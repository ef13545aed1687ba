#include "ps_server/shard/shard_answers.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/codec/value_codec.h"
#include "common/protocol/job_failure.h"
#include "common/protocol/mode_traits.h"

namespace weir {

Verdict ShardAnswers::JobOver() const { return {v1::JOB_OVER, std::string(over_->message())}; }

template <typename Reply>
void ShardAnswers::Fill(const Verdict& verdict, Reply& reply) const {
  reply.set_outcome(verdict.outcome);
  reply.set_reason(verdict.reason);
  if (verdict.outcome == v1::JOB_OVER) reply.set_failure_kind(KindOf(*over_));
  reply.set_epoch(now_.members().epoch());
  reply.mutable_version()->set_incarnation(now_.number());
  if (now_.store() != nullptr) reply.mutable_version()->set_count(now_.store()->count());
}

PushAnswer ShardAnswers::ToPush(const Verdict& verdict) const {
  PushAnswer answer;
  Fill(verdict, answer.reply);
  return answer;
}

void ShardAnswers::Answer(const PushDone& done, const absl::StatusOr<Verdict>& verdict) const {
  done(verdict.ok() ? absl::StatusOr<PushAnswer>(ToPush(*verdict)) : verdict.status());
}

v1::PullReply ShardAnswers::ToPull(const Verdict& verdict, bool with_clocks) const {
  v1::PullReply reply;
  Fill(verdict, reply);
  if (now_.store() == nullptr) return reply;
  reply.set_elements(now_.store()->elements());
  if (with_clocks && TraitsOf(config_).keeps_clocks) now_.AddClocks(*reply.mutable_clocks());
  return reply;
}

void ShardAnswers::CountPulled(uint64_t elements, v1::Dtype dtype) {
  counters_.bytes_pulled += elements * static_cast<uint64_t>(BytesPerValue(dtype));
}

bool ShardAnswers::TryPull(const ParkedPull& pull) {
  const v1::PullRequest& request = pull.request;
  // `at`: the version of the rows; null: the newest one.
  const auto answer = [&](const Verdict& verdict, std::shared_ptr<const LentVersion> version,
                          const ShardTables::Pinned* at = nullptr) {
    PullAnswer out;
    out.header = ToPull(verdict, request.with_clocks());
    if (version != nullptr && !pull.rows->empty()) {
      absl::StatusOr<std::shared_ptr<const ReadRows>> rows = now_.tables()->Read(*pull.rows, row_memory_, at);
      if (!rows.ok()) {
        pull.done(rows.status());
        return true;
      }
      out.rows = *std::move(rows);
      for (const TableKeys& of : *pull.rows) {
        CountPulled(of.count * now_.tables()->table(of.table).dim(), request.dtype());
      }
    }
    if (version != nullptr) {
      if (RowsOnArrival(config_)) {
        out.header.set_table_version(at == nullptr ? now_.tables()->version() : at->version());
      }
      out.header.mutable_version()->set_count(version->count);
      if (!request.header_only()) {
        CountPulled(static_cast<uint64_t>(now_.store()->elements()), request.dtype());
        out.version = std::move(version);
      }
    }
    pull.done(std::move(out));
    return true;
  };
  const auto holder = [&] { return Holder{pull.session, request.caller().worker(), request.pin()}; };
  if (over_) return answer(JobOver(), nullptr);
  if (now_.store() == nullptr) {
    pull.done(absl::UnavailableError("this shard has no model yet"));
    return true;
  }
  if (request.caller().model_hash() != now_.model_hash()) {
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
    return answer({}, now_.store()->LendAgain(*pin->version, holder()), pin->tables.get());
  }
  if (const absl::StatusOr<Verdict> standing = now_.members().Check(request.caller()); !standing.ok()) {
    pull.done(standing.status());
    return true;
  } else if (standing->outcome != v1::OK) {
    return answer(*standing, nullptr);
  }
  // The rows are the newest, whatever the weights are.
  if (request.header_only() && request.rows_alone() && RowsOnArrival(config_)) {
    return answer({}, now_.store()->Lend(holder()));
  }
  switch (now_.policy()->OnPull(request.caller().worker(), request.clock())) {
    case PullDecision::kWait:
      return false;
    case PullDecision::kPast:
      return answer({v1::STEP_PAST, absl::StrCat("step ", request.clock(), " is past")}, nullptr);
    case PullDecision::kReady:
      return answer({}, now_.store()->Lend(holder()));
  }
  return false;
}

}  // namespace weir
