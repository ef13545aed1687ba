#include "tests/simulation/sim_channel.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/codec/value_codec.h"
#include "common/codec/wire_codec.h"
#include "common/protocol/exchange_layout.h"

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
  bool Write(OutgoingMessage message) override;
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
  struct OpenPush;
  void OnChunk(OpenPush& push, const v1::ExchangeRequest& head, char* data, size_t bytes);
  // Makes a value of a chunk NaN, if its batch is poisoned.
  void Poison(const OpenPush& push, const v1::ExchangeRequest& head, char* data, size_t bytes);
  void SendCopy(const OpenPush& push);
  // As a worker of another job, whose cluster spec has this job's address of the shard.
  void SendStray(const OpenPush& push);
  // On a stream of its own, which ends some time later.
  void SendElsewhere(OpenPush push, absl::Duration most_wait);
  void Arrive(const std::string& bytes);
  // For Seams::releases_early.
  void ReleaseEarly(const std::string& bytes);
  // The bytes that the client gets: with planted faults.
  std::string Incoming(const std::string& bytes);
  // Returns the answer to a push that the message brings.
  std::optional<PushHeard> Log(const std::string& bytes);
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
  std::deque<std::pair<std::string, std::optional<PushHeard>>> arrived_;
  bool reads_ = false;
  // How the stream ended.
  std::optional<absl::Status> end_;
  // A chunk of a gradient or a piece of rows, as it left.
  struct SentChunk {
    bool rows = false;
    uint64_t first = 0;
    std::string bytes;
  };
  // The open pushes, by the number of their exchange: as the client made them, and the first message and the
  // chunks as they left.
  struct OpenPush {
    v1::PushRequest asked;
    v1::ExchangeRequest first;
    std::vector<SentChunk> chunks;
    uint64_t missing = 0;       // elements
    uint64_t missing_rows = 0;  // bytes
    // Chunks for which the shard has given credit that is not used up.
    uint64_t credit = 0;
  };
  std::map<uint64_t, OpenPush> pushes_;
  // The clocks of the open pulls.
  std::map<uint64_t, uint64_t> pulls_;
};

void SimDataStream::Start(const std::shared_ptr<SimShardMemory>& memory) {
  SimServer* const server = site_->servers[streams_->shard].get();
  if (!streams_->loop->dead() && server->address() == streams_->address) {
    connection_ = site_->network.Connect(node(), server->node());
  }
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

bool SimDataStream::Write(OutgoingMessage message) {
  if (end_.has_value()) return false;
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
  return false;
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
    OpenPush& push = pushes_[head.id()];
    push.asked = head.push();
    push.missing = head.push().elements();
    const auto rows =
        RowLayout::OfRequest(head.push().rows(), head.push().dtype(), head.pull().rows(), {Ledger::kDim});
    push.missing_rows = rows.ok() ? rows->bytes() : 0;
    site_->world.Trace("push", {node(), streams_->shard, head.push().clock(), head.push().part()});
  } else if (head.has_pull()) {
    site_->world.Trace("pull", {node(), streams_->shard, head.pull().clock()});
  }
  if (head.has_pull() && head.pull().pin() == 0) pulls_[head.id()] = head.pull().clock();
  if (site_->seams.releases_early) {
    head.clear_released();
    // The message said nothing else.
    if (head.id() == 0 && !head.has_shared_memory()) return "";
  }
  if (site_->seams.request) site_->seams.request(number_, streams_->shard, &head);
  const auto push = pushes_.find(head.id());
  if (push != pushes_.end() && head.has_push()) push->second.first = head;
  if (push != pushes_.end() && head.has_shared()) {
    OnChunk(push->second, head, memory_->memory()->Data(head.shared().offset()), head.shared().bytes());
  } else if (push != pushes_.end() && !payload.empty()) {
    OnChunk(push->second, head, payload.data(), payload.size());
  }
  return Join(head, payload);
}

