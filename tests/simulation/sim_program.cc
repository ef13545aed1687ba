#include "tests/simulation/sim_program.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/job/client_impl.h"
#include "tests/simulation/sim_coordinator_channel.h"

namespace weir {

// ---- threads

namespace {

// The program whose fiber runs.
thread_local SimProgram* running = nullptr;

}  // namespace

bool SimThreads::GivesWay() const { return running != nullptr; }

bool SimThreads::Wait(const CondVar& on, std::chrono::nanoseconds limit) {
  SimProgram* const program = running;
  waiting_[&on].push_back(program);
  const bool notified = program->Wait(limit);
  const auto here = waiting_.find(&on);
  here->second.erase(std::find(here->second.begin(), here->second.end(), program));
  if (here->second.empty()) waiting_.erase(here);
  return notified;
}

void SimThreads::Notified(const CondVar& of) {
  const auto here = waiting_.find(&of);
  if (here == waiting_.end()) return;
  for (SimProgram* program : here->second) program->Wake(/*notified=*/true);
}

bool SimProgram::Wait(std::chrono::nanoseconds limit) {
  if (limit <= std::chrono::nanoseconds::zero()) return false;
  const uint64_t number = ++wait_;
  waits_ = true;
  woken_ = notified_ = false;
  std::optional<EventLoop::Timer> timer;
  if (limit < std::chrono::hours(24)) {
    timer = loop_->RunAfter(limit, [this, number] {
      if (waits_ && wait_ == number) Wake(/*notified=*/false);
    });
  }
  Fiber::Suspend();
  waits_ = false;
  if (timer.has_value()) loop_->Cancel(*timer);
  return notified_;
}

void SimProgram::Wake(bool notified) {
  if (!waits_ || std::exchange(woken_, true)) return;
  notified_ = notified;
  loop_->Post([this] { Run(); });
}

void SimProgram::Sleep(absl::Duration length) {
  Mutex mutex;
  CondVar never;
  MutexLock lock(mutex);
  never.WaitFor(mutex, absl::ToChronoNanoseconds(length));
}

void SimProgram::SleepComputing(absl::Duration length) {
  Sleep(length);
  computed_ += length;
}

void SimProgram::Run() {
  running = this;
  fiber_->Resume();
  running = nullptr;
  if (!fiber_->ended() || dead()) return;
  site_->world.Trace("program ends", {node_, static_cast<uint64_t>(result_.code())});
  on_end_(result_);
}

// ---- the program

SimProgram::SimProgram(Site* site, World::Node node, v1::Role role, uint32_t index,
                       std::function<void(const absl::Status&)> on_end)
    : site_(site),
      node_(node),
      index_(index),
      loop_(std::make_shared<SimEventLoop>(&site->world, node)),
      tensors_(site->ledger.model(), site->plan.shards()),
      role_(role),
      task_(absl::StrCat(role == v1::WORKER ? "worker:" : "evaluator:", index)),
      on_end_(std::move(on_end)) {}

SimProgram::~SimProgram() { Die(); }

void SimProgram::Start() {
  fiber_ = std::make_unique<Fiber>([this] { result_ = RunToEnd(); });
  loop_->Post([this] { Run(); });
}

void SimProgram::Die() {
  if (dead()) return;
  loop_->Die();
  live_ = false;
  for (const auto& streams : streams_) streams->Die();
  if (fiber_ != nullptr) loop_->RunToEnd([this] { return fiber_->ended(); });
}

std::string SimProgram::Waiting() const { return absl::StrCat(task_, " ", doing_); }

void SimProgram::Complain(const std::string& what) {
  if (!dead()) site_->log.complaints.push_back(absl::StrCat(task_, ": ", what));
}

absl::Status SimProgram::RunToEnd() {
  ClientOptions options;
  for (uint32_t shard = 0; shard < site_->plan.servers(); ++shard) {
    options.servers.push_back(Site::AddressOf(shard));
  }
  options.task = task_;
  options.rank = index_;
  options.reader = role_ == v1::READER;
  // The checkers know no reads but those of the programs.
  options.hashes_weights = false;
  options.job_config = site_->plan.config.SerializeAsString();
  options.train_examples = kTrainExamples;
  if (role_ == v1::WORKER) options.compute_seconds = [this] { return absl::ToDoubleSeconds(computed_); };
  const std::vector<float> initial =
      AllOf([&](uint32_t shard) { return site_->ledger.InitialValues(index_, shard); });
  if (site_->plan.ledger.uploaded && role_ == v1::WORKER) {
    options.initial_values = TensorsIn<ConstTensor>(initial.data());
  }
  return WorkUntilDone(
      options, absl::Seconds(site_->plan.config.cluster().start_seconds()),
      [this](const ClientOptions& member) {
        live_ = false;
        doing_ = "waits to join";
        return ClientImpl::Join(member, tensors_.model(), site_->plan.config, *this);
      },
      [this](Client* client) {
        doing_ = "works";
        absl::Status end = Work(client);
        LetGo();
        doing_ = "waits to leave";
        return end;
      },
      /*preemption=*/nullptr, site_->world);
}

void SimProgram::OnJoined(const v1::JoinReply& reply) {
  if (dead()) return;
  joined_ = reply;
  live_ = true;
  site_->world.Trace("joined", {reply.worker(), reply.incarnation(), reply.start_clock()});
  site_->log.joins.push_back({site_->world.elapsed(), reply.worker(), reply.incarnation(),
                              reply.start_clock(), role_ == v1::READER});
  number_ = site_->log.joins.size();
}

uint64_t SimProgram::NewInstance() {
  instance_ = uint64_t{site_->world.Below(1u << 31)} << 32 | site_->world.Below(1u << 31);
  return instance_;
}

std::unique_ptr<CoordinatorChannel> SimProgram::OpenCoordinator(
    const std::string&, std::optional<std::chrono::nanoseconds> attempt) {
  if (!attempt.has_value()) {
    // The channels of a new membership.
    streams_.clear();
    asked_.clear();
  }
  return std::make_unique<SimCoordinatorChannel>(site_, node_, loop_,
                                                 [this](const v1::JoinReply& reply) { OnJoined(reply); });
}

std::unique_ptr<ShardChannel> SimProgram::OpenShard(uint32_t shard, const std::string& address, int64_t) {
  const auto& streams = streams_.emplace_back(
      std::make_shared<SimShardStreams>(SimShardStreams{site_, node_, shard, address, loop_, {}}));
  auto channel = std::make_unique<SimShardChannel>(streams);
  return site_->seams.channel ? site_->seams.channel(std::move(channel)) : std::move(channel);
}

// ---- its answers

std::vector<float> SimProgram::PartOf(uint32_t shard, const float* all) const {
  std::vector<const float*> tensors;
  for (const TensorSpec& tensor : tensors_.model().tensors) {
    tensors.push_back(all);
    all += tensor.elements();
  }
  std::vector<float> part;
  tensors_.Walk(shard, 0, site_->ledger.elements(), [&](size_t tensor, int64_t at, int64_t n) {
    part.insert(part.end(), tensors[tensor] + at, tensors[tensor] + at + n);
  });
  return part;
}

std::vector<Weights> SimProgram::PartsOf(const float* all) const {
  std::vector<Weights> parts;
  for (uint32_t shard = 0; shard < site_->plan.shards(); ++shard) {
    parts.push_back(std::make_shared<const std::vector<float>>(PartOf(shard, all)));
  }
  return parts;
}

std::vector<float> SimProgram::AllOf(const std::function<std::vector<float>(uint32_t shard)>& part_of) const {
  std::vector<float> all(static_cast<size_t>(tensors_.model().elements()));
  const std::vector<MutableTensor> tensors = TensorsIn<MutableTensor>(all.data());
  for (uint32_t shard = 0; shard < site_->plan.shards(); ++shard) {
    const std::vector<float> part = part_of(shard);
    auto from = part.begin();
    tensors_.Walk(shard, 0, site_->ledger.elements(), [&](size_t tensor, int64_t at, int64_t n) {
      std::copy(from, from + n, tensors[tensor].values.begin() + at);
      from += n;
    });
  }
  return all;
}

std::vector<float> SimProgram::GradientOf(uint64_t batch, const std::vector<Weights>& weights) const {
  return AllOf([&](uint32_t shard) {
    std::vector<float> gradient = site_->ledger.Gradient(batch, shard, number_, *weights[shard]);
    if (site_->seams.gradient) site_->seams.gradient(joined_.incarnation(), batch, shard, &gradient);
    return gradient;
  });
}

std::vector<RowGradients> SimProgram::RowsToPush(uint64_t batch) {
  if (!site_->plan.ledger.table) return {};
  rows_to_push_ = site_->ledger.RowGradients(batch);
  if (rows_to_push_.keys.empty()) return {};
  return {{0, rows_to_push_.keys, rows_to_push_.gradients}};
}

std::vector<RowsToRead> SimProgram::RowsToPull(uint64_t clock) {
  std::vector<RowsToRead> rows = RowsAlone();
  if (!rows.empty()) rows_of_[clock] = &row_memory_.back();
  return rows;
}

std::vector<RowsToRead> SimProgram::RowsAlone() {
  if (!site_->plan.ledger.table) return {};
  // A value that shows if it is read before it is written.
  std::vector<float>& memory = row_memory_.emplace_back(Ledger::kKeys * Ledger::kDim, 1e9f);
  return {{0, site_->ledger.keys(), absl::MakeSpan(memory)}};
}

void SimProgram::AppendRows(uint32_t shard, uint64_t clock, std::vector<float>& weights) const {
  const auto rows = rows_of_.find(clock);
  if (rows == rows_of_.end()) return;
  const std::vector<uint64_t>& keys = site_->ledger.keys();
  for (uint64_t key : site_->ledger.KeysOf(shard)) {
    const auto at = std::find(keys.begin(), keys.end(), key) - keys.begin();
    const float* const row = rows->second->data() + at * static_cast<int64_t>(Ledger::kDim);
    weights.insert(weights.end(), row, row + Ledger::kDim);
  }
}

void SimProgram::LogPush(const weir::Work& work, const PullResult& base, std::vector<Weights> weights) {
  if (dead()) return;
  std::vector<v1::Version> versions(base.versions.size());
  for (size_t shard = 0; shard < versions.size(); ++shard) {
    versions[shard].set_count(base.versions[shard]);
    versions[shard].set_incarnation(base.incarnations[shard]);
  }
  site_->log.sent.push_back({site_->world.elapsed(), joined_.incarnation(), work.clock, work.batch,
                             std::move(versions), std::move(weights)});
  if (site_->seams.sent) site_->seams.sent(site_->log.sent.back());
}

void SimProgram::AskSnapshot() {
  snapshot_asked_ = site_->world.elapsed();
  // Not the pin's number, because a later incarnation of the coordinator numbers its pins anew.
  snapshot_ = site_->next_session++;
}

void SimProgram::OnPull(const ShardSet::Pull& pull, uint32_t shard, const v1::PullReply& reply) {
  if (dead()) return;
  const bool pinned = pull.request.pin() != 0;
  Weights weights;
  if (reply.outcome() == v1::OK) {
    std::vector<float> part;
    if (pull.views != nullptr) {
      for (int64_t i = 0; i < site_->ledger.elements(); ++i) part.push_back(*(*pull.views)[shard].At(i));
    } else {
      tensors_.Walk(shard, 0, site_->ledger.elements(), [&](size_t tensor, int64_t at, int64_t n) {
        part.insert(part.end(), pull.tensors[tensor] + at, pull.tensors[tensor] + at + n);
      });
      AppendRows(shard, pinned ? kSnapshot : pull.request.clock(), part);
    }
    weights = std::make_shared<const std::vector<float>>(std::move(part));
  }
  site_->log.pulls.push_back({pinned ? snapshot_asked_ : asked_[pull.request.clock()], site_->world.elapsed(),
                              joined_.worker(), joined_.incarnation(), shard, pull.request.clock(),
                              pinned ? snapshot_ : 0, reply, std::move(weights)});
}

}  // namespace weir
