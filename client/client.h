#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/tensors/gradient_gate.h"
#include "client/types.h"
#include "common/model/model_spec.h"
#include "common/threads/future.h"

namespace weir {

// A worker's view of Weir. This program trains:
//
//   absl::Status Train(const ClientOptions& options, const ModelSpec& model) {
//     WEIR_ASSIGN_OR_RETURN(const auto client, Client::Join(options, model));
//     std::vector<float> weights(model.elements()), gradient(model.elements());
//     std::optional<uint64_t> have;  // the clock of the weights at hand
//     PullResult base;               // which weights these are
//     while (true) {
//       WEIR_ASSIGN_OR_RETURN(const std::optional<Work> work, client->NextWork());
//       if (!work.has_value()) break;  // the job is done
//       if (have != work->clock) {
//         const auto tensors = TensorsOf(model, absl::MakeSpan(weights));
//         WEIR_ASSIGN_OR_RETURN(base, client->Pull(work->clock, tensors).Get());
//         if (base.past) continue;  // the others were faster
//         have = work->clock;
//       }
//       ComputeGradient(*work, weights, &gradient);  // the mean over the work's examples
//       const auto tensors = TensorsOf(model, absl::MakeConstSpan(gradient));
//       WEIR_RETURN_IF_ERROR(client->Push(*work, base, tensors).Get().status());
//     }
//     return client->Leave();
//   }
//
// With local.steps of the job the loop is the same. A work has the batches of all these steps, and the
// gradient that is pushed is `weights` minus what the program's own steps have made of them.
//
// The program waits for each push. A faster program lets pushes travel while it computes: PushPull() also
// brings the next weights, and a gradient that is on its way has memory of its own. At the end one worker
// evaluates the weights: the worker to which AwaitsEvaluation() returns true.
//
// The loop is the same in every mode. The mode only decides how long Pull() waits and which work there is:
//   sync     NextWork() gives this worker's parts of the open step, also the parts of a worker that died
//            meanwhile; Push() is acknowledged when the step is committed; Pull(c) gives exactly the weights
//            after c steps.
//   bounded  Pull(c) waits until no live worker is more than s clocks behind c.
//   async    Pull(c) gives the newest weights, the worker's own pushes included.
//
// Guarantees. A push is applied at most once on each shard, whatever is retried. A pull is never torn: each
// shard's part is of one version, and in sync all parts are of one step. A bad gradient changes nothing. A
// gradient with other tensors or lengths is an error before anything is sent, and the same work may be pushed
// again. A NaN or Inf is found while the gradient is sent, because each value is checked when it leaves, but
// before any shard has the last value. Then consistency.on_nonfinite decides: the push is done without having
// been applied ("reject"), or this client is at its end, with Internal from every call, and Leave() tells the
// coordinator. Each call ends, with a result or with an error that names the peer it waited for.
//
// Errors: a call may fail with any of these, beside those that its own comment names.
// - OutOfRange: the job is done, without the work that this member had yet to do.
// - InvalidArgument, FailedPrecondition: the call or the config is wrong.
// - Unauthenticated: the servers have a token, and this client has a different one or none.
// - Internal: training diverged, here or, if that ended the job, elsewhere.
// - DataLoss: a pull that had handed over its first tensors (OnWeights) was interrupted, and its version is
//   gone; pull again.
// - Aborted: this worker was fenced (its lease ended); start again under a new Join.
// - Unavailable: a server was lost; its role, index and address are in the message.
// - DeadlineExceeded: a wait took longer than cluster.wait_seconds; the message names the peer.
//
// A tensor can travel while other tensors are computed: with a GradientGate a push begins with the first
// tensors of its gradient, and OnWeights tells which tensors of a pull have arrived.
//
// On a server's own host copies can be avoided: PullInPlace() and PushPullInPlace() let the caller read the
// weights where the server has them (WeightsView), and the servers read a gradient from NewGradient() in
// place.
//
// Rows of embedding tables (tables()) are read and updated by the same calls as the tensors. A push takes
// gradients of rows beside those of the tensors, and both take effect together, or neither does. A pull reads
// rows at the version of its weights. PullRows() reads rows alone. A key may come several times in a batch:
// its gradients are summed, and it is read to each place. NaN and Inf in a row are found before anything of
// the push is sent. Where a batch's keys are known before its weights are wanted, ask early: PullRows() for
// the next clock, while this clock's gradient is computed, waits on the servers and comes with the step. Any
// number of calls may be outstanding. With consistency.tables "async" PullRows() waits for nobody and brings
// the newest rows; so its result is no base of a push (InvalidArgument).
//
// Requires: tensors that are handed to Pull() and Push() belong to the caller. They live until the Future is
// ready, and the tensors of Push() stay unchanged until then. The memory of rows to read lives as long. If
// the Future holds an error, the tensors and rows of a pull may be written in part. The keys of rows, and
// their gradients, are copied before the call returns.
//
// Thread safety: all functions are thread-safe.
class Client {
 public:
  // Enters the job and waits until it may start, at most cluster.start_seconds. After 10 seconds a line in
  // the log says who is missing. Where a worker uploads the initial values (ModelSpec::uploaded()), one
  // worker does so here, and all wait for them.
  // Errors: InvalidArgument: the initial values are of other tensors or lengths, or not finite; the message
  // names the tensor. InvalidArgument, FailedPrecondition: the model, config or data differ from the job's;
  // the message names the first difference. OutOfRange: the job's examples are done already.
  static absl::StatusOr<std::unique_ptr<Client>> Join(const ClientOptions& options, const ModelSpec& model);

