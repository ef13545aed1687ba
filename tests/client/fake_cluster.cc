#include "tests/client/fake_cluster.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "common/codec/floats.h"
#include "common/codec/value_codec.h"
#include "common/protocol/exchange_layout.h"

namespace weir {
namespace {

constexpr int64_t kChunkElements = (1 << 20) / sizeof(float);
constexpr uint64_t kShardIncarnation = 40;

}  // namespace

// A stream of one client. Deletes itself when it and its last exchange have ended.
class FakeCluster::Stream final : public grpc::ServerBidiReactor<v1::ExchangeRequest, v1::ExchangeReply>,
                                  public std::enable_shared_from_this<Stream> {
 public:
  Stream(FakeCluster& cluster, uint32_t shard, const std::string& peer) : cluster_(cluster), shard_(shard) {
    MutexLock lock(cluster_.mutex_);
    nth_ = ++cluster_.streams_[shard];
    cluster_.stream_peers_.insert(peer);
  }
  void Start(const std::shared_ptr<Stream>& self) {
    self_ = self;
    StartRead(&request_);
  }

  // For the exchanges.

  // The exchange's next message; false: there is none.
  bool Read(uint64_t id, v1::ExchangeRequest* request) {
    MutexLock lock(mutex_);
    while (inbox_[id].empty() && !ended_) arrived_.Wait(mutex_);
    if (inbox_[id].empty()) return false;
    *request = std::move(inbox_[id].front());
    inbox_[id].pop_front();
    return true;
  }
  void Write(const v1::ExchangeReply& reply) {
    std::vector<v1::ExchangeReply> replies = {reply};
    if (cluster_.edit_messages) cluster_.edit_messages(shard_, &replies);
    MutexLock lock(mutex_);
    for (v1::ExchangeReply& r : replies) outbox_.push_back(std::move(r));
    WriteNext();
  }
  // Ends the stream once everything written before has left.
  void End(const grpc::Status& status) {
    MutexLock lock(mutex_);
    if (!end_.has_value()) end_ = status;
    WriteNext();
  }
  bool ended() const {
    MutexLock lock(mutex_);
    return ended_;
  }
  size_t nth() const { return nth_; }

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool) override {
    MutexLock lock(mutex_);
    outbox_.pop_front();
    writing_ = false;
    WriteNext();
  }
  void OnCancel() override {
    MutexLock lock(mutex_);
    SetEnded();
  }
  void OnDone() override {
    {
      MutexLock lock(mutex_);
      SetEnded();
    }
    { MutexLock cluster_lock(cluster_.mutex_); }
    self_.reset();
  }
  void SetEnded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    ended_ = true;
    arrived_.NotifyAll();
  }
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_) return;
    if (!outbox_.empty()) {
      writing_ = true;
      StartWrite(&outbox_.front());
    } else if (end_.has_value()) {
      finished_ = true;
      Finish(*end_);
    }
  }

  FakeCluster& cluster_;
  const uint32_t shard_;
  size_t nth_;
  // gRPC holds this reference.
  std::shared_ptr<Stream> self_;
  v1::ExchangeRequest request_;

  mutable Mutex mutex_;
  CondVar arrived_;
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::deque<v1::ExchangeRequest>> inbox_ ABSL_GUARDED_BY(mutex_);
  std::deque<v1::ExchangeReply> outbox_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> end_ ABSL_GUARDED_BY(mutex_);
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  // No more messages arrive.
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

// An exchange, on its thread.
struct FakeCluster::Exchange {
  FakeCluster& cluster;
  const uint32_t shard;
  const std::shared_ptr<Stream> stream;
  const uint64_t id;

  void Run() {
    const std::optional<grpc::Status> status = Serve();
    if (!status.has_value()) return;
    if (cluster.options_.end_streams) {
      stream->End(*status);
    } else if (!status->ok()) {
      v1::ExchangeReply reply;
      reply.mutable_error()->set_code(status->error_code());
      reply.mutable_error()->set_message(status->error_message());
      Write(std::move(reply));
    }
  }

  void Write(v1::ExchangeReply reply) {
    reply.set_id(id);
    stream->Write(reply);
  }

