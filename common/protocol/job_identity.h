#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/model.pb.h"

// The job that a process belongs to (v1::JobIdentity). Two jobs may have the same name, config, model, ranks
// and clocks; their identities differ.
namespace weir {

// "job 'digits' (00c0ffee00c0ffee)"; of an unset identity, "no job yet".
std::string Describe(const v1::JobIdentity& job);
// Describes a job of which only the id is known: "a job with the id 00c0ffee00c0ffee".
std::string DescribeJob(uint64_t id);

// Whether two processes may be of one job. An unset identity, or one without an id, comes from a process that
// speaks a protocol version before 1.9, and fits each.
bool MayBeSame(uint64_t a, uint64_t b);

// NotFound: a call for the job `job`, and for the shard `shard_plus_one - 1`, has reached the server
// ps:`index` of `own`. 0, for both: the caller does not say. The message names what was called and what was
// meant.
absl::Status CheckAddressee(const v1::JobIdentity& own, uint32_t index, uint64_t job,
                            uint32_t shard_plus_one);

}  // namespace weir
