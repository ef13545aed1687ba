#pragma once

#include <ucontext.h>

#include <functional>
#include <memory>

namespace weir {

// A program that runs on its own stack, within the thread that resumes it, and yields where it waits.
class Fiber {
 public:
  // `body` runs within Resume().
  explicit Fiber(std::function<void()> body);
  // `body` has not begun, or has ended.
  ~Fiber();

  // Runs the fiber until it suspends itself or ends. Not within a fiber.
  void Resume();
  bool ended() const { return ended_; }

  // The fiber that runs; nullptr: none.
  static Fiber* current();
  // Suspends the running fiber: returns with the next Resume().
  static void Suspend();

 private:
  static void Main();

  const std::function<void()> body_;
  std::unique_ptr<char[]> stack_;
  ucontext_t inside_, outside_;
  bool started_ = false, ended_ = false;
  // The sanitizers' view of the two stacks.
  void* fake_stack_ = nullptr;
  const void* outside_stack_ = nullptr;
  size_t outside_bytes_ = 0;
  void* tsan_inside_ = nullptr;
  void* tsan_outside_ = nullptr;
};

}  // namespace weir
