#include "ps_server/process/event_file.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/checksums.h"
#include "common/base/status_macros.h"
#include "common/config/written_text.h"
#include "proto/tensorboard.pb.h"

namespace weir {
namespace {

// As TFRecord has it, so that data with checksums inside have no checksum of their own (TensorFlow,
// record_writer.h).
uint32_t MaskedCrc(absl::string_view data) {
  const uint32_t crc = Crc32c(data);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

template <typename Int>
std::string LittleEndian(Int value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof value; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
  return bytes;
}

// Length, its checksum, the event, its checksum.
std::string Record(const tensorboard::Event& event) {
  const std::string data = event.SerializeAsString();
  const std::string length = LittleEndian(uint64_t{data.size()});
  return absl::StrCat(length, LittleEndian(MaskedCrc(length)), data, LittleEndian(MaskedCrc(data)));
}

// An event of a step, to which values are added.
class Values {
 public:
  Values(uint64_t step, absl::Time now) {
    event_.set_wall_time(absl::ToDoubleSeconds(now - absl::UnixEpoch()));
    event_.set_step(static_cast<int64_t>(step));
  }
  void Add(absl::string_view tag, bool known, double value) {
    if (!known) return;
    tensorboard::Summary::Value& added = *event_.mutable_summary()->add_value();
    added.set_tag(std::string(tag));
    added.set_simple_value(static_cast<float>(value));
  }
  void Add(absl::string_view group, const v1::Distribution& counts) {
    const bool known = counts.count() > 0;
    Add(absl::StrCat(group, "/p50"), known, static_cast<double>(counts.p50()));
    Add(absl::StrCat(group, "/p99"), known, static_cast<double>(counts.p99()));
    Add(absl::StrCat(group, "/max"), known, static_cast<double>(counts.max()));
  }
  // "" if there is none.
  std::string ToRecord() const { return event_.has_summary() ? Record(event_) : ""; }

 private:
  tensorboard::Event event_;
};

std::string OfEvaluation(uint64_t step, bool has_loss, double loss, bool has_accuracy, double accuracy,
                         bool has_auc, double auc, absl::Time now) {
  Values values(step, now);
  values.Add("evaluation/loss", has_loss, loss);
  values.Add("evaluation/accuracy", has_accuracy, accuracy);
  values.Add("evaluation/auc", has_auc, auc);
  return values.ToRecord();
}

std::string OfTraining(const v1::ClusterStatus& status, absl::Time now) {
  Values values(status.step(), now);
  values.Add("train/loss", status.has_train_loss(), status.train_loss());
  values.Add("train/examples_per_second", true, status.examples_per_second());
  values.Add("train/examples", true, static_cast<double>(status.examples()));
  values.Add("staleness", status.version_staleness());
  values.Add("lead", status.lead());
  values.Add("workers/live", true, status.membership().members_size());
  values.Add("workers/utilization", status.has_worker_utilization(), status.worker_utilization());
  for (const v1::LoggedMetric& metric : status.metrics()) {
    values.Add(absl::StrCat("log/", metric.name()), true, metric.last());
  }
  values.Add("pushes/refused", true, static_cast<double>(status.pushes_refused()));
  values.Add("pushes/lost", true, static_cast<double>(status.lost_pushes()));
  return values.ToRecord();
}

}  // namespace

absl::StatusOr<std::unique_ptr<EventFile>> EventFile::Create(FileSystem* files, const std::string& folder,
                                                             absl::Time now) {
  if (IsObjectPath(folder)) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, " is in object storage, where no file can grow: name a folder on a disk"));
  }
  for (size_t end = folder.find('/', 1);; end = folder.find('/', end + 1)) {
    const absl::Status made = files->MakeFolder(folder.substr(0, end));
    if (!made.ok() && end == std::string::npos) return made;
    if (end == std::string::npos) break;
  }
  std::unique_ptr<EventFile> result(new EventFile(files, folder));
  WEIR_RETURN_IF_ERROR(result->Open(now));
  return result;
}

absl::Status EventFile::Open(absl::Time now) {
  char host[256] = "host";
  gethostname(host, sizeof host - 1);
  // The name that TensorBoard looks for, and files of one folder that differ.
  const std::string path = absl::StrFormat("%s/events.out.tfevents.%010d.%s.%d.weir", folder_,
                                           absl::ToUnixSeconds(now), host, getpid());
  WEIR_ASSIGN_OR_RETURN(file_, files_.Create(path));
  tensorboard::Event first;
  first.set_wall_time(absl::ToDoubleSeconds(now - absl::UnixEpoch()));
  first.set_file_version("brain.Event:2");
  return file_->Append(Record(first));
}

absl::Status EventFile::Write(const v1::ClusterStatus& status, absl::Time now) {
  std::string records;
  for (const v1::EpochEvaluation& epoch : status.evaluations()) {
    if (epoch.epoch() <= epoch_ || !epoch.has_step()) continue;
    absl::StrAppend(&records, OfEvaluation(epoch.step(), epoch.has_test_loss(), epoch.test_loss(),
                                           epoch.has_test_accuracy(), epoch.test_accuracy(),
                                           epoch.has_test_auc(), epoch.test_auc(), now));
  }
  if (status.examples() != examples_) absl::StrAppend(&records, OfTraining(status, now));
  const v1::Evaluation& last = status.evaluation();
  // Jobs that evaluate epochs have the same result among those.
  if (last.final() && last.examples() > 0 && !evaluated_ && status.evaluations().empty()) {
    absl::StrAppend(&records, OfEvaluation(status.step(), true, last.test_loss(), last.test_accuracy() >= 0,
                                           last.test_accuracy(), last.has_test_auc(), last.test_auc(), now));
  }
  if (!records.empty()) WEIR_RETURN_IF_ERROR(file_->Append(records));
  examples_ = status.examples();
  evaluated_ = last.final();
  if (!status.evaluations().empty()) epoch_ = status.evaluations().rbegin()->epoch();
  return absl::OkStatus();
}

void EventFile::Add(const v1::ClusterStatus& status, absl::Time now) {
  if (file_ == nullptr && !retry_.Over(now)) return;
  absl::Status written = file_ == nullptr ? Open(now) : absl::OkStatus();
  if (written.ok()) written = Write(status, now);
  if (written.ok()) return;
  file_.reset();
  retry_.Begin(now);
  LogWarning("TensorBoard lacks what the job does now: ", written.message(), "; tried again in a minute");
}

}  // namespace weir
