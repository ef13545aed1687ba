#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "client/client.h"
#include "common/threads/mutex.h"
#include "proto/job_config.pb.h"
#include "worker/gradient_computer.h"

namespace weir {

// Lets a forward pass begin before all of its weights are there. A pull reports each tensor as it arrives
// (OnWeights in client/client.h) and its own end; the computing thread waits for the tensors that the next
// layer reads. A gate serves one pull.
//
// Thread-safe. All that was written before Arrived() and Ended() is visible after Await().
class WeightsGate {
 public:
  explicit WeightsGate(size_t tensors) : arrived_(tensors, false) {}

  void Arrived(size_t tensor);
  // The pull is over; OK: all tensors are there. Only the first call counts.
  void Ended(const absl::Status& status);

  // Returns when the tensors [first, end) are there, or with the pull's error once it has one; so this waits
  // no longer than the pull does. `wait` says how to wait: it calls `sleep` at the end, and may do some work
  // before, until `ready`.
  using Wait = absl::FunctionRef<void(absl::FunctionRef<bool()> ready, absl::FunctionRef<void()> sleep)>;
  absl::Status Await(size_t first, size_t end, Wait wait);

 private:
  bool Decided(size_t first, size_t end) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  CondVar news_;
  std::vector<bool> arrived_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

// The training loop of one worker: asks its client for work, computes gradients and pushes them, until the
// job's examples are done. The loop is the same in every mode. Not thread-safe.
//
// Weights and gradients travel while the model computes: forward begins with the first layers' weights, and
// the push begins with the last layers' gradients (if LeavesEarly(), and the gradient has several chunks).
// With consistency.prefetch the pull of the next clock is under way during a whole step.
//
// The rows of embedding tables that a piece of work needs come with its weights, and their gradients leave
// with its gradient. Which work will be the next is a guess when its pull begins; if it was wrong, the rows
// are read once more.
class Trainer {
 public:
  // All arguments outlive the trainer. The client has joined with computer->spec().
  Trainer(const v1::JobConfig& config, GradientComputer* computer, Client* client);

  // Returns when the job's examples are done, or the client's error.
  absl::Status Run();

  // Returns whether pushes begin while backward computes. False if gradients are clipped, which takes the
  // whole gradient, or come of local steps, of which the last one completes it. Also false if rows are
  // pushed, whose gradients are there at the end of backward. Also false if other workers' pushes would
  // overtake a push that takes long to arrive, so that it is sent twice.
  static bool LeavesEarly(const v1::JobConfig& config);

 private:
  // Memory for weights or a gradient. A call in flight shares the memory that it reads or writes, so that the
  // trainer may be destroyed while calls are cancelled.
  using Parameters = std::shared_ptr<float>;

  // A pull in flight, alone or together with a push.
  struct Incoming {
    uint64_t clock = 0;
    Parameters weights;
    // Rows that come with the weights; may be null.
    std::shared_ptr<WorkRows> rows;
    std::shared_ptr<WeightsGate> gate;
    std::optional<Future<ExchangeResult>> result;

    absl::StatusOr<PullResult> Get() const;
    // The weights, if the pull has brought them by now; null: not yet, or never.
    std::shared_ptr<const float> Peek() const;
    absl::Status Await(size_t first, size_t end) const;
  };

  absl::Status Step(const Work& work);
  // Makes sure that weights_ are those of the work's clock, or that arriving_ is the pull that brings them.
  absl::Status FindWeights(const Work& work);
  // Makes sure that rows_ are the work's. Waits for them. Cancelled: the step is past.
  absl::Status FindRows(const Work& work);
  // Begins the pull of the clock, together with the push, if there is one. `rows`: to be read with the
  // weights; may be null. `gradient`: the memory that the push reads.
  absl::StatusOr<std::shared_ptr<Incoming>> BeginPull(uint64_t clock, std::shared_ptr<WorkRows> rows,
                                                      std::optional<ExchangeOrder::Push> push = std::nullopt,
                                                      const Parameters& gradient = nullptr);
  // The rows of the work that is likely to follow this one; null: none.
  std::shared_ptr<WorkRows> LikelyRowsAfter(const Work& work);
  // Waits for arriving_, if any, and makes its weights the current ones. An error leaves arriving_ as it is.
  absl::Status UseArriving();
  void CountLoss(const Work& work, double loss);
  absl::Status ComputeAndPush(const Work& work);
  // Begins to push the gradient, together with the next pull if that is not in flight.
  absl::Status BeginPush(const Work& work, const Parameters& gradient, std::shared_ptr<GradientGate> gate);
  // Takes the pushes that have ended off pushes_. Returns the error of one of them, if any.
  absl::Status CollectPushes();

  GradientComputer* const computer_;
  const ModelSpec& spec_;
  Client* const client_;
  // Rows come with the weights, and leave with the gradient.
  const bool has_rows_;
  const bool leaves_early_;
  const bool prefetch_;

  Progress progress_;

  // The current weights: their clock (none at first), the pull that brought them, their memory, and whether
  // nothing was computed with them yet.
  std::optional<uint64_t> clock_;
  PullResult base_;
  Parameters weights_;
  bool fresh_ = false;
  // The rows that came with them, or that were read later at the same clock. They are of one piece of work.
  std::shared_ptr<WorkRows> rows_;
  // The pull that brings the weights of the current work.
  std::shared_ptr<Incoming> arriving_;
  // The pull of a later clock.
  std::shared_ptr<Incoming> next_;
  // Pushes in flight without a pull.
  std::vector<Future<PushResult>> pushes_;
};

}  // namespace weir
