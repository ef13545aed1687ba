#pragma once

#include "bench/contestant.h"

namespace weir::bench {

// Contestants whose step is on a batch of an embedding table. "bare rows" and "raw rows" are the limits of
// look-ups (row_gather.h), which have no versions, checks or recovery.

// "bare rows": one thread gathers a batch in its own process.
Kind BareRowsKind();

// "raw rows": the gather of "bare rows" at the other end of a plain TCP connection. The client sends each key
// of a batch once, and finds these keys as Weir's client does. The server gathers and sends their rows in
// windows of Contestant::window_bytes. Meanwhile the client copies the rows of the window before to all
// places of their keys in the batch.
Kind RawRowsKind();

// "weir rows": the program ps_server and the client library, with row-wise Adagrad. When a client is
// connected, it has pushed its share of all rows.
Kind WeirRowsKind();
// Makes a contestant of this kind. `config`: further members of the job's config, as JSON.
Contestant WeirRows(const std::string& name, uint64_t rows, uint64_t dim, const std::string& config);

}  // namespace weir::bench
