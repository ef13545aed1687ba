#include "worker/trainer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "client/types.h"
#include "common/base/status_macros.h"
#include "common/protocol/mode_traits.h"
#include "common/telemetry/logging.h"
#include "worker/clipping.h"
#include "worker/local_rule.h"

namespace weir {
namespace {

// OK if the exchange has brought weights.
absl::Status StatusOf(const absl::StatusOr<ExchangeResult>& result) {
  if (!result.ok()) return result.status();
  return result->pull.past ? absl::CancelledError("the step is past") : absl::OkStatus();
}

}  // namespace

void WeightsGate::Arrived(size_t tensor) {
  MutexLock lock(mutex_);
  arrived_[tensor] = true;
  news_.NotifyAll();
}

void WeightsGate::Ended(const absl::Status& status) {
  MutexLock lock(mutex_);
  if (ended_) return;
  ended_ = true;
  status_ = status;
  if (status.ok()) arrived_.assign(arrived_.size(), true);
  news_.NotifyAll();
}

bool WeightsGate::Decided(size_t first, size_t end) const {
  return ended_ ||
         std::all_of(arrived_.begin() + static_cast<std::ptrdiff_t>(first),
                     arrived_.begin() + static_cast<std::ptrdiff_t>(end), [](bool is) { return is; });
}

absl::Status WeightsGate::Await(size_t first, size_t end, Wait wait) {
  const auto ready = [&] {
    MutexLock lock(mutex_);
    return Decided(first, end);
  };
  const auto sleep = [&] {
    MutexLock lock(mutex_);
    while (!Decided(first, end)) news_.Wait(mutex_);
  };
  if (!ready()) wait(ready, sleep);
  MutexLock lock(mutex_);
  return status_;
}

Trainer::Trainer(const v1::JobConfig& config, GradientComputer* computer, Client* client)
    : computer_(computer),
      spec_(computer->spec()),
      client_(client),
      has_rows_(config.tables_size() > 0),
      leaves_early_(LeavesEarly(config) && client->gradient_has_chunks()),
      prefetch_(config.consistency().prefetch()) {}

bool Trainer::LeavesEarly(const v1::JobConfig& config) {
  return !ClipsPushes(config.train()) && !TakesLocalSteps(config) && config.tables_size() == 0 &&
         !OvertakesSlowPushes(config);
}

absl::StatusOr<PullResult> Trainer::Incoming::Get() const {
  const absl::StatusOr<ExchangeResult>& got = result->Get();
  if (!got.ok()) return got.status();
  return got->pull;
}

std::shared_ptr<const float> Trainer::Incoming::Peek() const {
  return result->ready() && StatusOf(result->Get()).ok() ? weights : nullptr;
}

absl::Status Trainer::Incoming::Await(size_t first, size_t end) const {
  return gate->Await(first, end, [this](absl::FunctionRef<bool()> ready, absl::FunctionRef<void()> sleep) {
    result->WaitUntil(ready, sleep);
  });
}

absl::Status Trainer::Run() {
  while (true) {
    WEIR_ASSIGN_OR_RETURN(const std::optional<Work> work, client_->NextWork());
    if (!work.has_value()) return absl::OkStatus();
    WEIR_RETURN_IF_ERROR(Step(*work));
  }
}

absl::Status Trainer::Step(const Work& work) {
  while (true) {
    WEIR_RETURN_IF_ERROR(CollectPushes());
    WEIR_RETURN_IF_ERROR(FindWeights(work));
    absl::Status done;
    // With prefetch this pull had a whole step to arrive. No call tells when the rows of all shards are
    // there, and the first layers need them.
    if (prefetch_ || has_rows_) done = UseArriving();
    if (prefetch_ && done.ok() && next_ == nullptr) {
      // The pull to hide behind the computation.
      WEIR_ASSIGN_OR_RETURN(next_, BeginPull(work.clock + 1, LikelyRowsAfter(work)));
    }
    if (has_rows_ && done.ok()) {
      const absl::Status rows = FindRows(work);
      if (absl::IsCancelled(rows)) return absl::OkStatus();
      WEIR_RETURN_IF_ERROR(rows);
    }
    if (done.ok()) done = ComputeAndPush(work);
    if (done.ok() || arriving_ == nullptr) return done;
    // Most likely the weights did not come.
    const absl::StatusOr<PullResult> pulled = std::exchange(arriving_, nullptr)->Get();
    if (pulled.ok()) return pulled->past ? absl::OkStatus() : done;
    // The pull was interrupted after its first weights had come, and their version is gone.
    if (!absl::IsDataLoss(pulled.status())) return pulled.status();
  }
}

absl::Status Trainer::FindWeights(const Work& work) {
  if (clock_ == work.clock) return absl::OkStatus();
  if (next_ != nullptr && next_->clock != work.clock) {
    // The other workers were faster.
    const absl::Status ended = std::exchange(next_, nullptr)->Get().status();
    if (!ended.ok() && !absl::IsDataLoss(ended)) return ended;
  }
  arriving_ = std::move(next_);
  if (arriving_ == nullptr) {
    WEIR_ASSIGN_OR_RETURN(arriving_, BeginPull(work.clock, computer_->RowsOf(work)));
  }
  return absl::OkStatus();
}

absl::Status Trainer::FindRows(const Work& work) {
  if (rows_ != nullptr && rows_->IsFor(work)) return absl::OkStatus();
  rows_ = nullptr;
  const std::shared_ptr<WorkRows> rows = computer_->RowsOf(work);
  std::vector<RowsToRead> to_read;
  if (rows != nullptr) to_read = ToRead(&rows->tables);
  if (!to_read.empty()) {
    const Future<PullResult> read = client_->PullRows(work.clock, std::move(to_read));
    read.OnReady([received = rows](const auto&) {});
    WEIR_RETURN_IF_ERROR(read.Get().status());
    if (read.Get()->past) return absl::CancelledError("the step is past");
  }
  rows_ = rows;
  return absl::OkStatus();
}

std::shared_ptr<WorkRows> Trainer::LikelyRowsAfter(const Work& work) {
  const std::optional<Work> next = has_rows_ ? computer_->LikelyNext(work) : std::nullopt;
  return next.has_value() ? computer_->RowsOf(*next) : nullptr;
}

absl::StatusOr<std::shared_ptr<Trainer::Incoming>> Trainer::BeginPull(uint64_t clock,
                                                                      std::shared_ptr<WorkRows> rows,
                                                                      std::optional<ExchangeOrder::Push> push,
                                                                      const Parameters& gradient) {
  auto incoming = std::make_shared<Incoming>();
  incoming->clock = clock;
  incoming->gate = std::make_shared<WeightsGate>(spec_.tensors.size());
  WEIR_ASSIGN_OR_RETURN(incoming->weights, computer_->TakeMemory());
  ExchangeOrder order{std::move(push), ExchangeOrder::Pull()};
  order.pull->clock = clock;
  order.pull->tensors =
      TensorsOf(spec_, absl::MakeSpan(incoming->weights.get(), static_cast<size_t>(spec_.elements())));
  incoming->rows = std::move(rows);
  if (incoming->rows != nullptr) order.pull->rows = ToRead(&incoming->rows->tables);
  if (!prefetch_ && !has_rows_) {
    order.pull->on_weights = [gate = incoming->gate](size_t tensor) { gate->Arrived(tensor); };
  }
  incoming->result = client_->Exchange(std::move(order));
  incoming->result->OnReady([sent = gradient, received = incoming->weights, rows = incoming->rows,
                             gate = incoming->gate](const absl::StatusOr<ExchangeResult>& result) {
    gate->Ended(StatusOf(result));
  });
  return incoming;
}

absl::Status Trainer::UseArriving() {
  if (arriving_ == nullptr) return absl::OkStatus();
  WEIR_ASSIGN_OR_RETURN(base_, arriving_->Get());
  if (base_.past) return absl::CancelledError("the step is past");
  clock_ = arriving_->clock;
  weights_ = arriving_->weights;
  rows_ = arriving_->rows;
  fresh_ = true;
  arriving_ = nullptr;
  return absl::OkStatus();
}

absl::Status Trainer::ComputeAndPush(const Work& work) {
  Parameters gradient;
  if (computer_->on_host()) {
    gradient = client_->NewGradient();
  } else {
    // The gradient is copied here from the device.
    WEIR_ASSIGN_OR_RETURN(gradient, computer_->TakeMemory());
  }
  float* const weights = arriving_ == nullptr ? weights_.get() : arriving_->weights.get();

  std::shared_ptr<GradientGate> gate;
  Traffic traffic;
  traffic.new_weights = fresh_ || arriving_ != nullptr;
  if (arriving_ != nullptr) {
    // Other replicas may still use the pull when the first replica has gone on.
    traffic.await_weights = [arriving = arriving_](size_t first, size_t end) {
      return arriving->Await(first, end);
    };
  }
  if (prefetch_ && next_ != nullptr) traffic.next_weights = [next = next_] { return next->Peek(); };
  traffic.forward_done = [&] {
    WEIR_RETURN_IF_ERROR(UseArriving());
    if (!leaves_early_) return absl::OkStatus();
    gate = std::make_shared<GradientGate>();
    return BeginPush(work, gradient, gate);
  };
  if (leaves_early_) traffic.gradient_ready = [&](size_t tensor) { gate->Ready(tensor); };
  const absl::StatusOr<double> loss = computer_->Compute(work, weights, gradient.get(), rows_.get(), traffic);
  if (!loss.ok()) {
    if (gate != nullptr) gate->Fail(loss.status());
    return loss.status();
  }
  fresh_ = false;
  CountLoss(work, *loss);
  return leaves_early_ ? absl::OkStatus() : BeginPush(work, gradient, nullptr);
}

void Trainer::CountLoss(const Work& work, double loss) {
  // A NaN would stay in the sum for ever, even if the job continues (consistency.on_nonfinite).
  if (!std::isfinite(loss)) {
    progress_.not_finite += 1;
  } else {
    progress_.examples += work.examples;
    progress_.batches += 1;
    progress_.loss_sum += loss;
    if (work.examples_left <= computer_->train_examples()) {
      progress_.last_examples += work.examples;
      // Each term has 24 bits: a double holds the sum of a million terms exactly, unless they differ by more
      // than a factor of 500.
      progress_.last_loss_sum += static_cast<float>(loss);
    }
  }
  client_->SetProgress(progress_);
}

absl::Status Trainer::BeginPush(const Work& work, const Parameters& gradient,
                                std::shared_ptr<GradientGate> gate) {
  std::vector<ConstTensor> tensors = computer_->Gradient();
  std::vector<RowGradients> rows;
  if (rows_ != nullptr) rows = GradientsOf(*rows_);
  // If a pull of the next clock is in flight, this work is a part of the same step that a dead worker left,
  // or the pull was prefetched.
  if (!work.last_of_clock || next_ != nullptr) {
    pushes_.push_back(client_->Push(work, base_, std::move(tensors), std::move(gate), std::move(rows)));
    pushes_.back().OnReady([sent = gradient](const auto&) {});
    return absl::OkStatus();
  }
  WEIR_ASSIGN_OR_RETURN(
      next_, BeginPull(work.clock + 1, LikelyRowsAfter(work),
                       ExchangeOrder::Push{work, base_, std::move(tensors), std::move(gate), std::move(rows)},
                       gradient));
  return absl::OkStatus();
}

absl::Status Trainer::CollectPushes() {
  absl::Status status;
  const auto ended = [&](const Future<PushResult>& push) {
    if (!push.ready()) return false;
    const absl::StatusOr<PushResult>& result = push.Get();
    status.Update(result.status());
    if (result.ok() && !result->applied) LogWarning("a push was not applied: ", result->reason);
    return true;
  };
  pushes_.erase(std::remove_if(pushes_.begin(), pushes_.end(), ended), pushes_.end());
  return status;
}

}  // namespace weir
