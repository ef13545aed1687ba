// The contract of ShardChannel, DataStream and ShardMemory (client/exchange/shard_channel.h), whatever
// connects to the shard. A further implementation is one more row.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "client/exchange/shard_channel.h"
#include "common/codec/wire_codec.h"
#include "common/protocol/segment_messages.h"
#include "proto/parameter_server.pb.h"
#include "tests/common/reserved_address.h"
#include "tests/conformance/channel_under_test.h"
#include "tests/conformance/grpc_channel_under_test.h"
#include "tests/conformance/sim_channel_under_test.h"

namespace weir {
namespace {

using Steady = std::chrono::steady_clock;

const std::vector<ChannelKind>& Kinds() {
  static const auto* kinds = new std::vector<ChannelKind>{
      {"gRPC over TCP", false, false, [] { return MakeGrpcChannelUnderTest(v1::WireConfig::TRANSPORT_TCP); }},
      {"gRPC over a Unix socket", false, false,
       [] { return MakeGrpcChannelUnderTest(v1::WireConfig::TRANSPORT_UNIX); }},
      {"gRPC with shared memory", true, true,
       [] { return MakeGrpcChannelUnderTest(v1::WireConfig::TRANSPORT_SHARED_MEMORY); }},
      {"gRPC with rings", true, true,
       [] { return MakeGrpcChannelUnderTest(v1::WireConfig::TRANSPORT_SHARED_MEMORY, /*rings=*/true); }},
      {"simulation", false, false, [] { return MakeSimChannelUnderTest(/*shared_memory=*/false); }},
      {"simulation with shared memory", true, false,
       [] { return MakeSimChannelUnderTest(/*shared_memory=*/true); }},
  };
  return *kinds;
}

// Records the calls that a stream's user gets. Outlives the user. Thread-safe.
class Notes {
 public:
  explicit Notes(Bell& bell) : bell_(bell) {}

  size_t written() const {
    MutexLock lock(mutex_);
    return written_;
  }
  size_t arrived() const {
    MutexLock lock(mutex_);
    return messages_.size();
  }
  std::vector<std::string> messages() const {
    MutexLock lock(mutex_);
    return messages_;
  }
  std::vector<absl::Status> ends() const {
    MutexLock lock(mutex_);
    return ends_;
  }
  bool ended() const { return !ends().empty(); }
  int gone() const {
    MutexLock lock(mutex_);
    return gone_;
  }
  // What the stream did wrong.
  std::vector<std::string> faults() const {
    MutexLock lock(mutex_);
    return faults_;
  }

  // Makes a call to the stream, on any thread.
  template <typename Call>
  void Calling(const Call& call) {
    // A user that the stream calls then sees what this thread did before; ThreadSanitizer does not look into
    // gRPC.
    { MutexLock lock(mutex_); }
    ++calls_of_stream();
    call();
    --calls_of_stream();
  }

  // Write() has returned true.
  void TakenAtOnce() {
    {
      MutexLock lock(mutex_);
      ++written_;
    }
    bell_.Ring();
  }

  // For the user.

  void TakeWritten() {
    Enter();
    {
      MutexLock lock(mutex_);
      ++written_;
    }
    Leave();
  }
  void TakeMessage(std::string bytes, const std::function<void()>& then) {
    Enter();
    {
      MutexLock lock(mutex_);
      messages_.push_back(std::move(bytes));
    }
    then();
    Leave();
  }
  void TakeEnd(const absl::Status& status) {
    Enter();
    {
      MutexLock lock(mutex_);
      ends_.push_back(status);
    }
    Leave();
  }
  void TakeGone(bool user_is_there) {
    {
      MutexLock lock(mutex_);
      ++gone_;
      if (ends_.empty()) faults_.push_back("gone before the end");
      if (user_is_there) faults_.push_back("gone while the user was held");
    }
    bell_.Ring();
  }

 private:
  static int& calls_of_stream() {
    static thread_local int calls = 0;
    return calls;
  }
  void Enter() {
    MutexLock lock(mutex_);
    if (calls_of_stream() > 0) faults_.push_back("the user was called within a call of the stream");
    if (told_.exchange(true)) faults_.push_back("the user was called while it was at work");
    if (!ends_.empty()) faults_.push_back("the user was called after the stream had ended");
  }
  void Leave() {
    told_ = false;
    bell_.Ring();
  }

