#include "common/checkpoint/table_writer.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/manifest.h"

namespace weir {
namespace {

template <typename T>
absl::string_view Bytes(const std::vector<T>& values, uint64_t count) {
  return {reinterpret_cast<const char*>(values.data()), static_cast<size_t>(count) * sizeof(T)};
}

template <typename T>
void DropFirst(std::vector<T>& values, uint64_t count) {
  values.erase(values.begin(), values.begin() + static_cast<ptrdiff_t>(count));
}

}  // namespace

uint64_t TableWriter::Section::Whole() const {
  const uint64_t buffered = buffer.keys.size();
  return buffered >= of_chunk || added() == total ? std::min(buffered, of_chunk) : 0;
}

absl::StatusOr<std::unique_ptr<TableWriter>> TableWriter::Create(FileSystem& fs, const std::string& dir,
                                                                 uint64_t step, const Shard& shard,
                                                                 size_t index, v1::CheckpointTable table) {
  WEIR_RETURN_IF_ERROR(CheckTableSizes(table));
  table.set_name(TableFileName(shard.shard, shard.num_shards, index, table.has_delta_since()));
  WEIR_ASSIGN_OR_RETURN(const std::string folder, FindFolder(fs, dir, step));
  auto writer = absl::WrapUnique(new TableWriter(std::move(table)));
  const std::string& name = writer->table_.name();
  writer->path_ = JoinPath(folder, name);
  WEIR_ASSIGN_OR_RETURN(writer->file_,
                        fs.Stage(writer->path_, JoinPath(folder, TemporaryName(name, shard.incarnation))));
  absl::StatusOr<std::unique_ptr<SafetensorsWriter>> begun =
      SafetensorsWriter::Create(*writer->file_, writer->path_, TensorsOfTable(writer->table_),
                                {{"weir.table", writer->table_.table().name()}});
  if (!begun.ok()) return writer->file_->Publish(begun.status(), FileSystem::Existing::kKeep);
  writer->writer_ = *std::move(begun);

  // Whoever adds may add a little more than a chunk before Write().
  const auto room = [](const Section& section) {
    return static_cast<size_t>(std::min(section.total, section.of_chunk + section.of_chunk / 8));
  };
  for (size_t i = 0; i < kTableSections; ++i) {
    writer->sections_[i].total = EntriesOf(writer->table_, static_cast<TableSection>(i));
    writer->sections_[i].of_chunk = EntriesOfChunk(writer->table_, static_cast<TableSection>(i));
  }
  Section& rows = writer->SectionOf(TableSection::kRows);
  rows.buffer.keys.reserve(room(rows));
  rows.buffer.updated.reserve(room(rows));
  rows.buffer.values.reserve(room(rows) * writer->table_.table().dim());
  rows.buffer.slots.reserve(room(rows) * writer->table_.slot_words());
  return writer;
}

void TableWriter::AddRow(uint64_t key, uint64_t updated, absl::Span<const float> words) {
  const size_t dim = table_.table().dim();
  TableEntries& to = SectionOf(TableSection::kRows).buffer;
  to.keys.push_back(key);
  to.updated.push_back(updated);
  to.values.insert(to.values.end(), words.begin(), words.begin() + dim);
  to.slots.insert(to.slots.end(), words.begin() + dim, words.end());
}

void TableWriter::AddCounter(uint64_t key, uint64_t updated, uint32_t pushes) {
  TableEntries& to = SectionOf(TableSection::kCounters).buffer;
  to.keys.push_back(key);
  to.updated.push_back(updated);
  to.pushes.push_back(pushes);
}

bool TableWriter::due() const {
  return std::any_of(std::begin(sections_), std::end(sections_),
                     [](const Section& section) { return section.buffer.keys.size() >= section.of_chunk; });
}

absl::Status TableWriter::WriteChunk(Section& section, uint64_t entries) {
  absl::Status status;
  // A column that the section does not have is empty.
  ForEachColumn(table_, section.buffer, [&](auto& column, uint64_t width) {
    if (column.empty() || !status.ok()) return;
    status = writer_->Append(Bytes(column, entries * width));
    DropFirst(column, entries * width);
  });
  WEIR_RETURN_IF_ERROR(status);
  section.written += entries;
  return absl::OkStatus();
}

absl::Status TableWriter::Write() {
  for (Section& section : sections_) {
    // Never more than the header says.
    if (section.added() > section.total) return CheckComplete();
    while (const uint64_t entries = section.Whole()) WEIR_RETURN_IF_ERROR(WriteChunk(section, entries));
    if (section.written < section.total) break;
  }
  return absl::OkStatus();
}

absl::Status TableWriter::CheckComplete() const {
  std::vector<std::string> added, announced;
  bool same = true;
  for (const Section& section : sections_) {
    same = same && section.added() == section.total;
    added.push_back(absl::StrCat(section.added()));
    announced.push_back(absl::StrCat(section.total));
  }
  if (same) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(path_, ": ", absl::StrJoin(added, ", "),
                   " rows, counters, removed rows and removed counters were to be written, not ",
                   absl::StrJoin(announced, ", ")));
}

absl::StatusOr<v1::CheckpointTable> TableWriter::Finish(absl::Status so_far) {
  if (so_far.ok()) so_far = CheckComplete();
  if (so_far.ok()) so_far = Write();
  SafetensorsWriter::Checksums sums;
  if (so_far.ok()) {
    absl::StatusOr<SafetensorsWriter::Checksums> finished = writer_->Finish();
    so_far = finished.status();
    if (finished.ok()) sums = *std::move(finished);
  }
  WEIR_RETURN_IF_ERROR(file_->Publish(so_far, FileSystem::Existing::kKeep));
  RecordWritten(sums, TensorsOfTable(table_), table_);
  return std::move(table_);
}

}  // namespace weir
