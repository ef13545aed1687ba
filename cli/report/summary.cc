#include "cli/report/summary.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/report/format.h"
#include "cli/report/status_text.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace weir {
namespace {

using Json = nlohmann::ordered_json;

// Reads fields of a summary. The first field that is missing or of the wrong kind becomes the status.
class Reader {
 public:
  explicit Reader(const Json& root) : root_(root) {}

  template <typename T>
  void Read(const char* path, T* out) {
    const Json* value = Find(path);
    bool fits;
    if constexpr (std::is_same_v<T, std::string>) {
      fits = value != nullptr && value->is_string();
    } else if constexpr (std::is_same_v<T, bool>) {
      fits = value != nullptr && value->is_boolean();
    } else if constexpr (std::is_integral_v<T>) {
      fits = value != nullptr && value->is_number_unsigned() &&
             value->get<uint64_t>() <= std::numeric_limits<T>::max();
    } else {
      fits = value != nullptr && value->is_number();
    }
    if (fits) {
      *out = value->get<T>();
    } else if (status_.ok()) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat("field ", path, ": ", value == nullptr ? "is missing" : "is " + value->dump()));
    }
  }

  // null: the value is unknown.
  template <typename T>
  void ReadIfKnown(const char* path, std::optional<T>* out) {
    if (IsKnown(path)) Read(path, &out->emplace());
  }
  void ReadIfKnown(const char* path, std::string* out) {
    if (IsKnown(path) || !Has(path)) Read(path, out);
  }
  // An object of numbers, which servers of earlier versions did not write.
  void ReadNumbers(const char* path, std::map<std::string, double>* out) {
    const Json* const value = Find(path);
    if (value == nullptr) return;
    const bool fits = value->is_object() && std::all_of(value->begin(), value->end(),
                                                        [](const Json& of) { return of.is_number(); });
    if (fits) {
      *out = value->get<std::map<std::string, double>>();
    } else if (status_.ok()) {
      status_ = absl::InvalidArgumentError(absl::StrCat("field ", path, ": is ", value->dump()));
    }
  }
  // Servers of earlier versions did not write all fields.
  bool Has(const char* path) const { return Find(path) != nullptr; }
  bool IsKnown(const char* path) const {
    const Json* const value = Find(path);
    return value != nullptr && !value->is_null();
  }

  // The size of an array; 0 also if there is none.
  size_t Count(const char* path) const {
    const Json* const value = Find(path);
    return value != nullptr && value->is_array() ? value->size() : 0;
  }

  const absl::Status& status() const { return status_; }

 private:
  const Json* Find(const char* path) const {
    const Json::json_pointer pointer(path);
    return root_.contains(pointer) ? &root_.at(pointer) : nullptr;
  }

  const Json& root_;
  absl::Status status_;
};

// "1 server came back, 17 pushes lost; started again: ps:1 (2 times)"; "": there were none. A coordinator
// counts from its own start, so a ps:0 that was started again has not counted all.
std::string Faults(const JobSummary& s) {
  std::vector<std::string> restarts;
  for (const auto& [task, times] : s.restarts) {
    restarts.push_back(times == 1 ? task : absl::StrCat(task, " (", times, " times)"));
  }
  std::vector<std::string> faults;
  if (s.recoveries > 0) {
    faults.push_back(Counted(s.recoveries, "server") + " came back");
  }
  if (s.lost_pushes > 0) faults.push_back(absl::StrCat(FormatCount(s.lost_pushes), " pushes lost"));
  if (!restarts.empty()) faults.push_back(absl::StrCat("started again: ", absl::StrJoin(restarts, ", ")));
  return absl::StrJoin(faults, "; ");
}

// "3: test loss 0.1234, accuracy 97.50%".
std::string Epoch(const JobSummary::Evaluation& e) {
  if (!e.step.has_value()) return absl::StrCat(e.epoch, ": not evaluated");
  return absl::StrCat(
      e.epoch, e.validation.value_or(false) ? ": validation loss " : ": test loss ",
      e.test_loss.has_value() ? FormatLoss(*e.test_loss) : "not finite",
      e.test_accuracy.has_value() ? absl::StrCat(", accuracy ", FormatPercent(*e.test_accuracy)) : "",
      e.test_auc.has_value() ? absl::StrCat(", AUC ", FormatLoss(*e.test_auc)) : "");
}

