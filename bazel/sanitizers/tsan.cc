// ThreadSanitizer's settings, linked into every program of --config=tsan, servers that tests start included.

extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options() {
  return "halt_on_error=1:second_deadlock_stack=1";
}

// Debian's libraries are not instrumented: of what they do ThreadSanitizer sees memmove, realloc or
// epoll_wait, but not the atomics and futexes that keep those apart. So their calls do not count as accesses.
// All that our own code does is checked. Each entry must match one library alone.
//
// AcceptClient() hands its connections to gRPC, and ThreadSanitizer does not see that gRPC closes them
// (above). So it takes whoever uses the number of such a file descriptor again for a race with the accept.
//
// LazyString makes the default of a string field when a message is first parsed: an atomic of libprotobuf's.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions() {
  return "called_from_lib:libgrpc.so\n"
         "called_from_lib:libgrpc++.so\n"
         "called_from_lib:libgpr.so\n"
         "called_from_lib:libupb.so\n"
         "called_from_lib:libcares.so\n"
         "called_from_lib:libssl.so\n"
         "called_from_lib:libcrypto.so\n"
         "called_from_lib:libabsl_synchronization.so\n"
         "called_from_lib:libabsl_graphcycles_internal.so\n"
         "called_from_lib:libabsl_malloc_internal.so\n"
         "called_from_lib:libabsl_random_internal_pool_urbg.so\n"
         "called_from_lib:libabsl_cord.so\n"
         "called_from_lib:libabsl_cord_internal.so\n"
         "called_from_lib:libabsl_status.so\n"
         "called_from_lib:libabsl_strings.so\n"
         "race:weir::AcceptClient\n"
         "race:google::protobuf::internal::LazyString::Init\n";
}
