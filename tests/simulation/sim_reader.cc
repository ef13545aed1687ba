// An evaluator of the simulation: reads snapshots at random intervals, and once more at the end; or has
// another habit.
#include <algorithm>
#include <utility>

#include "tests/simulation/sim_coordinator_channel.h"
#include "tests/simulation/sim_program.h"

namespace weir {
namespace {

class SimReader final : public SimProgram {
 public:
  SimReader(Site* site, World::Node node, uint32_t index, std::function<void(const absl::Status&)> on_end)
      : SimProgram(site, node, v1::READER, index, std::move(on_end)), plan_(site->plan.readers[index]) {}
  ~SimReader() override { Die(); }

 private:
  // The habit has begun.
  bool misbehaves() const {
    return plan_.habit != ReaderPlan::Habit::kReads && site_->world.elapsed() >= plan_.at;
  }

  absl::Status Work(Client* client) override { return Read(client); }

  absl::Status Read(Client* client) {
    uint32_t held = 0;
    weights_.assign(static_cast<size_t>(tensors_.model().elements()), 0);
    while (true) {
      const bool last = client->draining();
      if (const absl::Status alive = client->WaitDraining(std::chrono::steady_clock::now()).status();
          !alive.ok()) {
        return alive;
      }
      if (misbehaves()) {
        if (last) return absl::OkStatus();
        if (held < plan_.holds) ++held, Misbehave(client);
      } else {
        AskSnapshot();
        const auto read =
            client->PullSnapshot(TensorsIn<MutableTensor>(weights_.data()), RowsToPull(kSnapshot)).Get();
        if (absl::IsInternal(read.status())) Complain(read.status().ToString());
        if (last) return absl::OkStatus();
      }
      Sleep(site_->world.Between(absl::Milliseconds(20), absl::Milliseconds(300)));
    }
  }

  void Misbehave(Client* client) {
    if (plan_.habit == ReaderPlan::Habit::kHangs) {
      for (const auto& streams : streams_) streams->Hang();
      client->PullSnapshot(TensorsIn<MutableTensor>(weights_.data()));
      return;
    }
    v1::PinRequest pin;
    pin.mutable_caller()->set_worker(joined_.worker());
    pin.mutable_caller()->set_incarnation(joined_.incarnation());
    pin.mutable_caller()->set_epoch(joined_.membership().epoch());
    pin.mutable_caller()->set_model_hash(joined_.model_hash());
    pin.mutable_caller()->set_instance(instance_);
    pin.set_lease_seconds(1e9);
    SimCoordinatorChannel channel(site_, node_, loop_, nullptr);
    static_cast<CoordinatorChannel&>(channel).Start(pin, std::chrono::seconds(10),
                                                    [](const absl::StatusOr<v1::PinReply>&) {});
  }

  const ReaderPlan& plan_;
  std::vector<float> weights_;
};

}  // namespace

std::unique_ptr<SimProgram> MakeSimReader(Site* site, World::Node node, uint32_t index,
                                          std::function<void(const absl::Status&)> on_end) {
  return std::make_unique<SimReader>(site, node, index, std::move(on_end));
}

}  // namespace weir
