// ThreadSanitizer's settings, linked into every program of --config=tsan, servers that tests start included.

extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options() {
  return "halt_on_error=1:second_deadlock_stack=1";
}

// Debian's libraries are not instrumented: of what they do ThreadSanitizer sees memmove, realloc or
// epoll_wait, but not the atomics and futexes that keep those apart. So their calls do not count as accesses.
// All that our own code does is checked. Each entry must match one library alone.
//
// Of a file descriptor whose number is used again ThreadSanitizer sees neither that gRPC has closed it
// (above) nor that openat() has opened it, and so takes the next close for a race with its first owner's.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions() {
  return "called_from_lib:libgrpc.so\n"
         "called_from_lib:libgrpc++.so\n"
         "called_from_lib:libgpr.so\n"
         "called_from_lib:libupb.so\n"
         "called_from_lib:libcares.so\n"
         "called_from_lib:libabsl_synchronization.so\n"
         "called_from_lib:libabsl_graphcycles_internal.so\n"
         "called_from_lib:libabsl_malloc_internal.so\n"
         "called_from_lib:libabsl_random_internal_pool_urbg.so\n"
         "called_from_lib:libabsl_cord.so\n"
         "called_from_lib:libabsl_cord_internal.so\n"
         "called_from_lib:libabsl_status.so\n"
         "called_from_lib:libabsl_strings.so\n"
         "race:weir::UniqueFd::Close\n";
}
