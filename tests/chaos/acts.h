#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

namespace weir {

// The acts of an abuser. For one thread.
class Acts {
 public:
  // `on_first` is called at the first act.
  explicit Acts(std::function<void()> on_first) : on_first_(std::move(on_first)) {}

  // `taken`: a server did what the act asked for, which `what` names.
  void Count(const char* what, bool taken) {
    if (count_++ == 0) on_first_();
    if (taken) ++taken_[what];
  }
  void Count() { Count("", false); }

  uint64_t count() const { return count_; }
  const std::map<std::string, uint64_t>& taken() const { return taken_; }

 private:
  const std::function<void()> on_first_;
  uint64_t count_ = 0;
  std::map<std::string, uint64_t> taken_;
};

}  // namespace weir
