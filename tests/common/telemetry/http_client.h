#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cstdlib>
#include <string>

#include "common/system/unique_fd.h"

// HTTP over plain sockets: the server gets exactly what the test sends.
namespace weir {

// Connects to a port of this host; reads and writes are limited to `seconds` each. Not valid: no process
// listens.
inline UniqueFd HttpConnect(int port, int seconds = 20) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval limit{seconds, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) fd.Close();
  return fd;
}

// Whether all bytes could be sent.
inline bool HttpSend(const UniqueFd& fd, const std::string& bytes) {
  return send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

// Receives until the server closes or the time is over.
inline std::string HttpReceive(const UniqueFd& fd) {
  std::string response;
  char buffer[4096];
  for (ssize_t got; (got = recv(fd.get(), buffer, sizeof buffer, 0)) > 0;) response.append(buffer, got);
  return response;
}

// The server's answer to a request on a connection of its own; empty if the server cannot be reached.
inline std::string HttpExchange(int port, const std::string& request) {
  const UniqueFd fd = HttpConnect(port);
  return fd.valid() && HttpSend(fd, request) ? HttpReceive(fd) : "";
}

inline std::string HttpGet(int port, const std::string& path) {
  return HttpExchange(port, "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
}

struct HttpPage {
  int status = 0;  // 0: the server cannot be reached
  std::string body;
};
inline HttpPage HttpGetPage(int port, const std::string& path) {
  const std::string response = HttpGet(port, path);
  const size_t end = response.find("\r\n\r\n");
  if (response.compare(0, 9, "HTTP/1.1 ") != 0 || end == std::string::npos) return {};
  return {std::atoi(response.c_str() + 9), response.substr(end + 4)};
}

}  // namespace weir
