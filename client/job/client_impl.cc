#include "client/job/client_impl.h"

#include <algorithm>
#include <new>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "client/types.h"
#include "common/base/checksums.h"
#include "common/base/status_macros.h"
#include "common/protocol/job_failure.h"
#include "common/protocol/part_assignment.h"
#include "common/system/clock.h"
#include "common/telemetry/logging.h"

namespace weir {
namespace {

using Nanoseconds = std::chrono::nanoseconds;

// How long a client that failed, or is destroyed without Leave(), tries to tell the coordinator.
constexpr std::chrono::seconds kLastWords(1);
constexpr absl::Duration kReportEvery = absl::Seconds(10);
// ps:0 applies the same limit, and its error says more than ours would.
constexpr absl::Duration kUploadSlack = absl::Seconds(2);

Nanoseconds Seconds(double seconds) {
  return std::chrono::duration_cast<Nanoseconds>(std::chrono::duration<double>(seconds));
}

v1::Caller MakeCaller(uint64_t instance, const v1::JoinReply& reply) {
  v1::Caller caller;
  caller.set_worker(reply.worker());
  caller.set_incarnation(reply.incarnation());
  caller.set_epoch(reply.membership().epoch());
  caller.set_model_hash(reply.model_hash());
  caller.set_instance(instance);
  caller.set_job(reply.job().id());
  return caller;
}

std::string UploaderTask(const v1::Membership& membership) {
  for (const v1::Member& member : membership.members()) {
    if (member.incarnation() == membership.uploader()) return member.task();
  }
  return "a worker";
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> ClientImpl::Join(const ClientOptions& options, const ModelSpec& model,
                                                         const v1::JobConfig& config, Transport& transport) {
  if (options.servers.empty()) return absl::InvalidArgumentError("no server is given");
  WEIR_RETURN_IF_ERROR(model.Validate());
  if (!options.reader) WEIR_RETURN_IF_ERROR(CheckInitialValues(options.initial_values, model));
  const absl::Duration limit = absl::Seconds(config.cluster().start_seconds());
  const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(limit);
  const absl::Time values_deadline = transport.loop()->awake().Now() + limit + kUploadSlack;
  uint64_t job = options.job;
  for (bool again = options.again;; again = true) {
    WEIR_ASSIGN_OR_RETURN(std::unique_ptr<ClientImpl> client,
                          Enter(options, again, job, model, config, transport));
    job = client->job();
    ClientImpl* const member = client.get();
    absl::Status status = member->exchanges_.Connect(deadline, member->otherwise_, [member] {
      MutexLock lock(member->mutex_);
      return member->Alive();
    });
    if (status.ok()) status = client->AwaitInitialValues(values_deadline);
    if (status.ok()) return client;
    client->Leave(status).IgnoreError();
    // The job went back, say, because of the server that cannot be reached.
    if (!absl::IsAborted(status) || std::chrono::steady_clock::now() >= deadline) return status;
    LogWarning(status.message(), "; joining again");
  }
}

absl::StatusOr<std::unique_ptr<ClientImpl>> ClientImpl::Enter(const ClientOptions& options, bool again,
                                                              uint64_t job, const ModelSpec& model,
                                                              const v1::JobConfig& config,
                                                              Transport& transport) {
  std::unique_ptr<History> history;
  if (!options.history_path.empty()) {
    const std::string task = absl::StrReplaceAll(options.task, {{":", "-"}});
    const std::string path = absl::StrReplaceAll(options.history_path, {{"{task}", task}});
    WEIR_ASSIGN_OR_RETURN(history, History::Open(path, again));
  }

  const uint64_t instance = transport.NewInstance();
  WEIR_ASSIGN_OR_RETURN(const v1::JoinReply reply,
                        JoinJob(options, again, job, instance, model, config, transport));

  return std::make_unique<ClientImpl>(options, model, config, instance, reply,
                                      OpenChannels(options, model, reply, transport), std::move(history));
}

ClientImpl::ClientImpl(const ClientOptions& options, const ModelSpec& model, const v1::JobConfig& config,
                       uint64_t instance, const v1::JoinReply& reply, JobChannels channels,
                       std::unique_ptr<History> history)
    : options_(options),
      mode_(TraitsOf(config)),
      wait_(Seconds(config.cluster().wait_seconds())),
      server_wait_(Seconds(config.cluster().server_wait_seconds())),
      save_wait_(Seconds(config.checkpoint().save_wait_seconds())),
      lease_(Seconds(reply.lease_seconds())),
      caller_(MakeCaller(instance, reply)),
      steps_{std::max<uint64_t>(1, reply.parts()), std::max<uint64_t>(1, reply.total_steps())},
      start_clock_(reply.start_clock()),
      builder_(options_, model, config, reply, channels.chunk_unit),
      epoch_(reply.membership().epoch()),
      report_(options_.compute_seconds),
      news_(reply),
      work_(mode_, {ExamplesOfBatch(config), reply.total_batches(), reply.total_examples()}, reply),
      otherwise_(std::move(channels.otherwise)),
      loop_(std::move(channels.loop)),
      coordinator_channel_(std::move(channels.coordinator)),
      coordinator_(*coordinator_channel_, *loop_, calls_),
      history_(history == nullptr ? nullptr : std::make_unique<HistoryObserver>(caller_, std::move(history))),
      exchanges_(
          builder_, std::move(channels.shards),
          {*loop_, builder_.tensors(), caller_, epoch_, builder_.wire(), calls_, limits(), options.again},
          history_ == nullptr ? channels.observer : history_.get(), coordinator_, limits(),
          lease_ + server_wait_, *this) {
  exchanges_.Move(reply.moved());
  Heartbeat::Options heartbeat;
  heartbeat.lease = lease_;
  heartbeat.server_wait = server_wait_;
  heartbeat.request = [this] {
    v1::HeartbeatRequest request;
    *request.mutable_caller() = CallerNow();
    request.set_only_news(true);
    *request.mutable_report() = report_.Make();
    MutexLock lock(mutex_);
    request.set_known_revision(news_.revision());
    return request;
  };
  heartbeat.on_reply = [this](const v1::HeartbeatReply& beat) { return OnHeartbeat(beat); };
  heartbeat.on_lost = [this](const absl::Status& why) {
    {
      MutexLock lock(mutex_);
      coordinator_lost_ = true;
    }
    Fail(why);
  };
  heartbeat_ = std::make_unique<Heartbeat>(*coordinator_channel_, *loop_, std::move(heartbeat));
}

absl::Status ClientImpl::AwaitInitialValues(absl::Time deadline) {
  const Clock& awake = loop_->awake();
  const absl::Time begun = awake.Now();
  absl::Time next_report = begun + kReportEvery;
  bool uploads = false;
  while (true) {
    {
      MutexLock lock(mutex_);
      while (uploads || news_.membership().uploader() != caller_.incarnation()) {
        WEIR_RETURN_IF_ERROR(Alive());
        if (news_.membership().uploader() == 0 && !uploading_) return absl::OkStatus();
        if (!upload_error_.ok()) return upload_error_;
        const absl::Time now = awake.Now();
        const std::string what = absl::StrCat("the initial values, which ", UploaderTask(news_.membership()),
                                              " uploads, are not on all servers yet");
        if (now >= deadline) {
          return absl::DeadlineExceededError(
              absl::StrCat(what, " after ", absl::FormatDuration(now - begun)));
        }
        if (now >= next_report) {
          LogWarning("waits for the job to start; ", what);
          next_report += kReportEvery;
        }
        changed_.WaitFor(mutex_, absl::ToChronoNanoseconds(std::min(next_report, deadline) - now));
      }
      uploading_ = uploads = true;
    }
    LogInfo("uploads the initial values");
    exchanges_.Upload([this](const absl::Status& status) {
      MutexLock lock(mutex_);
      uploading_ = false;
      upload_error_ = status;
      Changed();
    });
  }
}

ClientImpl::~ClientImpl() {
  LeaveFor(absl::CancelledError("client destroyed"), LastWords()).IgnoreError();
  calls_.WaitUntilEmpty();
}

// ---- exchanges

Future<ExchangeResult> ClientImpl::Exchange(ExchangeOrder order) {
  if (options_.reader && order.push.has_value()) {
    Promise<ExchangeResult> promise;
    promise.Set(absl::FailedPreconditionError("a reader does not push"));
    return promise.future();
  }
  return exchanges_.Run(std::move(order));
}

bool ClientImpl::Alone() const {
  MutexLock lock(mutex_);
  return news_.membership().members_size() <= 1;
}

void ClientImpl::OnStepOpen(uint64_t step) {
  MutexLock lock(mutex_);
  work_.OpenStep(step);
  Changed();
}

void ClientImpl::OnBegin(const PendingWork::Call& call) {
  MutexLock lock(mutex_);
  work_.Begin(call);
}

void ClientImpl::OnEnd(const PendingWork::Call& call, const absl::StatusOr<Exchanges::Answers>& answers) {
  if (answers.ok() && (call.push.has_value() || options_.reader)) progressed_ = true;
  MutexLock lock(mutex_);
  work_.End(call, answers);
  Changed();
}

void ClientImpl::OnNotBegun(const Work& work, const absl::Status& why) {
  if (KindOf(why) == v1::FAILURE_DIVERGED) Fail(why);
  MutexLock lock(mutex_);
  work_.FailPush(work, why);
  Changed();
}

// ---- membership

absl::Status ClientImpl::Alive() const {
  if (!failure_.ok()) return failure_;
  return left_ ? absl::FailedPreconditionError("this client has left the job") : absl::OkStatus();
}

void ClientImpl::Fail(const absl::Status& why) {
  {
    MutexLock lock(mutex_);
    if (!failure_.ok() || left_) return;
    failure_ = why;
    Changed();
  }
  calls_.Close(why);
}

bool ClientImpl::OnHeartbeat(const v1::HeartbeatReply& reply) {
  if (reply.fenced()) {
    const bool drained = reply.failure_kind() == v1::FAILURE_DRAINED;
    absl::Status why = absl::AbortedError(
        absl::StrCat(drained ? "drained" : "fenced", ": the coordinator took ", options_.task,
                     " (incarnation ", caller_.incarnation(), ") out of the job",
                     reply.failure().empty() ? "; its lease had ended" : ": ", reply.failure()));
    if (drained) {
      why = MarkDrained(why);
      // It says more than a shard that has refused this member already.
      MutexLock lock(mutex_);
      if (absl::IsAborted(failure_)) failure_ = why;
    }
    Fail(why);
    return false;
  }
  // The shards move before the next heartbeat says that this client knows the membership.
  if (reply.has_membership()) exchanges_.Move(reply.moved());
  report_.OnAcknowledged();
  std::vector<uint32_t> restored;
  {
    MutexLock lock(mutex_);
    restored = news_.Take(reply);
    if (reply.has_membership()) {
      epoch_.store(news_.membership().epoch());
      work_.SetMembers(news_.membership());
    }
    Changed();
  }
  // Does not wait for this client's own next call there: other workers may wait for pushes of this worker
  // that are lost.
  if (mode_.keeps_clocks) {
    for (uint32_t shard : restored) exchanges_.Tell(shard);
  }
  if (reply.state() == v1::FAILED) {
    Fail(JobFailure(reply.failure_kind(), reply.failure().empty() ? "the job has failed" : reply.failure()));
    return false;
  }
  return reply.state() != v1::DONE;
}

bool ClientImpl::draining() const {
  MutexLock lock(mutex_);
  return news_.ExamplesDone();
}

absl::StatusOr<bool> ClientImpl::WaitDraining(Steady::time_point deadline) {
  MutexLock lock(mutex_);
  while (true) {
    WEIR_RETURN_IF_ERROR(Alive());
    if (news_.ExamplesDone()) return true;
    if (!changed_.WaitUntil(mutex_, deadline) && Steady::now() >= deadline) return false;
  }
}

void ClientImpl::Changed() {
  ++changes_;
  changed_.NotifyAll();
  // A thread that serves the loop does not hear `changed_`.
  if (serving_ > 0) loop_->Post([] {});
}

void ClientImpl::AwaitChange(Steady::time_point deadline) {
  const uint64_t seen = changes_;
  const auto over = [this, seen, deadline] { return changes_ != seen || Steady::now() >= deadline; };
  const auto sleep = [this, over, deadline]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    while (!over()) changed_.WaitFor(mutex_, deadline - Steady::now());
  };
  if (const std::shared_ptr<ResultDriver> driver = loop_->driver()) {
    ++serving_;
    mutex_.Unlock();
    driver->WaitUntil(
        over,
        [this, sleep] {
          MutexLock lock(mutex_);
          sleep();
        },
        deadline);
    mutex_.Lock();
    --serving_;
  }
  sleep();
}

bool ClientImpl::leading() const {
  MutexLock lock(mutex_);
  return news_.Leads();
}

absl::StatusOr<bool> ClientImpl::AwaitsEvaluation() {
  MutexLock lock(mutex_);
  // The leading worker keeps its lease meanwhile, or another worker leads.
  while (true) {
    WEIR_RETURN_IF_ERROR(Alive());
    if (news_.Evaluated()) return false;
    if (news_.ExamplesDone() && news_.Leads()) return true;
    AwaitChange();
  }
}

absl::StatusOr<std::optional<EvaluationOrder>> ClientImpl::WaitEvaluation(Steady::time_point deadline) {
  MutexLock lock(mutex_);
  while (true) {
    WEIR_RETURN_IF_ERROR(Alive());
    if (std::optional<EvaluationOrder> order = news_.TakeOrder(); order.has_value()) return order;
    // Programs that only look do so for each batch, and must not sleep.
    if (news_.ExamplesDone() || Steady::now() >= deadline) return std::nullopt;
    changed_.WaitUntil(mutex_, deadline);
  }
}

void ClientImpl::SetProgress(const Progress& progress) {
  MutexLock lock(mutex_);
  report_.SetProgress(progress, work_.newest_clock());
}

absl::Status ClientImpl::Log(absl::Span<const LoggedValue> values, bool last, double weight) {
  if (options_.reader) return absl::FailedPreconditionError("a reader logs no metrics; a worker does");
  MutexLock lock(mutex_);
  const double examples = static_cast<double>(std::max<uint64_t>(1, work_.newest_examples()));
  return report_.Log(values, last, weight == 0 ? examples : weight, work_.newest_clock());
}

absl::Status ClientImpl::LogScores(absl::string_view name, absl::Span<const float> scores,
                                   absl::Span<const float> labels) {
  if (options_.reader) return absl::FailedPreconditionError("a reader logs no metrics; a worker does");
  return report_.LogScores(name, scores, labels);
}

absl::Status ClientImpl::Stop(const std::string& reason) {
  v1::StopRequest request;
  *request.mutable_caller() = CallerNow();
  request.set_reason(reason);
  absl::Status status = coordinator_.Start(request, limits()).Get().status();
  if (!absl::IsUnimplemented(status)) return status;
  return absl::FailedPreconditionError(absl::StrCat(
      coordinator_channel_->name(), " cannot stop a job: that needs version 1.10 of the protocol, ",
      "and it speaks an earlier one. Upgrade ps:0"));
}

absl::Status ClientImpl::Report(const PullResult& of, const EvaluationResult& result) {
  if (result.final) {
    MutexLock lock(mutex_);
    reports_final_ = true;
  }
  v1::ReportRequest request;
  *request.mutable_caller() = CallerNow();
  v1::Evaluation& evaluation = *request.mutable_evaluation();
  evaluation.set_version(of.versions.empty() ? 0 : *std::max_element(of.versions.begin(), of.versions.end()));
  evaluation.set_test_loss(result.test_loss);
  evaluation.set_test_accuracy(result.test_accuracy);
  if (result.test_auc >= 0) evaluation.set_test_auc(result.test_auc);
  evaluation.set_examples(result.examples);
  evaluation.set_weights_sha256(result.weights_sha256);
  evaluation.set_final(result.final);
  evaluation.set_order(result.order);
  evaluation.set_validation(result.validation);
  return coordinator_.Start(request, limits()).Get().status();
}

bool ClientImpl::OwesWeights() {
  MutexLock lock(mutex_);
  if (left_ || (!work_.Done(news_.work_end()) && !news_.ExamplesDone())) return false;
  const Steady::time_point deadline = Steady::now() + wait_;
  while (Steady::now() < deadline) {
    if (!Alive().ok() || news_.Evaluated() || reports_final_ || !news_.Leads()) return false;
    if (news_.ExamplesDone()) return true;
    AwaitChange(deadline);
  }
  return false;
}

void ClientImpl::ReportWeights() {
  if (options_.reader || !options_.hashes_weights || !OwesWeights()) return;
  const auto elements = static_cast<size_t>(model().elements());
  const std::unique_ptr<float[]> weights(new (std::nothrow) float[elements]);
  if (weights == nullptr) return LogWarning("no memory to read the final weights for the summary's hash");
  const Future<PullResult> pull =
      PullSnapshot(TensorsOf(model(), absl::MakeSpan(weights.get(), elements)), {});
  EvaluationResult result;
  absl::Status status = pull.Get().status();
  if (status.ok()) {
    Sha256 hash;
    hash.Update(weights.get(), elements * sizeof(float));
    result.weights_sha256 = hash.Hex();
    status = Report(*pull.Get(), result);
  }
  // The work is done anyway.
  if (!status.ok()) LogWarning("the summary has no hash of the final weights: ", status.message());
}

absl::Status ClientImpl::Leave(const absl::Status& failure) {
  if (failure.ok()) ReportWeights();
  CallLimits limits = this->limits();
  // The failure may be a call that has waited for the coordinator in vain. Do not wait as long once more.
  if (!failure.ok()) limits.unreachable = LastWords().unreachable;
  // The process is asked to end soon.
  if (KindOf(failure) == v1::FAILURE_DRAINED) limits = LastWords();
  // A client that is done waits until the job is saved.
  if (failure.ok()) limits.total += save_wait_;
  return LeaveFor(failure, limits);
}

CallLimits ClientImpl::LastWords() const {
  return {kLastWords, std::min<Nanoseconds>(server_wait_, kLastWords)};
}

absl::Status ClientImpl::LeaveFor(const absl::Status& failure, CallLimits limits) {
  v1::LeaveRequest request;
  absl::Status status, job_failure;
  {
    MutexLock lock(mutex_);
    if (left_) return absl::OkStatus();
    left_ = true;
    if (coordinator_lost_ || absl::IsAborted(failure_)) status = failure_;
    if (news_.state() == v1::FAILED) job_failure = failure_;
    // The servers may be about to end, too.
    if (!failure_.ok()) limits = LastWords();
    const absl::Status& why = KindOf(failure_) == v1::FAILURE_DIVERGED ? failure_ : failure;
    request.set_done(why.ok());
    request.set_reason(std::string(why.message()));
    request.set_failure_kind(KindOf(why));
    *request.mutable_report() = report_.Make();
    Changed();
  }
  heartbeat_->Stop();
  calls_.Close(absl::FailedPreconditionError("this client has left the job"));
  // Otherwise the coordinator is lost, or has fenced this client.
  if (status.ok()) {
    *request.mutable_caller() = CallerNow();
    status = coordinator_.Leave(request, limits);
  }
  // If the job has failed, Leave tells the coordinator that this client knows. The answer makes no
  // difference.
  if (!job_failure.ok()) status = job_failure;
  calls_.WaitUntilEmpty();
  exchanges_.Close();
  const absl::Status closed = history_ == nullptr ? absl::OkStatus() : history_->Close();
  return status.ok() ? closed : status;
}

// ---- work

absl::StatusOr<std::optional<Work>> ClientImpl::NextWork() {
  if (options_.reader) return absl::FailedPreconditionError("a reader has no work");
  return mode_.works_on_parts ? *NextPart(Steady::time_point::max()) : NextOfRanges();
}

std::optional<ClientImpl::WorkResult> ClientImpl::NextWorkBy(Steady::time_point deadline) {
  if (options_.reader) return NextWork();
  if (mode_.works_on_parts) return NextPart(deadline);
  MutexLock lock(mutex_);
  return RangeWorkAtHand();
}

std::optional<ClientImpl::WorkResult> ClientImpl::NextPart(Steady::time_point deadline) {
  while (true) {
    PendingWork::NextPart next;
    {
      MutexLock lock(mutex_);
      // Each wait is for a call, which has a deadline of its own, or for an evaluation, for which the
      // coordinator has a deadline.
      while (true) {
        if (absl::Status alive = Alive(); !alive.ok()) return alive;
        next = work_.NextOfParts(news_.work_end(), news_.ExamplesDone());
        if (next.result.has_value()) return next.result;
        if (next.probe.has_value()) break;
        if (Steady::now() >= deadline) return std::nullopt;
        AwaitChange(deadline);
      }
    }
    exchanges_.Probe(*next.probe);
  }
}

std::optional<ClientImpl::WorkResult> ClientImpl::RangeWorkAtHand() {
  if (absl::Status alive = Alive(); !alive.ok()) return alive;
  return work_.NextOfRanges(news_.ExamplesDone());
}

absl::StatusOr<std::optional<Work>> ClientImpl::NextOfRanges() {
  // The deadline is an awake time.
  const Clock& awake = loop_->awake();
  absl::Time deadline = awake.Now() + absl::FromChrono(wait_);
  const auto left = [&] { return absl::ToChronoNanoseconds(deadline - awake.Now()); };
  Backoff backoff(std::chrono::milliseconds(20), std::chrono::milliseconds(500),
                  [this] { return loop_->Random(); });
  while (true) {
    std::vector<uint64_t> completed;
    {
      MutexLock lock(mutex_);
      while (true) {
        if (std::optional<WorkResult> known = RangeWorkAtHand(); known.has_value()) return *std::move(known);
        if (work_.MayTakeRange()) break;
        if (work_.pushes_out() > 0 || work_.taking_range()) {
          AwaitChange();
        } else if (!changed_.WaitFor(mutex_, left()) && left() <= std::chrono::nanoseconds::zero() &&
                   work_.pushes_out() == 0) {
          return absl::DeadlineExceededError(absl::StrCat("NextWork() gave out the work at clock ",
                                                          work_.oldest_clock(), ", which was never pushed"));
        }
      }
      completed = work_.BeginTaking();
    }
    absl::StatusOr<bool> taken = TakeRange(completed);
    MutexLock lock(mutex_);
    work_.EndTaking();
    Changed();
    if (!taken.ok()) return taken.status();
    if (*taken) continue;
    if (news_.awaits_evaluation()) deadline = awake.Now() + absl::FromChrono(wait_);
    if (left() <= std::chrono::nanoseconds::zero()) {
      std::vector<std::string> others;
      for (const v1::Member& member : news_.membership().members()) {
        if (member.worker() != caller_.worker()) others.push_back(member.task());
      }
      return absl::DeadlineExceededError(absl::StrCat("no examples came free within cluster.wait_seconds = ",
                                                      std::chrono::duration<double>(wait_).count(),
                                                      " s; they are out to: ", absl::StrJoin(others, ", ")));
    }
    // The coordinator holds such a call for a while; this wait is in case it does not.
    changed_.WaitFor(mutex_, std::min<std::chrono::nanoseconds>(left(), backoff.Next()));
  }
}

absl::StatusOr<bool> ClientImpl::TakeRange(const std::vector<uint64_t>& completed) {
  v1::NextRangeRequest request;
  *request.mutable_caller() = CallerNow();
  for (uint64_t id : completed) request.add_completed_ranges(id);
  WEIR_ASSIGN_OR_RETURN(const v1::NextRangeReply reply, coordinator_.Start(request, limits()).Get());
  if (reply.fenced()) {
    const absl::Status fenced = absl::AbortedError(
        absl::StrCat("fenced: the coordinator took ", options_.task, " out of the job; its lease had ended"));
    Fail(fenced);
    return fenced;
  }
  MutexLock lock(mutex_);
  return work_.TakeRange(reply, completed);
}

}  // namespace weir
