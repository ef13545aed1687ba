#pragma once

#include <cstddef>
#include <iterator>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
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

// The first bytes of a text, at most `most`. If bytes are left out, the end says how many.
inline std::string Shortened(absl::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  return absl::StrCat(text.substr(0, most), "... (", text.size() - most, " bytes more)");
}

// The names with commas between them. If there are more than `most`, the end says how many are left out.
template <typename Names>
std::string ShortList(const Names& names, size_t most = 8) {
  const size_t count = names.size();
  if (count <= most) return absl::StrJoin(names, ", ");
  return absl::StrCat(absl::StrJoin(names.begin(), std::next(names.begin(), most), ", "), " and ",
                      count - most, " more");
}

}  // namespace weir
