#pragma once

#include "absl/status/statusor.h"
#include "proto/parameter_server.pb.h"
#include "proto/shard_control.pb.h"
#include "ps_server/shard/shard_tables.h"

// What people and tools are told of a shard's embedding tables. In the shard's order.
namespace weir {

// Fills ShardStats.tables.
void DescribeTables(const ShardTables& tables, v1::ShardStats* stats);

// The answer to ParameterServer.ReadRows, with its errors.
absl::StatusOr<v1::ReadRowsReply> RowStates(const ShardTables& tables, const v1::ReadRowsRequest& request);

}  // namespace weir
