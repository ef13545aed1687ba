#include "ps_server/shard/decision_log.h"

#include <algorithm>
#include <iterator>

namespace weir {

void DecisionLog::End() {
  log_ = nullptr;
  segments_.clear();
}

bool DecisionLog::HasTurn(const v1::PushRequest& header) const {
  return deferred_.empty() && std::none_of(decisions_.begin(), decisions_.end(), [&](const Decision& other) {
           return other.worker() == header.caller().worker() ||
                  (header.batch_plus_one() != 0 && other.header.batch_plus_one() == header.batch_plus_one());
         });
}

bool DecisionLog::OnItsWay(uint32_t worker) const {
  return std::any_of(decisions_.begin(), decisions_.end(),
                     [worker](const Decision& decision) { return decision.worker() == worker; });
}

uint64_t DecisionLog::updates() const {
  return static_cast<uint64_t>(
      std::count_if(decisions_.begin(), decisions_.end(),
                    [](const Decision& decision) { return decision.verdict.outcome == v1::OK; }));
}

void DecisionLog::Append(Decision decision, uint64_t count) {
  v1::LoggedPush record;
  *record.mutable_push() = decision.header;
  record.set_outcome(decision.verdict.outcome);
  record.set_reason(decision.verdict.reason);
  if (decision.verdict.outcome == v1::OK) {
    record.set_version(count + updates() + 1);
    if (decision.gradient_factor != 1) record.set_gradient_factor(decision.gradient_factor);
  }
  record.set_staleness(decision.verdict.staleness);
  Decision& logged = decisions_.emplace_back(std::move(decision));
  PushLog::Rows rows;
  if (logged.rows != nullptr) rows = {logged.rows->bytes(), logged.rows};
  log_->Append(std::move(record), logged.gradient, logged.header.elements(),
               WhenLogged([&logged] { logged.durable = true; }), std::move(rows));
}

void DecisionLog::Append(const v1::Membership& membership) {
  v1::LoggedPush record;
  *record.mutable_membership() = membership;
  log_->Append(std::move(record), nullptr, 0, WhenLogged([] {}));
}

uint64_t DecisionLog::Rotate(uint64_t step, std::function<void()> then) {
  const uint64_t segment = log_->Rotate(step + 1, WhenLogged(std::move(then)));
  segments_[step] = segment;
  return segment;
}

void DecisionLog::DropBefore(uint64_t step) {
  const auto found = segments_.find(step);
  if (log_ == nullptr || found == segments_.end()) return;
  log_->DropBefore(found->second);
  segments_.erase(segments_.begin(), std::next(found));
}

const Decision* DecisionLog::NextDurable() const {
  return decisions_.empty() || !decisions_.front().durable ? nullptr : &decisions_.front();
}

Decision DecisionLog::Take() {
  Decision decision = std::move(decisions_.front());
  decisions_.pop_front();
  return decision;
}

std::optional<v1::ControlMessage> DecisionLog::NextDeferred() {
  if (deferred_.empty() || !settled()) return std::nullopt;
  v1::ControlMessage message = std::move(deferred_.front());
  deferred_.pop_front();
  return message;
}

bool DecisionLog::Fail(const absl::Status& status) {
  if (failed_) return false;
  failed_ = true;
  taken_ = absl::IsAlreadyExists(status);
  return true;
}

void DecisionLog::AnswerIf(const std::function<bool(const Decision&)>& which,
                           const std::function<void(const Decision&)>& answer) {
  for (Decision& decision : decisions_) {
    if (!decision.done || !which(decision)) continue;
    answer(decision);
    decision.done = nullptr;
  }
}

PushLog::Done DecisionLog::WhenLogged(std::function<void()> then) {
  if (writes_++ == 0) moved_ = clock_->Now();
  return [this, then = std::move(then)](const absl::Status& status) {
    queue_->Post([this, then, status] {
      --writes_;
      moved_ = clock_->Now();
      if (status.ok() && !failed_) then();
      logged_(status);
    });
  };
}

}  // namespace weir
