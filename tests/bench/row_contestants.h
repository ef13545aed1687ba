#pragma once

#include "bench/contestant.h"

namespace weir::bench {

// Contestants whose step is on a batch of an embedding table. "bare rows" and "raw rows" are the limits of
// look-ups (row_gather.h), which have no versions, checks or recovery.

// "bare rows": one thread gathers a batch in its own process.
Kind BareRowsKind();

// "raw rows": the same gather at the other end of a plain TCP connection. A batch's keys are sent once each,
// as Weir's client does and with its sorting; the server gathers their rows in windows of
// Contestant::window_bytes, each of which is sent while the client puts the one before wherever its keys were
// asked for.
Kind RawRowsKind();

// "weir rows": the program ps_server and the client library, with row-wise Adagrad. Before it is connected, a
// client has pushed its share of all rows.
Kind WeirRowsKind();
// A contestant of this kind. `config`: further members of the job's config, as JSON.
Contestant WeirRows(const std::string& name, uint64_t rows, uint64_t dim, const std::string& config);

}  // namespace weir::bench
