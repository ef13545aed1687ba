#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "client/exchange/shard_channel.h"
#include "proto/parameter_server.pb.h"
#include "tests/common/task_queue.h"

// A channel to a shard whose other end is the test. Not thread-safe.
namespace weir {

// An event loop that runs its tasks when the test calls Run(), and its timers when the test lets time pass.
class ManualLoop final : public EventLoop {
 public:
  void Post(absl::AnyInvocable<void()> task) override { tasks_.Post(std::move(task)); }
  Timer RunAfter(std::chrono::nanoseconds wait, absl::AnyInvocable<void()> then) override {
    timers_.emplace_back(now_ + wait, std::move(then));
    return {};
  }
  // Runs the timers that are due within this time, those included that they set, and the tasks.
  void Pass(std::chrono::nanoseconds time) {
    const std::chrono::nanoseconds until = now_ + time;
    while (true) {
      const auto next = std::min_element(timers_.begin(), timers_.end(),
                                         [](const auto& a, const auto& b) { return a.first < b.first; });
      if (next == timers_.end() || next->first > until) break;
      now_ = next->first;
      absl::AnyInvocable<void()> then = std::move(next->second);
      timers_.erase(next);
      then();
      Run();
    }
    now_ = until;
  }
  void Cancel(const Timer&) override {}
  uint32_t Random() override { return 0; }
  void Run() { tasks_.Run(); }

 private:
  std::chrono::nanoseconds now_{0};
  std::vector<std::pair<std::chrono::nanoseconds, absl::AnyInvocable<void()>>> timers_;
  TaskQueue tasks_;
};

class TestStream final : public DataStream {
 public:
  // `takes_at_once`: Write() returns true.
  TestStream(ManualLoop& loop, std::shared_ptr<User> user, bool takes_at_once)
      : loop_(loop), user_(std::move(user)), takes_at_once_(takes_at_once) {}
  bool Write(OutgoingMessage message) override {
    v1::ExchangeRequest head;
    head.ParseFromString(message.head);
    sent.push_back(std::move(head));
    if (takes_at_once_) return true;
    loop_.Post([user = user_] { user->OnWritten(); });
    return false;
  }
  void Read(bool) override { ++reads; }
  void Cancel() override {
    if (std::exchange(ended_, true)) return;
    loop_.Post([this] {
      // The user holds this stream.
      const std::shared_ptr<User> user = std::exchange(user_, nullptr);
      user->OnEnd(absl::CancelledError("the stream was cancelled"));
    });
  }
  // The stream ends in this way.
  void End(const absl::Status& status) {
    ended_ = true;
    if (const std::shared_ptr<User> user = std::exchange(user_, nullptr)) user->OnEnd(status);
  }
  // The shard sends these bytes. False: the stream has ended.
  bool Deliver(std::string bytes) {
    if (user_ == nullptr) return false;
    const std::shared_ptr<User> user = user_;
    user->OnMessage(ToIncoming(std::move(bytes)));
    loop_.Run();
    return true;
  }

  int reads = 0;
  // Without their payload.
  std::vector<v1::ExchangeRequest> sent;

 private:
  ManualLoop& loop_;
  // Null once the stream has ended.
  std::shared_ptr<User> user_;
  const bool takes_at_once_;
  bool ended_ = false;
};

class TestChannel final : public ShardChannel {
 public:
  TestChannel(ManualLoop& loop, std::shared_ptr<ShardMemory> memory, bool takes_at_once)
      : loop_(loop), memory_(std::move(memory)), takes_at_once_(takes_at_once) {}
  std::string name() const override { return "ps:0"; }
  absl::Status Connect(std::chrono::steady_clock::time_point, const std::string&,
                       const std::function<absl::Status()>&) override {
    return absl::OkStatus();
  }
  bool MoveTo(const std::string&) override { return false; }
  Opened Open(std::shared_ptr<DataStream::User> user, std::function<void()>) override {
    stream = std::make_shared<TestStream>(loop_, std::move(user), takes_at_once_);
    return {stream, memory_, [] {}};
  }

  std::shared_ptr<TestStream> stream;

 private:
  ManualLoop& loop_;
  const std::shared_ptr<ShardMemory> memory_;
  const bool takes_at_once_;
};

}  // namespace weir
