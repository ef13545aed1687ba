#include "tests/client/fake_cluster.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

namespace weir {
namespace {

constexpr int64_t kChunkElements = (1 << 20) / sizeof(float);
constexpr uint64_t kShardIncarnation = 40;

}  // namespace

class FakeCluster::Shard final : public v1::ParameterServer::Service {
 public:
  Shard(FakeCluster& cluster, uint32_t index) : cluster_(cluster), index_(index) {}

  grpc::Status Pull(grpc::ServerContext* context, const v1::PullRequest* request,
                    grpc::ServerWriter<v1::PullReply>* writer) override {
    size_t nth;
    {
      MutexLock lock(cluster_.mutex_);
      cluster_.pulls_[index_].push_back(*request);
      nth = cluster_.pulls_[index_].size();
      cluster_.Changed();
    }
    if (cluster_.on_pull) {
      if (auto status = cluster_.on_pull(index_, nth); status.has_value()) return *status;
    }
    return Weights(context, *request, nth, [&](const v1::PullReply& reply) { return writer->Write(reply); });
  }

  grpc::Status Push(grpc::ServerContext* context, grpc::ServerReader<v1::PushRequest>* reader,
                    v1::PushReply* reply) override {
    return Take(
        context, [&](v1::PushRequest* request) { return reader->Read(request); }, reply);
  }

  grpc::Status PushPull(grpc::ServerContext* context,
                        grpc::ServerReaderWriter<v1::PushPullReply, v1::PushRequest>* stream) override {
    v1::PushPullReply reply;
    v1::PullRequest pull;
    const grpc::Status status = Take(
        context,
        [&](v1::PushRequest* request) {
          if (!stream->Read(request)) return false;
          if (request->has_caller()) {
            *pull.mutable_caller() = request->caller();
            pull.set_clock(request->clock() + 1);
          }
          return true;
        },
        reply.mutable_push());
    if (!status.ok()) return status;
    const v1::Outcome outcome = reply.push().outcome();
    stream->Write(reply);
    if (outcome != v1::OK && outcome != v1::REFUSED && outcome != v1::DUPLICATE_BATCH)
      return grpc::Status::OK;
    return Weights(context, pull, 0, [&](const v1::PullReply& weights) {
      v1::PushPullReply message;
      *message.mutable_pull() = weights;
      return stream->Write(message);
    });
  }

 private:
  template <typename Read>
  grpc::Status Take(grpc::ServerContext* context, const Read& read, v1::PushReply* reply) {
    FakeCluster::Push push;
    push.shard = index_;
    size_t nth;
    {
      MutexLock lock(cluster_.mutex_);
      nth = ++cluster_.push_calls_[index_];
    }
    if (cluster_.on_push) {
      if (auto status = cluster_.on_push(index_, nth); status.has_value()) return *status;
    }
    v1::PushRequest message;
    while (read(&message)) {
      if (message.first() != push.gradient.size()) return {grpc::StatusCode::INVALID_ARGUMENT, "a gap"};
      const size_t count = message.gradient().size() / sizeof(float), at = push.gradient.size();
      push.gradient.resize(at + count);
      // An empty shard's push has no memory to copy to.
      if (count > 0) std::memcpy(push.gradient.data() + at, message.gradient().data(), count * sizeof(float));
      push.largest_message = std::max(push.largest_message, message.ByteSizeLong());
      message.clear_gradient();
      if (push.messages++ == 0) push.header = message;
    }
    if (push.messages == 0 || push.header.elements() != push.gradient.size()) {
      return {grpc::StatusCode::CANCELLED, "cut short"};
    }
    const Key key(push.header.caller().worker(), push.header.clock(), push.header.part());
    const uint64_t clock = push.header.clock();
    {
      MutexLock lock(cluster_.mutex_);
      cluster_.pushes_.push_back(push);
      auto& taken = cluster_.taken_[index_];
      if (taken.count(key) == 0) {
        v1::PushReply& answer = taken[key];
        answer.set_outcome(v1::OK);
        answer.mutable_version()->set_incarnation(kShardIncarnation);
        if (cluster_.options_.sync) {
          answer.mutable_version()->set_count(clock + 1);
        } else {
          answer.set_staleness(cluster_.versions_[index_] - push.header.base().count());
          answer.mutable_version()->set_count(++cluster_.versions_[index_]);
        }
      }
      if (cluster_.options_.sync && cluster_.commit_steps) {
        const uint64_t parts = cluster_.PartsOf(clock);
        bool whole = clock == cluster_.step_;
        for (const auto& on_shard : cluster_.taken_) {
          const auto here = std::count_if(on_shard.begin(), on_shard.end(), [&](const auto& entry) {
            return std::get<1>(entry.first) == clock;
          });
          whole = whole && static_cast<uint64_t>(here) == parts;
        }
        if (whole) cluster_.step_ = clock + 1;
      }
      cluster_.Changed();
      *reply = taken[key];
      if (cluster_.edit_push) cluster_.edit_push(index_, reply);
      if (cluster_.options_.sync && reply->outcome() == v1::OK) {
        const grpc::Status status = cluster_.Await(context, index_, [&] { return cluster_.step_ > clock; });
        if (!status.ok()) return status;
      }
    }
    if (cluster_.on_push_reply) {
      if (auto status = cluster_.on_push_reply(index_, nth); status.has_value()) return *status;
    }
    return grpc::Status::OK;
  }

