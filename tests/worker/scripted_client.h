#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/threads/mutex.h"
#include "tests/worker/stub_client.h"

namespace weir {

// A client without servers for tests of the training loop: it hands out the given work, keeps the pushed
// gradients, and leaves the results of pulls to the test. A push ends when its gradient is whole, and takes
// effect.
//
// Called by one thread at a time; gates open on any. Hooks run within the calls.
class ScriptedClient final : public StubClient {
 public:
  struct PullCall {
    uint64_t clock = 0;
    std::vector<MutableTensor> tensors;  // none in a read of rows alone
    std::vector<RowsToRead> rows;
    OnWeights on_weights;  // may be empty
    std::function<void(absl::StatusOr<PullResult>)> end;
  };
  struct PushCall {
    Work work;
    PullResult base;
    bool gated = false;
    bool joined = false;  // with the next pull
    // Tensors in the order in which they became ready.
    std::vector<size_t> ready;
    absl::Status failure;
    // The gradient when it was whole: one of the two.
    std::vector<float> gradient;
    std::vector<uint16_t> bfloat16;
    struct Rows {
      uint32_t table = 0;
      std::vector<uint64_t> keys;
      std::vector<float> values;
    };
    std::vector<Rows> rows;
  };

  ScriptedClient(ModelSpec model, std::deque<Work> work)
      : StubClient(std::move(model)), work_(std::move(work)) {}
  ~ScriptedClient() override {
    for (std::thread& thread : threads) thread.join();
  }

  // Called for each pull; for a joined one when its push has ended.
  std::function<void(PullCall)> on_pull;
  bool has_chunks = true;
  bool gradient_has_chunks() const override { return has_chunks; }
  // Joined at the end; for pulls that arrive bit by bit.
  std::vector<std::thread> threads;

  // The calls in order: "pull 1", "rows 1" (a pull of rows alone), "push 0", "pushpull 0".
  std::vector<std::string> calls() const {
    MutexLock lock(mutex_);
    return calls_;
  }
  std::vector<PushCall> pushes() const {
    MutexLock lock(mutex_);
    std::vector<PushCall> out;
    for (const auto& push : pushes_) out.push_back(push->seen);
    return out;
  }

  absl::StatusOr<std::optional<Work>> NextWork() override {
    if (work_.empty()) return std::nullopt;
    const Work work = work_.front();
    work_.pop_front();
    return work;
  }
  Future<ExchangeResult> Exchange(ExchangeOrder order) override {
    const bool pushes = order.push.has_value(), pulls = order.pull.has_value();
    if (pulls && order.pull->in_place) return Unused<ExchangeResult>();
    if (pushes) {
      Note(pulls ? "pushpull " : "push ", order.push->work.clock);
    } else {
      Note(order.pull->tensors.empty() ? "rows " : "pull ", order.pull->clock);
    }
    Promise<ExchangeResult> promise;
    PullCall pull;
    if (pulls) {
      pull = {order.pull->clock, std::move(order.pull->tensors), std::move(order.pull->rows),
              std::move(order.pull->on_weights),
              [promise, pushes](absl::StatusOr<PullResult> result) mutable {
                if (!result.ok()) return promise.Set(result.status());
                promise.Set(ExchangeResult{{pushes, "", 0}, *std::move(result), {}});
              }};
    }
    if (!pushes) {
      on_pull(std::move(pull));
      return promise.future();
    }
    Begin(*std::move(order.push), pulls,
          [this, promise, pulls, pull = std::move(pull)](const absl::Status& status) mutable {
            if (!status.ok()) return promise.Set(status);
            if (pulls) return on_pull(std::move(pull));
            promise.Set(ExchangeResult{{true, "", 0}, {}, {}});
          });
    return promise.future();
  }
  void SetProgress(const Progress& progress) override { progress_ = progress; }
  const Progress& progress() const { return progress_; }
  std::shared_ptr<float> NewGradient() override {
    return {new float[static_cast<size_t>(model().elements())], std::default_delete<float[]>()};
  }

 private:
  struct Outgoing final : GradientGate::Watcher {
    void OnReady(size_t tensor) override {
      seen.ready.push_back(tensor);
      if (seen.ready.size() == gradient.size()) Whole();
    }
    void OnFailed(const absl::Status& why) override {
      seen.failure = why;
      done(why);
    }
    void Whole() {
      for (const ConstTensor& tensor : gradient) {
        seen.gradient.insert(seen.gradient.end(), tensor.values.begin(), tensor.values.end());
        seen.bfloat16.insert(seen.bfloat16.end(), tensor.bfloat16.begin(), tensor.bfloat16.end());
      }
      done(absl::OkStatus());
    }
    std::vector<ConstTensor> gradient;
    std::function<void(const absl::Status&)> done;
    PushCall seen;
  };

  void Note(const std::string& call, uint64_t clock) {
    MutexLock lock(mutex_);
    calls_.push_back(call + std::to_string(clock));
  }
  void Begin(ExchangeOrder::Push order, bool joined, std::function<void(const absl::Status&)> done) {
    const auto push = std::make_shared<Outgoing>();
    push->gradient = std::move(order.gradient);
    push->done = std::move(done);
    push->seen.work = order.work;
    push->seen.base = order.base;
    push->seen.gated = order.gate != nullptr;
    push->seen.joined = joined;
    for (const RowGradients& rows : order.rows) {
      push->seen.rows.push_back(
          {rows.table, {rows.keys.begin(), rows.keys.end()}, {rows.values.begin(), rows.values.end()}});
    }
    {
      MutexLock lock(mutex_);
      pushes_.push_back(push);
    }
    if (order.gate != nullptr) {
      order.gate->Attach(push);
    } else {
      push->Whole();
    }
  }

  std::deque<Work> work_;
  Progress progress_;
  mutable Mutex mutex_;
  std::vector<std::string> calls_ ABSL_GUARDED_BY(mutex_);
  // Their contents belong to the thread of their gates.
  std::vector<std::shared_ptr<Outgoing>> pushes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir
