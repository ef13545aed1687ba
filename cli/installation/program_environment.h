#pragma once

#include <map>
#include <string>

namespace weir {

// Sets what programs of users get on a machine where so many of them run: threads (OMP_NUM_THREADS) for its
// share of the CPUs, and PYTHONUNBUFFERED. Values of this process's own environment stay.
void SetProgramEnvironment(int sharers, std::map<std::string, std::string>* environment);

}  // namespace weir
