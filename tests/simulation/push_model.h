#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "tests/simulation/ledger.h"

namespace weir {

// A model of the quantised pushes from one membership of a worker to one shard, by the rules of
// docs/transports.md ("Quantised pushes"). It shares the codec's kernels with the product, and nothing else.
class PushModel {
 public:
  explicit PushModel(const Ledger* ledger) : ledger_(ledger) {}

  struct Key {
    uint64_t clock = 0;
    uint32_t part = 0;
    // Of the shard, when it sent the weights.
    uint64_t incarnation = 0;
  };
  // The push finds this of the pushes before it. An empty vector stands for zeros.
  struct Found {
    // It adds this to its gradient.
    std::vector<float> carried;
    // Why that is empty: the residual is from before a rollback, or the worker did not push the part in the
    // step before.
    std::vector<float> rolled_back, anothers;
    // False: what it adds cannot be told.
    bool known = true;
  };
  Found Begin(const Key& key);
  // The values that the shard gets of a push that has begun.
  std::vector<float> Send(const Key& key, std::vector<float> gradient);
  // The answer has come. A client that hears that its push took effect before all of it was encoded keeps
  // nothing; if not all had left (`whole`), what it keeps is not known. Returns the residual that a push
  // without effect leaves as it was.
  std::vector<float> OnAnswer(uint64_t clock, uint32_t part, bool took_effect, bool whole);

 private:
  struct Residual {
    uint64_t clock = 0, incarnation = 0;
    std::vector<float> values;
    bool known = true;
  };
  struct Open {
    uint64_t incarnation = 0;
    std::vector<float> carried, left;
    bool known = true;  // what it carries
  };
  void Put(uint32_t part, const Residual& residual);

  const Ledger* ledger_;
  std::map<uint32_t, Residual> residuals_;              // by part
  std::map<std::pair<uint64_t, uint32_t>, Open> open_;  // by clock and part
};

}  // namespace weir
