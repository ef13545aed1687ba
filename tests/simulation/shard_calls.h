#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tests/simulation/sim_server.h"
#include "tests/simulation/site.h"

namespace weir {

// The waits between the tries of a call: client/backoff.h under the virtual clock.
class SimBackoff {
 public:
  SimBackoff(absl::Duration first, absl::Duration most) : first_(first), most_(most), next_(first) {}
  absl::Duration Next(World& world) {
    const absl::Duration wait = world.Between(next_ / 2, next_);
    next_ = std::min(next_ * 2, most_);
    return wait;
  }
  void Reset() { next_ = first_; }

 private:
  absl::Duration first_, most_, next_;
};

// Decides on another try as client/call_retry.h does.
class SimRetry {
 public:
  SimRetry(Site* site, absl::Duration total, absl::Duration unreachable)
      : site_(site), unreachable_(unreachable), deadline_(site->world.elapsed() + total) {}
  void TryStarts() { try_started_ = site_->world.elapsed(); }
  // nullopt: the call is over, with `failure`.
  std::optional<absl::Duration> Judge(const absl::Status& failure);

 private:
  Site* site_;
  absl::Duration unreachable_, deadline_, try_started_;
  std::optional<absl::Duration> unreachable_since_;
  SimBackoff backoff_{absl::Milliseconds(50), absl::Seconds(1)};
};

// A chunk of weights that a client reads in place, where the shard has it in shared memory; destroyed, it
// lets the chunk go.
class ChunkInPlace {
 public:
  // `number`: of those of the stream, from 1. `first`: its local position.
  ChunkInPlace(std::shared_ptr<Connection> connection, std::shared_ptr<SimStream> server_end,
               SegmentsSocket segments, uint64_t number, uint64_t first, absl::Span<const float> place);
  ~ChunkInPlace();
  ChunkInPlace(const ChunkInPlace&) = delete;
  ChunkInPlace& operator=(const ChunkInPlace&) = delete;

  const std::vector<float>& values() const { return values_; }
  uint64_t first() const { return first_; }
  // The memory still holds what it held when the chunk came.
  bool unchanged() const { return std::equal(values_.begin(), values_.end(), place_.begin()); }

 private:
  const std::shared_ptr<Connection> connection_;
  const std::shared_ptr<SimStream> server_end_;
  // A view holds its client's socket open.
  const SegmentsSocket segments_;
  const uint64_t number_, first_;
  const absl::Span<const float> place_;
  const std::vector<float> values_;
};

// One client's calls to one shard, each as many exchanges as it takes under the same key
// (client/grpc_shard.h). Chance sends some pushes twice, the copy on a stream of its own and late, and some
// gradients apart from their headers.
class ShardCalls : public std::enable_shared_from_this<ShardCalls> {
 public:
  struct Answer {
    v1::PushReply push;
    v1::PullReply pull;
    Weights weights;
    // If they are read in place.
    std::vector<std::shared_ptr<ChunkInPlace>> chunks;
  };
  using Done = std::function<void(absl::StatusOr<Answer>)>;

  ShardCalls(Site* site, World::Node node, uint32_t shard, std::function<v1::Caller()> caller)
      : site_(site), node_(node), shard_(shard), caller_(std::move(caller)) {}

  // `in_place`: the weights are held where the shard has them, if it has them in shared memory.
  void Exchange(std::optional<v1::PushRequest> push, Weights gradient, std::optional<v1::PullRequest> pull,
                bool in_place, Done done);
  // From now on no stream is read.
  void Hang();
  // ShardSet::Tell.
  void Tell();
  // Ends all calls without a word.
  void Close();
  // What is open, for messages.
  std::string Open() const;

 private:
  struct Call {
    explicit Call(const SimRetry& r) : retry(r) {}
    std::optional<v1::PushRequest> push;
    Weights gradient;
    std::optional<v1::PullRequest> pull;
    Done done;
    SimRetry retry;
    bool in_place = false;
    bool push_answered = false, pull_answered = false, over = false;
    // Its gradient follows once the shard is ready for it.
    bool gradient_follows = false;
    Answer answer;
    std::vector<float> weights;
    uint64_t missing = 0;
  };
  struct Stream {
    std::shared_ptr<Connection> connection;
    std::shared_ptr<SimStream> server_end;
    // Its own; null: chunks travel in messages.
    SegmentsSocket segments;
    std::map<uint64_t, std::shared_ptr<Call>> open;
    uint64_t last_id = 0, chunks_received = 0;
  };
  void Begin(const std::shared_ptr<Call>& call);
  std::shared_ptr<Stream> NewStream(bool shares);
  // `gradient` may be null.
  static void Send(const Stream& stream, const v1::ExchangeRequest& head, const Weights& gradient);
  void SendCopy(v1::ExchangeRequest head, const Weights& gradient);
  void Receive(const std::shared_ptr<Stream>& stream, const std::string& bytes);
  void OnFailed(const std::shared_ptr<Call>& call, const absl::Status& status);
  void Finish(const std::shared_ptr<Call>& call, absl::StatusOr<Answer> answer);

  Site* const site_;
  const World::Node node_;
  const uint32_t shard_;
  const std::function<v1::Caller()> caller_;
  std::shared_ptr<Stream> stream_;
  std::vector<std::shared_ptr<Call>> calls_;
  // All pushes with lower clocks were answered, in one life of the shard or another.
  uint64_t answered_clock_ = 0;
  bool closed_ = false, hangs_ = false;
};

}  // namespace weir
