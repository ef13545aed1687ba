#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/rpc/job_token.h"

namespace weir {

// What the calls of a Client (client/client.h) take and give.

struct ClientOptions {
  // Addresses of ps:0, ps:1, ...: "host:port" or "unix:/path".
  std::vector<std::string> servers;
  // Of the job, if it has one: JobToken::Read() has it from a file.
  JobToken token;
  // This task as in the cluster spec, "worker:1"; for messages.
  std::string task = "worker:0";
  // In [0, workers). A chief is 0.
  uint32_t rank = 0;
  // Reads only: takes no part in training, NextWork() and Push() are errors.
  bool reader = false;
  // Does what WaitEvaluation() asks for.
  bool evaluates = false;
  // The job's config, serialized; must agree with the servers'. The mode, times and batch size are taken from
  // it.
  std::string job_config;
  // Size of the training set; the same for every worker. 0 for a reader.
  uint64_t train_examples = 0;
  // If set, every answer is written here as a line of JSON (client/job/history.h), for offline checkers.
  std::string history_path;
  // This process was in the job before, and was fenced. ps:0 was there, so while nothing answers there it is
  // tried for cluster.server_wait_seconds alone; and the history goes on instead of beginning anew.
  bool again = false;
};

// One gradient to compute: the mean over the examples at positions [first_example, first_example + examples)
// of the job's endless stream of examples (epoch after epoch, each shuffled).
struct Work {
  uint64_t clock = 0;
  // sync: which part of the step. Else 0.
  uint32_t part = 0;
  uint64_t batch = 0;
  uint64_t first_example = 0;
  uint64_t examples = 0;
  // No further work at this clock is this worker's, as far as is known now: its push may be joined with the
  // next pull. False only in sync.
  bool last_of_clock = true;
  // Examples that the job has from this work's first one on.
  uint64_t examples_left = 0;
};

// A tensor in the caller's memory, row-major.
struct ConstTensor {
  std::string name;
  absl::Span<const float> values;
  // Instead of `values`, for a gradient that was rounded to bfloat16 already (by a device, before it was
  // copied from there): the values' bits. All tensors of the gradient then, and only where pushes travel as
  // bfloat16 (wire.push_dtype): they are sent as they are.
  absl::Span<const uint16_t> bfloat16 = {};
};
struct MutableTensor {
  std::string name;
  absl::Span<float> values;
};

struct PullResult {
  // By shard: the version that was read, counted in updates. In sync all are equal, the step.
  std::vector<uint64_t> versions;
  // By shard: in which of its lives it counted them.
  std::vector<uint64_t> incarnations;
  // sync: the step of this pull is past (it was made without this worker), and the tensors hold nothing to go
  // on from. NextWork() tells the open one.
  bool past = false;
};

// Weights to be read where they lie; immutable. Over shared memory that is in the servers' memory, mapped
// read-only; where there is none (other transports, bfloat16, it could not be set up) in buffers of the
// client, which it uses again. What was promised of a pull holds for a view for as long as it lives: no value
// changes and nothing is unmapped, whatever becomes of the client, its connection or the server.
//
// For that a server keeps each version that a view is in until the view goes, or its process does. Servers
// keep two old versions. Where a third is held, the pushes of all workers wait until one is let go, at most 5
// seconds; then the server takes other memory, and while it lacks memory in that way views are copies. So
// hold one view: let the view go when the next one is there, or once the gradient is computed. So that
// workers do not hold each other up, a view is in place only in sync without backup_workers, or while the job
// has one worker; else the view is a copy, in the client's buffers.
//
// Movable; lets the weights go when it is destroyed or assigned to, on any thread, also when the client is no
// more. Thread-safe to read.
class WeightsView {
 public:
  using Pieces = std::vector<absl::Span<const float>>;

  // Of nothing.
  WeightsView() = default;
  // For the client. By tensor; they lie in `memory`.
  WeightsView(PullResult pull, std::vector<Pieces> tensors, std::shared_ptr<const void> memory, bool in_place)
      : pull_(std::move(pull)),
        tensors_(std::move(tensors)),
        memory_(std::move(memory)),
        in_place_(in_place) {}

  // Which weights these are. If it is `past` there are none.
  const PullResult& pull() const { return pull_; }
  // As many as ModelSpec::tensors, or none.
  size_t tensors() const { return tensors_.size(); }
  // A tensor's values, row-major, from first to last. Blocks lie on the servers in turn: where there is one,
  // each tensor is one piece; with more, those that do not fit into a block (common/model/partition.h) are
  // several.
  absl::Span<const absl::Span<const float>> pieces(size_t tensor) const { return tensors_[tensor]; }
  // All of a tensor; nullptr: it is several pieces.
  const float* contiguous(size_t tensor) const {
    return tensors_[tensor].size() == 1 ? tensors_[tensor][0].data() : nullptr;
  }
  // All of it lies in the servers' memory.
  bool in_place() const { return in_place_; }

 private:
  PullResult pull_;
  std::vector<Pieces> tensors_;
  std::shared_ptr<const void> memory_;
  bool in_place_ = false;
};

struct PushResult {
  // On every shard: the update was applied. False: it was disposed of; `reason` says why on the first shard
  // that did so.
  bool applied = false;
  std::string reason;
  // The largest version staleness over the shards: updates applied between the pull and this push.
  uint64_t staleness = 0;
};

struct PushPullResult {
  PushResult push;
  PullResult pull;
};
struct PushPullView {
  PushResult push;
  WeightsView weights;
};

// Told that a tensor (its position in ModelSpec::tensors) holds the weights that the pull reads: each once,
// when all shards have said that theirs are published and in sync of the step that was asked for, the last
// ones before the Future is ready. It is not written any more. A pull that fails or turns out to be past may
// have told of no tensor or of some. Runs on the thread that takes the weights in, so it must not block, nor
// take a lock that some thread holds while it waits for a Future.
using OnWeights = std::function<void(size_t tensor)>;

// Shown to people by status displays; sent along with the next heartbeat.
struct Progress {
  uint64_t examples = 0;
  uint64_t batches = 0;
  // Sum over batches of mean loss * examples.
  double loss_sum = 0;
  // Of those of the job's last epoch, the same with each batch's term rounded to float.
  uint64_t last_examples = 0;
  double last_loss_sum = 0;
};

struct EvaluationResult {
  double test_loss = 0;
  // -1: none.
  double test_accuracy = -1;
  uint64_t examples = 0;
  // Hex; empty: not computed.
  std::string weights_sha256;
  bool final = false;
  // EvaluationOrder::id that it answers; with no `examples`: it could not be done. 0: none was given.
  uint64_t order = 0;
};

// To evaluate what PullSnapshot() reads, for the end of an epoch (counted from 1), and to Report() it.
struct EvaluationOrder {
  uint64_t id = 0;
  uint64_t epoch = 0;
};

}  // namespace weir