  grpc::Status Weights(grpc::ServerContext* context, const v1::PullRequest& request, size_t nth,
                       const std::function<bool(const v1::PullReply&)>& write) {
    v1::PullReply reply;
    reply.set_outcome(v1::OK);
    reply.mutable_version()->set_incarnation(kShardIncarnation);
    {
      MutexLock lock(cluster_.mutex_);
      if (cluster_.options_.sync && request.pin() == 0) {
        const grpc::Status status =
            cluster_.Await(context, index_, [&] { return cluster_.step_ >= request.clock(); });
        if (!status.ok()) return status;
        if (cluster_.step_ > request.clock()) reply.set_outcome(v1::STEP_PAST);
      }
      reply.mutable_version()->set_count(cluster_.options_.sync ? cluster_.step_
                                                                : cluster_.versions_[index_]);
      v1::WorkerClock& clock = *reply.add_clocks();
      clock.set_worker(cluster_.options_.worker);
      clock.set_clock(request.clock());
    }
    const uint64_t version = reply.version().count();
    const Partition& partition = cluster_.partition_;
    const int64_t elements = partition.shard_elements(index_);
    reply.set_elements(static_cast<uint64_t>(elements));
    if (cluster_.edit_pull) cluster_.edit_pull(index_, &reply);
    if (reply.outcome() != v1::OK || request.header_only()) {
      write(reply);
      return grpc::Status::OK;
    }
    int64_t first = 0;
    do {
      const int64_t count = std::min(kChunkElements, elements - first);
      std::vector<float> values;
      for (int64_t i = first; i < first + count; ++i) {
        values.push_back(Weight(
            version, partition.block_start(index_, i / partition.block_size()) + i % partition.block_size()));
      }
      reply.set_first(static_cast<uint64_t>(first));
      reply.set_weights(values.data(), values.size() * sizeof(float));
      if (!write(reply)) return {grpc::StatusCode::CANCELLED, "gone"};
      if (first == 0 && cluster_.on_pull_middle) {
        if (auto status = cluster_.on_pull_middle(index_, nth); status.has_value()) return *status;
      }
      reply.Clear();
      first += count;
    } while (first < elements);
    return grpc::Status::OK;
  }

  FakeCluster& cluster_;
  const uint32_t index_;
};

class FakeCluster::CoordinatorService final : public v1::Coordinator::Service {
 public:
  explicit CoordinatorService(FakeCluster& cluster) : cluster_(cluster) {}

  grpc::Status Join(grpc::ServerContext*, const v1::JoinRequest* request, v1::JoinReply* reply) override {
    const Options& options = cluster_.options_;
    size_t nth;
    {
      MutexLock lock(cluster_.mutex_);
      cluster_.joins_.push_back(*request);
      nth = cluster_.joins_.size();
      *reply->mutable_membership() = cluster_.beat_.membership();
    }
    if (cluster_.on_join) {
      if (auto status = cluster_.on_join(nth); status.has_value()) return *status;
    }
    reply->set_worker(options.worker);
    reply->set_incarnation(options.incarnation);
    reply->set_start_clock(options.start_clock);
    reply->set_num_shards(options.shards);
    const uint64_t batches = (options.total_examples + options.batch_size - 1) / options.batch_size;
    reply->set_total_batches(batches);
    reply->set_total_examples(options.total_examples);
    reply->set_parts(options.parts);
    reply->set_total_steps((batches + options.parts - 1) / options.parts);
    reply->set_model_hash(options.model.Hash());
    reply->set_lease_seconds(options.lease_seconds);
    return grpc::Status::OK;
  }

