// Membership, work, pushes and pulls.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/job_failure.h"
#include "common/protocol/mode_traits.h"
#include "common/threads/thread.h"
#include "proto/failure.pb.h"
#include "python/capi/handles.h"
#include "python/capi/member.h"

struct weir_client {
  std::shared_ptr<weir::Member> member;
};

struct weir_gradient {
  std::shared_ptr<float> values;
};

struct weir_gate {
  std::shared_ptr<weir::GradientGate> gate = std::make_shared<weir::GradientGate>();
};

namespace weir {
namespace {

using Result = Pending::Result;

std::chrono::steady_clock::time_point DeadlineIn(double seconds) {
  constexpr double kMost = 1e6;
  return std::chrono::steady_clock::now() +
         std::chrono::nanoseconds(static_cast<int64_t>(std::clamp(seconds, 0.0, kMost) * 1e9));
}

// A future that is ready.
weir_future* Ready(absl::StatusOr<Result> result) {
  auto* const future = new weir_future;
  future->pending->Set(std::move(result));
  return future;
}

// The future of `call`, which takes its time.
weir_future* InBackground(std::function<absl::StatusOr<Result>()> call) {
  if (Forked()) return Ready(ForkedError());
  auto* const future = new weir_future;
  absl::StatusOr<std::thread> thread = MakeThread(
      "wait for a call", [pending = future->pending, call = std::move(call)] { pending->Set(call()); });
  if (thread.ok()) {
    thread->detach();
  } else {
    future->pending->Set(thread.status());
  }
  return future;
}

weir_future* InBackground(const weir_client* client, std::function<absl::Status(Member&)> call) {
  return InBackground([member = client->member, call = std::move(call)]() -> absl::StatusOr<Result> {
    WEIR_RETURN_IF_ERROR(call(*member));
    return Result();
  });
}

// The future of what `begin` begins.
weir_future* Begun(const weir_client* client,
                   const std::function<absl::StatusOr<Future<ExchangeResult>>(Client&)>& begin) {
  const auto begun = [&]() -> absl::StatusOr<Future<ExchangeResult>> {
    WEIR_ASSIGN_OR_RETURN(const std::shared_ptr<Client> in, client->member->client());
    return begin(*in);
  };
  absl::StatusOr<Future<ExchangeResult>> result = begun();
  if (!result.ok()) return Ready(result.status());
  auto* const future = new weir_future;
  // Taken, because a result that stays keeps its view.
  Future<bool> set = result->Then([pending = std::weak_ptr<Pending>(future->pending)](ExchangeResult got) {
    if (const std::shared_ptr<Pending> to = pending.lock()) to->Set(Result(std::move(got)));
    return true;
  });
  set.OnReady([pending = std::weak_ptr<Pending>(future->pending)](const absl::StatusOr<bool>& got) {
    const std::shared_ptr<Pending> to = pending.lock();
    if (to != nullptr && !got.ok()) to->Set(got.status());
  });
  future->pending->WorkOn(std::move(set));
  return future;
}

// The caller's memory of each tensor, as MutableTensor or ConstTensor.
template <typename Tensor, typename Value>
std::vector<Tensor> TensorsAt(const ModelSpec& model, Value* const* memory) {
  std::vector<Tensor> tensors;
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    const TensorSpec& tensor = model.tensors[i];
    tensors.push_back({tensor.name, absl::MakeSpan(memory[i], static_cast<size_t>(tensor.elements()))});
  }
  return tensors;
}

// The caller's rows, as RowsToRead or RowGradients.
template <typename Rows>
absl::StatusOr<std::vector<Rows>> RowsAt(const v1::JobConfig& config, const weir_rows* rows, size_t n) {
  std::vector<Rows> out;
  for (const weir_rows& of : absl::MakeConstSpan(rows, n)) {
    if (of.table >= static_cast<uint32_t>(config.tables_size())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "table ", of.table, " is not in the job's config, which has ", config.tables_size(), " tables"));
    }
    const size_t dim = config.tables(static_cast<int>(of.table)).dim();
    out.push_back({of.table, {of.keys, of.n}, absl::MakeSpan(of.values, of.n * dim)});
  }
  return out;
}

