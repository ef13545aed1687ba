#include "common/shared_memory/message_ring.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/protocol/message.h"
#include "common/system/shared_memory.h"
#include "common/system/unique_fd.h"

namespace weir {
namespace {

using Steady = Doorbell::Steady;

constexpr uint64_t kRing = RingArea::kBytes;
constexpr uint64_t kMost = 4 << 20;
constexpr uint32_t kBell = 2;

Steady::time_point Soon() { return Steady::now() + std::chrono::seconds(30); }

std::shared_ptr<DoorbellPage> MakeBells() {
  auto made = DoorbellPage::Create();
  REQUIRE(made.ok());
  return *std::move(made);
}

// One end, with its area in a segment that the other end maps read-only.
struct End {
  End() : bells(MakeBells()) {
    auto made = SharedSegment::Create(sizeof(RingArea));
    REQUIRE(made.ok());
    own = *std::move(made);
    area = new (own->data()) RingArea;
  }
  void Connect(const End& other, uint64_t most = kMost) {
    auto opened = SharedSegment::OpenReadOnly(UniqueFd(dup(other.own->fd())), other.own->size());
    REQUIRE(opened.ok());
    peer = *std::move(opened);
    ring = std::make_unique<MessageRing>(area, reinterpret_cast<const RingArea*>(peer->data()), other.bells,
                                         most, nullptr);
    ring->ReadWith(kBell);
  }
  Doorbell& bell() const { return *bells->Bell(kBell); }

