#pragma once

#include "bench/contestant.h"
#include "client/client.h"

namespace weir::bench {

// Makes a contestant of the kind "weir". `config`: members of the job's config, as JSON.
Contestant Weir(const std::string& name, const std::string& config);

// Weir as users have it: the program ps_server, and the client library.
absl::StatusOr<std::unique_ptr<StepServer>> StartWeirServer(const Contestant& contestant, int index,
                                                            const std::string& host);
absl::StatusOr<std::unique_ptr<StepClient>> ConnectWeirClient(const Contestant& contestant, int index,
                                                              const std::vector<std::string>& addresses);

// The options with which a worker of the contestant joins.
absl::StatusOr<ClientOptions> WeirClientOptions(const Contestant& contestant, int index,
                                                const std::vector<std::string>& addresses);

}  // namespace weir::bench
