#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/model/model_spec.h"

// A job with embedding tables whose gradients are a function of the batch and of the rows that were read. A
// small program (table_worker.cc) trains it; tables_test.cc computes what must come out.
namespace weir {

// The text of its config: two tables, four parts, 48 batches.
std::string TableJob();
constexpr uint32_t kTableParts = 4;
constexpr uint64_t kTableBatches = 48, kTableBatchSize = 2;
// For --set: tables whose rows are counts. They begin at 0, and each occurrence of a key in a batch adds one
// to each value.
std::string CountingTables();

// For --set: the tables of TableJob() with rows so long that a step's take many messages.
std::string LongRows();
// The dense weights.
ModelSpec TableJobModel();

// All keys that a batch may have, and some that no batch has.
const std::vector<uint64_t>& AllTableKeys();
// A batch's keys of one table; some come several times. `few`: those of later steps than the first have a
// tenth.
std::vector<uint64_t> TableKeysOf(uint64_t batch, uint32_t table, bool few = false);
// Their gradients; `rows`: what was read for these keys.
std::vector<float> TableGradientOf(uint64_t batch, uint32_t table, const std::vector<float>& rows);

// Of a program with "waits".
constexpr size_t kPushesBeforeWait = 4;

// The one value of all batches that a program with "nan" spoils.
constexpr uint64_t kSpoiltBatch = 21;
constexpr uint32_t kSpoiltTable = 1, kSpoiltColumn = 7;
// Where it is among the batch's keys.
constexpr size_t kSpoiltKey = 3;

}  // namespace weir