// The newest kEpochs evaluations, and a line for the others.
std::vector<std::string> Epochs(const JobSummary& s) {
  constexpr size_t kEpochs = 10;
  std::vector<std::string> rows;
  const size_t skipped = s.evaluations.size() > kEpochs ? s.evaluations.size() - kEpochs : 0;
  if (skipped > 0) rows.push_back(absl::StrCat(FormatCount(skipped), " earlier ones: see --summary=FILE"));
  for (size_t i = skipped; i < s.evaluations.size(); ++i) rows.push_back(Epoch(s.evaluations[i]));
  return rows;
}

JobSummary::Evaluation ReadEvaluation(const std::string& path, Reader* reader) {
  JobSummary::Evaluation evaluation;
  reader->Read((path + "/epoch").c_str(), &evaluation.epoch);
  reader->ReadIfKnown((path + "/step").c_str(), &evaluation.step);
  reader->ReadIfKnown((path + "/test_loss").c_str(), &evaluation.test_loss);
  reader->ReadIfKnown((path + "/test_accuracy").c_str(), &evaluation.test_accuracy);
  reader->ReadIfKnown((path + "/test_auc").c_str(), &evaluation.test_auc);
  reader->ReadIfKnown((path + "/validation").c_str(), &evaluation.validation);
  return evaluation;
}

}  // namespace

absl::StatusOr<JobSummary> ParseSummary(const std::string& server_json) {
  const Json root = Json::parse(server_json, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) return absl::InvalidArgumentError("is not a JSON object");
  JobSummary s;
  Reader reader(root);
  reader.Read("/mode", &s.mode);
  reader.ReadIfKnown("/staleness_bound", &s.staleness_bound);
  reader.ReadIfKnown("/parts", &s.parts);
  reader.Read("/ps", &s.ps);
  reader.Read("/workers", &s.workers);
  reader.Read("/steps", &s.steps);
  reader.Read("/pushes", &s.pushes);
  reader.Read("/examples", &s.examples);
  reader.Read("/wall_seconds", &s.wall_seconds);
  reader.Read("/examples_per_second", &s.examples_per_second);
  reader.ReadIfKnown("/train_loss", &s.train_loss);
  reader.ReadIfKnown("/test_accuracy", &s.test_accuracy);
  reader.ReadIfKnown("/test_auc", &s.test_auc);
  reader.ReadIfKnown("/test_loss", &s.test_loss);
  for (size_t i = 0; i < reader.Count("/evaluations"); ++i) {
    s.evaluations.push_back(ReadEvaluation(absl::StrCat("/evaluations/", i), &reader));
  }
  if (reader.IsKnown("/best")) {
    s.best = ReadEvaluation("/best", &reader);
    reader.Read("/best/checkpoint", &s.best_checkpoint);
  }
  reader.ReadNumbers("/metrics", &s.metrics);
  if (reader.Has("/stopped_early")) reader.ReadIfKnown("/stopped_early", &s.stopped_early);
  reader.Read("/version_staleness/p50", &s.version_staleness_p50);
  reader.Read("/version_staleness/p99", &s.version_staleness_p99);
  reader.Read("/version_staleness/max", &s.version_staleness_max);
  reader.Read("/lead/p50", &s.lead_p50);
  reader.Read("/lead/max", &s.lead_max);
  reader.Read("/bytes_pushed", &s.bytes_pushed);
  reader.Read("/bytes_pulled", &s.bytes_pulled);
  reader.ReadIfKnown("/weights_sha256", &s.weights_sha256);
  if (reader.Has("/tables_sha256")) reader.ReadIfKnown("/tables_sha256", &s.tables_sha256);
  reader.Read("/checkpoint", &s.checkpoint);
  reader.Read("/recoveries", &s.recoveries);
  reader.Read("/lost_pushes", &s.lost_pushes);
  reader.Read("/pushes_refused", &s.pushes_refused);
  if (reader.Has("/failure")) reader.Read("/failure", &s.failure);
  if (!reader.status().ok()) return reader.status();
  s.server_json = server_json;
  return s;
}

