#include "ps_server/process/server_end.h"

#include <utility>

namespace weir {

ServerEnd::ServerEnd(std::function<void()> end_serving) : end_serving_(std::move(end_serving)) {}

void ServerEnd::Announce(const std::string& reason) {
  MutexLock lock(mutex_);
  if (ends_for_.empty()) ends_for_ = reason;
  end_serving_();
}

void ServerEnd::Finish(const absl::Status& failure, const v1::ClusterStatus& status) {
  End({failure, status}, /*leaves=*/false);
}

void ServerEnd::Leave(const absl::Status& why) { End({why, {}}, /*leaves=*/true); }

void ServerEnd::End(Result result, bool leaves) {
  MutexLock lock(mutex_);
  if (over_) return;
  over_ = true;
  leaves_ = leaves;
  result_ = std::move(result);
  end_serving_();
  changed_.NotifyAll();
}

ServerEnd::Result ServerEnd::Wait() const {
  MutexLock lock(mutex_);
  while (!over_) changed_.Wait(mutex_);
  return result_;
}

bool ServerEnd::has_begun() const {
  MutexLock lock(mutex_);
  return over_ || !ends_for_.empty();
}

absl::Status ServerEnd::Ready() const {
  MutexLock lock(mutex_);
  if (over_) {
    return absl::UnavailableError(result_.failure.ok() ? "the job is done" : result_.failure.message());
  }
  return ends_for_.empty() ? absl::OkStatus() : absl::UnavailableError(ends_for_);
}

absl::Status ServerEnd::failure() const {
  MutexLock lock(mutex_);
  return result_.failure;
}

bool ServerEnd::leaves() const {
  MutexLock lock(mutex_);
  return leaves_;
}

bool ServerEnd::BeginDrain(absl::Time until, const std::string& reason) {
  MutexLock lock(mutex_);
  if (drain_until_.has_value()) return false;
  drain_until_ = until;
  drain_reason_ = reason;
  return true;
}

std::optional<std::string> ServerEnd::EndLateDrain(absl::Time now) {
  MutexLock lock(mutex_);
  if (!drain_until_.has_value() || now <= *drain_until_) return std::nullopt;
  drain_until_.reset();
  return drain_reason_;
}

}  // namespace weir
