#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/model/model_spec.h"
#include "common/rpc/job_token.h"

namespace weir {

class GradientGate;
class Tls;

// The parameters and results of a Client's calls (client/client.h).

// A tensor in the caller's memory, row-major.
struct ConstTensor {
  std::string name;
  absl::Span<const float> values;
  // The bits of the values, instead of `values`, for a gradient that was rounded to bfloat16 already (by a
  // device, before it was copied from there). If one tensor of a gradient is given so, all must be, and
  // pushes must travel as bfloat16 (wire.push_dtype): the bits are sent as they are.
  absl::Span<const uint16_t> bfloat16 = {};
};
struct MutableTensor {
  std::string name;
  absl::Span<float> values;
};

// The model's tensors in flat memory that holds them end to end, in its order: each as make(name, values).
template <typename Value, typename Make>
auto CutIntoTensors(const ModelSpec& model, absl::Span<Value> flat, const Make& make) {
  std::vector<decltype(make(std::string(), flat))> tensors;
  for (const TensorSpec& tensor : model.tensors) {
    const auto elements = static_cast<size_t>(tensor.elements());
    tensors.push_back(make(tensor.name, flat.first(elements)));
    flat.remove_prefix(elements);
  }
  return tensors;
}
inline std::vector<MutableTensor> TensorsOf(const ModelSpec& model, absl::Span<float> flat) {
  return CutIntoTensors(model, flat, [](const auto& name, auto values) {
    return MutableTensor{name, values};
  });
}
inline std::vector<ConstTensor> TensorsOf(const ModelSpec& model, absl::Span<const float> flat) {
  return CutIntoTensors(model, flat, [](const auto& name, auto values) { return ConstTensor{name, values}; });
}
// A gradient that is bfloat16 already.
inline std::vector<ConstTensor> TensorsOf(const ModelSpec& model, absl::Span<const uint16_t> flat) {
  return CutIntoTensors(model, flat, [](const auto& name, auto values) {
    return ConstTensor{name, {}, values};
  });
}

// An embedding table of the job, from its config.
struct TableSpec {
  std::string name;
  uint32_t dim = 0;  // values of a row
};

// The gradient of some rows of one table: a row of `dim` values for each key. Keys may come in any order and
// several times: the gradients of one key are summed in float32 in the order in which they come.
struct RowGradients {
  uint32_t table = 0;  // the position in Client::tables()
  absl::Span<const uint64_t> keys;
  absl::Span<const float> values;  // keys.size() x dim
};
// Rows to read, into the caller's memory: the row of each key, in the order of the keys, which may be any; a
// key may come several times. A key without a row reads its initial values. The keys are read until the call
// returns; the values are all there when the Future is ready.
struct RowsToRead {
  uint32_t table = 0;
  absl::Span<const uint64_t> keys;
  absl::Span<float> values;  // keys.size() x dim
};

// Something that must be the same for every worker of the job, as "the training set's examples" and their
// hash.
struct Fingerprint {
  std::string name;   // for messages; 1 to 64 bytes
  std::string value;  // at most 128 bytes
};

struct ClientOptions {
  // Addresses of ps:0, ps:1, ...: "host:port" or "unix:/path".
  std::vector<std::string> servers;
  // The job's token, if it has one; JobToken::Read() reads it from a file.
  JobToken token;
  // This process's part in the job's TLS (common/rpc/tls.h); null: its connections are in the clear.
  std::shared_ptr<const Tls> tls;
  // This task as in the cluster spec, "worker:1"; for messages.
  std::string task = "worker:0";
  // In [0, workers). A chief has rank 0.
  uint32_t rank = 0;
  // This member only reads: it takes no part in training, and its NextWork() and Push() are errors.
  bool reader = false;
  // This member does what WaitEvaluation() asks for.
  bool evaluates = false;
  // The job's config, serialized; must agree with the servers'. The client takes mode, times and batch size
  // from it.
  std::string job_config;
  // Size of the training set; the same for every worker. 0 for a reader.
  uint64_t train_examples = 0;
  // Values that all workers must agree on, at most 16, each with a name of its own. ps:0 refuses a worker
  // whose value of a name differs from the value of the first worker that gave this name. A reader gives
  // none.
  std::vector<Fingerprint> fingerprints;
  // The initial values of all tensors, for a worker whose model is uploaded() (ModelSpec). If the job has no
  // values yet and names this worker, Join() uploads them. Read until Join() returns.
  std::vector<ConstTensor> initial_values;
  // If set, the client writes every answer into this file as a line of JSON (client/job/history.h). "{task}"
  // in the path stands for this task, "worker-0". A file that another process writes is refused.
  std::string history_path;
  // This process was in the job before, and was fenced. ps:0 was there, so Join() waits only
  // cluster.server_wait_seconds for a ps:0 that does not answer, and the history is continued instead of
  // begun anew.
  bool again = false;
  // With `again`: Client::job() of the membership before. A ps:0 of another job then refuses this process,
  // with Aborted. 0: not known.
  uint64_t job = 0;
  // Returns the seconds in which this process has computed gradients since it started, and did not wait; sent
  // along with each heartbeat (WorkerReport.compute_seconds). May be null, or return a negative number: then
  // nobody knows the worker's utilization.
  // Requires: does not block; may be called on any thread.
  std::function<double()> compute_seconds;
  // If this worker leads at the job's end and nobody has evaluated the weights, Leave() reads them and
  // reports their hash, for the summary. This takes memory for the weights once more.
  bool hashes_weights = true;
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
  // This worker has no further work at this clock, as far as is known now, so its push may be joined with the
  // next pull. False only in sync.
  bool last_of_clock = true;
  // The job's examples from this work's first one on.
  uint64_t examples_left = 0;
};

// How batches of the job become steps.
struct JobSteps {
  // sync: the parts of a step. Else the configured workers: a step is a batch of each of them.
  uint64_t batches_of_step = 1;
  // The job's length; the last step may have fewer batches.
  uint64_t steps = 1;
};

struct PullResult {
  // By shard: the version that was read, counted in updates. In sync all are the step's number, except in a
  // pull of rows alone where consistency.tables is "async": then each is the shard's version at that moment.
  std::vector<uint64_t> versions;
  // By shard: the incarnation that counted them.
  std::vector<uint64_t> incarnations;
  // By shard: the version of its tables that the rows are of (docs/tables.md). Only where consistency.tables
  // is "async"; otherwise empty, and the rows are of `versions`.
  std::vector<uint64_t> table_versions;
  // sync: the step of this pull is past (it was made without this worker), and the tensors hold no usable
  // weights. NextWork() returns work of the open step.
  bool past = false;
  // This pull did not wait as the job's mode asks, so it cannot be the base of a push. True for
  // PullSnapshot(), and for a pull of rows alone where consistency.tables is "async".
  bool no_base = false;
};

// Weights that are read where they lie; immutable. With shared memory they lie in the servers' memory, mapped
// read-only. Without it (other transports, bfloat16, a setup that failed) they lie in buffers of the client,
// which it reuses. The guarantees of a pull hold for a view as long as the view lives: no value changes and
// nothing is unmapped, whatever becomes of the client, its connection or the server.
//
// Therefore a server keeps each version that a view is in until the view, or the view's process, is gone. A
// server keeps two old versions. If views hold a third, the pushes of all workers wait until one is released,
// at most 5 seconds. Then the server takes other memory. While it is short of memory in this way, new views
// are copies. So hold one view: release it when the next one is there, or once the gradient is computed. To
// keep workers from holding each other up, a view is in place only in sync without backup_workers, or while
// the job has one worker; otherwise the view is a copy, in the client's buffers.
//
// Movable. Releases the weights when it is destroyed or assigned to, on any thread, also after the client is
// gone.
//
// Thread safety: const functions are thread-safe.
class WeightsView {
 public:
  using Pieces = std::vector<absl::Span<const float>>;

