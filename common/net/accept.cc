#include "common/net/accept.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "absl/strings/str_cat.h"

namespace weir {

absl::StatusOr<UniqueFd> AcceptClient(int listener) {
  UniqueFd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd.valid()) return fd;
  const int error = errno;
  if (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot accept a client: ", strerror(error)));
  }
  return absl::UnavailableError(strerror(error));
}

}  // namespace weir