  Bell& bell_;
  std::atomic<bool> told_ = false;
  mutable Mutex mutex_;
  size_t written_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> messages_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::Status> ends_ ABSL_GUARDED_BY(mutex_);
  int gone_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> faults_ ABSL_GUARDED_BY(mutex_);
};

// A user that records its calls, and calls `on_message` within each message.
class User final : public DataStream::User {
 public:
  User(std::shared_ptr<Notes> notes, std::function<void()> on_message)
      : notes_(std::move(notes)), on_message_(std::move(on_message)) {}

  void OnWritten() override { notes_->TakeWritten(); }
  void OnMessage(IncomingMessage message) override {
    std::string bytes;
    for (absl::string_view piece : message.pieces) bytes.append(piece.data(), piece.size());
    message = {};
    notes_->TakeMessage(std::move(bytes), on_message_);
  }
  void OnEnd(const absl::Status& status) override { notes_->TakeEnd(status); }

 private:
  const std::shared_ptr<Notes> notes_;
  const std::function<void()> on_message_;
};

// A stream of the channel, and its user, which reads on within each message if `reads_on`. The destructor
// ends the stream if it has not ended, and waits for its end.
class Stream {
 public:
  explicit Stream(ChannelUnderTest& under_test, bool reads_on = true)
      : Stream(under_test, under_test.channel(), reads_on) {}
  // `on_message` runs within each message, after the next message was asked for.
  Stream(ChannelUnderTest& under_test, ShardChannel& channel, bool reads_on = true,
         std::function<void(Stream&)> on_message = nullptr)
      : under_test_(under_test), notes_(std::make_shared<Notes>(under_test.bell())) {
    auto user = std::make_shared<User>(notes_, [this, reads_on, on_message] {
      // Reads relaxed and not relaxed by turns.
      relaxed_ = !relaxed_;
      if (reads_on) Read(relaxed_);
      if (on_message) on_message(*this);
    });
    user_ = user;
    opened_ =
        channel.Open(std::move(user), [notes = notes_, user = user_] { notes->TakeGone(!user.expired()); });
    if (reads_on) Read();
  }
  ~Stream() {
    if (notes_->gone() == 0) Cancel();
    CHECK(under_test_.Await([&] { return notes_->gone() > 0; }));
    CHECK(notes_->gone() == 1);
    CHECK(notes_->ends().size() == 1);
    CHECK(notes_->faults() == std::vector<std::string>());
  }

  void Write(OutgoingMessage message) {
    bool taken = false;
    notes_->Calling([&] { taken = opened_.stream->Write(std::move(message)); });
    if (taken) notes_->TakenAtOnce();
  }
  void Read(bool relaxed = false) {
    notes_->Calling([&] { opened_.stream->Read(relaxed); });
  }
  void Cancel() {
    notes_->Calling([&] { opened_.stream->Cancel(); });
  }
  // Waits until the stream has released its user. Returns how the stream ended.
  absl::Status End() {
    REQUIRE(under_test_.Await([&] { return notes_->gone() > 0; }));
    return notes_->ends().at(0);
  }
  bool AwaitArrived(size_t messages) {
    return under_test_.Await([&] { return notes_->arrived() >= messages; });
  }
  bool AwaitWritten(size_t messages) {
    return under_test_.Await([&] { return notes_->written() >= messages; });
  }

  const Notes& notes() const { return *notes_; }
  ShardMemory* memory() const { return opened_.memory.get(); }
  const ShardChannel::Opened& opened() const { return opened_; }
  bool user_is_held() const { return !user_.expired(); }

