#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "common/config/address.h"
#include "common/system/unique_fd.h"

namespace weir {

// A loopback TCP address that no other process gets while this object lives. No process listens there.
class ReservedAddress {
 public:
  ReservedAddress() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(at);
    if (bind(socket_.get(), reinterpret_cast<sockaddr*>(&at), length) != 0) return;
    getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&at), &length);
    address_.host = "127.0.0.1";
    address_.port = ntohs(at.sin_port);
  }
  const Address& get() const { return address_; }

 private:
  UniqueFd socket_;
  Address address_;
};

}  // namespace weir