  // nullopt: as the protocol requires. Else the status that cuts the exchange short.
  std::optional<grpc::Status> Serve() {
    v1::ExchangeRequest first;
    if (!stream->Read(id, &first)) return std::nullopt;
    if (!first.has_push() && !first.has_pull()) {
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "nothing asked for");
    }
    const absl::StatusOr<RowLayout> layout = RowLayout::OfRequest(first.push().rows(), first.push().dtype(),
                                                                  first.pull().rows(), cluster.options_.dims);
    if (!layout.ok()) {
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, std::string(layout.status().message()));
    }
    layout_ = *layout;
    const v1::PullRequest pull = first.pull();
    size_t nth = 0;
    if (first.has_push()) {
      bool pull_follows = false;
      const std::optional<grpc::Status> ended = Take(first, &pull_follows);
      if (ended.has_value() || !first.has_pull() || !pull_follows) return ended;
    } else {
      {
        MutexLock lock(cluster.mutex_);
        cluster.pulls_[shard].push_back(first.pull());
        nth = cluster.pulls_[shard].size();
        cluster.Changed();
      }
      // Two messages with keys under way.
      for (uint32_t credit = first.rows() ? 1 : 2; rows_.size() < layout_.bytes(); credit = 1) {
        bool took = false;
        if (auto status = TakeRows(first, nth, &took); status.has_value()) return status;
        if (rows_.size() == layout_.bytes()) break;
        v1::ExchangeReply reply;
        reply.set_credit(credit);
        Write(std::move(reply));
        if (!stream->Read(id, &first)) return std::nullopt;
      }
      if (layout_.bytes() > 0) {
        MutexLock lock(cluster.mutex_);
        cluster.pulled_keys_[shard].push_back(rows_);
        cluster.Changed();
      }
      if (cluster.on_pull) {
        if (auto status = cluster.on_pull(shard, nth); status.has_value()) return *status;
      }
    }
    return Weights(pull, nth);
  }

  // Takes the message's rows, if it has any. A status ends the exchange.
  std::optional<grpc::Status> TakeRows(const v1::ExchangeRequest& message, size_t nth, bool* took) {
    *took = message.rows();
    if (!*took) return std::nullopt;
    if (message.first() != rows_.size() || message.gradient().empty() ||
        message.gradient().size() > 1 << 20 || rows_.size() + message.gradient().size() > layout_.bytes()) {
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no next piece of the rows");
    }
    rows_ += message.gradient();
    if (cluster.on_rows) return cluster.on_rows(shard, nth);
    return std::nullopt;
  }

  std::optional<grpc::Status> Take(v1::ExchangeRequest message, bool* pull_follows) {
    FakeCluster::Push push;
    push.shard = shard;
    push.header = message.push();
    if (message.has_pull()) push.pull = message.pull();
    push.stream = stream->nth();
    push.id = id;
    const Key key(push.header.caller().worker(), push.header.clock(), push.header.part());
    const uint64_t clock = push.header.clock();
    size_t nth;
    uint64_t version = 0;
    {
      MutexLock lock(cluster.mutex_);
      nth = ++cluster.push_calls_[shard];
      const auto repeated = cluster.taken_[shard].find(key);
      if (repeated != cluster.taken_[shard].end()) {
        version = repeated->second.version().count();
      } else {
        version = cluster.options_.sync ? clock + 1 : cluster.versions_[shard] + 1;
      }
    }
    if (cluster.on_push) {
      if (auto status = cluster.on_push(shard, nth); status.has_value()) return status;
    }
    const bool early = cluster.options_.eager && message.has_pull();
    const bool refused = !push.header.refused().empty();
    push.gradient.resize(refused ? 0 : push.header.elements());
    size_t received = 0;
    // Two chunks under way.
    uint32_t credit = message.gradient().empty() ? 2 : 1;
    size_t granted = 1;
    while (true) {
      bool rows = false;
      if (auto status = TakeRows(message, nth, &rows); status.has_value()) return status;
      push.row_messages += rows;
      const absl::string_view bytes = rows ? absl::string_view() : absl::string_view(message.gradient());
      const size_t at = std::min<size_t>(message.first(), push.gradient.size());
      const v1::Dtype dtype = push.header.dtype();
      const size_t count = std::min<size_t>(MostValues(dtype, bytes.size()), push.gradient.size() - at);
      if (EncodedBytes(dtype, count) != bytes.size())
        return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "too much");
      ValueCursor({bytes}, dtype, static_cast<int64_t>(count))
          .Read(push.gradient.data() + at, static_cast<int64_t>(count));
      received += count;
      push.messages += 1;
      if (count > 0) {
        MutexLock lock(cluster.mutex_);
        cluster.chunks_[shard].push_back(message.first());
        cluster.Changed();
      }
      push.largest_message = std::max(push.largest_message, message.ByteSizeLong());
      v1::ExchangeReply reply;
      if (push.messages > granted) return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no credit");
      const bool whole = received == push.gradient.size() && rows_.size() == layout_.bytes();
      if (!whole) {
        reply.set_credit(credit);
        granted += credit;
      }
      if (early && count > 0) AddWeights(*push.pull, version, at, count, &reply);
      if (reply.credit() > 0 || !reply.weights().empty()) Write(std::move(reply));
      credit = 1;
      if (whole) break;
      if (!stream->Read(id, &message)) return std::nullopt;
      if (message.has_push() || message.has_pull()) {
        return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "an exchange was begun twice");
      }
    }
    v1::ExchangeReply reply;
    {
      MutexLock lock(cluster.mutex_);
      push.rows = rows_;
      cluster.pushes_.push_back(push);
      auto& taken = cluster.taken_[shard];
      if (taken.count(key) == 0) {
        v1::PushReply& answer = taken[key];
        answer.set_outcome(refused ? v1::REFUSED : v1::OK);
        answer.set_reason(push.header.refused());
        answer.mutable_version()->set_incarnation(kShardIncarnation);
        if (cluster.options_.sync) {
          answer.mutable_version()->set_count(clock + 1);
        } else {
          answer.set_staleness(cluster.versions_[shard] - push.header.base().count());
          answer.mutable_version()->set_count(cluster.versions_[shard] += refused ? 0 : 1);
        }
      }
      if (cluster.options_.sync && cluster.commit_steps) {
        const uint64_t parts = cluster.PartsOf(clock);
        bool whole = clock == cluster.step_;
        for (const auto& on_shard : cluster.taken_) {
          const auto here = std::count_if(on_shard.begin(), on_shard.end(), [&](const auto& entry) {
            return std::get<1>(entry.first) == clock;
          });
          whole = whole && static_cast<uint64_t>(here) == parts;
        }
        if (whole) cluster.step_ = clock + 1;
      }
      cluster.Changed();
      *reply.mutable_push() = taken[key];
      if (cluster.edit_push) cluster.edit_push(shard, reply.mutable_push());
      if (cluster.options_.sync && reply.push().outcome() == v1::OK) {
        const grpc::Status status = cluster.Await(
            shard, [this] { return stream->ended(); }, [&] { return cluster.step_ > clock; });
        if (!status.ok()) return status;
      }
    }
    if (cluster.on_push_reply) {
      if (auto status = cluster.on_push_reply(shard, nth); status.has_value()) return status;
    }
    const v1::Outcome outcome = reply.push().outcome();
    sent_early_ = early && outcome == v1::OK && reply.push().version().count() == version;
    Write(std::move(reply));
    *pull_follows = outcome == v1::OK || outcome == v1::REFUSED || outcome == v1::DUPLICATE_BATCH ||
                    outcome == v1::STALE_VERSION;
    return std::nullopt;
  }

  void AddWeights(const v1::PullRequest& request, uint64_t version, int64_t first, int64_t count,
                  v1::ExchangeReply* reply) const {
    const Partition& partition = cluster.partition_;
    std::vector<float> values;
    for (int64_t i = first; i < first + count; ++i) {
      values.push_back(Weight(
          version, partition.block_start(shard, i / partition.block_size()) + i % partition.block_size()));
    }
    std::string bytes(values.size() * (request.dtype() == v1::BF16 ? 2 : sizeof(float)), '\0');
    if (request.dtype() == v1::BF16) {
      ToBfloat16(values.data(), &bytes[0], values.size());
    } else if (!values.empty()) {
      std::memcpy(&bytes[0], values.data(), bytes.size());
    }
    reply->set_first(static_cast<uint64_t>(first));
    reply->set_weights(std::move(bytes));
  }

  std::optional<grpc::Status> Weights(const v1::PullRequest& request, size_t nth) {
    v1::ExchangeReply reply;
    v1::PullReply& header = *reply.mutable_pull();
    header.set_outcome(v1::OK);
    header.mutable_version()->set_incarnation(kShardIncarnation);
    {
      MutexLock lock(cluster.mutex_);
      if (cluster.options_.sync && request.pin() == 0) {
        const grpc::Status status = cluster.Await(
            shard, [this] { return stream->ended(); }, [&] { return cluster.step_ >= request.clock(); });
        if (!status.ok()) return status;
        if (cluster.step_ > request.clock()) header.set_outcome(v1::STEP_PAST);
      }
      header.mutable_version()->set_count(cluster.options_.sync ? cluster.step_ : cluster.versions_[shard]);
      v1::WorkerClock& clock = *header.add_clocks();
      clock.set_worker(cluster.options_.worker);
      clock.set_clock(request.clock());
    }
    const uint64_t version = header.version().count();
    const int64_t elements = cluster.partition_.shard_elements(shard);
    header.set_elements(static_cast<uint64_t>(elements));
    if (cluster.edit_pull) cluster.edit_pull(shard, &header);
    if (header.outcome() != v1::OK) {
      Write(std::move(reply));
      return std::nullopt;
    }
    if (request.header_only() || sent_early_) {
      // The answer and the first rows go in one message.
      return Rows(request, version, nth, std::move(reply));
    }
    int64_t first = 0;
    do {
      const int64_t count = std::min(kChunkElements, elements - first);
      AddWeights(request, version, first, count, &reply);
      Write(std::move(reply));
      if (first == 0 && cluster.on_pull_middle) {
        if (auto status = cluster.on_pull_middle(shard, nth); status.has_value()) return *status;
      }
      reply.Clear();
      first += count;
    } while (first < elements);
    return Rows(request, version, nth, std::move(reply));
  }

  // Sends the rows, after what is in `reply`.
  std::optional<grpc::Status> Rows(const v1::PullRequest& request, uint64_t version, size_t nth,
                                   v1::ExchangeReply reply) {
    uint64_t sent = 0, in_message = 0;
    size_t messages = 0;
    const auto send = [&]() -> std::optional<grpc::Status> {
      sent += reply.weights().size();
      Write(std::move(reply));
      reply.Clear();
      in_message = 0;
      if (++messages == 1 && cluster.on_rows_middle) return cluster.on_rows_middle(shard, nth);
      return std::nullopt;
    };
    for (const RowLayout::Entry& entry : layout_.pull()) {
      for (uint64_t i = 0; i < entry.keys; ++i) {
        uint64_t key;
        std::memcpy(&key, rows_.data() + entry.keys_at + i * sizeof(key), sizeof(key));
        std::vector<float> row;
        for (size_t column = 0; column < cluster.options_.dims[entry.table]; ++column) {
          row.push_back(Row(version, entry.table, key, column));
        }
        std::string bytes(row.size() * (request.dtype() == v1::BF16 ? 2 : sizeof(float)), '\0');
        if (request.dtype() == v1::BF16) {
          ToBfloat16(row.data(), &bytes[0], row.size());
        } else {
          std::memcpy(&bytes[0], row.data(), bytes.size());
        }
        reply.set_rows(true);
        reply.set_first(sent);
        *reply.mutable_weights() += bytes;
        if (++in_message < cluster.options_.rows_at_once) continue;
        if (auto status = send(); status.has_value()) return status;
      }
    }
    if (reply.has_pull() || in_message > 0) Write(std::move(reply));
    return std::nullopt;
  }

  // All weights went before the answer to the push, and are of the version that the push made.
  bool sent_early_ = false;
  // What the client declared of its rows, and what has come of them.
  RowLayout layout_ = {};
  std::string rows_ = {};
};