 private:
  ChannelUnderTest& under_test_;
  const std::shared_ptr<Notes> notes_;
  std::weak_ptr<User> user_;
  ShardChannel::Opened opened_;
  bool relaxed_ = false;
};

// A message whose payload bytes depend on their positions, in pieces of different lengths.
OutgoingMessage MessageOf(uint64_t id, size_t bytes) {
  v1::ExchangeRequest head;
  head.set_id(id);
  OutgoingMessage message{head.SerializeAsString() + PayloadPrefix(bytes), {}};
  const auto payload = std::make_shared<std::string>();
  for (size_t i = 0; i < bytes; ++i) payload->push_back(static_cast<char>((i * 31 + id) >> (i % 3)));
  for (size_t begin = 0, piece = 1; begin < bytes; begin += piece, piece = 3 * piece + 1) {
    message.payload.push_back({absl::string_view(*payload).substr(begin, piece), payload});
  }
  return message;
}
std::string BytesOf(const OutgoingMessage& message) {
  std::string bytes = message.head;
  for (const OutgoingMessage::Piece& piece : message.payload) absl::StrAppend(&bytes, piece.bytes);
  return bytes;
}
std::string Bytes(uint64_t id, size_t bytes = 0) { return BytesOf(MessageOf(id, bytes)); }

// Writes the stream's first message, and returns the shard's end. `nth` counts the channel's streams.
std::shared_ptr<ShardEnd> Begin(ChannelUnderTest& under_test, Stream& stream, size_t nth = 0) {
  stream.Write(MessageOf(1, 0));
  REQUIRE(under_test.Await([&] {
    const auto streams = under_test.streams();
    return streams.size() > nth && !streams[nth]->received().empty();
  }));
  return under_test.streams()[nth];
}

// Sends messages to the shard and back on a stream of their own. Afterwards what was on its way before has
// come.
void RoundTrips(ChannelUnderTest& under_test) {
  const size_t nth = under_test.streams().size();
  Stream stream(under_test);
  const std::shared_ptr<ShardEnd> shard = Begin(under_test, stream, nth);
  for (uint64_t id = 1; id <= 10; ++id) {
    shard->Send(Bytes(id));
    REQUIRE(stream.AwaitArrived(id));
    REQUIRE(stream.AwaitWritten(id));
    stream.Write(MessageOf(id + 1, 0));
    REQUIRE(under_test.Await([&] { return shard->received().size() > id; }));
  }
}

// ---- streams

TEST_CASE("Messages arrive whole and in order, both ways at once") {
  const ChannelKind& kind = Kinds()[GENERATE(range(size_t{0}, Kinds().size()))];
  CAPTURE(kind.name);
  const auto under_test = kind.make();
  Stream stream(*under_test);
  const std::shared_ptr<ShardEnd> shard = Begin(*under_test, stream);
  const std::vector<size_t> sizes = {0, 1, 5, 70000, 0, 1 << 20, 3, (4 << 20) - 100, 40000, 2, 0, 300000};
  std::vector<std::string> sent = {Bytes(1)}, to_client;
  for (size_t i = 0; i < sizes.size(); ++i) {
    to_client.push_back(Bytes(1000 + i, sizes[sizes.size() - 1 - i]));
    shard->Send(to_client.back());
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    REQUIRE(stream.AwaitWritten(i + 1));
    stream.Write(MessageOf(i + 2, sizes[i]));
    sent.push_back(Bytes(i + 2, sizes[i]));
  }
  CHECK(under_test->Await([&] { return shard->received().size() == sent.size(); }));
  CHECK((shard->received() == sent));
  CHECK(stream.AwaitArrived(sizes.size()));
  CHECK((stream.notes().messages() == to_client));
  CHECK(stream.AwaitWritten(sent.size()));
}

TEST_CASE("Each message that is written is reported once, and its memory is let go") {
  const ChannelKind& kind = Kinds()[GENERATE(range(size_t{0}, Kinds().size()))];
  CAPTURE(kind.name);
  const auto under_test = kind.make();
  std::vector<std::weak_ptr<const void>> owners;
  {
    Stream stream(*under_test);
    const std::shared_ptr<ShardEnd> shard = Begin(*under_test, stream);
    for (size_t n = 1; n <= 20; ++n) {
      REQUIRE(stream.AwaitWritten(n));
      OutgoingMessage message = MessageOf(n + 1, 50000);
      owners.push_back(message.payload[0].owner);
      stream.Write(std::move(message));
    }
    REQUIRE(stream.AwaitWritten(21));
    RoundTrips(*under_test);
    CHECK(stream.notes().written() == 21);
    CHECK(under_test->Await([&] { return shard->received().size() == 21; }));
  }
  for (const auto& owner : owners) CHECK(under_test->Await([&] { return owner.expired(); }));
}

TEST_CASE("A read asks for one message, which may be there already, be yet to come, or be the end") {
  const ChannelKind& kind = Kinds()[GENERATE(range(size_t{0}, Kinds().size()))];
  CAPTURE(kind.name);
  const bool relaxed = GENERATE(false, true);
  CAPTURE(relaxed);
  const auto under_test = kind.make();
  Stream stream(*under_test, /*reads_on=*/false);
  stream.Read(relaxed);
  const std::shared_ptr<ShardEnd> shard = Begin(*under_test, stream);
  for (uint64_t id = 1; id <= 3; ++id) shard->Send(Bytes(id));
  for (uint64_t id = 1; id <= 3; ++id) {
    REQUIRE(stream.AwaitArrived(id));
    RoundTrips(*under_test);
    CHECK(stream.notes().arrived() == id);
    stream.Read(relaxed);
  }
  RoundTrips(*under_test);
  CHECK((stream.notes().messages() == std::vector<std::string>{Bytes(1), Bytes(2), Bytes(3)}));
  shard->Send(Bytes(4));
  REQUIRE(stream.AwaitArrived(4));
  // The user is not told of the end before the messages that came before it.
  shard->Send(Bytes(5));
  shard->End(absl::OkStatus());
  RoundTrips(*under_test);
  CHECK(stream.notes().arrived() == 4);
  stream.Read(relaxed);
  REQUIRE(stream.AwaitArrived(5));
  RoundTrips(*under_test);
  CHECK_FALSE(stream.notes().ended());
  CHECK(stream.user_is_held());
  stream.Read(relaxed);
  CHECK(stream.End().ok());
}

TEST_CASE("A stream that the shard ends: its last messages come before, and how it ended is told") {
  const ChannelKind& kind = Kinds()[GENERATE(range(size_t{0}, Kinds().size()))];
  CAPTURE(kind.name);
  const absl::Status how =
      GENERATE(as<absl::Status>(), absl::OkStatus(), absl::InvalidArgumentError("no such thing"),
               absl::UnavailableError("the job is over"));
  CAPTURE(how);
  const auto under_test = kind.make();
  Stream stream(*under_test);
  const std::shared_ptr<ShardEnd> shard = Begin(*under_test, stream);
  std::vector<std::string> sent;
  for (uint64_t id = 1; id <= 5; ++id) {
    sent.push_back(Bytes(id, 100000));
    shard->Send(sent.back());
  }
  shard->End(how);
  const absl::Status end = stream.End();
  CHECK(end.code() == how.code());
  CHECK(absl::StrContains(end.message(), how.message()));
  CHECK((stream.notes().messages() == sent));
}

TEST_CASE("A stream to where nobody is ends") {
  const ChannelKind& kind = Kinds()[GENERATE(range(size_t{0}, Kinds().size()))];
  CAPTURE(kind.name);
  const auto under_test = kind.make();
  under_test->Kill();
  Stream stream(*under_test);
  stream.Write(MessageOf(1, 1000));
  CHECK(absl::IsUnavailable(stream.End()));
  CHECK(stream.notes().arrived() == 0);
}

TEST_CASE("A stream whose shard dies ends with an error") {
  const ChannelKind& kind = Kinds()[GENERATE(range(size_t{0}, Kinds().size()))];
  CAPTURE(kind.name);
  const auto under_test = kind.make();
  Stream idle(*under_test), busy(*under_test);
  Begin(*under_test, idle);
  const std::shared_ptr<ShardEnd> shard = Begin(*under_test, busy, 1);
  REQUIRE(busy.AwaitWritten(1));
  busy.Write(MessageOf(2, 4 << 20));
  shard->Send(Bytes(1, 4 << 20));
  under_test->Kill();
  CHECK_FALSE(idle.End().ok());
  CHECK_FALSE(busy.End().ok());
}

TEST_CASE("Cancel ends a stream with what is on its way, and the shard hears of it") {
  const ChannelKind& kind = Kinds()[GENERATE(range(size_t{0}, Kinds().size()))];
  CAPTURE(kind.name);
  const auto under_test = kind.make();
  Stream stream(*under_test);
  const std::shared_ptr<ShardEnd> shard = Begin(*under_test, stream);
  REQUIRE(stream.AwaitWritten(1));
  SECTION("nothing is on its way") {}
  SECTION("messages are, both ways") {
    for (uint64_t id = 1; id <= 5; ++id) shard->Send(Bytes(id, 1 << 20));
    stream.Write(MessageOf(2, 1 << 20));
  }
  stream.Cancel();
  CHECK_FALSE(stream.End().ok());
  CHECK(under_test->Await([&] { return shard->over(); }));
  // A stream that has ended cannot be ended again.
  stream.Cancel();
  RoundTrips(*under_test);
}

TEST_CASE("What is written after Cancel, before its user knows of the end, changes nothing") {
  const ChannelKind& kind = Kinds()[GENERATE(range(size_t{0}, Kinds().size()))];
  CAPTURE(kind.name);
  const auto under_test = kind.make();
  Stream stream(*under_test, under_test->channel(), /*reads_on=*/true, [](Stream& stream) {
    stream.Cancel();
    stream.Write(MessageOf(2, 1000));
  });
  const std::shared_ptr<ShardEnd> shard = Begin(*under_test, stream);
  REQUIRE(stream.AwaitWritten(1));
  shard->Send(Bytes(1));
  CHECK_FALSE(stream.End().ok());
}

TEST_CASE("The channel may go before its streams") {
  const auto under_test = MakeGrpcChannelUnderTest(v1::WireConfig::TRANSPORT_AUTO, GENERATE(false, true));
  std::unique_ptr<ShardChannel> channel = under_test->OpenTo(under_test->address());
  Stream stream(*under_test, *channel);
  const std::shared_ptr<ShardEnd> shard = Begin(*under_test, stream);
  channel = nullptr;
  shard->Send(Bytes(1));
  CHECK(stream.AwaitArrived(1));
  shard->End(absl::OkStatus());
  CHECK(stream.End().ok());
}

// Only with rings can the test's shard stop taking messages.
TEST_CASE("A message that the shard does not take yet is kept, and its user is told when it has left") {
  const auto under_test = MakeGrpcChannelUnderTest(v1::WireConfig::TRANSPORT_SHARED_MEMORY, /*rings=*/true);
  Stream stream(*under_test);
  const std::shared_ptr<ShardEnd> shard = Begin(*under_test, stream);
  under_test->HoldMessages(true);
  OutgoingMessage message = MessageOf(2, 1 << 20);
  const std::weak_ptr<const void> owner = message.payload[0].owner;
  stream.Write(std::move(message));
  // The other way, messages go on.
  for (uint64_t id = 1; id <= 20; ++id) {
    shard->Send(Bytes(id, 10000));
    REQUIRE(stream.AwaitArrived(id));
  }
  CHECK(stream.notes().written() == 1);
  CHECK_FALSE(owner.expired());
  SECTION("the shard takes it then") {
    under_test->HoldMessages(false);
    REQUIRE(stream.AwaitWritten(2));
    CHECK(under_test->Await([&] { return shard->received().size() == 2; }));
    CHECK((shard->received()[1] == Bytes(2, 1 << 20)));
  }
  SECTION("the stream is cancelled") {
    stream.Cancel();
    CHECK_FALSE(stream.End().ok());
  }
  SECTION("the shard ends the stream") {
    shard->End(absl::UnavailableError("the job is over"));
    CHECK(absl::IsUnavailable(stream.End()));
  }
  SECTION("the shard dies") {
    under_test->Kill();
    CHECK_FALSE(stream.End().ok());
  }
}

TEST_CASE("A stream over rings that is over, and cancelled by a user that has not asked for the end") {
  const auto under_test = MakeGrpcChannelUnderTest(v1::WireConfig::TRANSPORT_SHARED_MEMORY, /*rings=*/true);
  // Sooner than the polling thread looks by itself, at least once: the machine may be busy.
  bool soon = false;
  for (int attempt = 0; attempt < 5 && !soon; ++attempt) {
    const size_t nth = under_test->streams().size();
    Stream stream(*under_test, /*reads_on=*/false);
    stream.Read();
    const std::shared_ptr<ShardEnd> shard = Begin(*under_test, stream, nth);
    shard->Send(Bytes(1));
    REQUIRE(stream.AwaitArrived(1));
    shard->End(absl::OkStatus());
    RoundTrips(*under_test);
    CHECK_FALSE(stream.notes().ended());
    const auto called = Steady::now();
    stream.Cancel();
    stream.End().IgnoreError();
    soon = Steady::now() - called < std::chrono::milliseconds(500);
  }
  CHECK(soon);
}

TEST_CASE("Streams of a channel are apart") {
  const ChannelKind& kind = Kinds()[GENERATE(range(size_t{0}, Kinds().size()))];
  CAPTURE(kind.name);
  const auto under_test = kind.make();
  Stream first(*under_test), second(*under_test);
  Begin(*under_test, first);
  const std::shared_ptr<ShardEnd> shard = Begin(*under_test, second, 1);
  first.Cancel();
  CHECK_FALSE(first.End().ok());
  shard->Send(Bytes(7));
  REQUIRE(second.AwaitArrived(1));
  CHECK(second.notes().messages()[0] == Bytes(7));
  CHECK_FALSE(second.notes().ended());
}

// ---- shared memory

TEST_CASE("There is memory where it is shared, and nowhere else") {
  const ChannelKind& kind = Kinds()[GENERATE(range(size_t{0}, Kinds().size()))];
  CAPTURE(kind.name);
  const auto under_test = kind.make();
  Stream stream(*under_test);
  CHECK((stream.memory() != nullptr) == kind.shares_memory);
  if (kind.shares_memory) stream.opened().refused();
}

const std::vector<ChannelKind>& SharingKinds() {
  static const auto* sharing = [] {
    auto* kinds = new std::vector<ChannelKind>;
    for (const ChannelKind& kind : Kinds()) {
      if (kind.shares_memory) kinds->push_back(kind);
    }
    return kinds;
  }();
  return *sharing;
}

// Weights whose segment may still be on its way.
absl::StatusOr<const char*> MapSoon(ShardMemory& memory, uint32_t segment, uint64_t offset, uint64_t bytes) {
  absl::StatusOr<const char*> mapped = memory.Map(segment, offset, bytes);
  while (absl::IsNotFound(mapped.status())) mapped = memory.Map(segment, offset, bytes);
  return mapped;
}

TEST_CASE("What is written to a slot the shard reads where it lies, of each stream apart") {
  const ChannelKind& kind = SharingKinds()[GENERATE(range(size_t{0}, SharingKinds().size()))];
  CAPTURE(kind.name);
  const auto under_test = kind.make();
  Stream one(*under_test), other(*under_test);
  CHECK(one.memory()->token() != other.memory()->token());
  for (const Stream* stream : {&one, &other}) {
    ShardMemory& memory = *stream->memory();
    const auto fill = static_cast<char>(stream == &one ? 0x10 : 0x50);
    REQUIRE(memory.slots() >= 2);
    const uint64_t bytes = memory.SlotOffset(1) - memory.SlotOffset(0);
    for (uint32_t slot = 0; slot < memory.slots(); ++slot) {
      memset(memory.SlotData(slot), fill + static_cast<char>(slot), bytes);
    }
  }
  for (const Stream* stream : {&one, &other}) {
    ShardMemory& memory = *stream->memory();
    const auto fill = static_cast<char>(stream == &one ? 0x10 : 0x50);
    const auto segments = under_test->memory().Claim(memory.token());
    REQUIRE(segments != nullptr);
    const uint64_t bytes = memory.SlotOffset(1) - memory.SlotOffset(0);
    for (uint32_t slot = 0; slot < memory.slots(); ++slot) {
      const auto seen = segments->At(0, memory.SlotOffset(slot), bytes);
      REQUIRE(seen.ok());
      CHECK((*seen)[0] == fill + static_cast<char>(slot));
      CHECK((*seen)[bytes - 1] == fill + static_cast<char>(slot));
    }
    CHECK(absl::IsOutOfRange(segments->At(0, memory.SlotOffset(memory.slots() - 1), bytes + 4097).status()));
    CHECK(absl::IsOutOfRange(segments->At(0, UINT64_MAX, 2).status()));
  }
}

TEST_CASE("Memory that is handed over later has a number once the shard can read there") {
  const ChannelKind& kind = SharingKinds()[GENERATE(range(size_t{0}, SharingKinds().size()))];
  CAPTURE(kind.name);
  const auto under_test = kind.make();
  Stream stream(*under_test);
  ShardMemory& memory = *stream.memory();
  const auto segments = under_test->memory().Claim(memory.token());
  REQUIRE(segments != nullptr);
  std::vector<std::shared_ptr<const SharedSegment>> given;
  for (uint32_t number = 1; number < kMaxClientSegments; ++number) {
    std::shared_ptr<SharedSegment> gradients = *SharedSegment::Create(4096);
    gradients->data()[5] = static_cast<char>(number);
    given.push_back(gradients);
    std::optional<uint32_t> known = memory.NumberOf(gradients);
    CHECK_FALSE(known.has_value());  // it never waits for the shard
    if (!kind.takes_segments) {
      CHECK_FALSE(memory.NumberOf(gradients).has_value());
      continue;
    }
    while (!known.has_value()) known = memory.NumberOf(gradients);
    CHECK(*known == number);
    const auto seen = segments->At(number, 5, 1);
    REQUIRE(seen.ok());
    CHECK(**seen == static_cast<char>(number));
  }
  if (kind.takes_segments) CHECK(memory.NumberOf(given[0]) == 1u);
  const std::shared_ptr<const SharedSegment> more = *SharedSegment::Create(4096);
  for (int i = 0; i < 3; ++i) CHECK_FALSE(memory.NumberOf(more).has_value());
  const auto weights = under_test->Allocate(1024);
  CHECK(MapSoon(memory, under_test->memory().Find(weights.get())->segment, 0, 4).ok());
}

TEST_CASE("Weights are read where they lie, also those made after the stream, and only they") {
  const ChannelKind& kind = SharingKinds()[GENERATE(range(size_t{0}, SharingKinds().size()))];
  CAPTURE(kind.name);
  const auto under_test = kind.make();
  const auto before = under_test->Allocate(5 * 1024);
  Stream stream(*under_test);
  ShardMemory& memory = *stream.memory();
  const auto after = under_test->Allocate(7 * 1024);
  // The newest segment first: segments that came before it are known, too.
  for (const auto& [weights, elements] : {std::pair(after, 7 * 1024), std::pair(before, 5 * 1024)}) {
    weights.get()[elements - 1] = static_cast<float>(elements);
    const auto place = under_test->memory().Find(weights.get() + elements - 1);
    REQUIRE(place.has_value());
    const auto mapped = MapSoon(memory, place->segment, place->offset, sizeof(float));
    REQUIRE(mapped.ok());
    float value = 0;
    memcpy(&value, *mapped, sizeof(value));
    CHECK(value == static_cast<float>(elements));
    const uint64_t all = static_cast<uint64_t>(elements) * sizeof(float);
    CHECK(memory.Map(place->segment, 0, all).ok());
    CHECK(absl::IsOutOfRange(memory.Map(place->segment, 0, all + 1).status()));
    CHECK(absl::IsOutOfRange(memory.Map(place->segment, all, 1).status()));
    CHECK(absl::IsOutOfRange(memory.Map(place->segment, UINT64_MAX, 2).status()));
    CHECK(absl::IsOutOfRange(memory.Map(place->segment, 2, UINT64_MAX).status()));
  }
}

TEST_CASE("What was mapped stays when the shard is gone, and nothing new comes") {
  const ChannelKind& kind = SharingKinds()[GENERATE(range(size_t{0}, SharingKinds().size()))];
  CAPTURE(kind.name);
  const auto under_test = kind.make();
  auto weights = under_test->Allocate(1024);
  weights.get()[0] = 3;
  const uint32_t segment = under_test->memory().Find(weights.get())->segment;
  Stream stream(*under_test);
  ShardMemory& memory = *stream.memory();
  const auto mapped = MapSoon(memory, segment, 0, 4);
  REQUIRE(mapped.ok());
  under_test->Kill();
  weights = nullptr;
  CHECK(absl::IsUnavailable(memory.Map(segment + 1, 0, 4).status()));
  float value = 0;
  memcpy(&value, *mapped, sizeof(value));
  CHECK(value == 3);
  CHECK(memory.Map(segment, 0, 4).ok());
}

// ---- where the shard is: gRPC's channel alone, since the simulation's shards are in one place and there

TEST_CASE("A stream goes over what the job's config asks for") {
  CHECK(absl::StartsWith(
      [] {
        const auto under_test = MakeGrpcChannelUnderTest(v1::WireConfig::TRANSPORT_TCP);
        Stream stream(*under_test);
        Begin(*under_test, stream);
        return under_test->peer(0);
      }(),
      "ipv4:127.0.0.1:"));
  for (const auto transport : {v1::WireConfig::TRANSPORT_UNIX, v1::WireConfig::TRANSPORT_SHARED_MEMORY}) {
    const auto under_test = MakeGrpcChannelUnderTest(transport);
    Stream stream(*under_test);
    Begin(*under_test, stream);
    CHECK(absl::StartsWith(under_test->peer(0), "fd:"));
  }
}

TEST_CASE("A shard that has moved: later streams go to its new address, and back") {
  const auto under_test = MakeGrpcChannelUnderTest(v1::WireConfig::TRANSPORT_AUTO);
  ShardChannel& channel = under_test->channel();
  CHECK_FALSE(channel.MoveTo(under_test->address()));
  CHECK_FALSE(channel.MoveTo(""));
  CHECK(absl::StrContains(channel.name(), under_test->address()));
  const std::string elsewhere = under_test->StartAnother();
  Stream old(*under_test);
  Begin(*under_test, old);
  CHECK(channel.MoveTo(elsewhere));
  CHECK_FALSE(channel.MoveTo(elsewhere));
  CHECK(absl::StrContains(channel.name(), elsewhere));
  CHECK_FALSE(old.notes().ended());
  under_test->Kill();
  CHECK_FALSE(old.End().ok());
  {
    Stream stream(*under_test);
    const std::shared_ptr<ShardEnd> shard = Begin(*under_test, stream, 1);
    shard->Send(Bytes(1));
    CHECK(stream.AwaitArrived(1));
  }
  CHECK(channel.MoveTo(""));
  CHECK_FALSE(channel.MoveTo(under_test->address()));
  CHECK(absl::StrContains(channel.name(), under_test->address()));
  Stream back(*under_test);
  back.Write(MessageOf(1, 0));
  CHECK(absl::IsUnavailable(back.End()));
}

absl::Status Wanted() { return absl::OkStatus(); }

TEST_CASE("Connect finds the shard, also at the other address, and stays there") {
  const auto under_test = MakeGrpcChannelUnderTest(v1::WireConfig::TRANSPORT_AUTO);
  const auto soon = Steady::now() + std::chrono::seconds(20);
  CHECK(under_test->channel().Connect(soon, "", Wanted).ok());
  const ReservedAddress nobody;
  const auto lost = under_test->OpenTo(nobody.get().ToString());
  REQUIRE(lost->Connect(soon, under_test->address(), Wanted).ok());
  CHECK(absl::StrContains(lost->name(), under_test->address()));
  CHECK_FALSE(lost->MoveTo(""));
  Stream stream(*under_test, *lost);
  Begin(*under_test, stream);
}

TEST_CASE("Connect gives a shard up at its deadline, and not before") {
  const auto under_test = MakeGrpcChannelUnderTest(v1::WireConfig::TRANSPORT_AUTO);
  const ReservedAddress nobody, neither;
  const auto channel = under_test->OpenTo(nobody.get().ToString());
  for (const std::string& otherwise : {std::string(), neither.get().ToString()}) {
    const auto deadline = Steady::now() + std::chrono::milliseconds(300);
    const absl::Status status = channel->Connect(deadline, otherwise, Wanted);
    CHECK(absl::IsUnavailable(status));
    CHECK(absl::StrContains(status.message(), nobody.get().ToString()));
    CHECK(Steady::now() >= deadline);
  }
}

TEST_CASE("Connect ends when nobody wants the connection any more") {
  const auto under_test = MakeGrpcChannelUnderTest(v1::WireConfig::TRANSPORT_AUTO);
  const ReservedAddress nobody;
  const auto channel = under_test->OpenTo(nobody.get().ToString());
  int asked = 0;
  const auto wanted_twice = [&] {
    return ++asked <= 2 ? absl::OkStatus() : absl::AbortedError("the job is over");
  };
  CHECK(channel->Connect(Steady::now() + std::chrono::seconds(20), "", wanted_twice) ==
        absl::AbortedError("the job is over"));
}

}  // namespace
}  // namespace weir
