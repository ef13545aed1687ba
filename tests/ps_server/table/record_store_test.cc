#include "ps_server/table/record_store.h"

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/random.h"
#include "ps_server/table/record_map.h"

namespace weir {
namespace {

constexpr size_t kWords = 5;
constexpr uint32_t kBuckets = 4;  // many keys for each

using Map = std::map<uint64_t, std::vector<float>>;

std::vector<float> WordsOf(const Record& record) { return {record.words(), record.words() + kWords}; }

void Fill(Record* record, float value) {
  for (size_t i = 0; i < kWords; ++i) record->words()[i] = value + static_cast<float>(i);
}

Map All(const RecordMap& map) {
  Map all;
  for (uint32_t bucket = 0; bucket < kBuckets; ++bucket) {
    map.ForEach(bucket, [&](const Record& record) {
      CHECK(BucketOfHash(HashKey(record.key)) % kBuckets == bucket);
      CHECK(all.emplace(record.key, WordsOf(record)).second);
    });
  }
  return all;
}

TEST_CASE("IndexBlocks: blocks are zero and apart, and what is returned becomes larger blocks") {
  SlabPool pool;
  IndexBlocks blocks(&pool);
  // As many indexes that double together, from one cache line to 64 KiB and beyond.
  constexpr size_t kIndexes = 64;
  std::vector<uint64_t*> taken(kIndexes, nullptr);
  size_t wrong = 0;
  for (uint32_t slots = IndexBlocks::kLeastSlots; slots <= 16384; slots *= 2) {
    for (size_t i = 0; i < kIndexes; ++i) {
      uint64_t* const block = blocks.Take(slots);
      wrong += reinterpret_cast<uintptr_t>(block) % 64 != 0;
      for (uint32_t s = 0; s < slots; ++s) {
        wrong += block[s] != 0;
        block[s] = i + 1;
      }
      if (taken[i] != nullptr) {
        for (uint32_t s = 0; s < slots / 2; ++s) wrong += taken[i][s] != i + 1;
        blocks.Return(taken[i], slots / 2);
      }
      taken[i] = block;
    }
    // Half as much again as they take; twice as much, if what they took before were lost.
    if (slots <= 8192) CHECK(2 * blocks.bytes() <= 3 * kIndexes * slots * sizeof(uint64_t) + (256 << 10));
  }
  CHECK(wrong == 0);
  const size_t bytes = blocks.bytes();
  for (uint64_t* block : taken) blocks.Return(block, 16384);
  for (uint64_t*& block : taken) block = blocks.Take(16384);
  CHECK(blocks.bytes() == bytes);
}

TEST_CASE("RecordMap: create, find and erase, against std::map") {
  RandomStream random(RandomKey(1, "record_store_test"), 0);
  RecordMap map(kWords, kBuckets, std::make_shared<RecordPools>());
  Map expected;
  std::map<uint64_t, const Record*> places;
  size_t wrong = 0;
  for (int i = 0; i < 40000; ++i) {
    // It grows, then shrinks, then grows again.
    const bool grows = i < 10000 || i > 25000;
    const uint64_t key = random.NextBelow(8000) * uint64_t{0x100000001};
    const uint64_t hash = HashKey(key);
    Record* const found = map.Find(hash, key);
    const auto at = expected.find(key);
    wrong += (found != nullptr) != (at != expected.end());
    if (found != nullptr && at != expected.end()) {
      wrong += found->key != key || WordsOf(*found) != at->second || places[key] != found;
    }
    if (found != nullptr && (!grows || random.NextBelow(4) == 0)) {
      map.Erase(hash, key);
      expected.erase(key);
    } else if (found == nullptr && (grows || random.NextBelow(4) == 0)) {
      Record* const created = map.Create(hash, key);
      Fill(created, static_cast<float>(i));
      expected[key] = WordsOf(*created);
      places[key] = created;
    }
    wrong += map.size() != expected.size();
  }
  CHECK(wrong == 0);
  CHECK(expected.size() > 1000);
  CHECK(All(map) == expected);
}

TEST_CASE("RecordMap: keys whose 32 bits are the same stay apart") {
  // Hashes are given, so collisions can be. All in one bucket, at one place of the index.
  RecordMap map(kWords, kBuckets, std::make_shared<RecordPools>());
  const auto hash = [](uint64_t key) { return (key << 32 & 0x0000ffff00000000) | 0xfffffffc; };
  for (uint64_t key = 1; key <= 40; ++key) Fill(map.Create(hash(key), key), static_cast<float>(key));
  for (uint64_t key = 1; key <= 40; key += 3) map.Erase(hash(key), key);
  for (uint64_t key = 1; key <= 40; ++key) {
    const Record* const found = map.Find(hash(key), key);
    CHECK((found != nullptr) == (key % 3 != 1));
    if (found != nullptr) CHECK(found->words()[0] == static_cast<float>(key));
    // Another key's record at most: the caller looks.
    CHECK(map.Likely(hash(key)) != nullptr);
  }
  CHECK(map.Likely(HashKey(77)) == nullptr);
}

TEST_CASE("RecordMap: erased records' memory is used again") {
  RecordMap map(kWords, kBuckets, std::make_shared<RecordPools>());
  for (uint64_t key = 0; key < 5000; ++key) map.Create(HashKey(key), key);
  const size_t bytes = map.bytes();
  CHECK(bytes > 5000 * (sizeof(Record) + kWords * sizeof(float)));
  for (int round = 0; round < 10; ++round) {
    for (uint64_t key = 0; key < 5000; ++key) map.Erase(HashKey(key), key);
    CHECK(map.size() == 0);
    for (uint64_t key = 0; key < 5000; ++key) map.Create(HashKey(key), key);
  }
  CHECK(map.bytes() == bytes);
}

TEST_CASE("VisitRecords visits every key once and in order, however many") {
  RecordMap map(kWords, kBuckets, std::make_shared<RecordPools>());
  for (uint64_t key = 0; key < 300; key += 2) Fill(map.Create(HashKey(key), key), static_cast<float>(key));
  for (size_t n : {0, 1, 2, 15, 16, 17, 127, 128, 129, 300}) {
    size_t visited = 0, wrong = 0;
    VisitRecords(
        n, kWords * sizeof(float), [](size_t i) { return HashKey(i); },
        [&](uint64_t) -> const RecordMap& { return map; },
        [&](size_t i, const Record* likely) {
          wrong += i != visited++ || (likely != nullptr) != (i % 2 == 0);
          wrong += likely != nullptr && likely->key != i;
        });
    CHECK(visited == n);
    CHECK(wrong == 0);
  }
}

// The store's state at a version, through both ways of reading it.
void CheckAt(const RecordStore& store, uint64_t version, const Map& expected, uint64_t keys) {
  Map all;
  for (uint32_t bucket = 0; bucket < kBuckets; ++bucket) {
    store.ForEachAt(version, bucket,
                    [&](const Record& record) { CHECK(all.emplace(record.key, WordsOf(record)).second); });
  }
  CHECK(all == expected);
  size_t wrong = 0;
  for (uint64_t key = 0; key < keys; ++key) {
    const Record* const found = store.FindAt(version, HashKey(key), key, store.now().Find(HashKey(key), key));
    const auto at = expected.find(key);
    wrong += (found == nullptr) != (at == expected.end());
    wrong += found != nullptr && at != expected.end() && WordsOf(*found) != at->second;
  }
  CHECK(wrong == 0);
}

TEST_CASE("RecordStore: a pinned version stays as it was, against copies") {
  constexpr uint64_t kKeys = 300;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    RandomStream random(RandomKey(seed, "record_store_test"), 1);
    const auto pools = std::make_shared<RecordPools>();
    RecordStore store(kWords, kBuckets, pools);
    Map now;
    std::map<uint64_t, Map> pins;
    size_t most = 0;
    for (uint64_t version = 1; version <= 120; ++version) {
      std::set<uint64_t> changed;
      for (uint32_t i = 0, n = random.NextBelow(60); i < n; ++i) {
        const uint64_t key = random.NextBelow(kKeys), hash = HashKey(key);
        if (!changed.insert(key).second) continue;
        Record* record = store.now().Find(hash, key);
        if (record == nullptr) {
          record = store.Create(hash, key, version);
        } else {
          store.Change(hash, record, version);
        }
        Fill(record, static_cast<float>(version * 1000 + key));
        now[key] = WordsOf(*record);
      }
      // Also what has changed in this version, as a quota may have it.
      for (uint32_t i = 0, n = random.NextBelow(20); i < n; ++i) {
        const uint64_t key = random.NextBelow(kKeys);
        const Record* const record = store.now().Find(HashKey(key), key);
        if (record != nullptr) store.Erase(HashKey(key), record);
        now.erase(key);
      }
      if (random.NextBelow(4) == 0) {
        store.Pin(version, std::make_shared<RecordPools>());
        pins[version] = now;
      }
      if (!pins.empty() && random.NextBelow(5) == 0) {
        const auto pin = std::next(pins.begin(), random.NextBelow(static_cast<uint32_t>(pins.size())));
        store.Unpin(pin->first);
        pins.erase(pin);
      }
      most = std::max(most, pins.size());
      if (version % 10 != 0) continue;
      for (const auto& [pinned, state] : pins) CheckAt(store, pinned, state, kKeys);
      CHECK(All(store.now()) == now);
    }
    CHECK(most >= 3);
    for (const auto& [pinned, state] : pins) store.Unpin(pinned);
    CHECK(store.former_bytes() == 0);
  }
}

TEST_CASE("RecordStore: without a pin nothing is kept, and a state is kept once") {
  RecordStore store(kWords, kBuckets, std::make_shared<RecordPools>());
  Record* const record = store.Create(HashKey(1), 1, 1);
  Fill(record, 1);
  store.Change(HashKey(1), record, 2);
  CHECK(store.former_bytes() == 0);
  store.Pin(2, std::make_shared<RecordPools>());
  const size_t empty = store.former_bytes();
  store.Change(HashKey(1), record, 3);
  const size_t kept = store.former_bytes();
  CHECK(kept > empty);
  Fill(record, 50);
  store.Change(HashKey(1), record, 4);
  store.Erase(HashKey(1), record);
  CHECK(store.former_bytes() == kept);
  CHECK(WordsOf(*store.FindAt(2, HashKey(1), 1, nullptr)) == std::vector<float>{1, 2, 3, 4, 5});
  CHECK(store.now().size() == 0);
}

}  // namespace
}  // namespace weir