void FakeCluster::Stream::OnReadDone(bool ok) {
  if (!ok) {
    {
      MutexLock lock(mutex_);
      SetEnded();
    }
    End(grpc::Status::OK);
    return;
  }
  const uint64_t id = request_.id();
  bool begins = false;
  {
    MutexLock lock(mutex_);
    begins = id > last_id_;
    last_id_ = std::max(last_id_, id);
    inbox_[id].push_back(std::move(request_));
    arrived_.NotifyAll();
  }
  if (begins) {
    MutexLock lock(cluster_.mutex_);
    cluster_.threads_.emplace_back(
        [exchange = Exchange{cluster_, shard_, shared_from_this(), id}]() mutable { exchange.Run(); });
  }
  request_.Clear();
  StartRead(&request_);
}

class FakeCluster::Shard final : public v1::ParameterServer::CallbackService {
 public:
  Shard(FakeCluster& cluster, uint32_t index) : cluster_(cluster), index_(index) {}

  grpc::ServerBidiReactor<v1::ExchangeRequest, v1::ExchangeReply>* Exchange(
      grpc::CallbackServerContext* context) override {
    const auto stream = std::make_shared<Stream>(cluster_, index_, context->peer());
    stream->Start(stream);
    return stream.get();
  }

 private:
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
      *reply->mutable_moved() = cluster_.beat_.moved();
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
    if (cluster_.edit_join) cluster_.edit_join(reply);
    return grpc::Status::OK;
  }

  grpc::Status Heartbeat(grpc::ServerContext* context, const v1::HeartbeatRequest* request,
                         v1::HeartbeatReply* reply) override {
    MutexLock lock(cluster_.mutex_);
    cluster_.heartbeats_.push_back(*request);
    cluster_.Changed();
    const auto hold =
        std::chrono::steady_clock::now() + std::chrono::duration<double>(cluster_.options_.lease_seconds / 3);
    const grpc::Status status = cluster_.Await(
        0, [&] { return context->IsCancelled(); },
        [&] {
          return cluster_.beat_.revision() > request->known_revision() ||
                 std::chrono::steady_clock::now() > hold;
        });
    *reply = cluster_.beat_;
    reply->set_fenced(cluster_.fenced_.count(request->caller().instance()) > 0);
    if (request->only_news() && request->known_revision() == reply->revision()) {
      reply->clear_membership();
      reply->clear_moved();
    }
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
    const grpc::Status status = cluster_.Await(
        0, [&] { return context->IsCancelled(); },
        [&] { return !cluster_.ranges_.empty() || cluster_.ranges_ended_; });
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
    pulled_keys_.resize(options_.shards);
    push_calls_.resize(options_.shards);
    chunks_.resize(options_.shards);
    streams_.resize(options_.shards);
    step_ = options_.start_clock;
    beat_.set_state(v1::RUNNING);
  }
  SetMembers({{options_.worker, options_.incarnation}});
  coordinator_ = std::make_unique<CoordinatorService>(*this);
  servers_.resize(options_.shards);
  addresses_.resize(options_.shards);
  for (uint32_t i = 0; i < options_.shards; ++i) {
    shard_services_.push_back(std::make_unique<Shard>(*this, i));
    addresses_[i] = Serve(i, NewAddress());
  }
}