std::string SummaryJson(const JobSummary& summary) {
  Json root = Json::parse(summary.server_json, nullptr, /*allow_exceptions=*/false);
  root["total_seconds"] = summary.total_seconds;
  root["exit_codes"] = summary.exit_codes;
  root["restarts"] = summary.restarts;
  return root.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string SummaryText(const std::string& name, const JobSummary& s) {
  std::string out = absl::StrCat(Printable(name), ": ", ModeName(s.mode, s.staleness_bound.value_or(0)), ", ",
                                 s.parts.has_value() ? Counted(*s.parts, "part") + " a step, " : "",
                                 Counted(s.ps, "server"), ", ", Counted(s.workers, "worker"), "\n");
  const auto line = [&](absl::string_view title, absl::string_view value) {
    absl::StrAppend(&out, absl::StrFormat("  %-18s", title), value, "\n");
  };
  const auto kept = [&] {
    if (!s.stopped_early.empty()) line("stopped early", Printable(s.stopped_early));
    if (!s.best.has_value()) return;
    line("best epoch", Epoch(*s.best));
    line("", Printable(s.best_checkpoint));
  };
  if (!s.failure.empty()) line("failed", Printable(s.failure));
  if (s.bytes_pushed == 0 && s.bytes_pulled == 0) {
    line("steps", absl::StrCat(FormatCount(s.steps), ", all done before: nothing was left to do"));
    kept();
    if (!s.checkpoint.empty()) line("checkpoint", Printable(s.checkpoint));
    return out;
  }
  if (s.test_accuracy.has_value()) line("test accuracy", FormatPercent(*s.test_accuracy));
  if (s.test_auc.has_value()) line("test AUC", FormatLoss(*s.test_auc));
  if (s.test_loss.has_value()) line("test loss", FormatLoss(*s.test_loss));
  const bool tested = s.test_accuracy.has_value() || s.test_auc.has_value() || s.test_loss.has_value();
  if (!tested && s.weights_sha256.empty()) line("test", "not evaluated");
  const std::vector<std::string> epochs = Epochs(s);
  for (size_t i = 0; i < epochs.size(); ++i) line(i == 0 ? "epochs" : "", epochs[i]);
  kept();
  bool first = true;
  for (const auto& [metric, value] : s.metrics) {
    line(std::exchange(first, false) ? "logged" : "", absl::StrFormat("%s %.6g", Printable(metric), value));
  }
  line("train loss", s.train_loss.has_value() ? FormatLoss(*s.train_loss) : "not known");
  line("steps",
       absl::StrCat(FormatCount(s.steps), " (", FormatCount(s.pushes), " pushes, ",
                    s.pushes_refused > 0 ? absl::StrCat(FormatCount(s.pushes_refused), " refused, ") : "",
                    FormatCount(s.examples), " examples)"));
  line("time",
       absl::StrCat(FormatSeconds(s.wall_seconds), " of training at ", FormatRate(s.examples_per_second),
                    " examples/s; ", FormatSeconds(s.total_seconds), " in all"));
  line("version staleness", absl::StrCat("p50 ", s.version_staleness_p50, ", p99 ", s.version_staleness_p99,
                                         ", max ", s.version_staleness_max));
  line("lead", absl::StrCat("p50 ", s.lead_p50, ", max ", s.lead_max, " clocks"));
  line("traffic",
       absl::StrCat(FormatBytes(s.bytes_pushed), " pushed, ", FormatBytes(s.bytes_pulled), " pulled"));
  if (const std::string faults = Faults(s); !faults.empty()) line("faults", faults);
  if (!s.checkpoint.empty()) line("checkpoint", Printable(s.checkpoint));
  line("weights", s.weights_sha256.empty() ? "no worker read them at the end"
                                           : absl::StrCat("sha256 ", Printable(s.weights_sha256)));
  if (!s.tables_sha256.empty()) line("tables", absl::StrCat("sha256 ", Printable(s.tables_sha256)));
  return out;
}

absl::Status WriteFileWhole(const std::string& path, const std::string& content) {
  struct stat there;
  const bool special = lstat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode);
  // /dev/stdout and the like are written to, not replaced.
  const std::string target = special ? path : absl::StrCat(path, ".", getpid(), ".tmp");
  std::FILE* file = std::fopen(target.c_str(), "we");
  if (file == nullptr) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  const bool written = std::fwrite(content.data(), 1, content.size(), file) == content.size();
  // close() closes the file even if it fails. A full disk may show only here.
  if (std::fclose(file) == 0 && written && (special || rename(target.c_str(), path.c_str()) == 0)) {
    return absl::OkStatus();
  }
  const int error = errno;
  if (!special) unlink(target.c_str());
  return absl::ErrnoToStatus(error, absl::StrCat("cannot write ", path));
}

absl::Status PrepareFile(const std::string& path) {
  WEIR_RETURN_IF_ERROR(WriteFileWhole(path, ""));
  struct stat there;
  if (lstat(path.c_str(), &there) == 0 && S_ISREG(there.st_mode)) unlink(path.c_str());
  return absl::OkStatus();
}

}  // namespace weir
