#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/job_config.pb.h"
#include "worker/data/dataset.h"

namespace weir {

// The first line of a file, with the names of its columns.
struct CsvHeader {
  std::string file;
  int64_t line = 0;
  std::vector<std::string> names;
};

// The examples of a file, one per line.
struct CsvTable {
  int64_t features = 0;         // number columns
  std::vector<float> values;    // [rows, features]
  std::vector<KeyColumn> keys;  // of the columns of the types categorical and key
  std::vector<double> labels;   // [rows]
  std::vector<int64_t> lines;   // [rows], where each row stood in the file, for messages
  CsvHeader header;             // without names: data.header is false
  // The file has its columns in a different order from data.columns, or from `like` (ParseCsv).
  bool reordered = false;
};

// Parses a file of format csv by the fields of `config` that are for it (separator, header, columns,
// label_column); `config` has passed the job config's checks. Numbers are finite. Blanks around values and
// names are allowed, and empty lines are skipped. A value cannot contain a separator; quotes have no meaning,
// but around a name they are taken off. `file` is the file's name, for messages. InvalidArgument with
// file:line:column (both counted from 1, the column in characters).
//
// With data.header the columns are found by their names, and may have any order in the file. The table has
// the columns of data.columns, in their order. Without data.columns it has those of `like`, the header of the
// training set; without both, those of the file. A column of type "ignored" may be missing.
absl::StatusOr<CsvTable> ParseCsv(absl::string_view file, absl::string_view text,
                                  const v1::DataConfig& config, const CsvHeader& like = {});

// The names of the columns with keys, in their order.
std::vector<std::string> KeyColumnNames(const v1::DataConfig& config);

// The key of a text in a vocabulary (ColumnConfig): FNV-1a of 64 bits over the vocabulary's bytes, a zero
// byte and the text's bytes. Tables are kept in checkpoints by these keys, so it must never change.
inline uint64_t CategoryKey(absl::string_view vocabulary, absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto mix = [&hash](unsigned char c) { hash = (hash ^ c) * 0x100000001b3; };
  for (const char c : vocabulary) mix(static_cast<unsigned char>(c));
  mix(0);
  for (const char c : text) mix(static_cast<unsigned char>(c));
  return hash;
}

}  // namespace weir
