#include "ps_server/shared_memory/shared_memory_server.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <new>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "catch2/catch.hpp"
#include "common/net/local_socket.h"
#include "common/shared_memory/doorbell.h"
#include "common/shared_memory/message_ring.h"
#include "tests/common/open_descriptors.h"
#include "tests/common/reserved_address.h"

namespace weir {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kBytes = 8192;
constexpr ClientMessageKind kSegment = ClientMessageKind::kSegment;

Clock::time_point Soon() { return Clock::now() + std::chrono::seconds(20); }

template <typename Condition>
bool Eventually(Condition condition) {
  const auto deadline = Soon();
  while (!condition()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

std::string Text(const SegmentToken& token) { return std::string(token.data(), token.size()); }

SegmentToken Token(int number) {
  SegmentToken token{};
  memcpy(token.data(), &number, sizeof(number));
  return token;
}

struct Fixture {
  explicit Fixture(SharedMemoryServer::Options options = {}) {
    auto started = SharedMemoryServer::Start(reserved.get(), options);
    REQUIRE(started.ok());
    server = *std::move(started);
  }
  UniqueFd Connect() const {
    auto socket = ConnectLocal(LocalService::kSegments, reserved.get(), Soon());
    REQUIRE(socket.ok());
    return *std::move(socket);
  }
  // The server's answer to a hello.
  static ServerMessage Hello(int socket, const ClientMessage& hello, int descriptor) {
    REQUIRE(SendMessage(socket, &hello, sizeof(hello), descriptor).ok());
    return Next(socket);
  }
  static ServerMessage Next(int socket, UniqueFd* descriptor = nullptr) {
    ServerMessage message{};
    auto received = ReceiveMessage(socket, &message, sizeof(message), Soon());
    REQUIRE(received.ok());
    CHECK(message.magic == kSegmentMagic);
    if (descriptor != nullptr) *descriptor = *std::move(received);
    return message;
  }
  static bool Gone(int socket) {
    ServerMessage message;
    return absl::IsAborted(ReceiveMessage(socket, &message, sizeof(message), Soon()).status());
  }

  const ReservedAddress reserved;
  std::unique_ptr<SharedMemoryServer> server;
};

struct TestClient {
  TestClient(const Fixture& fixture, int number) : socket(fixture.Connect()) {
    auto made = SharedSegment::Create(kBytes);
    REQUIRE(made.ok());
    segment = *std::move(made);
    hello = {kSegmentMagic, Token(number), kBytes, 0, kSegment};
  }
  ServerMessage SayHello() { return Fixture::Hello(socket.get(), hello, segment->fd()); }

  UniqueFd socket;
  std::unique_ptr<SharedSegment> segment;
  ClientMessage hello;
};

TEST_CASE("a client's segment is claimed by its token, until the client goes") {
  Fixture fixture;
  CHECK(fixture.server->Claim(Text(Token(1))) == nullptr);
  TestClient one(fixture, 1), two(fixture, 2);
  CHECK(one.SayHello().kind == ServerMessageKind::kAccepted);
  CHECK(two.SayHello().kind == ServerMessageKind::kAccepted);
  const auto claimed = fixture.server->Claim(Text(Token(1)));
  REQUIRE(claimed != nullptr);
  CHECK(claimed->At(0, 0, kBytes).ok());
  CHECK(absl::IsOutOfRange(claimed->At(0, 1, kBytes).status()));
  one.segment->data()[17] = 'x';
  CHECK(*claimed->At(0, 17, 1).value() == 'x');
  CHECK(fixture.server->Claim(Text(Token(2))) != claimed);
  CHECK(fixture.server->Claim("") == nullptr);
  CHECK(fixture.server->Claim("x") == nullptr);

  one.socket.Close();
  one.segment.reset();
  CHECK(Eventually([&] { return fixture.server->Claim(Text(Token(1))) == nullptr; }));
  // A holder may still read it.
  CHECK(*claimed->At(0, 17, 1).value() == 'x');
  CHECK(fixture.server->Claim(Text(Token(2))) != nullptr);
}

TEST_CASE("a client gives further segments, in order and not without end") {
  Fixture fixture;
  TestClient client(fixture, 1);
  for (uint32_t segment = 0; segment < kMaxClientSegments; ++segment) {
    client.hello.segment = segment;
    client.segment->data()[0] = static_cast<char>(segment);
    const ServerMessage answer = client.SayHello();
    REQUIRE(answer.kind == ServerMessageKind::kAccepted);
    CHECK(answer.segment == segment);
  }
  const auto claimed = fixture.server->Claim(Text(Token(1)));
  REQUIRE(claimed != nullptr);
  CHECK(claimed->At(kMaxClientSegments - 1, 0, kBytes).ok());
  const absl::Status none = claimed->At(kMaxClientSegments, 0, 1).status();
  CHECK(absl::IsNotFound(none));
  client.hello.segment = kMaxClientSegments;
  const ServerMessage answer = client.SayHello();
  CHECK(answer.kind == ServerMessageKind::kRefused);
  CHECK(std::string(answer.reason).find("at most 16") != std::string::npos);
  CHECK(Fixture::Gone(client.socket.get()));
  // Out of order.
  TestClient other(fixture, 2);
  other.hello.segment = 1;
  CHECK(other.SayHello().kind == ServerMessageKind::kRefused);
}

SharedMemoryServer::Options WithBells() {
  SharedMemoryServer::Options options;
  options.bells = *DoorbellPage::Create();
  return options;
}

// A client whose segment begins with its RingArea, and that gives its bells.
struct RingClient : TestClient {
  RingClient(const Fixture& fixture, int number, uint64_t bytes = 128 << 10) : TestClient(fixture, number) {
    segment = *SharedSegment::Create(bytes);
    hello.bytes = segment->size();
    if (segment->size() >= sizeof(RingArea)) area = new (segment->data()) RingArea;
    ClientMessage given = hello;
    given.kind = ClientMessageKind::kBells;
    REQUIRE(SendMessage(socket.get(), &given, sizeof(given), bells->fd()).ok());
  }

  const std::shared_ptr<DoorbellPage> bells = *DoorbellPage::Create();
  RingArea* area = nullptr;
};

TEST_CASE("a client that gives its bells gets rings, once, before its segment is accepted") {
  Fixture fixture(WithBells());
  RingClient client(fixture, 1);
  REQUIRE(SendMessage(client.socket.get(), &client.hello, sizeof(client.hello), client.segment->fd()).ok());
  UniqueFd descriptor;
  CHECK(Fixture::Next(client.socket.get(), &descriptor).kind == ServerMessageKind::kBells);
  const auto bells = DoorbellPage::Open(std::move(descriptor));
  REQUIRE(bells.ok());
  const ServerMessage message = Fixture::Next(client.socket.get(), &descriptor);
  CHECK(message.kind == ServerMessageKind::kRing);
  const auto peer = SharedSegment::OpenReadOnly(std::move(descriptor), message.bytes);
  REQUIRE(peer.ok());
  REQUIRE(message.bytes >= sizeof(RingArea));
  CHECK(Fixture::Next(client.socket.get()).kind == ServerMessageKind::kAccepted);

  std::unique_ptr<MessageRing> ring = fixture.server->TakeRing(Text(Token(1)));
  REQUIRE(ring != nullptr);
  CHECK(fixture.server->TakeRing(Text(Token(1))) == nullptr);
  CHECK(fixture.server->TakeRing(Text(Token(2))) == nullptr);
  CHECK(fixture.server->TakeRing("") == nullptr);
  MessageRing own(client.area, reinterpret_cast<const RingArea*>((*peer)->data()), *bells, 1000, nullptr);
  std::string text;
  CHECK(own.Write({"to the server", {}}));
  CHECK(*ring->Read(&text));
  CHECK(text == "to the server");
  CHECK(ring->Write({"to the client", {}}));
  CHECK(*own.Read(&text));
  CHECK(text == "to the client");
  // Each end rings the other end's bells.
  own.ReadWith(3);
  const uint32_t armed = client.bells->Bell(3)->Arm();
  CHECK(ring->Write({"", {}}));
  const Clock::time_point until = Soon();
  client.bells->Bell(3)->Sleep(armed, until);
  CHECK(Clock::now() < until);

  // The client's next segments come without rings.
  client.hello.segment = 1;
  CHECK(client.SayHello().kind == ServerMessageKind::kAccepted);
  CHECK(fixture.server->TakeRing(Text(Token(1))) == nullptr);
  // What is taken stays readable without the client, and without the server.
  CHECK(own.Write({"the last", {}}));
  client.socket.Close();
  CHECK(Eventually([&] { return fixture.server->Claim(Text(Token(1))) == nullptr; }));
  fixture.server = nullptr;
  CHECK(*ring->Read(&text));
  CHECK(text == "the last");
}

TEST_CASE("rings that nobody takes go with the client") {
  Fixture fixture(WithBells());
  const int before = OpenDescriptors();
  {
    RingClient client(fixture, 1);
    CHECK(client.SayHello().kind == ServerMessageKind::kBells);
    CHECK(Fixture::Next(client.socket.get()).kind == ServerMessageKind::kRing);
    CHECK(Fixture::Next(client.socket.get()).kind == ServerMessageKind::kAccepted);
  }
  CHECK(Eventually([&] { return OpenDescriptors() == before; }));
  CHECK(fixture.server->TakeRing(Text(Token(1))) == nullptr);
}

TEST_CASE("there are no rings where one side has no bells") {
  SECTION("the server") {
    Fixture fixture;
    RingClient client(fixture, 1);
    CHECK(client.SayHello().kind == ServerMessageKind::kAccepted);
    CHECK(fixture.server->bells() == nullptr);
    CHECK(fixture.server->TakeRing(Text(Token(1))) == nullptr);
  }
  SECTION("the client") {
    Fixture fixture(WithBells());
    TestClient client(fixture, 1);
    CHECK(client.SayHello().kind == ServerMessageKind::kAccepted);
    CHECK(fixture.server->TakeRing(Text(Token(1))) == nullptr);
  }
}

TEST_CASE("bells that are none, and a segment without room for a ring, are refused") {
  Fixture fixture(WithBells());
  TestClient client(fixture, 1);
  client.hello.kind = ClientMessageKind::kBells;
  SECTION("a segment is no page of bells") {
    CHECK(client.SayHello().kind == ServerMessageKind::kRefused);
    CHECK(Fixture::Gone(client.socket.get()));
  }
  SECTION("nothing came") {
    CHECK(Fixture::Hello(client.socket.get(), client.hello, -1).kind == ServerMessageKind::kRefused);
    CHECK(Fixture::Gone(client.socket.get()));
  }
  SECTION("the segment is too small") {
    RingClient small(fixture, 2, 4096);
    CHECK(small.SayHello().kind == ServerMessageKind::kRefused);
    CHECK(Fixture::Gone(small.socket.get()));
    CHECK(Eventually([&] { return fixture.server->Claim(Text(Token(2))) == nullptr; }));
  }
}

TEST_CASE("who gives its bells has not said hello yet") {
  SharedMemoryServer::Options options = WithBells();
  options.hello_limit = std::chrono::milliseconds(20);
  Fixture fixture(options);
  RingClient client(fixture, 1);
  CHECK(Fixture::Gone(client.socket.get()));
}

TEST_CASE("weights are announced to clients that are there and to those that come") {
  Fixture fixture;
  auto first = fixture.server->Allocate(1000);
  REQUIRE(first != nullptr);
  first.get()[7] = 0.5f;
  TestClient client(fixture, 1);
  CHECK(client.SayHello().kind == ServerMessageKind::kAccepted);
  UniqueFd descriptor;
  ServerMessage message = Fixture::Next(client.socket.get(), &descriptor);
  CHECK(message.kind == ServerMessageKind::kSegment);
  CHECK(message.bytes == 4096);
  auto opened = SharedSegment::OpenReadOnly(std::move(descriptor), message.bytes);
  REQUIRE(opened.ok());
  const auto place = fixture.server->Find(first.get() + 7);
  REQUIRE(place.has_value());
  CHECK(place->segment == message.segment);
  CHECK(place->offset == 28);
  float value = 0;
  memcpy(&value, (*opened)->data() + place->offset, sizeof(value));
  CHECK(value == 0.5f);

  auto second = fixture.server->Allocate(2000);
  const uint32_t announced = message.segment;
  message = Fixture::Next(client.socket.get(), &descriptor);
  CHECK(message.kind == ServerMessageKind::kSegment);
  CHECK(message.segment == fixture.server->Find(second.get())->segment);
  CHECK(message.segment != announced);

  // A segment that is gone is not announced, and its number is not reused.
  first.reset();
  TestClient late(fixture, 2);
  CHECK(late.SayHello().kind == ServerMessageKind::kAccepted);
  CHECK(Fixture::Next(late.socket.get()).segment == message.segment);
  auto third = fixture.server->Allocate(1);
  CHECK(Fixture::Next(late.socket.get()).segment > message.segment);
}

TEST_CASE("only what was allocated is found") {
  Fixture fixture;
  float elsewhere = 0;
  CHECK_FALSE(fixture.server->Find(&elsewhere).has_value());
  CHECK_FALSE(fixture.server->Find(nullptr).has_value());
  auto weights = fixture.server->Allocate(1024);
  CHECK(reinterpret_cast<uintptr_t>(weights.get()) % 64 == 0);
  const float* start = weights.get();
  CHECK(fixture.server->Find(start + 1023)->offset == 1023 * sizeof(float));
  CHECK_FALSE(fixture.server->Find(start + 1024).has_value());
  CHECK_FALSE(fixture.server->Find(start - 1).has_value());
  // The memory outlives the server.
  fixture.server.reset();
  weights.get()[1023] = 1;
  weights.reset();
}

TEST_CASE("memory that cannot be had is no crash") {
  Fixture fixture;
  CHECK(fixture.server->Allocate(size_t{1} << 58) == nullptr);
}

TEST_CASE("garbage is refused, with a reason and without a leak") {
  Fixture fixture;
  TestClient good(fixture, 1);
  REQUIRE(good.SayHello().kind == ServerMessageKind::kAccepted);
  const int before = OpenDescriptors();
  {
    auto big = SharedSegment::Create(2 * kBytes);
    REQUIRE(big.ok());
    UniqueFd unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    REQUIRE(ftruncate(unsealed.get(), kBytes) == 0);
    UniqueFd zero(open("/dev/zero", O_RDWR | O_CLOEXEC));
    struct Case {
      ClientMessage hello;
      int descriptor;
      const char* reason;
    };
    const Case cases[] = {
        {{0, Token(2), kBytes, 0, kSegment}, good.segment->fd(), "another protocol"},
        {{kSegmentMagic, Token(1), kBytes, 0, kSegment}, good.segment->fd(), "same token"},
        {{kSegmentMagic, Token(2), kBytes, 0, kSegment}, (*big)->fd(), "16384 bytes instead of 8192"},
        {{kSegmentMagic, Token(2), UINT64_MAX, 0, kSegment},
         good.segment->fd(),
         "8192 bytes instead of 18446744073709551615"},
        {{kSegmentMagic, Token(2), 0, 0, kSegment}, good.segment->fd(), "8192 bytes instead of 0"},
        {{kSegmentMagic, Token(2), kBytes, 0, kSegment}, -1, "no segment came"},
        {{kSegmentMagic, Token(2), kBytes, 0, kSegment}, unsealed.get(), "seals"},
        {{kSegmentMagic, Token(2), kBytes, 0, kSegment}, zero.get(), "not a segment"},
        {{kSegmentMagic, Token(2), kBytes, 0, ClientMessageKind{0}}, good.segment->fd(), "another protocol"},
        {{kSegmentMagic, Token(2), kBytes, 0, ClientMessageKind{3}}, good.segment->fd(), "another protocol"},
    };
    for (const Case& each : cases) {
      const UniqueFd socket = fixture.Connect();
      const ServerMessage answer = Fixture::Hello(socket.get(), each.hello, each.descriptor);
      CHECK(answer.kind == ServerMessageKind::kRefused);
      CHECK(std::string(answer.reason).find(each.reason) != std::string::npos);
      CHECK(Fixture::Gone(socket.get()));
    }
    for (size_t length : {size_t{1}, sizeof(ClientMessage) - 1, sizeof(ClientMessage) + 1, size_t{4096}}) {
      const UniqueFd socket = fixture.Connect();
      const std::string bytes(length, 'w');
      REQUIRE(SendMessage(socket.get(), bytes.data(), bytes.size(), zero.get()).ok());
      CHECK(Fixture::Next(socket.get()).kind == ServerMessageKind::kRefused);
      CHECK(Fixture::Gone(socket.get()));
    }
    CHECK(fixture.server->Claim(Text(Token(2))) == nullptr);
    CHECK(fixture.server->Claim(Text(Token(1))) != nullptr);
  }
  CHECK(Eventually([&] { return OpenDescriptors() == before; }));
  // A client that was accepted before.
  REQUIRE(SendMessage(good.socket.get(), "more", 4).ok());
  CHECK(Fixture::Next(good.socket.get()).kind == ServerMessageKind::kRefused);
  CHECK(Fixture::Gone(good.socket.get()));
  CHECK(Eventually([&] { return fixture.server->Claim(Text(Token(1))) == nullptr; }));
}

TEST_CASE("clients beyond the limit are turned away, until one goes") {
  SharedMemoryServer::Options options;
  options.max_clients = 2;
  Fixture fixture(options);
  auto one = std::make_unique<TestClient>(fixture, 1);
  TestClient two(fixture, 2);
  CHECK(one->SayHello().kind == ServerMessageKind::kAccepted);
  CHECK(two.SayHello().kind == ServerMessageKind::kAccepted);
  {
    const UniqueFd socket = fixture.Connect();
    const ServerMessage answer = Fixture::Next(socket.get());
    CHECK(answer.kind == ServerMessageKind::kRefused);
    CHECK(std::string(answer.reason).find("2 clients already") != std::string::npos);
  }
  one.reset();
  REQUIRE(Eventually([&] { return fixture.server->Claim(Text(Token(1))) == nullptr; }));
  // The token is free again too. The slot is free within the same turn of the thread.
  CHECK(Eventually([&] {
    TestClient again(fixture, 1);
    SendMessage(again.socket.get(), &again.hello, sizeof(again.hello), again.segment->fd()).IgnoreError();
    ServerMessage answer{};
    return ReceiveMessage(again.socket.get(), &answer, sizeof(answer), Soon()).ok() &&
           answer.kind == ServerMessageKind::kAccepted;
  }));
}

TEST_CASE("who does not say hello has to go") {
  SharedMemoryServer::Options options;
  options.hello_limit = std::chrono::milliseconds(20);
  Fixture fixture(options);
  TestClient good(fixture, 1);
  const UniqueFd silent = fixture.Connect();
  CHECK(Fixture::Gone(silent.get()));
}

TEST_CASE("a client that does not read holds nobody up") {
  Fixture fixture;
  TestClient lazy(fixture, 1), eager(fixture, 2);
  REQUIRE(lazy.SayHello().kind == ServerMessageKind::kAccepted);
  REQUIRE(eager.SayHello().kind == ServerMessageKind::kAccepted);
  // More than a socket's buffer holds.
  constexpr int kMany = 800;
  std::vector<std::shared_ptr<float>> weights;
  for (int i = 0; i < kMany; ++i) {
    weights.push_back(fixture.server->Allocate(1));
    REQUIRE(weights.back() != nullptr);
    Fixture::Next(eager.socket.get());
  }
  std::set<uint32_t> seen;
  for (int i = 0; i < kMany; ++i) seen.insert(Fixture::Next(lazy.socket.get()).segment);
  CHECK(seen.size() == kMany);
}

TEST_CASE("allocation, look-up and clients that come and go, at once") {
  const int before = OpenDescriptors();
  {
    Fixture fixture;
    constexpr int kRounds = 200;
    std::atomic<bool> failed{false};
    std::thread allocator([&] {
      for (int i = 0; i < kRounds; ++i) {
        auto weights = fixture.server->Allocate(100);
        if (weights == nullptr || !fixture.server->Find(weights.get() + 99).has_value()) failed = true;
      }
    });
    std::thread clients([&] {
      for (int i = 0; i < kRounds; ++i) {
        auto socket = ConnectLocal(LocalService::kSegments, fixture.reserved.get(), Soon());
        auto segment = SharedSegment::Create(kBytes);
        const ClientMessage hello{kSegmentMagic, Token(i), kBytes, 0, kSegment};
        if (!socket.ok() || !segment.ok() ||
            !SendMessage(socket->get(), &hello, sizeof(hello), (*segment)->fd()).ok()) {
          failed = true;
          return;
        }
        ServerMessage answer;
        if (!ReceiveMessage(socket->get(), &answer, sizeof(answer), Soon()).ok()) failed = true;
        if (answer.kind != ServerMessageKind::kAccepted) failed = true;
        if (fixture.server->Claim(Text(Token(i))) == nullptr) failed = true;
      }
    });
    allocator.join();
    clients.join();
    CHECK_FALSE(failed);
  }
  CHECK(OpenDescriptors() == before);
}

TEST_CASE("a second server with the same address is refused") {
  Fixture fixture;
  CHECK(absl::IsAlreadyExists(SharedMemoryServer::Start(fixture.reserved.get(), {}).status()));
  Address elsewhere;
  elsewhere.host = "no-such-host.invalid";
  CHECK(absl::IsFailedPrecondition(SharedMemoryServer::Start(elsewhere, {}).status()));
}

}  // namespace
}  // namespace weir
