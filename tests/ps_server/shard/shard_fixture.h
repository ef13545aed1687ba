#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/model/model_spec.h"
#include "common/system/clock.h"
#include "common/threads/thread.h"
#include "ps_server/shard/shard.h"
#include "tests/common/faulty_file_system.h"
#include "tests/ps_server/answer.h"

namespace weir {

using PushReplyPtr = AnswerPtr<v1::PushReply>;
using PullAnswerPtr = AnswerPtr<PullAnswer>;

struct TestMember {
  uint32_t worker;
  uint64_t incarnation = 0;  // 0: 100 + worker
  uint64_t start_clock = 0;
  bool joining = false, idle = false;
  std::optional<uint64_t> first_clock = std::nullopt;
};

// One push, with the defaults of a correct one.
struct TestPush {
  uint32_t worker = 0;
  uint64_t clock = 0;
  uint32_t part = 0;
  uint64_t incarnation = 0;  // 0: 100 + worker
  uint64_t epoch = 1;
  std::optional<uint64_t> batch = std::nullopt;             // default: in sync the part's, else none
  std::optional<uint64_t> examples = std::nullopt;          // default: in sync the part's, else 1
  std::optional<uint64_t> base = std::nullopt;              // default: the shard's version; in sync the clock
  std::optional<uint64_t> base_incarnation = std::nullopt;  // default: the shard's
  float value = 1;                                          // of every element
  std::optional<int64_t> bad_element = std::nullopt;        // is NaN
};

// The rows of one table in a push or, without values, the keys of a pull.
struct TestRows {
  uint32_t table = 0;
  std::vector<uint64_t> keys;
  std::vector<float> values;
};
// These convert rows, or the keys of rows, to the form in which they have arrived.
PushedRows RowsOf(const std::vector<TestRows>& rows);
RowKeys KeysOf(const std::vector<TestRows>& rows);

// The weights or the gradient of ShardFixture's shard if all elements are equal.
inline std::vector<float> All(float value) { return std::vector<float>(40, value); }

// A shard of one tensor "w", by default of 40 zeros, with two workers and a manual clock. SGD has the rate
// -1, so that a gradient of ones adds one to every weight. Everything runs on the test's thread. But a shard
// with embedding tables has a thread of its own, and each call waits until the shard is idle.
class ShardFixture {
 public:
  static constexpr uint64_t kIncarnation = 77;
  static constexpr Shard::Session kSession = 9;

  explicit ShardFixture(v1::ConsistencyConfig::Mode mode, uint32_t staleness = 0);

  // Set these before Install().
  v1::JobConfig config;
  ModelSpec model;
  v1::Install install;
  uint64_t memory_bytes = 0;
  SlabSource weights_source = AllocateSlab;
  Shard::PolicyFactory make_policy = Shard::PolicyFromConfig;
  // Adds a table "users" of 2 columns, with SGD at rate 1 and initial values of 5.
  void AddUsers();

  // Makes the shard, without a model.
  Shard& Create();
  // Installs the model, and members 0 and 1 under epoch 1.
  void Start();
  // Installs the model, without members. Returns the report's error.
  std::string Install(const v1::Restore* restore = nullptr);
  // The shard's last report of an Install.
  v1::Installed last_installed;
  void Control(const v1::ControlMessage& message);
  // Returns once the shard has done all that it was asked to.
  void Settle();
  void Members(uint64_t epoch, const std::vector<TestMember>& members);
  void Commit(uint64_t step, const std::vector<uint32_t>& parts);
  void Pin(uint64_t pin, double lease_seconds);
  void Shutdown(const std::string& failure);
  v1::ShardStats Stats();

  PushReplyPtr Push(const TestPush& push);
  // A push in two steps, Begin() and Finish(). If the push has to wait, or needs no gradient, Begin() fails
  // the test.
  std::unique_ptr<PushArrival> Begin(const TestPush& push, WireType type = v1::F32);
  AnswerPtr<PushBegin> TryBegin(const v1::PushRequest& header);
  std::unique_ptr<PushArrival> ArrivalOf(const AnswerPtr<PushBegin>& begin);
  AnswerPtr<PushAnswer> Finish(std::unique_ptr<PushArrival> arrival);
  // Push() with this header.
  PushReplyPtr PushHeader(const v1::PushRequest& header, const TestPush& push);
  PushReplyPtr PushGradient(const v1::PushRequest& header, std::vector<float> gradient);
  // Push() with rows, whose values are float32.
  PushReplyPtr PushRows(const TestPush& push, const std::vector<TestRows>& rows);
  v1::PushRequest Header(const TestPush& push);
  PullAnswerPtr Pull(uint32_t worker, uint64_t clock, uint64_t epoch = 1);
  PullAnswerPtr PullRequest(const v1::PullRequest& request);
  PullAnswerPtr PullRows(v1::PullRequest request, const std::vector<TestRows>& keys);
  v1::Caller CallerOf(uint32_t worker, uint64_t epoch = 1) const;
  // The newest version, read through a pin.
  std::shared_ptr<const LentVersion> Newest();
  std::vector<float> Weights();

  // Reports since the last call, of one kind.
  std::vector<v1::ShardReport> Reports(v1::ShardReport::ReportCase kind);

  // The incarnation of the last Install. The first is kIncarnation, and each further Install adds one.
  uint64_t incarnation() const { return kIncarnation + installs_ - 1; }

  // Makes the shard write its part of a checkpoint in kCheckpoints. Unless an earlier shard has begun the
  // checkpoint, begins it first.
  void TakeCheckpoint(uint64_t step, bool begin = true);
  // The report that the part was written.
  v1::CheckpointFile Written();
  // Makes a checkpoint from the parts of all shards, which share the files of the first.
  // `committed`: the job's committed steps, if not `step`.
  static v1::Restore Complete(uint64_t step, const std::vector<ShardFixture*>& shards,
                              std::optional<uint64_t> committed = std::nullopt);

  static constexpr char kCheckpoints[] = "/checkpoints";
  // Checkpoints lie in memory.
  std::shared_ptr<FaultyFileSystem> files = std::make_shared<FaultyFileSystem>(1);
  // The shard's background work waits here while `hold_background`; otherwise it runs at once.
  bool hold_background = false;
  std::deque<std::function<void()>> background;
  // As in Shard::Options.
  std::function<void()> on_revoke, on_short;
  // The times for which the shard has asked for a tick.
  std::vector<absl::Duration> nudges;

  ManualClock clock;
  ThreadPool threads{1};

 private:
  bool sync() const { return config.consistency().mode() == v1::ConsistencyConfig::MODE_SYNC; }
  std::vector<v1::ShardReport> reports_;
  uint64_t last_pin_ = 1000;
  uint64_t installs_ = 0;

 public:
  // Last: a thread of the shard may report until the shard is destroyed.
  std::unique_ptr<Shard> shard;
};

}  // namespace weir
