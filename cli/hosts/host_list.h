#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

// The hosts of `weir up --hosts`, and which host runs which task.
namespace weir {

struct Host {
  std::string name;          // as ssh takes it, perhaps with a user: "ann@b"
  std::string address = "";  // its own, at which the other hosts reach it; "": the one that ssh has reached
  std::optional<int> slots = {};  // the most workers; nullopt: any number
  std::optional<int> gpus = {};   // that its workers share; nullopt: all that they find

  // The machine of `weir up`, which needs no ssh.
  bool is_here() const { return name == "localhost"; }
};

// Reads a list with commas, or a file with lines such as "a slots=4 gpus=2 address=10.0.0.1" and comments
// behind #. A name alone is a file if there is one. InvalidArgument names the file's line, what was seen and
// what is allowed.
absl::StatusOr<std::vector<Host>> ReadHosts(const std::string& text);

// One worker for each slot; a host without a number of slots counts as one.
int CountSlots(const std::vector<Host>& hosts);

// Returns the index of each worker's host, by rank. The hosts take workers in turns while they have slots;
// the ranks of one host follow each other. InvalidArgument: there are more workers than slots.
absl::StatusOr<std::vector<int>> PlaceWorkers(const std::vector<Host>& hosts, int workers);

}  // namespace weir