void SimDataStream::OnChunk(OpenPush& push, const v1::ExchangeRequest& head, char* data, size_t bytes) {
  // The first message may hold a chunk without any credit.
  if (!head.has_push() && push.credit-- == 0) {
    push.credit = 0;
    site_->log.complaints.push_back("a client sent a chunk for which it had no credit");
  }
  push.chunks.push_back({head.rows(), head.first(), ""});
  if (head.rows()) {
    push.missing_rows -= bytes;
  } else {
    Poison(push, head, data, bytes);
    push.missing -= MostValues(push.asked.dtype(), bytes);
    if (site_->seams.chunk) site_->seams.chunk(streams_->shard, push.asked, head.first(), data, bytes);
  }
  push.chunks.back().bytes.assign(data, bytes);
  if (push.missing > 0 || push.missing_rows > 0) return;
  if (!site_->network.faults_on()) return;
  if (site_->world.Chance(site_->plan.network.duplicate)) SendCopy(push);
  if (site_->world.Chance(site_->plan.network.duplicate)) SendStray(push);
}

void SimDataStream::Poison(const OpenPush& push, const v1::ExchangeRequest& head, char* data, size_t bytes) {
  const uint64_t batch = push.asked.batch_plus_one() - 1;
  if (IsQuantised(push.asked.dtype())) {
    // The scale of the first block.
    if (head.first() == 0 && site_->ledger.poisoned(batch, streams_->shard)) {
      std::memset(data, 0xff, ScaleBytes(CodeOf(push.asked.dtype())));
    }
    return;
  }
  const uint64_t elements = bytes / sizeof(float);
  // As if the value had changed after the client's check, so that the shard finds it.
  const uint64_t at = (batch * 7) % static_cast<uint64_t>(site_->ledger.elements()) - head.first();
  if (at < elements && site_->ledger.poisoned(batch, streams_->shard)) {
    const float value = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(data + at * sizeof(float), &value, sizeof(float));
  }
}

void SimDataStream::SendCopy(const OpenPush& push) {
  ++site_->faults["push duplicated"];
  SendElsewhere(push, absl::Milliseconds(400));
}

void SimDataStream::SendStray(const OpenPush& push) {
  ++site_->faults["push of another job"];
  OpenPush stray = push;
  v1::PushRequest& header = *stray.first.mutable_push();
  if (!site_->seams.serves_any_job) header.mutable_caller()->set_job(~header.caller().job());
  header.set_clock(header.clock() + 1);
  if (site_->plan.sync()) {
    header.set_batch_plus_one(header.batch_plus_one() + site_->plan.ledger.parts);
    header.mutable_base()->set_count(header.clock());
  } else {
    header.clear_batch_plus_one();
  }
  header.clear_answered_clock();
  stray.first.clear_pull();
  // Other values of the same size.
  constexpr size_t kValue = sizeof(float);
  for (SentChunk& chunk : stray.chunks) {
    for (size_t at = kValue - 1; !chunk.rows && at < chunk.bytes.size(); at += kValue)
      chunk.bytes[at] ^= '\x80';
  }
  SendElsewhere(std::move(stray), absl::Milliseconds(2));
}