  grpc::Status Heartbeat(grpc::ServerContext* context, const v1::HeartbeatRequest* request,
                         v1::HeartbeatReply* reply) override {
    MutexLock lock(cluster_.mutex_);
    cluster_.heartbeats_.push_back(*request);
    cluster_.Changed();
    const auto hold =
        std::chrono::steady_clock::now() + std::chrono::duration<double>(cluster_.options_.lease_seconds / 3);
    const grpc::Status status = cluster_.Await(context, 0, [&] {
      return cluster_.beat_.revision() > request->known_revision() || std::chrono::steady_clock::now() > hold;
    });
    *reply = cluster_.beat_;
    return status;
  }

  grpc::Status Leave(grpc::ServerContext*, const v1::LeaveRequest* request, v1::LeaveReply*) override {
    MutexLock lock(cluster_.mutex_);
    cluster_.leaves_.push_back(*request);
    return grpc::Status::OK;
  }

  grpc::Status NextRange(grpc::ServerContext* context, const v1::NextRangeRequest* request,
                         v1::NextRangeReply* reply) override {
    MutexLock lock(cluster_.mutex_);
    cluster_.next_ranges_.push_back(*request);
    const grpc::Status status =
        cluster_.Await(context, 0, [&] { return !cluster_.ranges_.empty() || cluster_.ranges_ended_; });
    if (!status.ok()) return status;
    reply->set_clock(cluster_.next_range_clock_);
    if (cluster_.ranges_.empty()) {
      reply->set_done(true);
    } else {
      *reply->mutable_range() = cluster_.ranges_.front();
      cluster_.ranges_.pop_front();
    }
    return grpc::Status::OK;
  }

  grpc::Status Pin(grpc::ServerContext*, const v1::PinRequest*, v1::PinReply* reply) override {
    MutexLock lock(cluster_.mutex_);
    reply->set_pin(cluster_.next_pin_++);
    cluster_.pins_.insert(reply->pin());
    for (uint64_t version : cluster_.versions_) {
      reply->add_versions()->set_count(cluster_.options_.sync ? cluster_.step_ : version);
    }
    return grpc::Status::OK;
  }

  grpc::Status Unpin(grpc::ServerContext*, const v1::UnpinRequest* request, v1::UnpinReply*) override {
    MutexLock lock(cluster_.mutex_);
    cluster_.pins_.erase(request->pin());
    return grpc::Status::OK;
  }

  grpc::Status Report(grpc::ServerContext*, const v1::ReportRequest* request, v1::ReportReply*) override {
    MutexLock lock(cluster_.mutex_);
    cluster_.reports_.push_back(*request);
    return grpc::Status::OK;
  }

 private:
  FakeCluster& cluster_;
};

FakeCluster::FakeCluster(Options options)
    : options_(std::move(options)), partition_(options_.model.elements(), options_.shards) {
  {
    MutexLock lock(mutex_);
    down_.resize(options_.shards);
    versions_.resize(options_.shards);
    taken_.resize(options_.shards);
    pulls_.resize(options_.shards);
    push_calls_.resize(options_.shards);
    step_ = options_.start_clock;
    beat_.set_state(v1::RUNNING);
  }
  SetMembers({{options_.worker, options_.incarnation}});
  coordinator_ = std::make_unique<CoordinatorService>(*this);
  if (options_.unix_sockets) {
    char folder[] = "/tmp/weir-XXXXXX";
    if (mkdtemp(folder) == nullptr) std::abort();
    socket_folder_ = folder;
  }
  servers_.resize(options_.shards);
  addresses_.resize(options_.shards);
  for (uint32_t i = 0; i < options_.shards; ++i) {
    shard_services_.push_back(std::make_unique<Shard>(*this, i));
    Serve(i, options_.unix_sockets ? "unix:" + socket_folder_ + "/ps-" + std::to_string(i) : "127.0.0.1:0");
  }
}

FakeCluster::~FakeCluster() {
  for (uint32_t i = 0; i < options_.shards; ++i) Kill(i);
  if (!socket_folder_.empty()) std::filesystem::remove_all(socket_folder_);
}

void FakeCluster::Serve(uint32_t shard, const std::string& address) {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 500);
  builder.RegisterService(shard_services_[shard].get());
  if (shard == 0) builder.RegisterService(coordinator_.get());
  servers_[shard] = builder.BuildAndStart();
  if (servers_[shard] == nullptr) std::abort();
  addresses_[shard] = options_.unix_sockets ? address : "127.0.0.1:" + std::to_string(port);
}

void FakeCluster::Kill(uint32_t shard) {
  if (servers_[shard] == nullptr) return;
  {
    MutexLock lock(mutex_);
    down_[shard] = 1;
    changed_.NotifyAll();
  }
  servers_[shard]->Shutdown(std::chrono::system_clock::now());
  servers_[shard]->Wait();
  servers_[shard].reset();
}