FakeCluster::~FakeCluster() {
  for (uint32_t i = 0; i < options_.shards; ++i) Kill(i);
  for (const auto& server : left_servers_) server->Shutdown(std::chrono::system_clock::now());
  std::vector<std::thread> threads;
  {
    MutexLock lock(mutex_);
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
}

std::string FakeCluster::NewAddress() {
  if (!options_.unix_sockets) return "127.0.0.1:0";
  return "unix:" + sockets_.path() + "/ps-" + std::to_string(sockets_made_++);
}

std::string FakeCluster::Serve(uint32_t shard, const std::string& address) {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 500);
  builder.RegisterService(shard_services_[shard].get());
  if (shard == 0) builder.RegisterService(coordinator_.get());
  servers_[shard] = builder.BuildAndStart();
  if (servers_[shard] == nullptr) std::abort();
  return options_.unix_sockets ? address : "127.0.0.1:" + std::to_string(port);
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
  // After the last messages of its streams, for ThreadSanitizer, which does not see gRPC's ordering.
  { MutexLock lock(mutex_); }
  servers_[shard].reset();
}

void FakeCluster::Restart(uint32_t shard) {
  {
    MutexLock lock(mutex_);
    down_[shard] = 0;
  }
  Serve(shard, addresses_[shard]);
}

