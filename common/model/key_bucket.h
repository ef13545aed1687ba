#pragma once

#include <cstdint>

namespace weir {

// Where the rows of an embedding table live. Every key belongs to one of 65,536 buckets, for ever; bucket b
// is of shard b mod S. A bucket is the unit of ownership and of everything that is decided for several rows
// together (quotas, expiry), so that no decision depends on S.
inline constexpr uint32_t kKeyBuckets = 65536;

// A bijection of 64 bits whose output bits all depend on all input bits. It is the first number of SplitMix64
// with the key as its state (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA
// 2014). The hash is part of the format of checkpoints and of the wire, so it must never change.
constexpr uint64_t HashKey(uint64_t key) {
  uint64_t x = key + 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

// The bucket of the key with this hash: its first 16 bits.
constexpr uint32_t BucketOfHash(uint64_t hash) { return static_cast<uint32_t>(hash >> 48); }

// shards >= 1.
constexpr uint32_t ShardOfBucket(uint32_t bucket, uint32_t shards) { return bucket % shards; }
constexpr uint32_t ShardOfHash(uint64_t hash, uint32_t shards) {
  return ShardOfBucket(BucketOfHash(hash), shards);
}
constexpr uint32_t ShardOfKey(uint64_t key, uint32_t shards) { return ShardOfHash(HashKey(key), shards); }

}  // namespace weir
