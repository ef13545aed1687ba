#pragma once

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "tests/chaos/acts.h"

namespace weir {

// A stranger on the machine, who sends one kind of abuse to a job's servers. The stranger repeats it at a
// modest pace, so that it costs the honest job no more than another process on the machine would. Has no
// token. For one thread.
class Attacker {
 public:
  struct Target {
    // ps:0 and the others, "127.0.0.1:2222".
    std::vector<std::string> servers;
    // The address of ps:0's page of metrics.
    std::string http;
  };

  Attacker(Target target, Acts* acts) : target_(std::move(target)), acts_(*acts) {}

  // "control", "joins", ...
  static const std::vector<std::string>& Kinds();
  // A description of the kind, for people.
  static std::string Describe(const std::string& kind);
  // Returns when `stop` is set.
  void Run(const std::string& kind, const std::atomic<bool>& stop);

 private:
  void AttackControl(const std::atomic<bool>& stop);
  void AttackJoins(const std::atomic<bool>& stop);
  void AttackMembers(const std::atomic<bool>& stop);
  void AttackPins(const std::atomic<bool>& stop);
  void AttackStreams(const std::atomic<bool>& stop);
  void AttackConnections(const std::atomic<bool>& stop);
  void AttackHttp(const std::atomic<bool>& stop);
  void HoldCrowd(const std::atomic<bool>& stop);
  void HoldHalves(const std::atomic<bool>& stop);

  const Target target_;
  Acts& acts_;
};

}  // namespace weir
