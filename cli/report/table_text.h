#pragma once

#include <string>
#include <vector>

#include "proto/coordinator.pb.h"
#include "proto/parameter_server.pb.h"

// A job's embedding tables in words. Pure functions; the texts end with a line feed.
namespace weir {

// For `weir table stats`: a table of the tables, then the hottest keys of each.
std::string TableStatsReport(const std::vector<v1::TableStatus>& tables);

// For `weir table get`: each row with what is known of it.
std::string RowsReport(const v1::ReadRowsReply& rows);

}  // namespace weir
