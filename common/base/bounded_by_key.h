#pragma once

#include <cstddef>
#include <iterator>
#include <map>
#include <string>

#include "absl/time/time.h"

namespace weir {

// A value for each of many keys, which strangers may choose: while `most` keys have values that are in use,
// all other keys share one. Not thread-safe.
template <typename Value>
class BoundedByKey {
 public:
  // Each key begins with `fresh`. Values that are in use no more are looked for once in `between`, when there
  // are too many.
  BoundedByKey(const Value& fresh, size_t most, absl::Duration between)
      : fresh_(fresh), most_(most), between_(between), others_(fresh) {}

  // idle(Value&): whether it is not in use any more, so that it is as good as a fresh one.
  template <typename Idle>
  Value& Of(const std::string& key, absl::Time now, const Idle& idle) {
    if (const auto it = values_.find(key); it != values_.end()) return it->second;
    if (values_.size() >= most_ && now >= next_sweep_) {
      next_sweep_ = now + between_;
      for (auto it = values_.begin(); it != values_.end();) {
        it = idle(it->second) ? values_.erase(it) : std::next(it);
      }
    }
    return values_.size() < most_ ? values_.try_emplace(key, fresh_).first->second : others_;
  }

 private:
  const Value fresh_;
  const size_t most_;
  const absl::Duration between_;
  std::map<std::string, Value> values_;
  Value others_;
  absl::Time next_sweep_ = absl::InfinitePast();
};

}  // namespace weir