void SimDataStream::SendElsewhere(OpenPush push, absl::Duration most_wait) {
  class Sender final : public User {
   public:
    explicit Sender(const OpenPush& push) : chunks_(push.chunks.begin(), push.chunks.end()) {
      head_ = push.first;
      head_.set_id(1);
      head_.clear_shared();
      head_.clear_released();
    }
    void Start(const std::shared_ptr<SimDataStream>& stream) {
      stream_ = stream;
      Send(1);
      stream->Read(/*relaxed=*/false);
    }
    void OnWritten() override {}
    void OnMessage(IncomingMessage message) override {
      v1::ExchangeReply reply;
      const auto split = SplitPayload(message.pieces);
      if (split.ok() && reply.ParseFromString(split->head)) Send(reply.credit());
      if (const auto stream = stream_.lock()) stream->Read(/*relaxed=*/false);
    }
    void OnEnd(const absl::Status&) override {}

   private:
    void Send(uint64_t chunks) {
      const auto stream = stream_.lock();
      for (; chunks > 0 && stream != nullptr && !chunks_.empty(); --chunks) {
        head_.set_rows(chunks_.front().rows);
        head_.set_first(chunks_.front().first);
        stream->connection_->Send(
            Connection::kOpener,
            [end = stream->server_end_, bytes = Join(head_, chunks_.front().bytes)] { end(bytes); });
        chunks_.pop_front();
        head_.clear_push();
        head_.clear_pull();
      }
    }

    v1::ExchangeRequest head_;
    std::deque<SentChunk> chunks_;
    std::weak_ptr<SimDataStream> stream_;
  };
  World& world = site_->world;
  world.After(node(), world.Between(absl::ZeroDuration(), most_wait),
              [from = streams_, sender = std::make_shared<Sender>(push)] {
                auto copy = std::make_shared<SimDataStream>(from, sender, [] {});
                copy->Start(nullptr);
                if (copy->connection_ == nullptr) return;
                sender->Start(copy);
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
  const std::optional<PushHeard> heard = Log(bytes);
  if (site_->seams.releases_early) ReleaseEarly(bytes);
  const bool changes = site_->seams.reply || site_->seams.weights || site_->seams.rows;
  arrived_.emplace_back(changes ? Incoming(bytes) : bytes, heard);
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
  if (site_->seams.reply) site_->seams.reply(number_, streams_->shard, &reply);
  std::string payload;
  for (absl::string_view part : message->payload) absl::StrAppend(&payload, part);
  const auto& change = reply.rows() ? site_->seams.rows : site_->seams.weights;
  if (change) change(number_, streams_->shard, reply, &payload);
  return Join(reply, payload);
}

std::optional<PushHeard> SimDataStream::Log(const std::string& bytes) {
  const absl::string_view piece = bytes;
  const auto message = SplitPayload(absl::MakeConstSpan(&piece, 1));
  v1::ExchangeReply reply;
  if (!message.ok() || !reply.ParseFromString(message->head)) {
    site_->log.complaints.push_back("a shard sent what is no ExchangeReply");
    return std::nullopt;
  }
  if (const auto open = pushes_.find(reply.id()); open != pushes_.end())
    open->second.credit += reply.credit();
  if (reply.has_pull()) {
    if (const auto open = pulls_.find(reply.id()); open != pulls_.end()) {
      if (reply.pull().outcome() == v1::OK)
        streams_->answered = std::max(streams_->answered, open->second + 1);
      pulls_.erase(open);
    }
    site_->world.Trace("pull answered",
                       {node(), streams_->shard, static_cast<uint64_t>(reply.pull().outcome()),
                        reply.pull().version().count()});
  }
  if (!reply.has_push()) return std::nullopt;
  site_->world.Trace("push answered", {node(), streams_->shard, static_cast<uint64_t>(reply.push().outcome()),
                                       reply.push().version().count()});
  const auto push = pushes_.find(reply.id());
  if (push == pushes_.end()) return std::nullopt;
  std::optional<PushHeard> heard;
  const v1::PushRequest& asked = push->second.asked;
  if (reply.push().outcome() != v1::SEND_AGAIN && !asked.initial_values()) {
    site_->log.pushes.push_back({site_->world.elapsed(), asked.caller().worker(),
                                 asked.caller().incarnation(), streams_->shard, asked.clock(),
                                 asked.batch_plus_one() - 1, asked.base(), reply.push()});
    heard = PushHeard{0,
                      asked.caller().incarnation(),
                      streams_->shard,
                      asked.clock(),
                      asked.batch_plus_one() - 1,
                      reply.push().outcome() == v1::OK,
                      push->second.missing == 0};
  }
  pushes_.erase(push);
  return heard;
}

void SimDataStream::Deliver() {
  if (!reads_) return;
  std::shared_ptr<User> user = user_;
  if (user == nullptr) return;
  if (!arrived_.empty()) {
    reads_ = false;
    auto [bytes, heard] = std::move(arrived_.front());
    arrived_.pop_front();
    if (heard.has_value()) {
      heard->sent = site_->log.sent.size();
      site_->log.heard.push_back(*heard);
      if (site_->seams.heard) site_->seams.heard(*heard);
    }
    user->OnMessage(ToIncoming(std::move(bytes)));
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

bool SimShardChannel::MoveTo(const std::string& address) {
  const std::string& to = address.empty() ? home_ : address;
  if (to == streams_->address) return false;
  streams_->address = to;
  return true;
}

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