absl::StatusOr<ExchangeOrder> OrderOf(const Member& member, const weir_push* push, const weir_pull* pull) {
  ExchangeOrder order;
  if (push != nullptr) {
    if (push->base == nullptr) {
      return absl::InvalidArgumentError(
          "a push has no base; give the weights that its gradient was computed from");
    }
    WEIR_ASSIGN_OR_RETURN(auto rows, RowsAt<RowGradients>(member.config(), push->rows, push->n_rows));
    const weir_work& of = *push->work;
    order.push = {
        {of.clock, of.part, of.batch, of.first_example, of.examples, of.last_of_clock != 0, of.examples_left},
        push->base->pull(),
        TensorsAt<ConstTensor>(member.model(), push->gradient),
        push->gate == nullptr ? nullptr : push->gate->gate,
        std::move(rows),
        push->weight};
  }
  if (pull != nullptr) {
    order.pull = ExchangeOrder::Pull();
    order.pull->clock = pull->clock;
    order.pull->in_place = pull->in_place != 0;
    if (pull->in_place == 0 && pull->into != nullptr) {
      order.pull->tensors = TensorsAt<MutableTensor>(member.model(), pull->into);
    }
    WEIR_ASSIGN_OR_RETURN(order.pull->rows, RowsAt<RowsToRead>(member.config(), pull->rows, pull->n_rows));
  }
  return order;
}

// A copy, with its texts. Nobody but the call has it: a result that nobody takes goes at once.
class KeptOptions {
 public:
  explicit KeptOptions(const weir_options& options) : options_(options) {
    for (const char** text :
         {&options_.cluster, &options_.task, &options_.token_file, &options_.history, &options_.log_level}) {
      if (*text != nullptr) *text = texts_.emplace_back(*text).c_str();
    }
    for (const weir_fingerprint& of : absl::MakeConstSpan(options.fingerprints, options.n_fingerprints)) {
      fingerprints_.push_back({texts_.emplace_back(of.name).c_str(), texts_.emplace_back(of.value).c_str()});
    }
    options_.fingerprints = fingerprints_.data();
  }
  KeptOptions(const KeptOptions&) = delete;
  const weir_options& options() const { return options_; }

 private:
  weir_options options_;
  std::deque<std::string> texts_;
  std::vector<weir_fingerprint> fingerprints_;
};

template <typename Handle>
void Free(Handle* handle) {
  if (!Forked()) delete handle;
}

// `of` the membership, unless there is none.
template <typename Of>
weir_error* WithClient(const weir_client* client, Of of) {
  const absl::StatusOr<std::shared_ptr<Client>> in = client->member->client();
  if (!in.ok()) return ErrorOf(in.status());
  of(**in);
  return nullptr;
}

}  // namespace
}  // namespace weir

weir_future* weir_open(const weir_job* job, const weir_options* options, const weir_tensor* tensors,
                       size_t n) {
  const auto kept = std::make_shared<const weir::KeptOptions>(*options);
  return weir::InBackground(
      [config = job->config, kept, model = weir::ModelOf(tensors, n)]() -> absl::StatusOr<weir::Result> {
        WEIR_RETURN_IF_ERROR(model.status());
        return weir::Member::Open(config, kept->options(), *model);
      });
}

weir_error* weir_take_client(weir_future* future, weir_client** client) {
  auto taken = future->pending->Take<std::shared_ptr<weir::Member>>();
  if (!taken.ok()) return weir::ErrorOf(taken.status());
  *client = new weir_client{*std::move(taken)};
  return nullptr;
}

const char* weir_resumed_from(const weir_client* client) { return client->member->resumed_from().c_str(); }