  const std::shared_ptr<DoorbellPage> bells;
  std::shared_ptr<SharedSegment> own;
  std::shared_ptr<const SharedSegment> peer;
  RingArea* area;
  std::unique_ptr<MessageRing> ring;
};

struct Pair {
  explicit Pair(uint64_t most = kMost) {
    left.Connect(right, most);
    right.Connect(left, most);
  }
  End left, right;
};

std::string Bytes(uint64_t length, uint64_t id = 0) {
  std::string bytes(length, '\0');
  for (uint64_t i = 0; i < length; ++i) bytes[i] = static_cast<char>((i * 31 + id) >> (i % 3));
  return bytes;
}

// The bytes in a head and pieces of different lengths, some of them empty.
OutgoingMessage MessageOf(const std::string& bytes) {
  const auto payload = std::make_shared<const std::string>(bytes);
  OutgoingMessage message;
  uint64_t begin = std::min<uint64_t>(bytes.size(), 7);
  message.head = bytes.substr(0, begin);
  for (uint64_t piece = 0; begin < bytes.size(); begin += piece, piece = 5 * piece + 1) {
    message.payload.push_back({absl::string_view(*payload).substr(begin, piece), payload});
  }
  return message;
}

// Takes the next message; it is there already.
std::string Take(MessageRing& ring) {
  std::string message;
  const absl::StatusOr<bool> whole = ring.Read(&message);
  REQUIRE(whole.ok());
  REQUIRE(*whole);
  return message;
}

// Whether the bell rings within `call`.
template <typename Call>
bool Rings(Doorbell& bell, const Call& call) {
  const auto count = [&] {
    uint32_t rung;
    memcpy(&rung, static_cast<const void*>(&bell), sizeof(rung));
    return rung;
  };
  const uint32_t before = count();
  bell.Arm();
  call();
  bell.Disarm();
  return count() != before;
}

TEST_CASE("messages of any length arrive whole and in order") {
  Pair pair;
  for (uint64_t length :
       {uint64_t{0}, uint64_t{1}, uint64_t{3}, uint64_t{4}, uint64_t{5}, uint64_t{1000}, kRing - 5, kRing - 4,
        kRing - 3, kRing - 1, kRing, kRing + 1, 3 * kRing + 7, kMost}) {
    CAPTURE(length);
    const std::string sent = Bytes(length, length);
    bool all = pair.left.ring->Write(MessageOf(sent));
    CHECK(all == (length + 4 <= kRing));
    std::string message;
    while (true) {
      REQUIRE(pair.right.ring->MayRead());
      const absl::StatusOr<bool> whole = pair.right.ring->Read(&message);
      REQUIRE(whole.ok());
      if (*whole) break;
      if (!all) {
        REQUIRE(pair.left.ring->MayFlush());
        all = pair.left.ring->Flush();
      }
    }
    CHECK(all);
    CHECK((message == sent));
    CHECK_FALSE(pair.right.ring->MayRead());
    CHECK_FALSE(*pair.right.ring->Read(&message));
  }
}

TEST_CASE("what arrives is what was sent, in any order of calls, both ways") {
  std::mt19937 random(7);
  Pair pair;
  struct Way {
    MessageRing& from;
    MessageRing& to;
    std::deque<std::string> sent;
    uint64_t count = 0, taken = 0;
  };
  Way ways[] = {{*pair.left.ring, *pair.right.ring, {}}, {*pair.right.ring, *pair.left.ring, {}}};
  for (int i = 0; i < 30000; ++i) {
    Way& way = ways[random() % 2];
    if (random() % 2 == 0) {
      std::string message;
      const absl::StatusOr<bool> whole = way.to.Read(&message);
      REQUIRE(whole.ok());
      if (!*whole) continue;
      REQUIRE(!way.sent.empty());
      REQUIRE((message == way.sent.front()));
      way.sent.pop_front();
      ++way.taken;
    } else if (way.from.flushed()) {
      const uint64_t longest = random() % 20 == 0 ? 3 * kRing : random() % 4 == 0 ? 30000 : 20;
      way.sent.push_back(Bytes(random() % longest, ++way.count));
      const bool all = way.from.Write(MessageOf(way.sent.back()));
      REQUIRE(way.from.flushed() == all);
    } else {
      const bool may = way.from.MayFlush();
      const bool all = way.from.Flush();
      REQUIRE(way.from.flushed() == all);
      if (all) REQUIRE(may);
    }
  }
  for (const Way& way : ways) CHECK(way.taken > 1000);
}

TEST_CASE("a message that does not fit is kept, with its memory, until Flush() has sent all of it") {
  Pair pair;
  OutgoingMessage message{"head", {}};
  std::vector<std::weak_ptr<const void>> owners;
  const std::string bytes = Bytes(kRing);
  for (int i = 0; i < 2; ++i) {
    const auto owner = std::make_shared<const std::string>(bytes);
    owners.push_back(owner);
    message.payload.push_back({*owner, owner});
  }
  CHECK_FALSE(pair.left.ring->Write(std::move(message)));
  CHECK_FALSE(pair.left.ring->flushed());
  CHECK_FALSE(pair.left.ring->MayFlush());
  CHECK_FALSE(pair.left.ring->Flush());
  CHECK_FALSE(owners[0].expired());
  std::string got;
  CHECK_FALSE(*pair.right.ring->Read(&got));
  CHECK(pair.left.ring->MayFlush());
  CHECK_FALSE(pair.left.ring->Flush());
  // What has been copied is let go.
  CHECK(owners[0].expired());
  CHECK_FALSE(owners[1].expired());
  CHECK_FALSE(*pair.right.ring->Read(&got));
  CHECK(pair.left.ring->Flush());
  CHECK(pair.left.ring->flushed());
  CHECK_FALSE(pair.left.ring->MayFlush());
  CHECK(owners[1].expired());
  CHECK((Take(*pair.right.ring) == "head" + bytes + bytes));
  // One that fits is not kept at all.
  const auto owner = std::make_shared<const std::string>("x");
  CHECK(pair.left.ring->Write({"h", {{*owner, owner}}}));
  CHECK(owner.use_count() == 1);
  CHECK(Take(*pair.right.ring) == "hx");
}

TEST_CASE("the reader's bell rings for each message, and the writer's when it waits for room") {
  Pair pair;
  CHECK(Rings(pair.right.bell(), [&] { CHECK(pair.left.ring->Write({"one", {}})); }));
  std::string message;
  // The writer waits for nothing.
  CHECK_FALSE(Rings(pair.left.bell(), [&] { CHECK(Take(*pair.right.ring) == "one"); }));
  CHECK(Rings(pair.right.bell(), [&] { CHECK_FALSE(pair.left.ring->Write(MessageOf(Bytes(2 * kRing)))); }));
  // There is no room.
  CHECK_FALSE(Rings(pair.right.bell(), [&] { CHECK_FALSE(pair.left.ring->Flush()); }));
  CHECK(Rings(pair.left.bell(), [&] { CHECK_FALSE(*pair.right.ring->Read(&message)); }));
  CHECK_FALSE(Rings(pair.left.bell(), [&] { CHECK_FALSE(*pair.right.ring->Read(&message)); }));
  CHECK(Rings(pair.right.bell(), [&] { CHECK_FALSE(pair.left.ring->Flush()); }));
  CHECK(Rings(pair.left.bell(), [&] { CHECK_FALSE(*pair.right.ring->Read(&message)); }));
  CHECK(Rings(pair.right.bell(), [&] { CHECK(pair.left.ring->Flush()); }));
  CHECK_FALSE(Rings(pair.left.bell(), [&] { CHECK((Take(*pair.right.ring) == Bytes(2 * kRing))); }));
}

TEST_CASE("a relaxed message rings no bell, unless the reader wants all") {
  Pair pair;
  const auto write = [&](const char* text) { CHECK(pair.left.ring->Write({text, {}, /*relaxed=*/true})); };
  CHECK_FALSE(Rings(pair.right.bell(), [&] { write("one"); }));
  CHECK(Rings(pair.right.bell(), [&] { CHECK(pair.left.ring->Write({"two", {}})); }));
  CHECK(Take(*pair.right.ring) == "one");
  CHECK(Take(*pair.right.ring) == "two");
  pair.right.ring->WantAll();
  CHECK(Rings(pair.right.bell(), [&] { write("three"); }));
  CHECK(Take(*pair.right.ring) == "three");
}

TEST_CASE("messages are there for a reader that comes later, whose bell nobody knew") {
  End left, right;
  left.Connect(right);
  right.area->bell = RingArea::kNoBell;
  CHECK_FALSE(Rings(right.bell(), [&] { CHECK(left.ring->Write({"early", {}})); }));
  right.Connect(left);
  CHECK(right.ring->MayRead());
  CHECK(Take(*right.ring) == "early");
}

TEST_CASE("two threads that sleep on their bells, both ways at once") {
  constexpr uint64_t kMessages = 3000;
  Pair pair;
  std::atomic<bool> lost{false};
  // Sends its messages and takes those of the other end, as a loop does.
  const auto run = [&](End& end, uint64_t seed) {
    std::mt19937 sends(static_cast<uint32_t>(seed)), arrives(static_cast<uint32_t>(3 - seed));
    const auto next = [](std::mt19937& random) {
      const uint32_t kind = random() % 100;
      return Bytes(random() % (kind == 0 ? 4 * kRing : kind < 10 ? 20000 : 50), random());
    };
    uint64_t sent = 0, taken = 0;
    const auto get_on = [&] {
      bool did = false;
      while (sent < kMessages && end.ring->flushed()) {
        ++sent;
        did = true;
        end.ring->Write(MessageOf(next(sends)));
      }
      if (end.ring->MayFlush()) {
        did = true;
        end.ring->Flush();
      }
      while (end.ring->MayRead()) {
        did = true;
        std::string message;
        const absl::StatusOr<bool> whole = end.ring->Read(&message);
        if (!whole.ok() || (*whole && message != next(arrives))) lost = true;
        if (lost) return true;
        if (*whole) ++taken;
      }
      return did;
    };
    const Steady::time_point until = Soon() + std::chrono::seconds(30);
    while ((sent < kMessages || taken < kMessages || !end.ring->flushed()) && !lost) {
      if (get_on()) continue;
      const Steady::time_point sleeps = Soon();
      const uint32_t armed = end.bell().Arm();
      if (!end.ring->MayFlush() && !end.ring->MayRead()) end.bell().Sleep(armed, sleeps);
      end.bell().Disarm();
      if (Steady::now() >= std::min(sleeps, until)) lost = true;
    }
  };
  std::thread other([&] { run(pair.right, 2); });
  run(pair.left, 1);
  other.join();
  CHECK_FALSE(lost);
}

// ---- a peer that writes what it likes

TEST_CASE("counters that make no sense are an error, or room that never comes") {
  Pair pair;
  std::string message;
  SECTION("more than fits is said to be there") {
    pair.left.area->written = kRing + 1;
    CHECK(pair.right.ring->MayRead());
    CHECK(absl::IsDataLoss(pair.right.ring->Read(&message).status()));
    // And it stays so.
    CHECK(absl::IsDataLoss(pair.right.ring->Read(&message).status()));
  }
  SECTION("fewer bytes were written than have been read") {
    CHECK(pair.left.ring->Write({"message", {}}));
    CHECK(Take(*pair.right.ring) == "message");
    pair.left.area->written = 3;
    CHECK(pair.right.ring->MayRead());
    CHECK(absl::IsDataLoss(pair.right.ring->Read(&message).status()));
  }
  SECTION("more was read than has been written") {
    pair.right.area->read = 1;
    CHECK_FALSE(pair.left.ring->Write({"message", {}}));
    CHECK_FALSE(pair.left.ring->MayFlush());
    CHECK_FALSE(pair.left.ring->Flush());
    pair.right.area->read = 0;
    CHECK(pair.left.ring->MayFlush());
    CHECK(pair.left.ring->Flush());
  }
  SECTION("less was read than before") {
    CHECK(pair.left.ring->Write(MessageOf(Bytes(kRing / 2))));
    Take(*pair.right.ring);
    CHECK(pair.left.ring->Write(MessageOf(Bytes(kRing - 4))));
    pair.right.area->read = 0;
    CHECK_FALSE(pair.left.ring->Write({"message", {}}));
    CHECK_FALSE(pair.left.ring->MayFlush());
  }
  SECTION("a bell that is none") {
    for (uint32_t bell : {DoorbellPage::kBells, RingArea::kNoBell, RingArea::kNoBell - 1}) {
      pair.right.area->bell = bell;
      CHECK(pair.left.ring->Write({"message", {}}));
      CHECK(Take(*pair.right.ring) == "message");
    }
  }
}

TEST_CASE("a message above the limit is an error before any of it is kept") {
  Pair pair(1000);
  CHECK(pair.left.ring->Write(MessageOf(Bytes(1000))));
  CHECK((Take(*pair.right.ring) == Bytes(1000)));
  CHECK(pair.left.ring->Write(MessageOf(Bytes(1001))));
  std::string message;
  CHECK(absl::IsDataLoss(pair.right.ring->Read(&message).status()));
  const uint32_t longest = UINT32_MAX;
  Pair other(1000);
  memcpy(other.left.area->bytes, &longest, sizeof(longest));
  other.left.area->written = sizeof(longest);
  CHECK(absl::IsDataLoss(other.right.ring->Read(&message).status()));
}

TEST_CASE("part of a length is nothing to read: the reader may sleep") {
  Pair pair;
  const uint32_t length = 2;
  memcpy(pair.left.area->bytes, &length, sizeof(length));
  memcpy(pair.left.area->bytes + sizeof(length), "ab", 2);
  std::string message;
  for (uint64_t written = 0; written < sizeof(length); ++written) {
    pair.left.area->written = written;
    CHECK_FALSE(pair.right.ring->MayRead());
    CHECK_FALSE(*pair.right.ring->Read(&message));
  }
  for (uint64_t written = sizeof(length); written < sizeof(length) + 2; ++written) {
    pair.left.area->written = written;
    CHECK(pair.right.ring->MayRead());
    CHECK_FALSE(*pair.right.ring->Read(&message));
    CHECK_FALSE(pair.right.ring->MayRead());
  }
  pair.left.area->written = sizeof(length) + 2;
  CHECK(Take(*pair.right.ring) == "ab");
}

// An area at the edge of memory that may be used: a byte before or after it ends the process.
class GuardedArea {
 public:
  explicit GuardedArea(bool at_end) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t inner = (sizeof(RingArea) + page - 1) / page * page;
    bytes_ = inner + 2 * page;
    map_ = static_cast<char*>(mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE((map_ != MAP_FAILED));
    REQUIRE(mprotect(map_ + page, inner, PROT_READ | PROT_WRITE) == 0);
    area = new (map_ + page + (at_end ? inner - sizeof(RingArea) : 0)) RingArea;
  }
  ~GuardedArea() { munmap(map_, bytes_); }
  GuardedArea(const GuardedArea&) = delete;
  GuardedArea& operator=(const GuardedArea&) = delete;