std::string FakeCluster::Move(uint32_t shard) {
  if (servers_[shard] != nullptr) left_servers_.push_back(std::move(servers_[shard]));
  const std::string address = Serve(shard, NewAddress());
  MutexLock lock(mutex_);
  down_[shard] = 0;
  (*beat_.mutable_moved())[shard] = address;
  beat_.set_revision(beat_.revision() + 1);
  Changed();
  return address;
}

void FakeCluster::MoveBack(uint32_t shard) {
  Kill(shard);
  Restart(shard);
  MutexLock lock(mutex_);
  beat_.mutable_moved()->erase(shard);
  beat_.set_revision(beat_.revision() + 1);
  Changed();
}

std::vector<std::string> FakeCluster::addresses() const { return addresses_; }

void FakeCluster::Changed() { changed_.NotifyAll(); }

grpc::Status FakeCluster::Await(uint32_t shard, const std::function<bool()>& cancelled,
                                const std::function<bool()>& ready) {
  while (!ready()) {
    if (down_[shard] != 0) return {grpc::StatusCode::UNAVAILABLE, "the server stops"};
    if (cancelled()) return {grpc::StatusCode::CANCELLED, "cancelled"};
    changed_.WaitUntil(mutex_, std::chrono::steady_clock::now() + std::chrono::milliseconds(5));
  }
  return grpc::Status::OK;
}

