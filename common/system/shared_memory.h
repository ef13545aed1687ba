#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/system/unique_fd.h"

namespace weir {

// Memory that one process writes and others on its machine read in place: a memfd. It is sealed so that its
// size never changes, since a mapping that shrinks would kill its readers with SIGBUS. Only the mapping of
// the process that made it can be written. Unmapped with the object; the memory goes with the last mapping
// and descriptor.
//
// Thread-safe. The maker may change what a reader sees at any time: a reader copies what it has to check, or
// reads it once.
class SharedSegment {
 public:
  // Makes a segment of zeros, at least this many bytes (whole pages), in huge pages if the system has them.
  // Its pages are there when this returns. ResourceExhausted: no memory. Unimplemented: this system knows no
  // such seals.
  static absl::StatusOr<std::unique_ptr<SharedSegment>> Create(uint64_t bytes);
  // Maps another process's segment. FailedPrecondition: not a memfd with all the seals, or not of exactly
  // `bytes`.
  static absl::StatusOr<std::unique_ptr<const SharedSegment>> OpenReadOnly(UniqueFd fd, uint64_t bytes);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  uint64_t size() const { return size_; }
  // Only the maker may write.
  char* data() { return data_; }
  const char* data() const { return data_; }
  // For handing over; only the maker keeps it.
  int fd() const { return fd_.get(); }

  // [offset, offset + bytes). OutOfRange: not within the segment.
  absl::StatusOr<const char*> At(uint64_t offset, uint64_t bytes) const;

 private:
  SharedSegment(UniqueFd fd, char* data, uint64_t size) : fd_(std::move(fd)), data_(data), size_(size) {}

  const UniqueFd fd_;
  char* const data_;
  const uint64_t size_;
};

}  // namespace weir
