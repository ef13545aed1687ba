#pragma once

#include <atomic>
#include <cstdint>

namespace weir {

// Bytes of memory that many may take from, on any thread.
class ByteBudget {
 public:
  // What one has taken. Goes back with this object, which the budget outlives.
  class Share {
   public:
    Share() = default;
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    ~Share() { GiveBack(); }

    // Takes more, of the same budget; null has any number. False: so many are not left, and nothing was
    // taken.
    bool Take(ByteBudget* budget, uint64_t bytes) {
      if (budget != nullptr && !budget->Take(bytes)) return false;
      budget_ = budget;
      bytes_ += bytes;
      return true;
    }
    void GiveBack() {
      if (budget_ != nullptr) budget_->taken_ -= bytes_;
      bytes_ = 0;
    }

   private:
    ByteBudget* budget_ = nullptr;
    uint64_t bytes_ = 0;
  };

  explicit ByteBudget(uint64_t most) : most_(most) {}

  uint64_t most() const { return most_; }
  uint64_t taken() const { return taken_; }

 private:
  bool Take(uint64_t bytes) {
    uint64_t taken = taken_;
    do {
      if (bytes > most_ - taken) return false;
    } while (!taken_.compare_exchange_weak(taken, taken + bytes));
    return true;
  }

  const uint64_t most_;
  std::atomic<uint64_t> taken_{0};
};

}  // namespace weir
