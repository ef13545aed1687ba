// A simulated worker that differs from `worker` only in its model and data: it runs the shipped training loop
// on gradients of the ledger, which take simulated time.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/mode_traits.h"
#include "tests/common/forwarding_client.h"
#include "tests/simulation/sim_program.h"
#include "worker/gradient_computer.h"
#include "worker/trainer.h"

namespace weir {
namespace {

class SimTrainer final : public SimProgram, private GradientComputer {
 public:
  SimTrainer(Site* site, World::Node node, uint32_t rank, std::function<void(const absl::Status&)> on_end)
      : SimProgram(site, node, v1::WORKER, rank, std::move(on_end)), plan_(site->plan.workers[rank]) {}
  // Here and not in the base class, because a program that dies runs to its end first.
  ~SimTrainer() override { Die(); }

 private:
  // The loop's client, which logs what the loop asks for and sends.
  class LoggedClient final : public ForwardingClient {
   public:
    LoggedClient(SimTrainer* trainer, Client* to) : ForwardingClient(to), trainer_(trainer) {}

    absl::StatusOr<std::optional<weir::Work>> NextWork() override {
      trainer_->doing_ = "waits for work";
      absl::StatusOr<std::optional<weir::Work>> work = ForwardingClient::NextWork();
      if (work.ok() && work->has_value() && RowsOnArrival(trainer_->site_->plan.config)) {
        // It would wait for ever if it waited for that step: every worker does so.
        trainer_->doing_ = "pulls rows alone";
        ExchangeOrder order{std::nullopt, ExchangeOrder::Pull()};
        order.pull->clock = (*work)->clock + 2;
        order.pull->rows = trainer_->RowsAlone();
        ForwardingClient::Exchange(std::move(order)).Get().status().IgnoreError();
      }
      return work;
    }
    Future<ExchangeResult> Exchange(ExchangeOrder order) override {
      if (order.push.has_value()) {
        trainer_->LogPush(order.push->work, order.push->base);
        order.push->rows = trainer_->RowsToPush(order.push->work.batch);
      } else {
        trainer_->doing_ = "pulls";
      }
      if (order.pull.has_value()) {
        const uint64_t clock = order.pull->clock;
        trainer_->Ask(clock);
        order.pull->rows = trainer_->RowsToPull(clock);
        if (order.pull->on_weights != nullptr) {
          order.pull->on_weights = [trainer = trainer_, clock,
                                    on_weights = std::move(order.pull->on_weights)](size_t tensor) {
            trainer->CheckTold(clock, tensor);
            on_weights(tensor);
          };
        }
      }
      return ForwardingClient::Exchange(std::move(order));
    }

   private:
    SimTrainer* const trainer_;
  };

  absl::Status Work(Client* client) override {
    ahead_ = nullptr;
    const std::unique_ptr<Client> other = site_->seams.client ? site_->seams.client(client) : nullptr;
    LoggedClient logged(this, other == nullptr ? client : other.get());
    return Trainer(site_->plan.config, this, &logged).Run();
  }

  void LogPush(const weir::Work& work, const PullResult& base) {
    SimProgram::LogPush(work, base, PartsOf(weights_.data()));
  }

  // A tensor of this pull is handed over.
  void CheckTold(uint64_t clock, size_t tensor) {
    for (const auto& streams : streams_) {
      if (dead() || streams->answered > clock) continue;
      site_->log.told_early.push_back(
          {site_->world.elapsed(), joined_.worker(), streams->shard, clock, tensor});
    }
  }

  // GradientComputer:
  const ModelSpec& spec() const override { return tensors_.model(); }
  uint64_t train_examples() const override { return kTrainExamples; }
  absl::StatusOr<std::shared_ptr<float>> TakeMemory() override {
    // A value that shows if it is read before it is written.
    const auto memory = std::make_shared<std::vector<float>>(static_cast<size_t>(spec().elements()), 1e9f);
    return std::shared_ptr<float>(memory, memory->data());
  }
  bool on_host() const override { return !plan_.device; }
  std::vector<ConstTensor> Gradient() override {
    return TensorsIn<ConstTensor>(static_cast<const float*>(gradient_));
  }

  // Works as a device does: weights are copied there when they are awaited, or ahead, and only if they are
  // new. Gradients are copied from there when they are ready.
  absl::StatusOr<double> Compute(const weir::Work& work, float* weights, float* gradient, WorkRows*,
                                 const Traffic& traffic) override {
    doing_ = "computes";
    gradient_ = gradient;
    const size_t tensors = spec().tensors.size();
    const absl::Duration pause =
        site_->world.Between(plan_.compute_least, plan_.compute_most) / static_cast<int64_t>(2 * tensors);
    const bool came_ahead = traffic.new_weights && ahead_ != nullptr && ahead_.get() == weights;
    if (came_ahead) weights_ = weights_ahead_;
    if (traffic.new_weights) ahead_ = nullptr;
    weights_.resize(static_cast<size_t>(spec().elements()));
    for (size_t tensor = 0; tensor < tensors; ++tensor) {
      if (traffic.new_weights && traffic.await_weights) {
        WEIR_RETURN_IF_ERROR(Noted(traffic.await_weights(tensor, tensor + 1)));
      }
      if (traffic.new_weights && !came_ahead) Copy(tensor, weights, weights_.data());
      SleepComputing(pause);
    }
    if (traffic.forward_done) WEIR_RETURN_IF_ERROR(Noted(traffic.forward_done()));
    const std::vector<float> all = GradientOf(work.batch, PartsOf(weights_.data()));
    for (size_t tensor = tensors; tensor-- > 0;) {
      SleepComputing(pause);
      if (traffic.next_weights && ahead_ == nullptr) CopyAhead(traffic.next_weights());
      Copy(tensor, all.data(), gradient);
      if (traffic.gradient_ready) traffic.gradient_ready(tensor);
    }
    if (!std::equal(weights_.begin(), weights_.end(), weights)) {
      Complain(absl::StrCat("weights have changed while batch ", work.batch, " was computed from them"));
    }
    return site_->ledger.poisoned(work.batch) ? std::numeric_limits<double>::quiet_NaN()
                                              : static_cast<double>(work.examples);
  }

  void Copy(size_t tensor, const float* from, float* to) const {
    const auto first = spec().offset(tensor), n = spec().tensors[tensor].elements();
    std::copy_n(from + first, n, to + first);
  }

  void CopyAhead(std::shared_ptr<const float> weights) {
    if (weights == nullptr) return;
    weights_ahead_.assign(weights.get(), weights.get() + spec().elements());
    ahead_ = std::move(weights);
  }

  absl::Status Noted(absl::Status status) {
    // The pull was cut short after its first tensors had come.
    if (absl::IsDataLoss(status) && !dead()) ++site_->faults["pull again"];
    return status;
  }

  const WorkerPlan& plan_;
  // On the device: the current weights and the next ones; and where the next ones are on the host.
  std::vector<float> weights_, weights_ahead_;
  std::shared_ptr<const float> ahead_;
  // Where the current gradient is on the host.
  float* gradient_ = nullptr;
};

}  // namespace

std::unique_ptr<SimProgram> MakeSimTrainer(Site* site, World::Node node, uint32_t rank,
                                           std::function<void(const absl::Status&)> on_end) {
  return std::make_unique<SimTrainer>(site, node, rank, std::move(on_end));
}

}  // namespace weir