uint64_t FakeCluster::PartsOf(uint64_t step) const {
  const uint64_t batches = (options_.total_examples + options_.batch_size - 1) / options_.batch_size;
  return std::min<uint64_t>(options_.parts, batches - step * options_.parts);
}

void FakeCluster::SetShardIncarnations(const std::vector<uint64_t>& incarnations) {
  MutexLock lock(mutex_);
  v1::Membership& membership = *beat_.mutable_membership();
  membership.set_epoch(membership.epoch() + 1);
  membership.mutable_shard_incarnations()->Assign(incarnations.begin(), incarnations.end());
  beat_.set_revision(beat_.revision() + 1);
  Changed();
}

void FakeCluster::SetMembers(const std::vector<std::pair<uint32_t, uint64_t>>& rank_and_incarnation,
                             bool new_epoch) {
  MutexLock lock(mutex_);
  v1::Membership& membership = *beat_.mutable_membership();
  if (new_epoch) membership.set_epoch(membership.epoch() + 1);
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

void FakeCluster::SetUploader(uint64_t incarnation) {
  MutexLock lock(mutex_);
  beat_.mutable_membership()->set_uploader(incarnation);
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
  for (const v1::JoinRequest& join : joins_) fenced_.insert(join.instance());
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
std::vector<std::string> FakeCluster::pulled_keys(uint32_t shard) const {
  MutexLock lock(mutex_);
  return pulled_keys_[shard];
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

void FakeCluster::AwaitHeartbeats(size_t count, uint64_t known_revision) const {
  MutexLock lock(mutex_);
  while (std::count_if(heartbeats_.begin(), heartbeats_.end(), [&](const auto& beat) {
           return beat.known_revision() == known_revision;
         }) < static_cast<int64_t>(count)) {
    changed_.Wait(mutex_);
  }
}

size_t FakeCluster::streams(uint32_t shard) const {
  MutexLock lock(mutex_);
  return streams_[shard];
}

size_t FakeCluster::stream_connections() const {
  MutexLock lock(mutex_);
  return stream_peers_.size();
}

void FakeCluster::AwaitPushes(size_t count) const {
  MutexLock lock(mutex_);
  while (pushes_.size() < count) changed_.Wait(mutex_);
}

std::vector<uint64_t> FakeCluster::chunks(uint32_t shard) const {
  MutexLock lock(mutex_);
  return chunks_[shard];
}

void FakeCluster::AwaitChunks(uint32_t shard, size_t count) const {
  MutexLock lock(mutex_);
  while (chunks_[shard].size() < count) changed_.Wait(mutex_);
}

void FakeCluster::AwaitPulls(uint32_t shard, size_t count) const {
  MutexLock lock(mutex_);
  while (pulls_[shard].size() < count) changed_.Wait(mutex_);
}

}  // namespace weir
