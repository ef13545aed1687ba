#include "tests/simulation/sim_channel.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/codec/wire_codec.h"

namespace weir {
namespace {

// The slots of a gradient segment. More than a shard allows to be on their way at once.
constexpr uint32_t kSlots = 4;

// A client's slots, which the shard maps as well.
class SimSlots final : public ClientSegments {
 public:
  explicit SimSlots(size_t slot_elements)
      : slot_bytes_(slot_elements * sizeof(float)), values_(kSlots * slot_elements) {}

  char* Data(uint64_t offset) { return reinterpret_cast<char*>(values_.data()) + offset; }
  uint64_t slot_bytes() const { return slot_bytes_; }

  absl::StatusOr<const char*> At(uint32_t segment, uint64_t offset, uint64_t bytes) const override {
    if (segment != 0)
      return absl::NotFoundError(absl::StrCat("segment ", segment, " of a client that gave one"));
    const uint64_t all = values_.size() * sizeof(float);
    if (offset > all || bytes > all - offset) return absl::OutOfRangeError("beyond the slots");
    return reinterpret_cast<const char*>(values_.data()) + offset;
  }

 private:
  const uint64_t slot_bytes_;
  std::vector<float> values_;
};

class SimShardMemory final : public ShardMemory {
 public:
  SimShardMemory(const Site* site, std::string token)
      : site_(site),
        token_(std::move(token)),
        slots_(std::make_shared<SimSlots>(static_cast<size_t>(site->ledger.elements()))) {}

  std::string token() const override { return token_; }
  uint32_t slots() const override { return kSlots; }
  char* SlotData(uint32_t slot) override { return slots_->Data(SlotOffset(slot)); }
  uint64_t SlotOffset(uint32_t slot) const override { return slot * slots_->slot_bytes(); }
  std::optional<uint32_t> NumberOf(const std::shared_ptr<const SharedSegment>&) override {
    return std::nullopt;
  }
  absl::StatusOr<const char*> Map(uint32_t segment, uint64_t offset, uint64_t bytes) override {
    if (!site_->mapped.Has(segment)) return absl::UnavailableError("no such segment");
    const float* const at = site_->mapped.At(segment, offset, bytes);
    if (at == nullptr) return absl::OutOfRangeError("beyond the segment");
    return reinterpret_cast<const char*>(at);
  }

  const std::shared_ptr<SimSlots>& memory() const { return slots_; }
  const SegmentsSocket& socket() const { return socket_; }

 private:
  const Site* const site_;
  const std::string token_;
  const std::shared_ptr<SimSlots> slots_;
  const SegmentsSocket socket_ = std::make_shared<const char>();
};

template <typename Message>
std::string Join(const Message& head, absl::string_view payload) {
  std::string bytes = head.SerializeAsString();
  absl::StrAppend(&bytes, PayloadPrefix(payload.size()), payload);
  return bytes;
}

}  // namespace

// ---- a stream

class SimDataStream final : public DataStream, public std::enable_shared_from_this<SimDataStream> {
 public:
  SimDataStream(std::shared_ptr<SimShardStreams> streams, std::shared_ptr<User> user,
                std::function<void()> gone)
      : streams_(std::move(streams)), site_(streams_->site), user_(std::move(user)), gone_(std::move(gone)) {}

  void Start(const std::shared_ptr<SimShardMemory>& memory);
  void Write(OutgoingMessage message) override;
  void Read(bool relaxed) override;
  void Cancel() override { End(absl::CancelledError("the client has ended the stream")); }

  void Stall() {
    if (connection_ != nullptr) connection_->Stall(Connection::kOpener);
  }
  // The process has died.
  void Die() { End(absl::UnavailableError("the process has died")); }