void FakeCluster::Restart(uint32_t shard) {
  {
    MutexLock lock(mutex_);
    down_[shard] = 0;
  }
  Serve(shard, addresses_[shard]);
}

std::vector<std::string> FakeCluster::addresses() const { return addresses_; }

void FakeCluster::Changed() { changed_.NotifyAll(); }

grpc::Status FakeCluster::Await(grpc::ServerContext* context, uint32_t shard,
                                const std::function<bool()>& ready) {
  while (!ready()) {
    if (down_[shard] != 0) return {grpc::StatusCode::UNAVAILABLE, "the server stops"};
    if (context->IsCancelled()) return {grpc::StatusCode::CANCELLED, "cancelled"};
    changed_.WaitUntil(mutex_, std::chrono::steady_clock::now() + std::chrono::milliseconds(5));
  }
  return grpc::Status::OK;
}

uint64_t FakeCluster::PartsOf(uint64_t step) const {
  const uint64_t batches = (options_.total_examples + options_.batch_size - 1) / options_.batch_size;
  return std::min<uint64_t>(options_.parts, batches - step * options_.parts);
}

void FakeCluster::SetMembers(const std::vector<std::pair<uint32_t, uint64_t>>& rank_and_incarnation) {
  MutexLock lock(mutex_);
  v1::Membership& membership = *beat_.mutable_membership();
  membership.set_epoch(membership.epoch() + 1);
  membership.clear_members();
  for (const auto& [rank, incarnation] : rank_and_incarnation) {
    v1::Member& member = *membership.add_members();
    member.set_worker(rank);
    member.set_incarnation(incarnation);
    member.set_task("worker:" + std::to_string(rank));
  }
  beat_.set_revision(beat_.revision() + 1);
  Changed();
}

void FakeCluster::SetState(v1::JobState state, const std::string& failure) {
  MutexLock lock(mutex_);
  beat_.set_state(state);
  beat_.set_failure(failure);
  beat_.set_revision(beat_.revision() + 1);
  Changed();
}

void FakeCluster::Fence() {
  MutexLock lock(mutex_);
  beat_.set_fenced(true);
  beat_.set_revision(beat_.revision() + 1);
  Changed();
}

void FakeCluster::OpenStep(uint64_t step) {
  MutexLock lock(mutex_);
  step_ = step;
  Changed();
}

void FakeCluster::AddRange(uint64_t id, uint64_t first_batch, uint64_t batches) {
  MutexLock lock(mutex_);
  ranges_.emplace_back();
  ranges_.back().set_id(id);
  ranges_.back().set_first_batch(first_batch);
  ranges_.back().set_batches(batches);
  Changed();
}

void FakeCluster::EndRanges() {
  MutexLock lock(mutex_);
  ranges_ended_ = true;
  Changed();
}

void FakeCluster::SetNextRangeClock(uint64_t clock) {
  MutexLock lock(mutex_);
  next_range_clock_ = clock;
}

std::vector<FakeCluster::Push> FakeCluster::pushes() const {
  MutexLock lock(mutex_);
  return pushes_;
}
std::vector<v1::PullRequest> FakeCluster::pulls(uint32_t shard) const {
  MutexLock lock(mutex_);
  return pulls_[shard];
}
std::vector<v1::JoinRequest> FakeCluster::joins() const {
  MutexLock lock(mutex_);
  return joins_;
}
std::vector<v1::LeaveRequest> FakeCluster::leaves() const {
  MutexLock lock(mutex_);
  return leaves_;
}
std::vector<v1::NextRangeRequest> FakeCluster::next_ranges() const {
  MutexLock lock(mutex_);
  return next_ranges_;
}
std::vector<v1::ReportRequest> FakeCluster::reports() const {
  MutexLock lock(mutex_);
  return reports_;
}
std::vector<v1::HeartbeatRequest> FakeCluster::heartbeats() const {
  MutexLock lock(mutex_);
  return heartbeats_;
}
std::set<uint64_t> FakeCluster::pins() const {
  MutexLock lock(mutex_);
  return pins_;
}

void FakeCluster::AwaitPushes(size_t count) const {
  MutexLock lock(mutex_);
  while (pushes_.size() < count) changed_.Wait(mutex_);
}

void FakeCluster::AwaitPulls(uint32_t shard, size_t count) const {
  MutexLock lock(mutex_);
  while (pulls_[shard].size() < count) changed_.Wait(mutex_);
}

}  // namespace weir