  // Leaves if Leave() was not called. Cancels outstanding calls, which have ended when the destructor
  // returns.
  // Requires: does not run in a Future's OnReady().
  virtual ~Client() = default;

  // Returns the next gradient to compute; gradients are pushed in this order. Waits while there is none.
  // nullopt: the job's examples are done, and this worker's pushes are acknowledged.
  // Errors: the error of a push, if nothing can continue before its work is pushed again.
  virtual absl::StatusOr<std::optional<Work>> NextWork() = 0;

  // Returns the result of NextWork() if the result is known by `deadline`; else the outer nullopt. In sync
  // the call waits, and the calling thread works on calls meanwhile. In bounded and async the call does not
  // wait.
  virtual std::optional<absl::StatusOr<std::optional<Work>>> NextWorkBy(
      std::chrono::steady_clock::time_point deadline) = 0;

  // One exchange with each shard. The calls below are short forms of it, each with the parameters and results
  // of one use; they say what the parts of an order mean. Get a result with weights in place with
  // Future::Take().
  // Errors: InvalidArgument: the order has neither a push nor a pull, or the clock of the pull does not
  // follow that of the push; the push has a weight that is not allowed (common/protocol/push_weight.h).
  // FailedPrecondition: the push has a weight, and ps:0 speaks a protocol version before 1.10.
  virtual Future<ExchangeResult> Exchange(ExchangeOrder order) = 0;

  // Reads the weights for `clock` into `tensors`: all tensors of the model, in any order. They are found
  // fastest in the model's own order. Also reads the rows in `rows`.
  Future<PullResult> Pull(uint64_t clock, std::vector<MutableTensor> tensors, OnWeights on_weights = nullptr,
                          std::vector<RowsToRead> rows = {}) {
    return Exchange(
               {std::nullopt, IntoTensors(clock, std::move(tensors), std::move(on_weights), std::move(rows))})
        .Then([](ExchangeResult result) { return std::move(result.pull); });
  }

  // Reads rows for `clock`, as Pull() does, and no tensors.
  // Requires: `rows` has at least one entry.
  Future<PullResult> PullRows(uint64_t clock, std::vector<RowsToRead> rows) {
    return Pull(clock, {}, nullptr, std::move(rows));
  }

  // Delivers the gradient of one piece of work. `base` is the pull whose weights the gradient was computed
  // from. The pushes of one worker are applied in the order of these calls. With a gate, `gradient` is the
  // memory that is still to be filled, and the gradients of later work wait behind it. `rows`: the gradient
  // of rows, whole when the call is made.
  Future<PushResult> Push(const Work& work, const PullResult& base, std::vector<ConstTensor> gradient,
                          std::shared_ptr<GradientGate> gate = nullptr, std::vector<RowGradients> rows = {}) {
    return Exchange({ExchangeOrder::Push{work, base, std::move(gradient), std::move(gate), std::move(rows)},
                     std::nullopt})
        .Then([](ExchangeResult result) { return std::move(result.push); });
  }