weir_future* weir_load_resumed(weir_client* client, float* const* into, const weir_rows* rows,
                               size_t n_rows) {
  const auto tensors = weir::TensorsAt<weir::MutableTensor>(client->member->model(), into);
  const auto reads = weir::RowsAt<weir::RowsToRead>(client->member->config(), rows, n_rows);
  return weir::InBackground(client, [tensors, reads](weir::Member& member) {
    return reads.ok() ? member.LoadResumed(tensors, *reads) : reads.status();
  });
}

weir_future* weir_join(weir_client* client, const float* const* initial) {
  std::vector<weir::ConstTensor> values;
  if (initial != nullptr) values = weir::TensorsAt<weir::ConstTensor>(client->member->model(), initial);
  return weir::InBackground(
      client, [values = std::move(values)](weir::Member& member) { return member.Join(values); });
}

weir_future* weir_leave(weir_client* client, int kind, const char* reason) {
  absl::Status failure;
  if (reason != nullptr) {
    failure = weir::JobFailure(weir::v1::FailureKind_IsValid(kind) ? static_cast<weir::v1::FailureKind>(kind)
                                                                   : weir::v1::FAILURE_INTERNAL,
                               *reason == '\0' ? "no reason was given" : reason);
  }
  return weir::InBackground(client, [failure](weir::Member& member) { return member.Leave(failure); });
}

weir_future* weir_close_client(weir_client* client) {
  return weir::InBackground(client, [](weir::Member& member) {
    member.Close();
    return absl::OkStatus();
  });
}

void weir_free_client(weir_client* client) { weir::Free(client); }

weir_error* weir_get_membership(weir_client* client, weir_membership* membership) {
  return weir::WithClient(client, [&](weir::Client& in) {
    *membership = {in.worker(),
                   in.start_clock(),
                   in.draining(),
                   in.leading(),
                   in.gradient_has_chunks() && !weir::OvertakesSlowPushes(client->member->config()),
                   client->member->has_servers()};
  });
}

weir_error* weir_set_progress(weir_client* client, const weir_progress* progress) {
  return weir::WithClient(client, [progress](weir::Client& in) {
    in.SetProgress({progress->examples, progress->batches, progress->loss_sum, progress->last_examples,
                    progress->last_loss_sum, progress->not_finite});
  });
}

void weir_set_computing(weir_client* client, int computes) {
  weir::ComputeTime& time = client->member->compute_time();
  computes != 0 ? time.Start() : time.Stop();
}

weir_error* weir_take_order(weir_client* client, double seconds, weir_order_to_evaluate* order) {
  *order = {};
  const absl::StatusOr<std::shared_ptr<weir::Client>> in = client->member->client();
  if (!in.ok()) return weir::ErrorOf(in.status());
  const auto taken = (*in)->WaitEvaluation(weir::DeadlineIn(seconds));
  if (!taken.ok()) return weir::ErrorOf(taken.status());
  if (taken->has_value()) *order = {(*taken)->id, (*taken)->epoch};
  return nullptr;
}

weir_future* weir_awaits_evaluation(weir_client* client) {
  return weir::InBackground([member = client->member]() -> absl::StatusOr<weir::Result> {
    WEIR_ASSIGN_OR_RETURN(const std::shared_ptr<weir::Client> in, member->client());
    WEIR_ASSIGN_OR_RETURN(const bool answer, in->AwaitsEvaluation());
    return weir::Result(answer);
  });
}

weir_error* weir_take_answer(weir_future* future, int* answer) {
  const absl::StatusOr<bool> taken = future->pending->Take<bool>();
  if (!taken.ok()) return weir::ErrorOf(taken.status());
  *answer = *taken;
  return nullptr;
}

weir_future* weir_report(weir_client* client, const weir_weights* of, const weir_evaluation* evaluation) {
  weir::EvaluationResult result;
  result.test_loss = evaluation->loss;
  result.test_accuracy = evaluation->accuracy;
  result.test_auc = evaluation->auc;
  result.examples = evaluation->examples;
  result.validation = evaluation->validation != 0;
  result.order = evaluation->order;
  result.final = evaluation->final != 0;
  if (evaluation->weights_sha256 != nullptr) result.weights_sha256 = evaluation->weights_sha256;
  return weir::InBackground(client,
                            [pull = of == nullptr ? weir::PullResult() : of->pull(),
                             result = std::move(result)](weir::Member& member) -> absl::Status {
                              WEIR_ASSIGN_OR_RETURN(const std::shared_ptr<weir::Client> in, member.client());
                              return in->Report(pull, result);
                            });
}

