#include "tests/simulation/fiber.h"

#include <cstdlib>
#include <utility>

#if defined(WEIR_ASAN)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(WEIR_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace weir {
namespace {

#if defined(WEIR_ASAN) || defined(WEIR_TSAN)
constexpr size_t kStackBytes = 1 << 20;
#else
constexpr size_t kStackBytes = 256 << 10;
#endif

thread_local Fiber* running = nullptr;

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)) {}

Fiber::~Fiber() {
  if (started_ && !ended_) std::abort();
#if defined(WEIR_TSAN)
  if (tsan_inside_ != nullptr) __tsan_destroy_fiber(tsan_inside_);
#endif
}

Fiber* Fiber::current() { return running; }

void Fiber::Resume() {
  if (running != nullptr || ended_) std::abort();
  running = this;
  if (!started_) {
    started_ = true;
    stack_.reset(new char[kStackBytes]);
    getcontext(&inside_);
    inside_.uc_stack.ss_sp = stack_.get();
    inside_.uc_stack.ss_size = kStackBytes;
    inside_.uc_link = nullptr;
    makecontext(&inside_, &Fiber::Main, 0);
#if defined(WEIR_TSAN)
    tsan_inside_ = __tsan_create_fiber(0);
#endif
  }
#if defined(WEIR_TSAN)
  tsan_outside_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(tsan_inside_, 0);
#endif
#if defined(WEIR_ASAN)
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, stack_.get(), kStackBytes);
#endif
  swapcontext(&outside_, &inside_);
#if defined(WEIR_ASAN)
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
  running = nullptr;
  if (ended_) stack_.reset();
}

void Fiber::Suspend() {
  Fiber* const fiber = running;
#if defined(WEIR_TSAN)
  __tsan_switch_to_fiber(fiber->tsan_outside_, 0);
#endif
#if defined(WEIR_ASAN)
  __sanitizer_start_switch_fiber(fiber->ended_ ? nullptr : &fiber->fake_stack_, fiber->outside_stack_,
                                 fiber->outside_bytes_);
#endif
  swapcontext(&fiber->inside_, &fiber->outside_);
#if defined(WEIR_ASAN)
  __sanitizer_finish_switch_fiber(fiber->fake_stack_, &fiber->outside_stack_, &fiber->outside_bytes_);
#endif
}

void Fiber::Main() {
  Fiber* const fiber = running;
#if defined(WEIR_ASAN)
  __sanitizer_finish_switch_fiber(nullptr, &fiber->outside_stack_, &fiber->outside_bytes_);
#endif
  fiber->body_();
  fiber->ended_ = true;
  Suspend();
}

}  // namespace weir
