#pragma once

#include <sys/types.h>

#include <cstddef>

namespace weir {

// How the bytes of an HTTP connection travel over its non-blocking socket: as they are, or encrypted
// (common/rpc/https.h).
class HttpStream {
 public:
  virtual ~HttpStream() = default;

  // As recv() and send(): -1 sets errno, to EAGAIN if the socket is not ready.
  virtual ssize_t Receive(char* bytes, size_t size) = 0;
  virtual ssize_t Send(const char* bytes, size_t size) = 0;
  // Nothing will be sent any more; the client may continue to send.
  virtual void EndOutput() = 0;
  // After EAGAIN: what to poll the socket for; 0: POLLIN to receive, POLLOUT to send.
  virtual short awaited() const = 0;
  // Whether the client has proven that it is of this server's job.
  virtual bool proven() const = 0;
};

}  // namespace weir
