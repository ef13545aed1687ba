#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace weir {

// A budget of memory, in bytes, of which many users take. Thread-safe.
class ByteBudget {
 public:
  // The bytes that one user has taken. The destructor returns them; the budget outlives this object.
  class Share {
   public:
    explicit Share(ByteBudget* budget) : budget_(budget) {}
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    ~Share() { GiveBack(); }

    // Takes more bytes. If a budget has too few left, takes nothing and returns that budget; else null.
    const ByteBudget* Take(uint64_t bytes) {
      const ByteBudget* const short_of = budget_->Take(bytes);
      if (short_of == nullptr) bytes_ += bytes;
      return short_of;
    }
    void GiveBack() { budget_->GiveBack(std::exchange(bytes_, 0)); }

   private:
    ByteBudget* const budget_;
    uint64_t bytes_ = 0;
  };

  // Bytes that are taken from this budget are taken from `whole`, too. null: this budget is no part of
  // another.
  explicit ByteBudget(uint64_t most, ByteBudget* whole = nullptr) : most_(most), whole_(whole) {}

  uint64_t most() const { return most_; }
  uint64_t taken() const { return taken_; }

 private:
  // The budget that has too few left.
  const ByteBudget* Take(uint64_t bytes) {
    uint64_t taken = taken_;
    do {
      if (bytes > most_ - taken) return this;
    } while (!taken_.compare_exchange_weak(taken, taken + bytes));
    const ByteBudget* const short_of = whole_ == nullptr ? nullptr : whole_->Take(bytes);
    if (short_of != nullptr) taken_ -= bytes;
    return short_of;
  }
  void GiveBack(uint64_t bytes) {
    taken_ -= bytes;
    if (whole_ != nullptr) whole_->GiveBack(bytes);
  }

  const uint64_t most_;
  ByteBudget* const whole_;
  std::atomic<uint64_t> taken_{0};
};

}  // namespace weir
