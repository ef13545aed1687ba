#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/threads/mutex.h"
#include "proto/coordinator.pb.h"

namespace weir {

// A server's way to its end, in one direction only: it serves; its end is announced, and it finishes what is
// under way; it is over. On the way there may be a drain, which has a limit. Thread-safe.
class ServerEnd {
 public:
  struct Result {
    // OK: the job is done.
    absl::Status failure;
    v1::ClusterStatus status;
  };

  // `end_serving` runs within each Announce(), Finish() and Leave(), before Wait() returns. It must not call
  // back.
  explicit ServerEnd(std::function<void()> end_serving);

  // The server is about to end. Of several reasons the first counts.
  void Announce(const std::string& reason);
  // The server is over. All calls after the first have no effect. `status`: the job's, on ps:0.
  void Finish(const absl::Status& failure, const v1::ClusterStatus& status = {});
  // The server is over, and the job continues without it. Otherwise as Finish().
  void Leave(const absl::Status& why);
  // Waits for Finish() or Leave().
  Result Wait() const;

  // Whether the end is announced, or the server is over.
  bool has_begun() const;
  // OK: the end has not begun. Else Unavailable, with the reason.
  absl::Status Ready() const;
  // OK: the server is not over, or the job is done.
  absl::Status failure() const;
  // It was Leave() that ended the server.
  bool leaves() const;

  // False: a drain is under way, and continues as it is.
  bool BeginDrain(absl::Time until, const std::string& reason);
  // The reason of the drain that has reached its limit, which ends the drain. Nullopt: there is none.
  std::optional<std::string> EndLateDrain(absl::Time now);

 private:
  void End(Result result, bool leaves);

  const std::function<void()> end_serving_;
  mutable Mutex mutex_;
  mutable CondVar changed_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  bool leaves_ ABSL_GUARDED_BY(mutex_) = false;
  Result result_ ABSL_GUARDED_BY(mutex_);
  // Why the server is about to end; empty: it is not.
  std::string ends_for_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Time> drain_until_ ABSL_GUARDED_BY(mutex_);
  std::string drain_reason_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
