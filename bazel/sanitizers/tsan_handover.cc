// Tells ThreadSanitizer where Debian's libraries, which are not instrumented, order one thread after another.
// A program's own definitions come before those of its shared libraries, for calls between two libraries as
// well; each function here says what the real one, which it calls, guarantees. Nothing is suppressed: what
// runs in a callback is checked as all else.
//
// A library may call these before main() and from any thread.

#include <absl/status/status.h>
#include <absl/synchronization/mutex.h>
#include <dlfcn.h>
#include <grpc/grpc.h>
#include <grpc/support/sync_generic.h>
#include <grpcpp/support/server_callback.h>
#include <sanitizer/tsan_interface.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

// gRPC's.
struct grpc_cq_completion;

namespace {

// The library's own function of this (mangled) name.
template <typename Function>
Function* Real(const char* name) {
  void* const symbol = dlsym(RTLD_NEXT, name);
  if (symbol == nullptr) {
    std::fprintf(stderr, "tsan_handover.cc: no library has %s: %s\n", name, dlerror());
    std::abort();
  }
  return reinterpret_cast<Function*>(symbol);
}

#define ABSL_SYMBOL(name) "_ZN4absl7debian3" name

}  // namespace

// absl::Mutex, as far as gRPC uses it: its timers, executor and completion queues hand work over under one.

void absl::Mutex::Lock() {
  static auto* const real = Real<void(Mutex*)>(ABSL_SYMBOL("5Mutex4LockEv"));
  real(this);
  __tsan_acquire(this);
}

