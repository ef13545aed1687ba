#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "common/system/unique_fd.h"
#include "tests/common/telemetry/http_client.h"

// HTTP/2 over plain sockets (RFC 9113): the server gets exactly the frames that the test sends, also halves
// of what a client of gRPC would send whole.
namespace weir {

class Http2Client {
 public:
  struct Frame {
    uint8_t type = 0, flags = 0;
    uint32_t stream = 0;
    std::string payload;
  };
  static constexpr uint8_t kData = 0, kHeaders = 1, kSettings = 4, kPing = 6;
  static constexpr uint8_t kEndStream = 1, kEndHeaders = 4;

  // Connects, and sends the preface.
  explicit Http2Client(int port) : fd_(HttpConnect(port, 60)) {
    Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    Send({kSettings, 0, 0, ""});
  }

  bool Send(const std::string& bytes) { return HttpSend(fd_, bytes); }
  bool Send(const Frame& frame) {
    const size_t size = frame.payload.size();
    std::string bytes;
    for (int shift : {16, 8, 0}) bytes.push_back(static_cast<char>(size >> shift & 0xff));
    bytes.push_back(static_cast<char>(frame.type));
    bytes.push_back(static_cast<char>(frame.flags));
    for (int shift : {24, 16, 8, 0}) bytes.push_back(static_cast<char>(frame.stream >> shift & 0xff));
    return Send(bytes + frame.payload);
  }
  // The head of a gRPC call of this method, "weir.v1.Coordinator/Status", on stream 1.
  bool Call(const std::string& method) {
    return Send({kHeaders, kEndHeaders, 1,
                 Field(":method", "POST") + Field(":scheme", "http") + Field(":path", "/" + method) +
                     Field(":authority", "localhost") + Field("content-type", "application/grpc") +
                     Field("te", "trailers")});
  }

  // The next frame of this type; pings are answered meanwhile. False: the server has closed the connection,
  // or nothing came for a minute.
  bool Receive(uint8_t type, Frame* frame) {
    while (true) {
      std::string head, payload;
      if (!Read(9, &head)) return false;
      size_t size = 0;
      for (int i = 0; i < 3; ++i) size = size << 8 | static_cast<uint8_t>(head[static_cast<size_t>(i)]);
      if (!Read(size, &payload)) return false;
      *frame = {static_cast<uint8_t>(head[3]), static_cast<uint8_t>(head[4]), 0, std::move(payload)};
      for (size_t i = 5; i < 9; ++i) frame->stream = frame->stream << 8 | static_cast<uint8_t>(head[i]);
      if (frame->type == kPing && (frame->flags & 1) == 0) Send({kPing, 1, 0, frame->payload});
      if (frame->type == type) return true;
    }
  }

 private:
  // A field of a header, as a literal that enters no table (RFC 7541).
  static std::string Field(const std::string& name, const std::string& value) {
    return std::string(1, '\0') + static_cast<char>(name.size()) + name + static_cast<char>(value.size()) +
           value;
  }
  bool Read(size_t bytes, std::string* into) {
    char buffer[4096];
    while (into->size() < bytes) {
      const ssize_t got = recv(fd_.get(), buffer, std::min(sizeof buffer, bytes - into->size()), 0);
      if (got <= 0) return false;
      into->append(buffer, static_cast<size_t>(got));
    }
    return true;
  }

  const UniqueFd fd_;
};

}  // namespace weir
