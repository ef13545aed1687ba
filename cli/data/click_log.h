#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace weir {

// A click log that nobody clicked: who saw what where, and whether a click followed, with a probability that
// is known. Keys follow Zipf's law, as those of real logs do: a few come in many rows, most in few.
//
// The truth is a factorization machine. Each user, item, place and tag has a weight and some factors, drawn
// from (seed, kind, number). The logit of a click is a constant, plus the sum of the weights, plus the sum
// over all pairs of (user, item, place, the mean of the tags) of the inner product of their factors, plus a
// multiple of the age. So a model that knows the truth reaches the log loss and the AUC below, and no model
// is better on rows without number.
struct ClickLogOptions {
  uint64_t seed = 1;
  uint32_t users = 1000, items = 500, places = 8, tags = 100;
  // Of Zipf's law: key number k (from 1) has a weight of 1 / k^exponent.
  double exponent = 1.05;
};

// Measures of probabilities against what happened, over the rows of one file.
struct ClickLogTruth {
  double clicks = 0;  // their share of the rows
  // Of the true probabilities, in nats; of the clicks' share as everybody's probability.
  double log_loss = 0, constant_log_loss = 0;
  std::optional<double> auc;  // of the true probabilities; none if all rows are of one kind
};

struct ClickLog {
  // With a line of names: click,user,item,place,tags,age. The user is "u17", the item "i3", the place "p2",
  // tags are "t5|t12" or empty, the age is from 0 to 1.
  std::string csv;
  ClickLogTruth truth;
};

// Rows [first, first + rows) of the endless log: a pure function of its arguments.
ClickLog MakeClickLog(const ClickLogOptions& options, uint64_t first, uint64_t rows);

}  // namespace weir