  // Memory for the gradient of one piece of work: the model's tensors end to end, in its order;
  // uninitialized. From the second push of a connection on, servers on this host read a gradient that is
  // pushed from there in place, instead of getting a copy. The memory is reused for a later call when its
  // last owner releases it; it may outlive the client.
  // Requires: the memory stays unchanged until the push's Future is ready, as other memory does. If the
  // Future holds an error, servers may still be reading: do not write to this memory again, but take other
  // memory.
  virtual std::shared_ptr<float> NewGradient() = 0;

  // Returns whether a gradient travels in several messages to some server. Otherwise nothing is gained by
  // beginning a push before the gradient is whole (GradientGate): its only message would wait.
  virtual bool gradient_has_chunks() const = 0;

  // Push(work) and the Pull at the next clock, as one exchange with each shard. In sync `weights` is not
  // written before the push has taken effect, so NextWork() may still give out a part of the same step (of a
  // worker that died), to be computed from these weights. In the other modes `weights` may be written while
  // the gradient is still being sent.
  // Requires: `work` is the last work of its clock (Work::last_of_clock). For earlier work use Push().
  Future<PushPullResult> PushPull(const Work& work, const PullResult& base, std::vector<ConstTensor> gradient,
                                  std::vector<MutableTensor> weights,
                                  std::shared_ptr<GradientGate> gate = nullptr,
                                  OnWeights on_weights = nullptr, std::vector<RowGradients> rows = {},
                                  std::vector<RowsToRead> next_rows = {}) {
    return Exchange(
               {ExchangeOrder::Push{work, base, std::move(gradient), std::move(gate), std::move(rows)},
                IntoTensors(work.clock + 1, std::move(weights), std::move(on_weights), std::move(next_rows))})
        .Then([](ExchangeResult result) {
          return PushPullResult{std::move(result.push), std::move(result.pull)};
        });
  }

  // Like Pull() and PushPull(), but the weights are read where they lie (WeightsView). Get the result with
  // Future::Take(): a result that stays in the Future keeps its view.
  Future<WeightsView> PullInPlace(uint64_t clock) {
    return Exchange({std::nullopt, InPlace(clock)}).Then([](ExchangeResult result) {
      return std::move(result.weights);
    });
  }
  Future<PushPullView> PushPullInPlace(const Work& work, const PullResult& base,
                                       std::vector<ConstTensor> gradient,
                                       std::shared_ptr<GradientGate> gate = nullptr,
                                       std::vector<RowGradients> rows = {}) {
    return Exchange({ExchangeOrder::Push{work, base, std::move(gradient), std::move(gate), std::move(rows)},
                     InPlace(work.clock + 1)})
        .Then([](ExchangeResult result) {
          return PushPullView{std::move(result.push), std::move(result.weights)};
        });
  }

  // Reads the newest consistent weights, from outside the training; in sync they are of one step on all
  // shards. Pins a version, reads it and releases it. The result serves evaluators, exports and a final
  // evaluation, and is no base of a push. With rows and without tensors, reads rows alone.
  virtual Future<PullResult> PullSnapshot(std::vector<MutableTensor> tensors,
                                          std::vector<RowsToRead> rows = {}) = 0;

  // Returns whether the job's examples are done. Never waits.
  virtual bool draining() const = 0;
  // Waits until draining(), at most until `deadline`; returns draining().
  // Errors: the job's error, if the job failed; Aborted: this client was fenced.
  virtual absl::StatusOr<bool> WaitDraining(std::chrono::steady_clock::time_point deadline) = 0;
  // Returns whether this worker has the lowest rank of the live workers.
  virtual bool leading() const = 0;
  // Returns true if this worker must evaluate the weights and Report() the result as final, and false once
  // the evaluation is done. The evaluation is the leading worker's task. The other workers wait in this call,
  // because the leading worker may die before the evaluation is done. If a worker leaves earlier, the servers
  // conclude that its program evaluates nothing.
  // Requires: NextWork() has returned nullopt.
  virtual absl::StatusOr<bool> AwaitsEvaluation() = 0;