bool absl::Mutex::TryLock() {
  static auto* const real = Real<bool(Mutex*)>(ABSL_SYMBOL("5Mutex7TryLockEv"));
  const bool locked = real(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void absl::Mutex::Unlock() {
  static auto* const real = Real<void(Mutex*)>(ABSL_SYMBOL("5Mutex6UnlockEv"));
  __tsan_release(this);
  real(this);
}

void absl::CondVar::Wait(Mutex* mutex) {
  static auto* const real = Real<void(CondVar*, Mutex*)>(ABSL_SYMBOL("7CondVar4WaitEPNS0_5MutexE"));
  __tsan_release(mutex);
  real(this, mutex);
  __tsan_acquire(mutex);
}

bool absl::CondVar::WaitWithTimeout(Mutex* mutex, absl::Duration timeout) {
  static auto* const real = Real<bool(CondVar*, Mutex*, absl::Duration)>(
      ABSL_SYMBOL("7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE"));
  __tsan_release(mutex);
  const bool timed_out = real(this, mutex, timeout);
  __tsan_acquire(mutex);
  return timed_out;
}

bool absl::CondVar::WaitWithDeadline(Mutex* mutex, absl::Time deadline) {
  static auto* const real = Real<bool(CondVar*, Mutex*, absl::Time)>(
      ABSL_SYMBOL("7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE"));
  __tsan_release(mutex);
  const bool timed_out = real(this, mutex, deadline);
  __tsan_acquire(mutex);
  return timed_out;
}

// gRPC's completion queues: whatever starts an operation, and whatever made its result, comes before whoever
// gets its tag back. The tag is the object that runs the callback. (Every operation begins and ends with
// these two internal functions, in whichever way it is started.)

bool grpc_cq_begin_op(grpc_completion_queue* queue, void* tag) {
  static auto* const real =
      Real<bool(grpc_completion_queue*, void*)>("_Z16grpc_cq_begin_opP21grpc_completion_queuePv");
  __tsan_release(tag);
  return real(queue, tag);
}

void grpc_cq_end_op(grpc_completion_queue* queue, void* tag, absl::Status error,
                    void (*done)(void* arg, grpc_cq_completion* storage), void* arg,
                    grpc_cq_completion* storage, bool internal) {
  using Function = void(grpc_completion_queue*, void*, absl::Status, void (*)(void*, grpc_cq_completion*),
                        void*, grpc_cq_completion*, bool);
  static auto* const real = Real<Function>(
      "_Z14grpc_cq_end_opP21grpc_completion_queuePvN4absl7debian36StatusEPFvS1_P18grpc_cq_completionES1_S6_"
      "b");
  __tsan_release(tag);
  real(queue, tag, std::move(error), done, arg, storage, internal);
}

extern "C" grpc_event grpc_completion_queue_next(grpc_completion_queue* queue, gpr_timespec deadline,
                                                 void* reserved) {
  static auto* const real =
      Real<grpc_event(grpc_completion_queue*, gpr_timespec, void*)>("grpc_completion_queue_next");
  const grpc_event event = real(queue, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE) __tsan_acquire(event.tag);
  return event;
}

extern "C" grpc_event grpc_completion_queue_pluck(grpc_completion_queue* queue, void* tag,
                                                  gpr_timespec deadline, void* reserved) {
  static auto* const real =
      Real<grpc_event(grpc_completion_queue*, void*, gpr_timespec, void*)>("grpc_completion_queue_pluck");
  const grpc_event event = real(queue, tag, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE) __tsan_acquire(event.tag);
  return event;
}

// Memory lent to gRPC: the loan comes before its end, which is on any thread.
extern "C" grpc_slice grpc_slice_new_with_user_data(void* data, size_t size, void (*destroy)(void*),
                                                    void* user_data) {
  using Function = grpc_slice(void*, size_t, void (*)(void*), void*);
  static auto* const real = Real<Function>("grpc_slice_new_with_user_data");
  struct Loan {
    void (*const destroy)(void*);
    void* const user_data;
  };
  auto* const loan = new Loan{destroy, user_data};
  const auto end = [](void* of) {
    __tsan_acquire(of);
    const std::unique_ptr<Loan> loan(static_cast<Loan*>(of));
    loan->destroy(loan->user_data);
  };
  __tsan_release(loan);
  return real(data, size, end, loan);
}

// Reference counts: all uses of an object come before its end.

// Of a slice: messages of several streams, which several threads read, may lie in one buffer. Not under a
// lock, since the end of a loan runs in here.
extern "C" void grpc_slice_unref(grpc_slice slice) {
  static auto* const real = Real<void(grpc_slice)>("grpc_slice_unref");
  __tsan_release(slice.refcount);
  __tsan_acquire(slice.refcount);
  real(slice);
}

extern "C" int gpr_unref(gpr_refcount* count) {
  static auto* const real = Real<int(gpr_refcount*)>("gpr_unref");
  __tsan_release(count);
  const int last = real(count);
  if (last != 0) __tsan_acquire(count);
  return last;
}

// The real one counts down and deletes in one. So the count goes down here, and the last one is handed on as
// the only one.
void absl::Status::UnrefNonInlined(uintptr_t rep) {
  static auto* const real = Real<void(uintptr_t)>(ABSL_SYMBOL("6Status15UnrefNonInlinedEm"));
  std::atomic<int32_t>& count = RepToPointer(rep)->ref;
  __tsan_release(&count);
  if (count.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  __tsan_acquire(&count);
  count.store(1, std::memory_order_relaxed);
  real(rep);
}

// The count of a server's call ends with OnDone(). In instrumented code it is an atomic like any other; these
// are the two places where libgrpc++'s own steps of it matter.

void grpc::internal::ServerCallbackCall::ScheduleOnDone(bool inline_ondone) {
  static auto* const real =
      Real<void(ServerCallbackCall*, bool)>("_ZN4grpc8internal18ServerCallbackCall14ScheduleOnDoneEb");
  __tsan_acquire(&callbacks_outstanding_);
  real(this, inline_ondone);
}

void grpc::internal::ServerCallbackCall::CallOnCancel(ServerReactor* reactor) {
  static auto* const real = Real<void(ServerCallbackCall*, ServerReactor*)>(
      "_ZN4grpc8internal18ServerCallbackCall12CallOnCancelEPNS0_13ServerReactorE");
  __tsan_acquire(&on_cancel_conditions_remaining_);
  if (reactor->InternalInlineable()) return real(this, reactor);
  // The executor runs OnCancel() of this one instead; right after it libgrpc++ counts down.
  class Cancel final : public ServerReactor {
   public:
    Cancel(ServerReactor* reactor, std::atomic_int* count) : reactor_(reactor), count_(count) {}
    void OnDone() override {}
    void OnCancel() override {
      reactor_->OnCancel();
      __tsan_release(count_);
      delete this;
    }

   private:
    ServerReactor* const reactor_;
    std::atomic_int* const count_;
  };
  real(this, new Cancel(reactor, &callbacks_outstanding_));
}