  RingArea* area;

 private:
  char* map_;
  size_t bytes_;
};

TEST_CASE(
    "whatever the peer writes, nothing outside the areas is touched, and no message is above the limit") {
  std::mt19937_64 random(11);
  const auto own_bells = MakeBells(), bells = MakeBells();
  const auto number = [&](uint64_t near) -> uint64_t {
    switch (random() % 4) {
      case 0:
        return near + random() % 100;
      case 1:
        return near + kRing - random() % 3;
      case 2:
        return near - random() % 5;
      default:
        return random();
    }
  };
  for (int round = 0; round < 200; ++round) {
    const GuardedArea own(round % 2 == 0), peer(round % 2 == 0);
    constexpr uint64_t kLimit = 100000;
    MessageRing ring(own.area, peer.area, bells, kLimit, nullptr);
    for (int i = 0; i < 100; ++i) {
      peer.area->written = number(own.area->read);
      peer.area->read = number(own.area->written);
      peer.area->bell = static_cast<uint32_t>(random() % 100);
      peer.area->blocked = static_cast<uint32_t>(random() % 2);
      for (int j = 0; j < 1000; ++j) {
        peer.area->bytes[random() % kRing] = static_cast<char>(random() % 3 == 0 ? random() : 0);
      }
      std::string message;
      const absl::StatusOr<bool> whole = ring.Read(&message);
      if (!whole.ok()) {
        CHECK(absl::IsDataLoss(whole.status()));
        break;
      }
      if (*whole) CHECK(message.size() <= kLimit);
      if (ring.flushed()) {
        ring.Write(MessageOf(Bytes(random() % (2 * kRing))));
      } else if (ring.MayFlush()) {
        ring.Flush();
      }
    }
  }
}

}  // namespace
}  // namespace weir
