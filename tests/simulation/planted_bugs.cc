#include "tests/simulation/planted_bugs.h"

#include <memory>
#include <utility>

#include "common/base/planted_bug.h"

namespace weir {
namespace {

const char* planted = "";

// Every version lies in the same memory.
void TornPull(Site* site) {
  site->seams.weights_source = [](uint32_t) -> SlabSource {
    auto slab = std::make_shared<std::shared_ptr<float>>();
    return [slab](size_t elements) {
      if (*slab == nullptr) *slab = AllocateSlab(elements);
      return *slab;
    };
  };
}

std::function<void(Site*)> InProduct(const char* name) {
  return [name](Site*) { SetPlanted(name); };
}

// Of memory and code that no seam reaches.
std::vector<PlantedBug> PlantedElsewhere() {
  return {
      {"unweighted mean",
       "a short part counts like a whole one",
       {Invariant::kComplete},
       InProduct("unweighted mean")},
      {"torn pull", "weights are written while they are being read", {Invariant::kTorn}, TornPull},
      {"view taken back",
       "memory that a client reads in place is used again when the client's time is over",
       {Invariant::kTorn},
       [](Site* site) { site->seams.takes_views_back = true; }},
      {"refused clock not completed",
       "others wait for a push that was refused",
       {Invariant::kProgress},
       InProduct("refused clock not completed")},
      {"dead versions are waited for",
       "what was made of overtaken pushes counts as read, and these wait until nobody reads it",
       {Invariant::kProgress},
       InProduct("dead versions are waited for")},
      {"readers are waited for",
       "the next version waits for those who read old ones as long as they like",
       {Invariant::kProgress},
       InProduct("readers are waited for")},
      {"batch applied twice",
       "a shard does not remember which batches it has applied",
       {Invariant::kOnce},
       InProduct("batch applied twice")},
      {"old life's version accepted",
       "a restored shard takes what was computed from the weights it lost",
       {Invariant::kStaleLife},
       InProduct("old life's version accepted")},
      {"lost clocks not declared",
       "a restored shard says nothing of what it lost",
       {Invariant::kDeclared},
       InProduct("lost clocks not declared")},
  };
}

}  // namespace

// The strong one.
bool Planted(absl::string_view bug) { return bug == planted; }

void SetPlanted(const char* bug) { planted = bug; }

std::vector<PlantedBug> PlantedBugs() {
  std::vector<PlantedBug> all;
  for (const std::vector<PlantedBug>& some :
       {PlantedInPolicies(), PlantedInMessages(), PlantedInClients(), PlantedOnDisk(), PlantedElsewhere()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

}  // namespace weir
