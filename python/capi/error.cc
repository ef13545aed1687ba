#include "python/capi/error.h"

#include <pthread.h>

#include <string>

#include "common/program/exit_codes.h"
#include "common/protocol/job_failure.h"

struct weir_error {
  absl::Status status;
  std::string message;
};

namespace weir {
namespace {

bool forked = false;
const int watches_forks = pthread_atfork(nullptr, nullptr, [] { forked = true; });

}  // namespace

weir_error* ErrorOf(const absl::Status& status) {
  return status.ok() ? nullptr : new weir_error{status, std::string(status.message())};
}

bool Forked() { return watches_forks == 0 && forked; }

absl::Status ForkedError() {
  return absl::FailedPreconditionError(
      "this is a child process that was forked after Weir was loaded, and its connections belong to the "
      "parent; "
      "call Weir in the parent, or start the child with multiprocessing's \"spawn\" or \"forkserver\"");
}

}  // namespace weir

int weir_error_kind(const weir_error* error) { return weir::KindOf(error->status); }
int weir_error_code(const weir_error* error) { return static_cast<int>(error->status.code()); }
int weir_error_exit_code(const weir_error* error) { return weir::ExitCodeOf(error->status); }
const char* weir_error_message(const weir_error* error) { return error->message.c_str(); }
void weir_free_error(weir_error* error) { delete error; }