  // Waits until this member is asked to evaluate the weights at an epoch's end, at most until `deadline`.
  // nullopt: the member was not asked, or will not be asked any more because of draining(). Each order comes
  // once, and only if ClientOptions::evaluates was set. In sync the others' next step waits until the weights
  // are read.
  // Errors: the job failed, or this client was fenced or has left.
  virtual absl::StatusOr<std::optional<EvaluationOrder>> WaitEvaluation(
      std::chrono::steady_clock::time_point deadline) = 0;

  // Call this after each batch. If the losses diverge (train.divergence), the job fails.
  virtual void SetProgress(const Progress& progress) = 0;
  virtual absl::Status Report(const PullResult& of, const EvaluationResult& result) = 0;

  // Logs a value under each name; with an error, none. The status of the job has, over all workers and about
  // the last epoch, the mean of a name's values or, if `last`, the value at the highest clock. `weight`: of
  // these values in a mean; 0: the examples of the newest work.
  // Errors: InvalidArgument: a name has other letters than [A-Za-z0-9_.-/], more than 64, or another kind of
  // value before; there are more than 64 names; or a value or weight is not finite. The message names it.
  virtual absl::Status Log(absl::Span<const LoggedValue> values, bool last = false, double weight = 0) = 0;
  // Logs scores, in [0, 1], and labels, 0 or 1, of examples, of which the status has the area under the ROC
  // curve, of all workers together. For at most 4 names.
  // Errors: as of Log(). With one, nothing is logged.
  virtual absl::Status LogScores(absl::string_view name, absl::Span<const float> scores,
                                 absl::Span<const float> labels) = 0;

  // Ends the job well before all of its examples are done, for this reason: 1 to 1,000 bytes, for people. In
  // sync the open step is the last one; otherwise each worker does the batches that it was given (at most
  // 64). Then NextWork() returns nullopt on every worker, and the last checkpoint is written. Idempotent; the
  // first reason stays. If this membership is lost before that, call it again after the next Join(), since
  // ps:0 may have been started again.
  // Errors: FailedPrecondition: ps:0 speaks a protocol version before 1.10, or this is a reader.
  virtual absl::Status Stop(const std::string& reason) = 0;

  // Ends the membership. `failure` is OK if the work is done, and otherwise says why this member gives up.
  // FAILURE_DRAINED (common/protocol/job_failure.h): the process is asked to end, and may come again; the
  // call takes a second or two at most. Later calls are errors.
  virtual absl::Status Leave(const absl::Status& failure = absl::OkStatus()) = 0;

  virtual uint32_t worker() const = 0;
  // As the job was when this member joined.
  virtual JobSteps steps() const = 0;
  // The clock at which this member began: the job's progress at that time, as a worker counts it.
  virtual uint64_t start_clock() const = 0;
  // Returns whether this member did something that the job keeps, unless the job goes back to a checkpoint: a
  // push was acknowledged. A reader: whether it has read weights.
  virtual bool progressed() const = 0;
  // The id of the job (v1::JobIdentity), for ClientOptions::job. 0: ps:0 speaks a protocol version before
  // 1.9.
  virtual uint64_t job() const = 0;
  virtual const ModelSpec& model() const = 0;
  // The job's embedding tables, as its config has them.
  virtual const std::vector<TableSpec>& tables() const = 0;

 private:
  static ExchangeOrder::Pull IntoTensors(uint64_t clock, std::vector<MutableTensor> tensors,
                                         OnWeights on_weights, std::vector<RowsToRead> rows) {
    return {clock, /*in_place=*/false, std::move(tensors), std::move(on_weights), std::move(rows)};
  }
  static ExchangeOrder::Pull InPlace(uint64_t clock) { return {clock, /*in_place=*/true, {}, nullptr}; }
};

}  // namespace weir
