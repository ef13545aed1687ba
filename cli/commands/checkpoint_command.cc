// `weir checkpoint take`, `list` and `verify`, `weir export`, and `weir replay`: work with checkpoints from
// outside the job.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/commands/grpc_status_client.h"
#include "cli/installation/installation.h"
#include "cli/report/format.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/object_store/object_file_system.h"
#include "common/program/exit_codes.h"

namespace weir {
namespace {

// Writing may take as long as the disk does; the coordinator says when it has failed.
constexpr absl::Duration kTakeDeadline = absl::Minutes(30);

int PrintLine(absl::string_view line) { return Print(Printable(line) + "\n"); }

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
  return absl::StrCat(Counted(tables, "table"), " with ", FormatCount(rows), " rows");
}

int RunCheckpointTake(const ClusterFlags& cluster) {
  RunningJob job;
  // A short call shows whether a coordinator answers at all; the checkpoint takes its time.
  if (const int refused = AskJob(cluster, &job); refused != kExitOk) return refused;
  const auto taken = StatusClient(job.address, job.token, job.tls).TakeCheckpoint(kTakeDeadline);
  if (!taken.ok()) {
    const bool refused =
        absl::IsFailedPrecondition(taken.status()) || absl::IsPermissionDenied(taken.status());
    return Refuse(refused ? kExitConfig : kExitPeerLost,
                  absl::StrCat("no checkpoint: ", Printable(taken.status().message())));
  }
  return PrintLine(absl::StrCat(taken->directory(), "  (step ", FormatCount(taken->step()), ")"));
}

int RunCheckpointList(const std::string& directory) {
  FileSystem& files = AnyStorage();
  const auto entries = FindCheckpoints(files, directory);
  if (!entries.ok()) return RefuseCheckpoint(entries.status());
  if (entries->empty())
    return Refuse(kExitConfig, absl::StrCat(Printable(directory), ": no checkpoints are there"));
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
      return RefuseCheckpoint(found.status());
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
  return Print(table.ToString());
}

int RunCheckpointVerify(const std::string& path) {
  std::string folder;
  const auto reader = OpenCheckpoint(path, &folder);
  if (!reader.ok()) return RefuseCheckpoint(reader.status());
  if (const absl::Status status = reader->Verify(); !status.ok()) return RefuseCheckpoint(status);
  const v1::CheckpointManifest& manifest = reader->manifest();
  const size_t count = CountFiles(manifest);
  const std::string tables = DescribeTables(*reader);
  return PrintLine(absl::StrCat(
      folder, ": ok (step ", FormatCount(manifest.step()), ", ", Counted(count, "file"), ", ", tables,
      tables.empty() ? "" : ", ", FormatBytes(CheckpointBytes(manifest)),
      manifest.chain().empty() ? ""
                               : absl::StrCat(", and what it needs of ", manifest.chain_size(), " before"),
      ")"));
}

int RunExport(const std::string& path, const std::string& out, const std::string& with) {
  std::string folder;
  auto reader = OpenCheckpoint(path, &folder);
  if (!reader.ok()) return RefuseCheckpoint(reader.status());
  absl::StatusOr<size_t> added = reader->Export(out, with);
  // OUT's folder may be what is missing.
  const bool damaged = IsDamage(added.status()) && !reader->Verify().ok();
  if (damaged && IsFolderOfCheckpoints(AnyStorage(), path)) {
    std::fprintf(stderr, "warning: passed over: %s\n", Printable(added.status().message()).c_str());
    reader = OpenCheckpoint(FindWholeBefore(AnyStorage(), path, reader->manifest().step()), &folder);
    if (!reader.ok()) return RefuseCheckpoint(reader.status());
    added = reader->Export(out, with);
  }
  if (!added.ok()) return RefuseCheckpoint(added.status());
  const std::string tables = DescribeTables(*reader);
  return PrintLine(absl::StrCat(out, ": ", reader->manifest().model().tensors_size(), " tensors",
                                tables.empty() ? "" : " and ", tables, " of ", folder,
                                with.empty() ? "" : absl::StrCat(", and ", *added, " of ", with)));
}

constexpr const char* kCheckpointExamples = R"(Examples:
  weir checkpoint take --address=127.0.0.1:2222
  weir checkpoint list runs/digits
  weir checkpoint verify runs/digits/step-00001200)";

constexpr const char* kExportExamples = R"(Examples:
  weir export runs/digits digits.safetensors
  weir export runs/model model.safetensors --with=initial.safetensors)";

constexpr const char* kReplayExamples = R"(Examples:
  weir replay runs/digits)";

}  // namespace

void AddCheckpointCommands(Commands& commands) {
  CLI::App* group = commands.AddGroup("checkpoint", "Take, list or verify checkpoints", kCheckpointExamples);

  const auto cluster = std::make_shared<ClusterFlags>();
  CLI::App* take = group->add_subcommand("take", "Have a running job take a checkpoint now, and wait for it");
  AddCluster(take, cluster.get());
  commands.OnRun(take, [cluster] { return RunCheckpointTake(*cluster); });

  const auto path = std::make_shared<std::string>();
  CLI::App* list = group->add_subcommand("list", "List the checkpoints in a folder");
  AddCheckpoint(list, path.get(), "The folder (checkpoint.directory)");
  commands.OnRun(list, [path] { return RunCheckpointList(*path); });

  CLI::App* verify = group->add_subcommand("verify", "Check all bytes of a checkpoint against its checksums");
  AddCheckpoint(verify, path.get(), kOneCheckpoint);
  commands.OnRun(verify, [path] { return RunCheckpointVerify(*path); });
}

void AddExportCommand(Commands& commands) {
  struct Options {
    std::string checkpoint, out, with;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* command =
      commands.Add("export", "Write the weights of a checkpoint into one safetensors file", kExportExamples);
  AddCheckpoint(command, &options->checkpoint, kOneCheckpoint);
  AddNamed(command, "out", &options->out, "FILE", "The file to write")->required();
  AddNamed(command, "--with", &options->with, "FILE",
           "A safetensors file of the program's model, whose tensors are added where the checkpoint has "
           "none of the name: frozen parameters and constants");
  commands.OnRun(command, [options] { return RunExport(options->checkpoint, options->out, options->with); });
}

void AddReplayCommand(Commands& commands) {
  const auto path = std::make_shared<std::string>();
  CLI::App* command = commands.Add(
      "replay", "Compute the weights of a bounded or async job again from its logs, and print their SHA-256",
      kReplayExamples);
  AddCheckpoint(command, path.get(), "The job's folder of checkpoints (checkpoint.directory)");
  commands.OnRun(command, [command, path] {
    return BecomeProgram("ps_server", "ps_server", {"--replay", *path}, command->help());
  });
}

}  // namespace weir
