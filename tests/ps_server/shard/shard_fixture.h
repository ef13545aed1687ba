#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/model/model_spec.h"
#include "common/system/clock.h"
#include "common/threads/thread_pool.h"
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
  std::optional<uint64_t> batch = std::nullopt;             // default: in sync that of the part, else none
  std::optional<uint64_t> examples = std::nullopt;          // default: in sync those of the part, else 1
  std::optional<uint64_t> base = std::nullopt;              // default: the shard's version; in sync the clock
  std::optional<uint64_t> base_incarnation = std::nullopt;  // default: the shard's
  float value = 1;                                          // of every element
  std::optional<int64_t> bad_element = std::nullopt;        // is NaN
};

// Rows of one table: those of a push, or, without values, the keys of a pull.
struct TestRows {
  uint32_t table = 0;
  std::vector<uint64_t> keys;
  std::vector<float> values;
};
// The same, as they have arrived.
PushedRows RowsOf(const std::vector<TestRows>& rows);
RowKeys KeysOf(const std::vector<TestRows>& rows);

// The weights or gradient of such a shard if all elements are equal.
inline std::vector<float> All(float value) { return std::vector<float>(40, value); }

// A shard of one tensor "w" with 40 zeros (by default), with SGD at rate -1 (so that a gradient of ones adds
// one to every weight), two workers, a manual clock, and everything on the test's thread. A shard with
// embedding tables has a thread of its own; each call then waits until the shard is idle.
class ShardFixture {
 public:
  static constexpr uint64_t kIncarnation = 77;
  static constexpr Shard::Session kSession = 9;

  explicit ShardFixture(v1::ConsistencyConfig::Mode mode, uint32_t staleness = 0);

  // Before Install().
  v1::JobConfig config;
  ModelSpec model;
  v1::Install install;
  uint64_t memory_bytes = 0;
  SlabSource weights_source = AllocateSlab;
  Shard::PolicyFactory make_policy = Shard::PolicyFromConfig;
  // A table "users" of 2 columns, SGD at rate 1 and initial values of 5.
  void AddUsers();

  // Makes the shard, without a model.
  Shard& Create();
  // Installs the model, and members 0 and 1 under epoch 1.
  void Start();
  // Without members. Returns the report's error.
  std::string Install(const v1::Restore* restore = nullptr);
  // What the shard reported of it.
  v1::Installed last_installed;
  void Control(const v1::ControlMessage& message);
  // All that was asked of the shard is done.
  void Settle();
  void Members(uint64_t epoch, const std::vector<TestMember>& members);
  void Commit(uint64_t step, const std::vector<uint32_t>& parts);
  void Pin(uint64_t pin, double lease_seconds);
  void Shutdown(const std::string& failure);
  v1::ShardStats Stats();

  PushReplyPtr Push(const TestPush& push);
  // A push in its two steps. Begin() fails the test if the push has to wait, or is not to be received.
  std::unique_ptr<PushArrival> Begin(const TestPush& push, v1::Dtype dtype = v1::F32);
  AnswerPtr<PushBegin> TryBegin(const v1::PushRequest& header);
  std::unique_ptr<PushArrival> ArrivalOf(const AnswerPtr<PushBegin>& begin);
  AnswerPtr<PushAnswer> Finish(std::unique_ptr<PushArrival> arrival);
  // With the header as given.
  PushReplyPtr PushHeader(const v1::PushRequest& header, const TestPush& push);
  PushReplyPtr PushGradient(const v1::PushRequest& header, std::vector<float> gradient);
  // With rows, whose values are float32.
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

  // The last Install's incarnation; the first is kIncarnation, and each further Install adds one.
  uint64_t incarnation() const { return kIncarnation + installs_ - 1; }

  // Begins a checkpoint in kCheckpoints (unless another shard has) and makes the shard write its part.
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
  // Shard::Options::on_revoke, on_short.
  std::function<void()> on_revoke, on_short;
  // The times for which the shard has asked for a tick.
  std::vector<absl::Duration> nudges;

  ManualClock clock;
  ThreadPool threads{1};
  std::unique_ptr<Shard> shard;

 private:
  bool sync() const { return config.consistency().mode() == v1::ConsistencyConfig::MODE_SYNC; }
  std::vector<v1::ShardReport> reports_;
  uint64_t last_pin_ = 1000;
  uint64_t installs_ = 0;
};

}  // namespace weir
