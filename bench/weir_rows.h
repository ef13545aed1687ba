#pragma once

#include "bench/contestant.h"

namespace weir::bench {

// Steps on a batch of an embedding table through the program ps_server (StartWeirServer()) and the client
// library, with row-wise Adagrad. `config`: further members of the job's config, as JSON.
Contestant WeirRows(const std::string& name, uint64_t rows, uint64_t dim, const std::string& config);

// Before it is connected, a client has pushed its share of all rows.
absl::StatusOr<std::unique_ptr<StepClient>> ConnectWeirRows(const Contestant& contestant, int index,
                                                            const std::vector<std::string>& addresses);

}  // namespace weir::bench