  // An empty view.
  WeightsView() = default;
  // For the client. `tensors`: the pieces of each tensor, which lie in `memory`.
  WeightsView(PullResult pull, std::vector<Pieces> tensors, std::shared_ptr<const void> memory, bool in_place)
      : pull_(std::move(pull)),
        tensors_(std::move(tensors)),
        memory_(std::move(memory)),
        in_place_(in_place) {}

  // Which weights these are. If it is `past`, there are none.
  const PullResult& pull() const { return pull_; }
  // The number of ModelSpec::tensors, or 0.
  size_t tensors() const { return tensors_.size(); }
  // A tensor's values, row-major, from first to last. Blocks lie on the servers in turn: with one server each
  // tensor is one piece; with more, a tensor that does not fit into a block (common/model/partition.h) has
  // several pieces.
  absl::Span<const absl::Span<const float>> pieces(size_t tensor) const { return tensors_[tensor]; }
  // All of a tensor; nullptr: it has several pieces.
  const float* contiguous(size_t tensor) const {
    return tensors_[tensor].size() == 1 ? tensors_[tensor][0].data() : nullptr;
  }
  // Returns whether all weights lie in the servers' memory.
  bool in_place() const { return in_place_; }

 private:
  PullResult pull_;
  std::vector<Pieces> tensors_;
  std::shared_ptr<const void> memory_;
  bool in_place_ = false;
};

struct PushResult {
  // The update was applied on every shard. False: it was disposed of; `reason` is that of the first shard
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

// Called when a tensor (its position in ModelSpec::tensors) holds the weights that the pull reads; the tensor
// is not written any more. Called once per tensor, when all shards have said that their weights are published
// and, in sync, of the step that was asked for. The last calls come before the Future is ready. Rows may come
// later than tensors; no call tells of them. A pull that fails or turns out to be past may have reported some
// tensors or none.
// Requires: the function does not block, nor take a lock that another thread holds while it waits for a
// Future, since it runs on the thread that takes the weights in.
using OnWeights = std::function<void(size_t tensor)>;

// An order for one exchange with each shard: a push, a pull, or a push and the pull at the next clock.
// client.h says what each part means.
struct ExchangeOrder {
  struct Push {
    Work work;
    // The pull whose weights the gradient was computed from.
    PullResult base;
    std::vector<ConstTensor> gradient;
    // May be null.
    std::shared_ptr<GradientGate> gate;
    // The rows' part of the gradient, of each table at most one entry; read until the call returns.
    std::vector<RowGradients> rows = {};
    // sync: the gradient's weight in the mean of the step, as the number of the labels that its loss is the
    // mean over; 0: work.examples. Each worker must give the batch the same weight. In bounded and async,
    // where a push is applied alone, it is 0.
    double weight = 0;
  };
  struct Pull {
    uint64_t clock = 0;
    // The weights come as a view; `tensors` and `on_weights` are not used.
    bool in_place = false;
    std::vector<MutableTensor> tensors;
    // May be empty.
    OnWeights on_weights;
    // Rows to read at the version of the weights, of each table at most one entry. With rows, and neither
    // in_place nor tensors, the dense weights stay where they are, and there is no on_weights.
    std::vector<RowsToRead> rows = {};
  };
  std::optional<Push> push;
  std::optional<Pull> pull;
};

// The result of an exchange. A part that was not ordered is empty.
struct ExchangeResult {
  PushResult push;
  // The result of a pull into tensors.
  PullResult pull;
  // The result of a pull in place, with its PullResult.
  WeightsView weights;
};

// The batches since this client joined, for status displays and for train.divergence; sent along with the
// next heartbeat.
struct Progress {
  uint64_t examples = 0;
  uint64_t batches = 0;
  // Sum over batches of mean loss * examples.
  double loss_sum = 0;
  // Examples and loss_sum of the job's last epoch, with each batch's term rounded to float.
  uint64_t last_examples = 0;
  double last_loss_sum = 0;
  // Batches whose loss is not finite, which count nowhere above.
  uint64_t not_finite = 0;
};

// A value of a metric of the program's own.
struct LoggedValue {
  absl::string_view name;
  double value = 0;
};

struct EvaluationResult {
  double test_loss = 0;
  // -1: none.
  double test_accuracy = -1;
  double test_auc = -1;
  uint64_t examples = 0;
  // Hex; empty: not computed.
  std::string weights_sha256;
  bool final = false;
  // Of the validation set.
  bool validation = false;
  // The EvaluationOrder::id that this answers; 0: there was no order. If `examples` is 0, the order could not
  // be carried out.
  uint64_t order = 0;
};

// An order to evaluate what PullSnapshot() reads, for the end of an epoch (counted from 1), and to Report()
// the result.
struct EvaluationOrder {
  uint64_t id = 0;
  uint64_t epoch = 0;
};

}  // namespace weir
