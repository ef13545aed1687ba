#pragma once

#include <stddef.h>
#include <stdint.h>

// A worker's view of Weir (client/client.h) for programs in other languages; libweir.so. client/client.h says
// what the calls mean, and what each mode makes of them.
//
// Errors: a function that can fail returns a weir_error, which the caller frees; NULL: it has succeeded. No
// exception crosses this border.
//
// Waiting: no function waits, except weir_wait(), and weir_wait() only as long as it is told. A function
// whose work takes time returns a weir_future at once: wait for it in short pieces, and take its result once
// it is ready.
//
// Thread safety: all functions are thread-safe, unless their comment says otherwise.
//
// Requires: a handle is freed once, when no other call uses it.
//
// Memory: handles are freed with their weir_free_... function; NULL is ignored. Memory that a future reads or
// writes belongs to the caller, and must live, and unless the future writes it stay unchanged, until the
// future is ready. Freeing a future does not end its call.
//
// Forks: in a child process of fork() every call fails (code 9) and every weir_free_... does nothing: the
// connections belong to the parent.
#ifdef __cplusplus
extern "C" {
#endif

typedef struct weir_error weir_error;
typedef struct weir_job weir_job;
typedef struct weir_client weir_client;
typedef struct weir_future weir_future;
typedef struct weir_weights weir_weights;
typedef struct weir_gradient weir_gradient;
typedef struct weir_gate weir_gate;
typedef struct weir_order weir_order;

// "0.1.0", as `weir --version` says it.
const char* weir_version(void);

// ---- errors

// A number of v1.FailureKind (proto/failure.proto): 1 diverged, 2 drained, 3 fenced, 4 a lost peer, 5 config,
// 6 storage, 7 a bug.
int weir_error_kind(const weir_error* error);
// The number of an absl::StatusCode; client/client.h says what each means.
int weir_error_code(const weir_error* error);
// The code with which a process should exit because of the error (docs/exit_codes.md).
int weir_error_exit_code(const weir_error* error);
const char* weir_error_message(const weir_error* error);
void weir_free_error(weir_error* error);

// ---- a job's config

// Reads the config `path` or, if that is NULL, the JSON `text`. An override is "a.b=value".
weir_error* weir_load_job(const char* path, const char* text, const char* const* overrides, size_t n,
                          weir_job** job);
// The config as JSON, with the defaults of the fields that apply. Lives as long as the job.
const char* weir_job_json(const weir_job* job);
void weir_free_job(weir_job* job);

// ---- the model

enum { WEIR_CONSTANT = 0, WEIR_NORMAL = 1, WEIR_UNIFORM = 2, WEIR_UPLOADED = 3 };

typedef struct {
  const char* name;
  const int64_t* shape;  // row-major
  size_t rank;
  // How the servers make the initial values, unless they come from checkpoint.init_from: all `value`; with
  // the standard deviation `value` around 0; or even in [-value, value). WEIR_UPLOADED, for all tensors or
  // none: weir_join() uploads them, if the job names this worker for that.
  int initializer;
  float value;
  // Not 0: running statistics. A push holds their new values instead of a gradient, which are assigned: in
  // sync the mean over the step's parts, else those of each push.
  int buffer;
  // Other names that the model has for this tensor, under which an export holds it, too.
  const char* const* aliases;
  size_t n_aliases;
} weir_tensor;

// Rows of one embedding table of the job.
typedef struct {
  uint32_t table;        // its position in the config's `tables`
  const uint64_t* keys;  // n, in any order; a key may come several times
  size_t n;
  float* values;  // n x the table's dim, row-major; a push only reads them
} weir_rows;

// Writes a folder for checkpoint.init_from: the tensors with these values.
// Errors: the folder has some already.
weir_error* weir_save_weights(const char* directory, const weir_tensor* tensors, size_t n,
                              const float* const* values);

// ---- membership

typedef struct weir_fingerprint {
  const char* name;  // for messages: "the training set's examples"
  const char* value;
} weir_fingerprint;

typedef struct {
  // As the flags of `worker`; NULL: from the environment (TF_CONFIG, WEIR_TOKEN_FILE).
  const char* cluster;
  const char* task;
  const char* token_file;
  const char* history;  // NULL: none
  // The least severe lines of the log on stderr: "debug", "info", "warning" or "error". NULL: "info" in a
  // cluster, else "warning". The first weir_open() of a process decides.
  const char* log_level;
  // Examples of the training set, the same for every worker.
  uint64_t train_examples;
  // Servers in this process, where there is no cluster. At least 1.
  uint32_t servers;
  // Not 0: this member reads weights of a cluster's job, and takes no part in training. train_examples is 0.
  int reader;
  // Not 0: this member takes the orders of weir_take_order(), and makes the final evaluation if
  // weir_awaits_evaluation() says so.
  int evaluates;
  // Values that must be the same for every worker of the job, at most 16. ps:0 compares values with the same
  // name. A name has 1 to 64 bytes, a value at most 128.
  const weir_fingerprint* fingerprints;
  size_t n_fingerprints;
} weir_options;

// Finds the servers or, where there is no cluster, starts some in this process, on loopback. Does not join
// yet. All arguments are read before the call returns.
weir_future* weir_open(const weir_job* job, const weir_options* options, const weir_tensor* tensors,
                       size_t n);
weir_error* weir_take_client(weir_future* future, weir_client** client);

// Where the servers are in this process: the folder of the checkpoint that the job continues from. "": it
// begins anew, or the servers are others'. Lives as long as the client.
const char* weir_resumed_from(const weir_client* client);
// Reads the weights of that checkpoint into each tensor's memory, in the model's order, and rows: the result
// of a job that was done before, which nobody can join. The future reads the keys.
weir_future* weir_load_resumed(weir_client* client, float* const* into, const weir_rows* rows, size_t n_rows);

// Joins the job; again, after the membership was lost (kind 3), unless that has happened too often without
// any progress. `initial`: the initial values of WEIR_UPLOADED tensors, in the model's order, which the
// future reads; else NULL.
// Requires: a membership that was lost has been left.
weir_future* weir_join(weir_client* client, const float* const* initial);
// `reason` NULL: the work is done. Otherwise ends this membership with a failure of this kind, which says why
// this member gives up. Where the servers are in this process the job ends, too, unless the kind is 3
// (fenced). If the work is done, waits for their end. If the kind is 2 (drained) and the job has checkpoints,
// saves one. The result is then an error: of kind 2, which names that checkpoint, or one that says why there
// is none.
weir_future* weir_leave(weir_client* client, int kind, const char* reason);
// Ends a membership that was not left, and servers in this process; the future ends with them, which takes a
// moment, unless a server waits for storage. Calls that are in flight end, and later ones fail (code 9). The
// client may be freed before.
weir_future* weir_close_client(weir_client* client);
// Closes it, too.
void weir_free_client(weir_client* client);

typedef struct {
  uint32_t worker;
  // The clock at which the membership began.
  uint64_t start_clock;
  int draining;
  int leading;
  // Whether a push gains time by beginning before its gradient is complete (weir_gate).
  int gains_from_gate;
  // Whether the servers are in this process, so that this is the job's only worker.
  int in_process;
} weir_membership;
weir_error* weir_get_membership(weir_client* client, weir_membership* membership);

// The batches since the client joined, for status displays and for train.divergence.
typedef struct {
  uint64_t examples;
  uint64_t batches;
  // The sum over batches of mean loss x examples.
  double loss_sum;
  // Examples and loss_sum of the job's last epoch.
  uint64_t last_examples;
  double last_loss_sum;
  // Batches whose loss is not finite, which count nowhere above.
  uint64_t not_finite;
} weir_progress;
// Ends once the job's examples are done (weir_membership.draining), but after this time at the latest.
weir_future* weir_wait_draining(weir_client* client, double seconds);
weir_error* weir_set_progress(weir_client* client, const weir_progress* progress);
// Whether the program computes a gradient from now on, for the worker's utilization.
void weir_set_computing(weir_client* client, int computes);

// An order to evaluate what weir_snapshot() reads, for the end of an epoch (counted from 1), and to report
// the result. id 0: there is none.
typedef struct {
  uint64_t id;
  uint64_t epoch;
} weir_order_to_evaluate;
// Each order comes once. Waits for it, at most so many seconds or until the job's examples are done.
weir_error* weir_take_order(weir_client* client, double seconds, weir_order_to_evaluate* order);
// Waits, once the job's examples are done, until this worker must make the final evaluation
// (weir_take_answer(): 1) or the evaluation was made (0).
weir_future* weir_awaits_evaluation(weir_client* client);
weir_error* weir_take_answer(weir_future* future, int* answer);

typedef struct {
  // NaN: none.
  double loss;
  // In [0, 1]; -1: none.
  double accuracy;
  double auc;
  // Of the set that was evaluated. 0: the order could not be carried out.
  uint64_t examples;
  // Not 0: the set is held out for validation, and not the test set.
  int validation;
  // weir_order_to_evaluate.id, or 0.
  uint64_t order;
  // Not 0: the last evaluation of the job's end.
  int final;
  // Hex, over the little-endian float32 values in the model's order, if the weights are those of the job's
  // end; else "".
  const char* weights_sha256;
} weir_evaluation;
// Tells the job the result of an evaluation of these weights, for its status and its summary. `of` NULL: they
// could not be read.
weir_future* weir_report(weir_client* client, const weir_weights* of, const weir_evaluation* evaluation);
typedef struct {
  const char* name;
  double value;
} weir_metric;
// Logs a value under each name; with an error, none (Client::Log()). `last`: not 0: the last value is shown,
// instead of the mean. `weight`: in the mean; 0: the examples of the newest work.
weir_error* weir_log(weir_client* client, const weir_metric* metrics, size_t n, int last, double weight);
// Logs n scores, in [0, 1], and labels, 0 or 1, of which the AUC is shown.
weir_error* weir_log_scores(weir_client* client, const char* name, const float* scores, const float* labels,
                            size_t n);
// Ends the job well before all of its examples are done (Client::Stop()). `reason`: 1 to 1,000 bytes.
weir_future* weir_stop(weir_client* client, const char* reason);

// ---- work

typedef struct {
  uint64_t clock;
  uint64_t batch;
  uint64_t first_example;
  uint64_t examples;
  uint64_t examples_left;
  uint32_t part;
  int last_of_clock;
} weir_work;

// The next gradient to compute. A future is given work also when nobody waits for it.
// Requires: the future is kept until its result is taken, and waited for again. If it is freed before, the
// work that it was given is lost.
weir_future* weir_next_work(weir_client* client);

typedef struct {
  const weir_work* work;
  // The weights that the gradient was computed from.
  const weir_weights* base;
  // Each tensor's memory, in the model's order.
  const float* const* gradient;
  // NULL: the gradient is complete.
  weir_gate* gate;
  // The gradient of rows, of each table at most one entry. Read before weir_exchange() returns.
  const weir_rows* rows;
  size_t n_rows;
  // sync: in the mean of the step; 0: the work's examples (ExchangeOrder::Push::weight).
  double weight;
} weir_push;

typedef struct {
  uint64_t clock;
  // Not 0: the weights are read where they lie; `into` is not used.
  int in_place;
  // Each tensor's memory, in the model's order. NULL: no tensors are read, but rows.
  float* const* into;
  // Rows to read, of each table at most one entry. The keys are read before weir_exchange() returns.
  const weir_rows* rows;
  size_t n_rows;
} weir_pull;

// A push, a pull, or both: then the pull is at the next clock. NULL: there is none.
weir_future* weir_exchange(weir_client* client, const weir_push* push, const weir_pull* pull);
// Reads the newest consistent weights, from outside the training. `into` NULL: rows alone.
weir_future* weir_snapshot(weir_client* client, float* const* into, const weir_rows* rows, size_t n_rows);

// Memory for a gradient: the tensors end to end. Servers on this host read it in place.
// Requires: if the push fails, the memory is not written again.
weir_error* weir_new_gradient(weir_client* client, weir_gradient** gradient, float** values);
void weir_free_gradient(weir_gradient* gradient);

// Lets a push begin before its gradient is complete: each piece travels once the tensors in it are ready.
// Requires: a gate is for one push. All tensors are ready within cluster.wait_seconds after the push has
// begun.
weir_gate* weir_new_gate(void);
// Says that the tensor (its position in the model) holds its gradient. Before or after the push has begun.
// Requires: the tensor does not change until the push's future is ready.
void weir_gate_ready(weir_gate* gate, size_t tensor);
// Ends the push with this reason, and without a trace, unless all tensors are ready.
void weir_gate_fail(weir_gate* gate, const char* reason);
// Before all tensors are ready: as weir_gate_fail().
void weir_free_gate(weir_gate* gate);

// ---- results

// Waits until the future is ready, at most this long. Returns whether it is.
int weir_wait(weir_future* future, double seconds);
// Each takes the result of a ready future, once.
// Errors: that of the future's call; code 9: the future is not ready, its result was taken, or it is the
// result of another kind of call.
weir_error* weir_take(weir_future* future);
weir_error* weir_take_work(weir_future* future, weir_work* work, int* done);

typedef struct {
  // Whether the update was applied on every server; otherwise it was disposed of.
  int applied;
  uint64_t staleness;
  // Why it was disposed of; at most this long, with a 0 at its end.
  char reason[256];
} weir_pushed;
// `weights` is NULL if there was no pull.
weir_error* weir_take_exchange(weir_future* future, weir_pushed* pushed, weir_weights** weights);
void weir_free_future(weir_future* future);

// The step is past, and these are no usable weights (sync): ask for work again.
int weir_weights_past(const weir_weights* weights);
// Updates since version 0, of the shard that has the fewest. In sync this is the step.
uint64_t weir_weights_version(const weir_weights* weights);
// The i-th piece of a tensor that was read in place: its values and their number. Returns 0 if there is none.
int weir_weights_piece(const weir_weights* weights, size_t tensor, size_t i, const float** values, size_t* n);
// Weights in place: lets the servers have the memory back.
void weir_free_weights(weir_weights* weights);

// ---- data

// The order in which a job of this seed sees its training examples: position p of the endless stream that
// weir_work.first_example counts in.
// Errors: no examples, or more than 2^31 - 1.
weir_error* weir_new_order(uint64_t examples, uint64_t seed, weir_order** order);
// Thread safety: one thread at a time uses an order.
void weir_fill_order(weir_order* order, uint64_t first, size_t n, int32_t* examples);
void weir_free_order(weir_order* order);

// ---- programs

// Runs a program that libweir.so has within it, "ps_server" or "weir", so that a wheel need not bring the
// same code several times. Returns the exit code.
// Requires: called once, by the main() of a process for it.
int weir_run_program(const char* name, int argc, char** argv);

#ifdef __cplusplus
}
#endif
