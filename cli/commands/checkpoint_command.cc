#include "cli/commands/checkpoint_command.h"

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "cli/commands/grpc_status_client.h"
#include "cli/commands/open_checkpoint.h"
#include "cli/report/format.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/object_store/object_file_system.h"
#include "common/program/exit_codes.h"
#include "common/rpc/job_token.h"
#include "common/rpc/tls.h"

namespace weir {
namespace {

// Writing may take as long as the disk does; the coordinator says when it has failed.
constexpr absl::Duration kTakeDeadline = absl::Minutes(30);

int Refuse(int exit_code, absl::string_view message) {
  std::fprintf(stderr, "error: %s\n", Printable(message).c_str());
  return exit_code;
}

int Refuse(const absl::Status& status) { return Refuse(CheckpointExitCode(status), status.message()); }

void Print(absl::string_view line) {
  std::printf("%s\n", Printable(line).c_str());
  std::fflush(stdout);
}

size_t CountFiles(const v1::CheckpointManifest& manifest) {
  size_t files = 0;
  for (const v1::CheckpointFile& file : manifest.files())
    files += 1 + static_cast<size_t>(file.tables_size());
  return files;
}

// "2 tables with 1,234 rows". Empty: the checkpoint has no embedding tables.
std::string DescribeTables(const CheckpointReader& reader) {
  const size_t tables = reader.NumTables();
  if (tables == 0) return "";
  uint64_t rows = 0;
  for (size_t i = 0; i < tables; ++i) rows += reader.RowsOf(i);
  return absl::StrCat(tables, tables == 1 ? " table with " : " tables with ", FormatCount(rows), " rows");
}

}  // namespace

int RunCheckpointTake(const ClusterFlags& cluster) {
  const absl::StatusOr<std::string> address = CoordinatorAddress(cluster);
  if (!address.ok()) {
    return Refuse(absl::IsInvalidArgument(address.status()) ? kExitUsage : kExitConfig,
                  address.status().message());
  }
  const absl::StatusOr<JobToken> token = JobToken::ReadIfGiven(cluster.token_file);
  if (!token.ok()) return Refuse(token.status());
  const auto tls = Tls::ReadIfGiven(cluster.tls);
  if (!tls.ok()) return Refuse(tls.status());
  StatusClient client(*address, *token, *tls);
  // A short call shows whether a coordinator answers at all; the checkpoint takes its time.
  const auto status = client.Get(absl::Seconds(5));
  if (!status.ok()) {
    const Refusal refusal = ExplainNoAnswer(*address, status.status(), tls->get());
    return Refuse(refusal.exit_code, refusal.message);
  }
  const auto taken = client.TakeCheckpoint(kTakeDeadline);
  if (!taken.ok()) {
    const bool refused =
        absl::IsFailedPrecondition(taken.status()) || absl::IsPermissionDenied(taken.status());
    return Refuse(refused ? kExitConfig : kExitPeerLost,
                  absl::StrCat("no checkpoint: ", taken.status().message()));
  }
  Print(absl::StrCat(taken->directory(), "  (step ", FormatCount(taken->step()), ")"));
  return kExitOk;
}

int RunCheckpointList(const std::string& directory) {
  FileSystem& files = AnyStorage();
  const auto entries = FindCheckpoints(files, directory);
  if (!entries.ok()) return Refuse(entries.status());
  if (entries->empty()) return Refuse(kExitConfig, absl::StrCat(directory, ": no checkpoints are there"));
  // The newest manifest says which is the best; damaged ones say nothing.
  std::optional<v1::BestEpoch> best;
  if (const auto newest = LatestComplete(files, directory);
      newest.ok() && newest->manifest.job().has_best()) {
    best = newest->manifest.job().best();
  }
  Table table({"checkpoint", "step", "servers", "size", "state"});
  table.AlignLeft(4);
  for (const CheckpointEntry& entry : *entries) {
    const std::string name = Printable(entry.folder.substr(entry.folder.rfind('/') + 1));
    const std::string step = FormatCount(entry.step);
    if (!entry.has_manifest) {
      table.AddRow({name, step, "-", "-", "incomplete"});
      continue;
    }
    if (entry.damaged) {
      table.AddRow(
          {name, step, "-", "-", absl::StrCat("damaged: ", Printable(WhyMarked(files, entry.folder)))});
      continue;
    }
    const auto found = ResolveCheckpoint(files, entry.folder);
    // That a store cannot be read now says nothing about the checkpoint.
    if (absl::IsUnavailable(found.status()) || absl::IsPermissionDenied(found.status())) {
      return Refuse(found.status());
    }
    if (!found.ok()) {
      const char* const state = absl::IsUnimplemented(found.status()) ? "newer: " : "damaged: ";
      table.AddRow({name, step, "-", "-", absl::StrCat(state, Printable(found.status().message()))});
      continue;
    }
    std::string state = "complete";
    if (const int chain = found->manifest.chain_size(); chain > 0) {
      absl::StrAppend(&state, ", on ", chain, " before");
    }
    if (best.has_value() && best->checkpoint() == entry.step) {
      absl::StrAppend(&state, ", best (epoch ", best->evaluation().epoch(), ")");
    }
    table.AddRow({name, step, absl::StrCat(found->manifest.num_shards()),
                  FormatBytes(CheckpointBytes(found->manifest)), state});
  }
  std::fputs(table.ToString().c_str(), stdout);
  std::fflush(stdout);
  return kExitOk;
}

int RunCheckpointVerify(const std::string& path) {
  std::string folder;
  const auto reader = OpenCheckpoint(path, &folder);
  if (!reader.ok()) return Refuse(reader.status());
  if (const absl::Status status = reader->Verify(); !status.ok()) return Refuse(status);
  const v1::CheckpointManifest& manifest = reader->manifest();
  const size_t count = CountFiles(manifest);
  const std::string tables = DescribeTables(*reader);
  Print(absl::StrCat(
      folder, ": ok (step ", FormatCount(manifest.step()), ", ", count, count == 1 ? " file, " : " files, ",
      tables, tables.empty() ? "" : ", ", FormatBytes(CheckpointBytes(manifest)),
      manifest.chain().empty() ? ""
                               : absl::StrCat(", and what it needs of ", manifest.chain_size(), " before"),
      ")"));
  return kExitOk;
}

int RunExport(const std::string& path, const std::string& out, const std::string& with) {
  std::string folder;
  auto reader = OpenCheckpoint(path, &folder);
  if (!reader.ok()) return Refuse(reader.status());
  absl::StatusOr<size_t> added = reader->Export(out, with);
  // OUT's folder may be what is missing.
  const bool damaged = IsDamage(added.status()) && !reader->Verify().ok();
  if (damaged && IsFolderOfCheckpoints(AnyStorage(), path)) {
    std::fprintf(stderr, "warning: passed over: %s\n", Printable(added.status().message()).c_str());
    reader = OpenWholeBefore(path, reader->manifest().step(), &folder);
    if (!reader.ok()) return Refuse(reader.status());
    added = reader->Export(out, with);
  }
  if (!added.ok()) return Refuse(added.status());
  const std::string tables = DescribeTables(*reader);
  Print(absl::StrCat(out, ": ", reader->manifest().model().tensors_size(), " tensors",
                     tables.empty() ? "" : " and ", tables, " of ", folder,
                     with.empty() ? "" : absl::StrCat(", and ", *added, " of ", with)));
  return kExitOk;
}

}  // namespace weir