 private:
  World::Node node() const { return streams_->node; }
  // The bytes that leave for the message: with planted faults.
  std::string Outgoing(const OutgoingMessage& message);
  void SendCopy(const v1::ExchangeRequest& first, absl::string_view gradient);
  void Arrive(const std::string& bytes);
  // For Seams::releases_early.
  void ReleaseEarly(const std::string& bytes);
  // The bytes that the client gets: with planted faults.
  std::string Incoming(const std::string& bytes);
  void Log(const std::string& bytes);
  void Deliver();
  void End(const absl::Status& why);

  const std::shared_ptr<SimShardStreams> streams_;
  Site* const site_;
  const uint64_t number_ = site_->next_session++;
  // Null: the user has been released.
  std::shared_ptr<User> user_;
  std::function<void()> gone_;
  // Null: no server was there.
  std::shared_ptr<Connection> connection_;
  // Takes what is written, at the server.
  Seams::Receiver server_end_;
  std::shared_ptr<SimShardMemory> memory_;
  // The message that is being written.
  OutgoingMessage message_;
  // Messages that have arrived, and that the client has not asked for yet.
  std::deque<std::string> arrived_;
  bool reads_ = false;
  // How the stream ended.
  std::optional<absl::Status> end_;
  // The open pushes, by the number of their exchange: as the client made them, and the first message as it
  // left.
  struct OpenPush {
    v1::PushRequest asked;
    v1::ExchangeRequest first;
  };
  std::map<uint64_t, OpenPush> pushes_;
};

void SimDataStream::Start(const std::shared_ptr<SimShardMemory>& memory) {
  SimServer* const server = site_->servers[streams_->shard].get();
  if (!streams_->loop->dead()) connection_ = site_->network.Connect(node(), server->node());
  if (connection_ == nullptr) {
    streams_->loop->After(absl::Milliseconds(1), [self = shared_from_this()] {
      self->End(absl::UnavailableError("connection refused"));
    });
    return;
  }
  const std::weak_ptr<SimDataStream> weak = weak_from_this();
  const auto to_client = [weak](const std::string& bytes) {
    if (const auto self = weak.lock()) self->Arrive(bytes);
  };
  if (site_->seams.accept) {
    server_end_ = site_->seams.accept(connection_, to_client);
  } else {
    server_end_ = [session = server->Accept(connection_, to_client)](const std::string& bytes) {
      session->Receive(bytes);
    };
  }
  memory_ = memory;
  if (memory != nullptr) server->shared_memory().Meet(memory->token(), memory->socket(), memory->memory());
  connection_->OnEnd(Connection::kOpener, [weak](const absl::Status& why) {
    if (const auto self = weak.lock()) self->End(why);
  });
}

void SimDataStream::Write(OutgoingMessage message) {
  if (end_.has_value()) return;
  World& world = site_->world;
  const bool bulk = !message.payload.empty();
  message_ = std::move(message);
  // The bytes are read when they leave: a gradient that changes before that is noticed.
  streams_->loop->After(
      world.Between(absl::ZeroDuration(), absl::Microseconds(bulk ? 2000 : 50)), [self = shared_from_this()] {
        if (self->user_ == nullptr || self->end_.has_value()) return;
        std::string bytes = self->Outgoing(self->message_);
        self->message_ = {};
        if (self->connection_ != nullptr && !bytes.empty()) {
          self->connection_->Send(Connection::kOpener,
                                  [end = self->server_end_, bytes = std::move(bytes)] { end(bytes); });
        }
        const std::shared_ptr<User> user = self->user_;
        user->OnWritten();
      });
}

std::string SimDataStream::Outgoing(const OutgoingMessage& message) {
  std::string all = message.head;
  for (const OutgoingMessage::Piece& piece : message.payload) absl::StrAppend(&all, piece.bytes);
  const absl::string_view piece = all;
  const auto split = SplitPayload(absl::MakeConstSpan(&piece, 1));
  v1::ExchangeRequest head;
  if (!split.ok() || !head.ParseFromString(split->head)) {
    site_->log.complaints.push_back("a client sent what is no ExchangeRequest");
    return all;
  }
  std::string payload;
  for (absl::string_view part : split->payload) absl::StrAppend(&payload, part);
  if (head.has_push()) {
    pushes_[head.id()].asked = head.push();
    site_->world.Trace("push", {node(), streams_->shard, head.push().clock(), head.push().part()});
  } else if (head.has_pull()) {
    site_->world.Trace("pull", {node(), streams_->shard, head.pull().clock()});
  }
  if (site_->seams.releases_early) {
    head.clear_released();
    // The message said nothing else.
    if (head.id() == 0 && !head.has_shared_memory()) return "";
  }
  if (site_->seams.request) site_->seams.request(number_, streams_->shard, &head);
  const auto push = pushes_.find(head.id());
  if (push != pushes_.end() && head.has_push()) push->second.first = head;
  if (push != pushes_.end() && (head.has_shared() || !payload.empty())) {
    char* const data = head.has_shared() ? memory_->memory()->Data(head.shared().offset()) : payload.data();
    const size_t bytes = head.has_shared() ? head.shared().bytes() : payload.size();
    const uint64_t batch = push->second.asked.batch_plus_one() - 1;
    // As if the value had changed after the client's check, so that the shard finds it.
    if (site_->ledger.poisoned(batch, streams_->shard)) {
      const size_t at = (batch * 7) % static_cast<uint64_t>(site_->ledger.elements());
      const float value = std::numeric_limits<float>::quiet_NaN();
      std::memcpy(data + at * sizeof(float), &value, sizeof(float));
    }
    if (site_->network.faults_on() && site_->world.Chance(site_->plan.network.duplicate)) {
      SendCopy(push->second.first, absl::string_view(data, bytes));
    }
  }
  return Join(head, payload);
}

void SimDataStream::SendCopy(const v1::ExchangeRequest& first, absl::string_view gradient) {
  // The sender of the copy has a stream of its own, which ends some time later.
  class Nobody final : public User {
   public:
    void OnWritten() override {}
    void OnMessage(IncomingMessage) override {}
    void OnEnd(const absl::Status&) override {}
  };
  ++site_->faults["push duplicated"];
  v1::ExchangeRequest head = first;
  head.set_id(1);
  head.clear_shared();
  head.clear_released();
  World& world = site_->world;
  world.After(node(), world.Between(absl::ZeroDuration(), absl::Milliseconds(400)),
              [from = streams_, bytes = Join(head, gradient)] {
                auto copy = std::make_shared<SimDataStream>(from, std::make_shared<Nobody>(), [] {});
                copy->Start(nullptr);
                if (copy->connection_ == nullptr) return;
                copy->connection_->Send(Connection::kOpener,
                                        [end = copy->server_end_, bytes] { end(bytes); });
                from->site->world.After(from->node, absl::Seconds(1),
                                        [copy] { copy->connection_->Close(Connection::kOpener); });
              });
}

void SimDataStream::Read(bool relaxed) {
  reads_ = true;
  if (arrived_.empty() && !end_.has_value()) return;
  // Not within this call.
  const auto deliver = [self = shared_from_this()] { self->Deliver(); };
  if (relaxed) {
    streams_->loop->Post(deliver);
  } else {
    streams_->loop->After(absl::ZeroDuration(), deliver);
  }
}

void SimDataStream::Arrive(const std::string& bytes) {
  if (user_ == nullptr || end_.has_value()) return;
  Log(bytes);
  if (site_->seams.releases_early) ReleaseEarly(bytes);
  arrived_.push_back(site_->seams.reply ? Incoming(bytes) : bytes);
  Deliver();
}

void SimDataStream::ReleaseEarly(const std::string& bytes) {
  v1::ExchangeReply reply;
  if (!reply.ParseFromString(bytes) || !reply.has_shared()) return;
  v1::ExchangeRequest release;
  release.set_released(1);
  connection_->Send(Connection::kOpener,
                    [end = server_end_, bytes = release.SerializeAsString()] { end(bytes); });
}

std::string SimDataStream::Incoming(const std::string& bytes) {
  const absl::string_view piece = bytes;
  const auto message = SplitPayload(absl::MakeConstSpan(&piece, 1));
  v1::ExchangeReply reply;
  if (!message.ok() || !reply.ParseFromString(message->head)) return bytes;
  site_->seams.reply(number_, streams_->shard, &reply);
  std::string payload;
  for (absl::string_view part : message->payload) absl::StrAppend(&payload, part);
  return Join(reply, payload);
}

void SimDataStream::Log(const std::string& bytes) {
  const absl::string_view piece = bytes;
  const auto message = SplitPayload(absl::MakeConstSpan(&piece, 1));
  v1::ExchangeReply reply;
  if (!message.ok() || !reply.ParseFromString(message->head)) {
    site_->log.complaints.push_back("a shard sent what is no ExchangeReply");
    return;
  }
  if (reply.has_pull()) {
    site_->world.Trace("pull answered",
                       {node(), streams_->shard, static_cast<uint64_t>(reply.pull().outcome()),
                        reply.pull().version().count()});
  }
  if (!reply.has_push()) return;
  site_->world.Trace("push answered", {node(), streams_->shard, static_cast<uint64_t>(reply.push().outcome()),
                                       reply.push().version().count()});
  const auto push = pushes_.find(reply.id());
  if (push == pushes_.end()) return;
  const v1::PushRequest& asked = push->second.asked;
  if (reply.push().outcome() != v1::SEND_AGAIN) {
    site_->log.pushes.push_back({site_->world.elapsed(), asked.caller().worker(),
                                 asked.caller().incarnation(), streams_->shard, asked.clock(),
                                 asked.batch_plus_one() - 1, asked.base(), reply.push()});
  }
  pushes_.erase(push);
}

void SimDataStream::Deliver() {
  if (!reads_) return;
  std::shared_ptr<User> user = user_;
  if (user == nullptr) return;
  if (!arrived_.empty()) {
    reads_ = false;
    const auto bytes = std::make_shared<const std::string>(std::move(arrived_.front()));
    arrived_.pop_front();
    user->OnMessage({{*bytes}, bytes});
  } else if (end_.has_value()) {
    const std::shared_ptr<SimDataStream> self = shared_from_this();
    auto& streams = streams_->open;
    streams.erase(std::remove(streams.begin(), streams.end(), self), streams.end());
    user->OnEnd(*end_);
    user = user_ = nullptr;
    if (gone_) std::exchange(gone_, nullptr)();
  }
}

void SimDataStream::End(const absl::Status& why) {
  if (end_.has_value() || user_ == nullptr) return;
  end_ = why;
  message_ = {};
  if (absl::IsCancelled(why)) arrived_.clear();
  if (connection_ != nullptr) connection_->Close(Connection::kOpener);
  streams_->loop->After(absl::ZeroDuration(), [self = shared_from_this()] { self->Deliver(); });
}

// ---- the channel

std::string SimShardChannel::name() const { return absl::StrCat("ps:", streams_->shard); }

ShardChannel::Opened SimShardChannel::Open(std::shared_ptr<DataStream::User> user,
                                           std::function<void()> gone) {
  Site* const site = streams_->site;
  const auto stream = std::make_shared<SimDataStream>(streams_, std::move(user), std::move(gone));
  streams_->open.push_back(stream);
  std::shared_ptr<SimShardMemory> memory;
  if (site->plan.shared_memory) {
    memory = std::make_shared<SimShardMemory>(site, absl::StrCat("segments ", site->next_session++));
  }
  stream->Start(memory);
  if (streams_->hangs) stream->Stall();
  return {stream, memory, [] {}};
}

void SimShardStreams::Hang() {
  hangs = true;
  for (const auto& stream : open) stream->Stall();
}

void SimShardStreams::Die() {
  for (const auto& stream : open) stream->Die();
}

}  // namespace weir