weir_error* weir_log(weir_client* client, const weir_metric* metrics, size_t n, int last, double weight) {
  std::vector<weir::LoggedValue> values;
  for (const weir_metric& metric : absl::MakeConstSpan(metrics, n))
    values.push_back({metric.name, metric.value});
  absl::Status status;
  weir_error* const error =
      weir::WithClient(client, [&](weir::Client& in) { status = in.Log(values, last != 0, weight); });
  return error != nullptr ? error : weir::ErrorOf(status);
}

weir_error* weir_log_scores(weir_client* client, const char* name, const float* scores, const float* labels,
                            size_t n) {
  absl::Status status;
  weir_error* const error = weir::WithClient(client, [&](weir::Client& in) {
    status = in.LogScores(name, {scores, n}, {labels, n});
  });
  return error != nullptr ? error : weir::ErrorOf(status);
}

weir_future* weir_stop(weir_client* client, const char* reason) {
  return weir::InBackground(client, [text = std::string(reason)](weir::Member& member) -> absl::Status {
    WEIR_ASSIGN_OR_RETURN(const std::shared_ptr<weir::Client> in, member.client());
    return in->Stop(text);
  });
}

weir_future* weir_wait_draining(weir_client* client, double seconds) {
  const auto deadline = weir::DeadlineIn(seconds);
  return weir::InBackground(client, [deadline](weir::Member& member) -> absl::Status {
    WEIR_ASSIGN_OR_RETURN(const std::shared_ptr<weir::Client> in, member.client());
    return in->WaitDraining(deadline).status();
  });
}

weir_future* weir_next_work(weir_client* client) {
  const auto next = [](weir::Member& member, auto deadline) -> std::optional<absl::StatusOr<weir::Result>> {
    const absl::StatusOr<std::shared_ptr<weir::Client>> in = member.client();
    if (!in.ok()) return in.status();
    auto found = (*in)->NextWorkBy(deadline);
    if (!found.has_value()) return std::nullopt;
    if (!found->ok()) return found->status();
    return weir::Result(**std::move(found));
  };
  auto known = next(*client->member, weir::DeadlineIn(0));
  if (known.has_value()) return weir::Ready(*std::move(known));
  if (weir::TraitsOf(client->member->config()).works_on_parts) {
    auto* const future = new weir_future;
    // The future must not keep a membership that is given up.
    future->pending->SetBy([next, member = std::weak_ptr(client->member)](
                               auto deadline) -> std::optional<absl::StatusOr<weir::Result>> {
      const std::shared_ptr<weir::Member> in = member.lock();
      if (in == nullptr) return absl::FailedPreconditionError("this client is closed");
      return next(*in, deadline);
    });
    return future;
  }
  return weir::InBackground([member = client->member]() -> absl::StatusOr<weir::Result> {
    WEIR_ASSIGN_OR_RETURN(const std::shared_ptr<weir::Client> in, member->client());
    return in->NextWork();
  });
}

weir_future* weir_exchange(weir_client* client, const weir_push* push, const weir_pull* pull) {
  return weir::Begun(client, [&](weir::Client& in) -> absl::StatusOr<weir::Future<weir::ExchangeResult>> {
    WEIR_ASSIGN_OR_RETURN(weir::ExchangeOrder order, weir::OrderOf(*client->member, push, pull));
    return in.Exchange(std::move(order));
  });
}

