#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "common/model/model_spec.h"
#include "common/model/partition.h"
#include "common/threads/mutex.h"
#include "grpcpp/grpcpp.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/parameter_server.grpc.pb.h"
#include "tests/common/socket_folder.h"

namespace weir {

// A function that a test sets while the cluster's threads may call it. Only a socket orders the two, which
// ThreadSanitizer does not follow.
template <typename Signature>
class Hook;
template <typename Result, typename... Args>
class Hook<Result(Args...)> {
 public:
  Hook& operator=(std::function<Result(Args...)> function) {
    MutexLock lock(mutex_);
    function_ = std::move(function);
    return *this;
  }
  explicit operator bool() const {
    MutexLock lock(mutex_);
    return function_ != nullptr;
  }
  Result operator()(Args... args) const {
    mutex_.Lock();
    const std::function<Result(Args...)> function = function_;
    mutex_.Unlock();
    return function(args...);
  }

 private:
  mutable Mutex mutex_;
  std::function<Result(Args...)> function_ ABSL_GUARDED_BY(mutex_);
};

// Servers that follow a script, for tests of the client alone. By default they are a small model of the real
// servers. In sync a step commits when all of its parts have arrived on all shards. In the other modes a push
// is applied on arrival. Weights follow from version and element (Weight()). A test changes the behaviour
// through hooks. Calls that wait check every few milliseconds whether they were cancelled.
//
// The generated code reads and writes the messages. Each exchange has a thread of its own.
//
// Thread-safe; hooks are set before the calls that they are for, and run on the exchanges' threads.
class FakeCluster {
 public:
  struct Options {
    ModelSpec model;
    uint32_t shards = 2;
    bool sync = true;
    uint32_t parts = 1;
    uint64_t batch_size = 10;
    uint64_t total_examples = 100;
    uint64_t start_clock = 0;
    double lease_seconds = 30;
    // The joining worker's.
    uint32_t worker = 0;
    uint64_t incarnation = 7;
    // Send weights chunk by chunk as the gradient arrives, before the answer to its push.
    bool eager = false;
    // A status that ends a call ends its stream instead of the exchange.
    bool end_streams = false;
    // Serve on Unix sockets instead of loopback, so that a server can come back under its address.
    bool unix_sockets = false;
    // The tables' row lengths. A push's rows are kept; the rows that a pull reads follow from the version
    // (Row()).
    std::vector<uint32_t> dims = {};
    // Rows in one message of an answer.
    size_t rows_at_once = 1000;
  };
  // A push as it was when it had arrived whole; without a gradient if the push says that it is to be refused.
  struct Push {
    uint32_t shard = 0;
    v1::PushRequest header;
    // The pull of the same exchange.
    std::optional<v1::PullRequest> pull;
    std::vector<float> gradient;
    // The bytes of the exchange's rows, and how many messages they came in.
    std::string rows;
    size_t row_messages = 0;
    size_t messages = 0;
    size_t largest_message = 0;
    // The number of the shard's stream, and of the exchange on it.
    size_t stream = 0;
    uint64_t id = 0;
  };

  explicit FakeCluster(Options options);
  ~FakeCluster();

  std::vector<std::string> addresses() const;
  // Ends a server abruptly; Restart() brings it back (unix only).
  void Kill(uint32_t shard);
  void Restart(uint32_t shard);
  // Starts the server at another address, which is returned and which the coordinator tells. addresses() stay
  // the same. A server that was not killed stays at the old address, too.
  std::string Move(uint32_t shard);
  // The server is at its address in addresses() again; the other one is gone.
  void MoveBack(uint32_t shard);

  static float Weight(uint64_t version, int64_t element) {
    return static_cast<float>(version * 1000) + static_cast<float>(element % 1000);
  }

  // The values that a pull reads. Not all of it fits bfloat16.
  static float Row(uint64_t version, uint32_t table, uint64_t key, size_t column) {
    return static_cast<float>(version * 1000 + table * 100 + key % 89) + static_cast<float>(column) / 8;
  }

  // The coordinator's messages from now on.
  // `new_epoch` false: the members who joined under the last epoch are confirmed.
  void SetMembers(const std::vector<std::pair<uint32_t, uint64_t>>& rank_and_incarnation,
                  bool new_epoch = true);
  // By shard; 0: none yet.
  void SetShardIncarnations(const std::vector<uint64_t>& incarnations);
  // The member that uploads the initial values; 0: they are there.
  void SetUploader(uint64_t incarnation);
  void SetState(v1::JobState state, const std::string& failure = "");
  // Takes those who have joined so far out of the job.
  void Fence();
  // sync: opens a step as if other workers had made the steps before.
  void OpenStep(uint64_t step);
  void AddRange(uint64_t id, uint64_t first_batch, uint64_t batches);
  // No range follows.
  void EndRanges();
  void SetNextRangeClock(uint64_t clock);

