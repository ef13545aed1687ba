// What the link is beside what each ShardMemory is (tests/conformance/shard_channel_conformance_test.cc).
#include "client/shared_memory/shared_memory_link.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include "catch2/catch.hpp"
#include "common/net/local_socket.h"
#include "common/shared_memory/doorbell.h"
#include "common/shared_memory/message_ring.h"
#include "ps_server/shared_memory/shared_memory_server.h"
#include "tests/common/open_descriptors.h"
#include "tests/common/reserved_address.h"

namespace weir {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kSlotBytes = 1 << 20;

Clock::time_point Soon() { return Clock::now() + std::chrono::seconds(20); }

std::unique_ptr<SharedMemoryServer> StartServer(const Address& address,
                                                SharedMemoryServer::Options options = {}) {
  auto started = SharedMemoryServer::Start(address, options);
  REQUIRE(started.ok());
  return *std::move(started);
}

std::unique_ptr<SharedMemoryLink> Connect(const Address& address, uint32_t slots = 3) {
  auto link = SharedMemoryLink::Connect(address, slots, kSlotBytes, Soon());
  INFO(link.status().ToString());
  REQUIRE(link.ok());
  return *std::move(link);
}

// Maps a segment that may be on its way.
absl::StatusOr<const char*> MapSoon(SharedMemoryLink& link, uint32_t segment, uint64_t bytes) {
  const Clock::time_point deadline = Soon();
  while (true) {
    absl::StatusOr<const char*> mapped = link.Map(segment, 0, bytes);
    if (!absl::IsNotFound(mapped.status()) || Clock::now() >= deadline) return mapped;
    std::this_thread::yield();
  }
}

TEST_CASE("the slots lie behind the ring's area, at the beginning of a page") {
  const ReservedAddress reserved;
  const auto server = StartServer(reserved.get());
  const auto link = Connect(reserved.get());
  CHECK(link->SlotOffset(0) >= sizeof(RingArea));
  CHECK(link->SlotOffset(0) % 4096 == 0);
  CHECK(link->SlotOffset(2) == link->SlotOffset(0) + 2 * kSlotBytes);
  const auto claimed = server->Claim(link->token());
  REQUIRE(claimed != nullptr);
  memset(link->SlotData(2), 0x77, kSlotBytes);
  CHECK(*claimed->At(0, link->SlotOffset(2) + kSlotBytes - 1, 1).value() == 0x77);
}

TEST_CASE("messages travel over the rings of a link and its server, which each gives once") {
  const ReservedAddress reserved;
  SharedMemoryServer::Options options;
  options.bells = *DoorbellPage::Create();
  const auto server = StartServer(reserved.get(), options);
  const std::shared_ptr<DoorbellPage> bells = *DoorbellPage::Create();
  auto link = SharedMemoryLink::Connect(reserved.get(), 3, kSlotBytes, Soon(), bells);
  REQUIRE(link.ok());
  const std::unique_ptr<MessageRing> ours = (*link)->TakeRing();
  const std::unique_ptr<MessageRing> theirs = server->TakeRing((*link)->token());
  REQUIRE(ours != nullptr);
  REQUIRE(theirs != nullptr);
  CHECK((*link)->TakeRing() == nullptr);
  // What is in the slots is no message.
  for (uint32_t slot = 0; slot < 3; ++slot) memset((*link)->SlotData(slot), 0x77, kSlotBytes);
  std::string text;
  CHECK_FALSE(*theirs->Read(&text));
  CHECK(ours->Write({"to the server", {}}));
  CHECK(*theirs->Read(&text));
  CHECK(text == "to the server");
  CHECK(theirs->Write({std::string(60000, 'x'), {}}));
  // The ring keeps its memory.
  link->reset();
  CHECK(*ours->Read(&text));
  CHECK((text == std::string(60000, 'x')));
}

TEST_CASE("a link has no rings without its own bells or the server's") {
  const ReservedAddress reserved;
  SharedMemoryServer::Options options;
  const bool server_has_bells = GENERATE(false, true);
  if (server_has_bells) options.bells = *DoorbellPage::Create();
  const auto server = StartServer(reserved.get(), options);
  const std::shared_ptr<DoorbellPage> bells = server_has_bells ? nullptr : *DoorbellPage::Create();
  const auto link = SharedMemoryLink::Connect(reserved.get(), 3, kSlotBytes, Soon(), bells);
  REQUIRE(link.ok());
  CHECK((*link)->TakeRing() == nullptr);
  CHECK(server->TakeRing((*link)->token()) == nullptr);
}

TEST_CASE("a segment that has not come is not waited for") {
  const ReservedAddress reserved;
  const auto server = StartServer(reserved.get());
  const auto link = Connect(reserved.get());
  const auto status = link->Map(99, 0, 1).status();
  CHECK(absl::IsNotFound(status));
  CHECK(status.message().find("segment 99") != std::string::npos);
}

TEST_CASE("a segment of a server that is gone is not waited for") {
  const ReservedAddress reserved;
  auto server = StartServer(reserved.get());
  const auto link = Connect(reserved.get());
  server.reset();
  const auto status = MapSoon(*link, 99, 1).status();
  CHECK(absl::IsUnavailable(status));
  CHECK(status.message().find("has closed its end") != std::string::npos);
  CHECK(absl::IsNotFound(SharedMemoryLink::Connect(reserved.get(), 3, kSlotBytes, Soon()).status()));
}

TEST_CASE("why there is no shared memory is said") {
  const ReservedAddress reserved;
  const auto refusal = [&] {
    return SharedMemoryLink::Connect(reserved.get(), 3, kSlotBytes, Soon()).status();
  };
  CHECK(refusal().message().find("no process listens") != std::string::npos);
  SharedMemoryServer::Options options;
  options.max_clients = 1;
  const auto server = StartServer(reserved.get(), options);
  auto link = SharedMemoryLink::Connect(reserved.get(), 1, kSlotBytes, Soon());
  REQUIRE(link.ok());
  CHECK(refusal().message().find("refused: the server has 1 clients already") != std::string::npos);
  Address elsewhere = reserved.get();
  elsewhere.host = "192.0.2.1";
  CHECK(absl::IsNotFound(SharedMemoryLink::Connect(elsewhere, 3, kSlotBytes, Soon()).status()));
}

TEST_CASE("a listener that never answers costs no more than the deadline") {
  const ReservedAddress reserved;
  const auto listener =
      ListenLocal(NamesToListenOn(LocalService::kSegments, reserved.get()).at(0), SOCK_SEQPACKET);
  REQUIRE(listener.ok());
  const auto status =
      SharedMemoryLink::Connect(reserved.get(), 3, kSlotBytes, Clock::now() + std::chrono::milliseconds(20))
          .status();
  CHECK(absl::IsUnavailable(status));
}

TEST_CASE("a process that is killed leaves nothing behind on the server") {
  const ReservedAddress reserved;
  int ready[2], token_pipe[2];
  REQUIRE(pipe(ready) == 0);
  REQUIRE(pipe(token_pipe) == 0);
  // Before the server's thread exists.
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(ready[1]);
    char byte;
    if (read(ready[0], &byte, 1) != 1) _exit(1);
    const auto link = SharedMemoryLink::Connect(reserved.get(), 3, kSlotBytes, Soon());
    if (!link.ok()) _exit(2);
    memset((*link)->SlotData(0), 0x77, kSlotBytes);
    const std::string token = (*link)->token();
    const uint64_t offset = (*link)->SlotOffset(0);
    if (write(token_pipe[1], token.data(), token.size()) != 16) _exit(3);
    if (write(token_pipe[1], &offset, sizeof(offset)) != sizeof(offset)) _exit(3);
    pause();
    _exit(4);
  }
  const auto server = StartServer(reserved.get());
  const auto weights = server->Allocate(1024);
  const int before = OpenDescriptors();
  REQUIRE(write(ready[1], "x", 1) == 1);
  char token[16];
  REQUIRE(read(token_pipe[0], token, sizeof(token)) == 16);
  uint64_t offset = 0;
  REQUIRE(read(token_pipe[0], &offset, sizeof(offset)) == sizeof(offset));
  auto segment = server->Claim(absl::string_view(token, sizeof(token)));
  REQUIRE(segment != nullptr);
  CHECK(*segment->At(0, offset, 1).value() == 0x77);
  kill(child, SIGKILL);
  REQUIRE(waitpid(child, nullptr, 0) == child);
  const auto deadline = Soon();
  while (server->Claim(absl::string_view(token, sizeof(token))) != nullptr && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(server->Claim(absl::string_view(token, sizeof(token))) == nullptr);
  CHECK(OpenDescriptors() == before);
  // A session in the middle of a chunk may read on.
  CHECK(*segment->At(0, offset + kSlotBytes - 1, 1).value() == 0x77);
  for (int fd : {ready[0], ready[1], token_pipe[0], token_pipe[1]}) close(fd);
}

TEST_CASE("links that come and go leak nothing") {
  const ReservedAddress reserved;
  const auto server = StartServer(reserved.get());
  const auto weights = server->Allocate(1024);
  const int before = OpenDescriptors();
  for (int i = 0; i < 50; ++i) {
    const auto link = Connect(reserved.get());
    CHECK(MapSoon(*link, server->Find(weights.get())->segment, 4).ok());
  }
  const auto deadline = Soon();
  while (OpenDescriptors() != before && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(OpenDescriptors() == before);
}

}  // namespace
}  // namespace weir
