#include "tests/worker/compute/cuda_emulation/fibers.h"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

namespace emulated_cuda {
namespace {

constexpr size_t kStackBytes = 64 << 10;

// ucontext gives a fiber its stack; from then on longjmp enters it, which needs no system call. A fiber that
// has ended a body waits for the next one.
struct Fiber {
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  bool started = false, ended = false;
  jmp_buf place;
};

// Kept between calls.
thread_local std::vector<std::unique_ptr<Fiber>> fibers;
thread_local Fiber* current = nullptr;
thread_local jmp_buf scheduler;
thread_local const std::function<void()>* running = nullptr;

void Leave() {
  if (_setjmp(current->place) == 0) _longjmp(scheduler, 1);
}

void Main() {
  for (;;) {
    (*running)();
    current->ended = true;
    Leave();
  }
}

void Enter(Fiber* fiber) {
  current = fiber;
  if (_setjmp(scheduler) != 0) return;
  if (fiber->started) _longjmp(fiber->place, 1);
  fiber->started = true;
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = fiber->stack.get();
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  makecontext(&context, Main, 0);
  setcontext(&context);
  std::abort();
}

}  // namespace

bool RunFibers(unsigned n, uint64_t seed, const std::function<void(unsigned)>& enter,
               const std::function<void()>& body) {
  while (fibers.size() < n) fibers.push_back(std::make_unique<Fiber>());
  running = &body;
  for (unsigned i = 0; i < n; ++i) fibers[i]->ended = false;
  std::vector<unsigned> order(n);
  std::iota(order.begin(), order.end(), 0u);
  std::minstd_rand random(static_cast<uint32_t>(seed));
  for (;;) {
    std::shuffle(order.begin(), order.end(), random);
    unsigned ended = 0;
    for (const unsigned i : order) {
      enter(i);
      Enter(fibers[i].get());
      ended += fibers[i]->ended;
    }
    if (ended == n) return true;
    if (ended > 0) {
      // Fibers in the middle of the body begin anew the next time.
      for (unsigned i = 0; i < n; ++i) fibers[i]->started = fibers[i]->ended;
      return false;
    }
  }
}

void Yield() { Leave(); }

}  // namespace emulated_cuda
