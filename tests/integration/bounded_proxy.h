#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace weir {

// A TCP proxy on loopback that breaks each connection after a random number of bytes: data that it had read
// and not passed on are lost, and both ends see a reset. Every other connection breaks on its way from the
// server, so that a request was carried out and its reply is lost. The lengths follow from the seed and the
// order in which connections come. For small messages (the proxy passes them on with blocking calls from one
// thread per connection). Thread-safe.
class BreakingProxy {
 public:
  // As `least` and `most`: connections do not break by themselves.
  static constexpr uint64_t kNever = uint64_t{1} << 62;

  // A connection breaks after a number of bytes, both ways together, uniform in [least, most].
  BreakingProxy(std::string server_address, uint64_t seed, uint64_t least, uint64_t most);
  ~BreakingProxy();
  BreakingProxy(const BreakingProxy&) = delete;
  BreakingProxy& operator=(const BreakingProxy&) = delete;

  // "127.0.0.1:PORT".
  std::string address() const;
  // A partition: from now on nothing passes to the server, or from it, or both. Peers see an open connection
  // that is silent; new connections open, and are silent as well.
  void Hold(bool requests, bool replies);
  // Ends the partition: held data arrive late, or (`drop`) never, and connections are reset.
  void Heal(bool drop);
  // Connections broken so far on their way to the server and from it.
  uint64_t broken_requests() const { return broken_requests_; }
  uint64_t broken_replies() const { return broken_replies_; }

 private:
  void Accept();
  void Serve(int client, uint64_t bytes, bool break_reply);

  const uint16_t server_port_;
  const uint64_t seed_, least_, most_;
  std::atomic<bool> hold_requests_{false}, hold_replies_{false};
  // Connections older than the last Heal(drop) are reset.
  std::atomic<uint64_t> drops_{0};
  int listener_;
  int stop_;  // eventfd, readable when the proxy has to stop
  std::atomic<uint64_t> broken_requests_{0}, broken_replies_{0};
  std::vector<std::thread> connections_;  // only accept_ uses it until it has ended
  std::thread accept_;
};

}  // namespace weir
