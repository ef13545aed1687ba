#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/client.h"
#include "client/job/transport.h"
#include "client/memberships.h"
#include "client/tensors/tensor_map.h"
#include "common/threads/mutex.h"
#include "tests/simulation/fiber.h"
#include "tests/simulation/sim_channel.h"
#include "tests/simulation/sim_event_loop.h"
#include "tests/simulation/site.h"

namespace weir {

class SimProgram;

// The size of the training set, as workers say when they join.
inline constexpr uint64_t kTrainExamples = 1000;

// Lets programs yield to each other where shipped code waits on a condition variable. The rule applies to
// this thread while a SimThreads exists.
class SimThreads final : public Waiting {
 public:
  SimThreads() { current() = this; }
  ~SimThreads() { current() = nullptr; }
  bool GivesWay() const override;
  bool Wait(const CondVar& on, std::chrono::nanoseconds limit) override;
  void Notified(const CondVar& of) override;

 private:
  std::map<const CondVar*, std::vector<SimProgram*>> waiting_;
};

// A worker's or evaluator's program in one incarnation of its process: shipped code (WorkUntilDone, Client)
// on a fiber, which takes turns with the events of its loop.
class SimProgram : private Transport, private ShardSet::Observer {
 public:
  // `on_end` gets the result of WorkUntilDone(). `index`: a worker's rank.
  SimProgram(Site* site, World::Node node, v1::Role role, uint32_t index,
             std::function<void(const absl::Status&)> on_end);
  ~SimProgram() override;

  void Start();
  // The process has died: nothing that it does reaches the world any more.
  void Die();
  // The program is a member of the job.
  bool live() const { return live_; }
  // The program's present action, for reports.
  std::string Waiting() const;

 protected:
  // One membership, from join to leave.
  virtual absl::Status Work(Client* client) = 0;
  // A membership, or the process, is over.
  virtual void LetGo() {}

  bool dead() const { return loop_->dead(); }
  // Yields for this long.
  void Sleep(absl::Duration length);
  // Yields for this long, which counts as the computation of gradients.
  void SleepComputing(absl::Duration length);
  void Complain(const std::string& what);
  bool sync() const { return site_->plan.sync(); }
  // The model's tensors in memory that holds them end to end.
  template <typename Tensor, typename Value>
  std::vector<Tensor> TensorsIn(Value* all) const;
  // A shard's part of that memory, and the parts of all shards.
  std::vector<float> PartOf(uint32_t shard, const float* all) const;
  std::vector<Weights> PartsOf(const float* all) const;
  // The whole of a model from the parts of its shards.
  std::vector<float> AllOf(const std::function<std::vector<float>(uint32_t shard)>& part_of) const;
  // The rows that a push of the batch has for the job's table, if there is one. Valid until the next call.
  std::vector<RowGradients> RowsToPush(uint64_t batch);
  // Memory for all rows of the table, which the pull at this clock (kSnapshot: the next snapshot) fills; none
  // if there is no table.
  std::vector<RowsToRead> RowsToPull(uint64_t clock);
  // RowsToPull() for a pull of rows alone.
  std::vector<RowsToRead> RowsAlone();
  // Appends what a pull of weights and rows has brought of a shard's rows, in the order of Ledger::KeysOf().
  void AppendRows(uint32_t shard, uint64_t clock, std::vector<float>& weights) const;
  static constexpr uint64_t kSnapshot = UINT64_MAX;
  // The ledger's gradient of a batch, computed from these weights by shard.
  std::vector<float> GradientOf(uint64_t batch, const std::vector<Weights>& weights) const;
  // Call before each push of a gradient that was computed from these weights.
  void LogPush(const weir::Work& work, const PullResult& base, std::vector<Weights> weights);
  // Call before each pull of this clock; AskSnapshot(): before each snapshot.
  void Ask(uint64_t clock) { asked_[clock] = site_->world.elapsed(); }
  void AskSnapshot();

  Site* const site_;
  const World::Node node_;
  const uint32_t index_;
  const std::shared_ptr<SimEventLoop> loop_;
  const TensorMap tensors_;
  // The answer to the Join of the current membership, and its instance.
  v1::JoinReply joined_;
  uint64_t instance_ = 0;
  // Of the Join, from 1, over all programs.
  uint64_t number_ = 0;
  // The streams of the current client, by shard.
  std::vector<std::shared_ptr<SimShardStreams>> streams_;
  // The program's present action, for reports.
  const char* doing_ = "waits to join";

 private:
  friend class SimThreads;

  void Run();
  absl::Status RunToEnd();
  void OnJoined(const v1::JoinReply& reply);

  // Transport:
  std::shared_ptr<EventLoop> loop() override { return loop_; }
  uint64_t NewInstance() override;
  std::unique_ptr<CoordinatorChannel> OpenCoordinator(const std::string&,
                                                      std::optional<std::chrono::nanoseconds>) override;
  std::unique_ptr<ShardChannel> OpenShard(uint32_t shard, const std::string&, int64_t) override;
  int64_t chunk_unit() const override { return site_->ledger.chunk_unit(); }
  ShardSet::Observer* observer() override { return this; }

  // ShardSet::Observer:
  void OnPush(const ShardSet::Push&, uint32_t, const v1::PushReply&) override {}
  void OnPull(const ShardSet::Pull& pull, uint32_t shard, const v1::PullReply& reply) override;

  // For SimThreads.
  bool Wait(std::chrono::nanoseconds limit);
  void Wake(bool notified);

  const v1::Role role_;
  const std::string task_;
  const std::function<void(const absl::Status&)> on_end_;
  std::unique_ptr<Fiber> fiber_;
  absl::Status result_;
  bool live_ = false;
  absl::Duration computed_;
  // When pulls were requested, by clock; when the newest snapshot was requested, and its number.
  std::map<uint64_t, absl::Duration> asked_;
  Ledger::RowsOfBatch rows_to_push_;
  // By clock: the memory of the newest pull's rows. That of the others stays as long as the program, since
  // calls that have ended badly may still write there.
  std::map<uint64_t, std::vector<float>*> rows_of_;
  std::deque<std::vector<float>> row_memory_;
  absl::Duration snapshot_asked_;
  uint64_t snapshot_ = 0;
  // The current wait: its number, and whether it was woken.
  uint64_t wait_ = 0;
  bool waits_ = false, woken_ = false, notified_ = false;
};

std::unique_ptr<SimProgram> MakeSimTrainer(Site* site, World::Node node, uint32_t rank,
                                           std::function<void(const absl::Status&)> on_end);
std::unique_ptr<SimProgram> MakeSimInPlaceWorker(Site* site, World::Node node, uint32_t rank,
                                                 std::function<void(const absl::Status&)> on_end);
std::unique_ptr<SimProgram> MakeSimReader(Site* site, World::Node node, uint32_t index,
                                          std::function<void(const absl::Status&)> on_end);

template <typename Tensor, typename Value>
std::vector<Tensor> SimProgram::TensorsIn(Value* all) const {
  std::vector<Tensor> tensors;
  for (const TensorSpec& tensor : tensors_.model().tensors) {
    Tensor& one = tensors.emplace_back();
    one.name = tensor.name;
    one.values = absl::MakeSpan(all, static_cast<size_t>(tensor.elements()));
    all += tensor.elements();
  }
  return tensors;
}

}  // namespace weir