weir_future* weir_snapshot(weir_client* client, float* const* into, const weir_rows* rows, size_t n_rows) {
  return weir::Begun(client, [&](weir::Client& in) -> absl::StatusOr<weir::Future<weir::ExchangeResult>> {
    WEIR_ASSIGN_OR_RETURN(auto reads, weir::RowsAt<weir::RowsToRead>(client->member->config(), rows, n_rows));
    std::vector<weir::MutableTensor> tensors;
    if (into != nullptr) tensors = weir::TensorsAt<weir::MutableTensor>(in.model(), into);
    return in.PullSnapshot(std::move(tensors), std::move(reads)).Then([](weir::PullResult pull) {
      weir::ExchangeResult result;
      result.pull = std::move(pull);
      return result;
    });
  });
}

weir_error* weir_new_gradient(weir_client* client, weir_gradient** gradient, float** values) {
  return weir::WithClient(client, [&](weir::Client& in) {
    *gradient = new weir_gradient{in.NewGradient()};
    *values = (*gradient)->values.get();
  });
}

void weir_free_gradient(weir_gradient* gradient) { weir::Free(gradient); }

weir_gate* weir_new_gate() { return new weir_gate; }

void weir_gate_ready(weir_gate* gate, size_t tensor) {
  if (!weir::Forked()) gate->gate->Ready(tensor);
}

void weir_gate_fail(weir_gate* gate, const char* reason) {
  if (!weir::Forked()) gate->gate->Fail(absl::CancelledError(reason));
}

void weir_free_gate(weir_gate* gate) {
  if (gate == nullptr) return;
  weir_gate_fail(gate, "the gradient was given up");
  weir::Free(gate);
}

int weir_wait(weir_future* future, double seconds) {
  // The thread that would set the result is the parent's.
  if (weir::Forked()) return 1;
  return future->pending->WaitUntil(weir::DeadlineIn(seconds));
}

weir_error* weir_take(weir_future* future) {
  return weir::ErrorOf(future->pending->Take<std::monostate>().status());
}

weir_error* weir_take_work(weir_future* future, weir_work* work, int* done) {
  const auto taken = future->pending->Take<std::optional<weir::Work>>();
  if (!taken.ok()) return weir::ErrorOf(taken.status());
  *done = !taken->has_value();
  if (taken->has_value()) {
    const weir::Work& of = **taken;
    *work = {of.clock, of.batch, of.first_example, of.examples, of.examples_left, of.part, of.last_of_clock};
  }
  return nullptr;
}

weir_error* weir_take_exchange(weir_future* future, weir_pushed* pushed, weir_weights** weights) {
  auto taken = future->pending->Take<weir::ExchangeResult>();
  if (!taken.ok()) return weir::ErrorOf(taken.status());
  pushed->applied = taken->push.applied;
  pushed->staleness = taken->push.staleness;
  const size_t length = std::min(taken->push.reason.size(), sizeof(pushed->reason) - 1);
  std::memcpy(pushed->reason, taken->push.reason.data(), length);
  pushed->reason[length] = '\0';
  const bool in_place = taken->weights.tensors() > 0 || taken->weights.pull().past;
  const bool pulled = in_place || taken->pull.past || !taken->pull.versions.empty();
  *weights = pulled ? new weir_weights{std::move(*taken), in_place} : nullptr;
  return nullptr;
}

void weir_free_future(weir_future* future) { weir::Free(future); }

int weir_weights_past(const weir_weights* weights) { return weights->pull().past; }

uint64_t weir_weights_version(const weir_weights* weights) {
  const std::vector<uint64_t>& versions = weights->pull().versions;
  return versions.empty() ? 0 : *std::min_element(versions.begin(), versions.end());
}

int weir_weights_piece(const weir_weights* weights, size_t tensor, size_t i, const float** values,
                       size_t* n) {
  const weir::WeightsView& view = weights->result.weights;
  if (tensor >= view.tensors() || i >= view.pieces(tensor).size()) return 0;
  *values = view.pieces(tensor)[i].data();
  *n = view.pieces(tensor)[i].size();
  return 1;
}

void weir_free_weights(weir_weights* weights) { weir::Free(weights); }
