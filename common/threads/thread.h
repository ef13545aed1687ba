#pragma once

#include <string>
#include <thread>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weir {

// Starts a thread that runs `run`. The system may refuse: a limit of threads or of memory is reached. Then
// the error, Internal, says what the thread was to do ("serve HTTP") and which limits there are.
//
// std::thread and std::async throw where the system refuses, which ends the process.
absl::StatusOr<std::thread> MakeThread(absl::string_view purpose, absl::AnyInvocable<void()> run);

// Whether the system would give `count` more threads now; the error is as that of MakeThread(). For libraries
// that make threads of their own, and hang where the system refuses one.
absl::Status CheckRoomForThreads(int count, absl::string_view purpose);

// The limits of threads and memory that this process has, as text; "" if there are none. `root`: a folder in
// the place of the file system's root.
std::string LimitsOfThreads(const std::string& root = "");

}  // namespace weir
