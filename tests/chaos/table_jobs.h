#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

// Jobs with embedding tables for chaos.h, and what their rows must be at the end.
namespace weir {

// Gives a job tables, a model with these, and data, which it writes into `folder`. Either its rows come and
// go by admission, expiry and quotas. Or they count, whatever the order of the pushes: the model is so sure
// of the wrong answer that each time an example names a key, the key's row rises by one.
enum class RowsOfJob { kComeAndGo, kCount };
absl::Status AddTables(const std::string& folder, RowsOfJob rows, nlohmann::json* config);

// Whether the last checkpoint of a job, with the chain that it builds on, has the rows that the job ended
// with, as its summary says. Where rows count, each shard must also have the rows of exactly those batches
// that it says to have applied. The result says what is wrong.
std::vector<std::string> CheckRows(const nlohmann::json& summary, RowsOfJob rows);

}  // namespace weir