  // The pushes that the servers have received.
  std::vector<Push> pushes() const;
  // Pulls without a push, and the keys of their rows, which come when all have arrived.
  std::vector<v1::PullRequest> pulls(uint32_t shard) const;
  std::vector<std::string> pulled_keys(uint32_t shard) const;
  std::vector<v1::JoinRequest> joins() const;
  std::vector<v1::LeaveRequest> leaves() const;
  std::vector<v1::NextRangeRequest> next_ranges() const;
  std::vector<v1::ReportRequest> reports() const;
  std::vector<v1::HeartbeatRequest> heartbeats() const;
  std::set<uint64_t> pins() const;
  // The number of streams that were begun with the shard.
  size_t streams(uint32_t shard) const;
  // The number of TCP connections under the streams of all shards.
  size_t stream_connections() const;
  // The first elements of the gradient chunks that the shard got, whatever happened to their pushes.
  std::vector<uint64_t> chunks(uint32_t shard) const;
  // Wait until this many have arrived.
  void AwaitChunks(uint32_t shard, size_t count) const;
  void AwaitPushes(size_t count) const;
  void AwaitPulls(uint32_t shard, size_t count) const;
  void AwaitHeartbeats(size_t count, uint64_t known_revision) const;

  // Hooks. A status that is not nullopt ends the exchange, or its stream, with it; where it is OK, the
  // exchange just ends. `nth` counts the calls of this kind on this shard.
  using Ends = Hook<std::optional<grpc::Status>(uint32_t shard, size_t nth)>;
  Ends on_pull, on_push;
  // Called when the push has taken effect and its answer is about to leave.
  Ends on_push_reply;
  // Between the first and the second message of a pull's weights.
  Ends on_pull_middle;
  // After a message with rows has come, and between two messages of an answer's rows.
  Ends on_rows, on_rows_middle;
  Hook<std::optional<grpc::Status>(size_t nth)> on_join;
  Hook<void(v1::JoinReply*)> edit_join;
  // Change an answer.
  Hook<void(uint32_t shard, v1::PullReply*)> edit_pull;
  Hook<void(uint32_t shard, v1::PushReply*)> edit_push;
  // Changes any message that is about to leave, and the messages that follow it.
  Hook<void(uint32_t shard, std::vector<v1::ExchangeReply>*)> edit_messages;
  bool commit_steps = true;

 private:
  class Shard;
  class Stream;
  struct Exchange;
  class CoordinatorService;
  using Key = std::tuple<uint32_t, uint64_t, uint32_t>;

  std::string NewAddress();
  // Returns the address, with the port that was bound.
  std::string Serve(uint32_t shard, const std::string& address);
  const SocketFolder sockets_;
  void Changed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits for ready() under the mutex; an error if the call or the server ended first.
  grpc::Status Await(uint32_t shard, const std::function<bool()>& cancelled,
                     const std::function<bool()>& ready) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t PartsOf(uint64_t step) const;

  const Options options_;
  const Partition partition_;
  std::vector<std::unique_ptr<Shard>> shard_services_;
  std::unique_ptr<CoordinatorService> coordinator_;
  std::vector<std::unique_ptr<grpc::Server>> servers_;
  // Servers that shards moved away from.
  std::vector<std::unique_ptr<grpc::Server>> left_servers_;
  std::vector<std::string> addresses_;
  int sockets_made_ = 0;

  mutable Mutex mutex_;
  mutable CondVar changed_;
  std::vector<char> down_ ABSL_GUARDED_BY(mutex_);
  uint64_t step_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<uint64_t> versions_ ABSL_GUARDED_BY(mutex_);
  // By shard: the pushes that were taken, with their answers.
  std::vector<std::map<Key, v1::PushReply>> taken_ ABSL_GUARDED_BY(mutex_);
  std::vector<Push> pushes_ ABSL_GUARDED_BY(mutex_);
  std::vector<size_t> push_calls_ ABSL_GUARDED_BY(mutex_), streams_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> stream_peers_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::vector<uint64_t>> chunks_ ABSL_GUARDED_BY(mutex_);
  // The exchanges' threads. Joined at the end.
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::vector<v1::PullRequest>> pulls_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::vector<std::string>> pulled_keys_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::JoinRequest> joins_ ABSL_GUARDED_BY(mutex_);
  std::set<uint64_t> fenced_ ABSL_GUARDED_BY(mutex_);  // instances
  std::vector<v1::LeaveRequest> leaves_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::NextRangeRequest> next_ranges_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::ReportRequest> reports_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::HeartbeatRequest> heartbeats_ ABSL_GUARDED_BY(mutex_);
  std::set<uint64_t> pins_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_pin_ ABSL_GUARDED_BY(mutex_) = 1;
  v1::HeartbeatReply beat_ ABSL_GUARDED_BY(mutex_);
  std::deque<v1::Range> ranges_ ABSL_GUARDED_BY(mutex_);
  bool ranges_ended_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t next_range_clock_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace weir
