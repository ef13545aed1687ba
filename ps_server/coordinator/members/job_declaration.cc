#include "ps_server/coordinator/members/job_declaration.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/config/address.h"
#include "common/config/job_config.h"
#include "common/config/server_memory.h"
#include "common/model/wire_model.h"
#include "common/protocol/handshake.h"

namespace weir {
namespace {

constexpr int kMost = 16;
constexpr size_t kLongestName = 64, kLongestValue = 128;

// The text goes into messages and the log.
bool IsPrintable(absl::string_view text, size_t longest, unsigned char first = ' ') {
  return !text.empty() && text.size() <= longest &&
         std::all_of(text.begin(), text.end(), [first](unsigned char c) { return c >= first && c != 0x7f; });
}

absl::Status CheckText(int index, absl::string_view field, absl::string_view text, size_t longest) {
  if (IsPrintable(text, longest)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("fingerprints[", index, "].", field, ": must be 1 to ",
                                                 longest, " printable bytes; got ", text.size(), " bytes"));
}

// Limits of a Join. A job has at most 1024 workers.
constexpr size_t kMaxTaskName = 128;
constexpr uint64_t kMaxExamples = uint64_t{1} << 40;

absl::Status CheckTaskName(const std::string& task) {
  if (IsPrintable(task, kMaxTaskName, /*first=*/'!')) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("task: must be 1 to ", kMaxTaskName,
                                                 " bytes without spaces, such as worker:1; got ", task.size(),
                                                 " bytes"));
}

bool IsWorker(const v1::JoinRequest& request) { return request.role() == v1::WORKER; }

}  // namespace

void JobDeclaration::Restore() {
  const v1::CheckpointManifest& newest = *checkpoints_.newest();
  if (absl::StatusOr<ModelSpec> model = FromProto(newest.model()); model.ok()) SetModel(*std::move(model));
  SetSize(SizeWith(newest.job().train_examples()));
}

absl::Status JobDeclaration::Join(const v1::JoinRequest& request) {
  ModelSpec model;
  if (absl::Status status = Check(request, &model); !status.ok()) {
    if (refusals_.Due(job_.now())) {
      LogWarning("refused a Join: ", status.message(),
                 refusals_.left_out() > 0
                     ? absl::StrCat(" (and ", refusals_.left_out(), " since the last line)")
                     : "");
    }
    return status;
  }
  if (AddressesOpen()) {
    shards_.Readdress({request.ps_addresses().begin(), request.ps_addresses().end()});
  }
  if (IsWorker(request) || !model_.has_value()) SetModel(std::move(model));
  if (!IsWorker(request)) return absl::OkStatus();
  if (size_.batches == 0) SetSize(SizeWith(request.train_examples()));
  for (const v1::Fingerprint& given : request.fingerprints()) {
    fingerprints_.try_emplace(given.name(), Fingerprint{given.value(), request.task()});
  }
  return absl::OkStatus();
}

absl::Status JobDeclaration::Check(const v1::JoinRequest& request, ModelSpec* model) const {
  // The task is checked first, since messages name it.
  WEIR_RETURN_IF_ERROR(CheckTaskName(request.task()));
  WEIR_RETURN_IF_ERROR(CheckProtocol(request.task(), request.protocol(), "ps:0"));
  if (request.role() != v1::WORKER && request.role() != v1::READER) {
    return absl::InvalidArgumentError(
        absl::StrCat("role: ", request.role(), " is not one of WORKER, READER"));
  }
  if (WaitsForEvaluations(job_.config.evaluation()) && !WaitsAtWorkEnd(request.protocol())) {
    return absl::FailedPreconditionError(
        absl::StrCat(request.task(), " speaks version ", ToString(request.protocol()),
                     " of the protocol, and evaluation.keep_best and evaluation.patience need 1.3: upgrade ",
                     request.task()));
  }
  if (IsWorker(request) && !request.evaluates() && WaitsForEvaluations(job_.config.evaluation())) {
    return absl::FailedPreconditionError(absl::StrCat(
        "evaluation.", job_.config.evaluation().keep_best() ? "keep_best" : "patience",
        " needs evaluations, and ", request.task(),
        " can make none: `worker` needs data.test or data.validation, a Python program a function "
        "(weir.torch.Optimizer(..., evaluate=f), Client.steps(evaluate=f)), another program "
        "ClientOptions::evaluates. Give that, or take the field out"));
  }
  if (IsWorker(request) && request.rank() >= job_.workers) {
    return absl::InvalidArgumentError(absl::StrCat("rank: ", request.task(), " has rank ", request.rank(),
                                                   "; the job has ", job_.workers,
                                                   " workers (cluster.workers, or the cluster spec)"));
  }
  WEIR_RETURN_IF_ERROR(members_.CheckRoom(request));
  v1::JobConfig config;
  if (!config.ParseFromString(request.job_config()))
    return absl::InvalidArgumentError("job_config does not parse");
  if (std::string difference = FirstDifference(job_.config, config); !difference.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the config of ", request.task(), " differs from that of ps:0: ", difference));
  }
  WEIR_RETURN_IF_ERROR(CheckAddresses(request));
  v1::Model declared;
  if (!declared.ParseFromString(request.model())) return absl::InvalidArgumentError("model does not parse");
  WEIR_ASSIGN_OR_RETURN(*model, FromProto(declared));
  WEIR_RETURN_IF_ERROR(CheckModel(request, *model));
  if (!IsWorker(request)) return absl::OkStatus();
  WEIR_RETURN_IF_ERROR(CheckSize(request));
  return CheckFingerprints(request);
}

absl::Status JobDeclaration::CheckAddresses(const v1::JoinRequest& request) const {
  const int count = request.ps_addresses_size();
  if (count == 0) return absl::InvalidArgumentError("ps_addresses: needs at least one");
  if (count > kMaxServers) {
    return absl::InvalidArgumentError(
        absl::StrCat("ps_addresses: ", count, " servers; at most ", kMaxServers, " are allowed"));
  }
  if (const size_t known = shards_.addresses().size(); !AddressesOpen() && count != static_cast<int>(known)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the cluster spec of ", request.task(), " lists ", count, " servers; ",
                     knows_servers_ ? "that of ps:0" : DeclaredBy(/*worker=*/false), " lists ", known));
  }
  std::set<std::string> seen;
  for (int i = 0; i < count; ++i) {
    const std::string& address = request.ps_addresses(i);
    if (const auto parsed = ParseAddress(address); !parsed.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("ps_addresses[", i, "]: ", parsed.status().message()));
    }
    if (!seen.insert(address).second) {
      return absl::InvalidArgumentError(absl::StrCat("ps_addresses[", i, "]: ", address, " is listed twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status JobDeclaration::CheckModel(const v1::JoinRequest& request, const ModelSpec& model) const {
  const auto differs = [&](bool worker, const std::string& how) {
    return absl::FailedPreconditionError(
        absl::StrCat("the model of ", request.task(), " differs from ", DeclaredBy(worker), ": ", how));
  };
  if (model_.has_value()) {
    if (const std::string how = model_->FirstDifference(model); !how.empty()) return differs(false, how);
  }
  // Only workers say where the initial values come from, and it matters until the job has some.
  if (IsWorker(request) && size_.batches != 0 && !checkpoints_.any() &&
      model.uploaded() != model_->uploaded()) {
    const auto source = [](bool uploaded) { return uploaded ? "a worker uploads" : "the servers make"; };
    return differs(true, absl::StrCat("expected initial values that ", source(model_->uploaded()),
                                      ", got such that ", source(model.uploaded())));
  }
  const uint32_t shards =
      ServersWithPart(job_.config, model.elements(), static_cast<uint32_t>(request.ps_addresses_size()));
  return CheckServerMemory(job_.config, job_.workers, model.elements(), shards, memory_bytes_);
}

absl::Status JobDeclaration::CheckSize(const v1::JoinRequest& request) const {
  const uint64_t examples = request.train_examples();
  if (examples == 0) return absl::InvalidArgumentError("train_examples: a worker needs at least one");
  if (examples > kMaxExamples) {
    return absl::InvalidArgumentError(
        absl::StrCat("train_examples: ", examples, "; at most 2^40 are allowed"));
  }
  if (const v1::TrainConfig& train = job_.config.train();
      !train.has_examples() && !train.has_steps() &&
      train.epochs() * static_cast<double>(examples) > std::ldexp(1.0, 53)) {
    return absl::InvalidArgumentError(absl::StrCat("train_examples: ", examples, " in ", train.epochs(),
                                                   " epochs are more than 2^53 examples in all"));
  }
  if (size_.train_examples != 0 && examples != size_.train_examples) {
    return absl::FailedPreconditionError(absl::StrCat("the training set of ", request.task(), " has ",
                                                      examples, " examples; ", DeclaredBy(/*worker=*/true),
                                                      " has ", size_.train_examples));
  }
  return weir::CheckSize(job_.config, SizeWith(examples));
}

absl::Status JobDeclaration::CheckFingerprints(const v1::JoinRequest& request) const {
  if (request.fingerprints_size() > kMost) {
    return absl::InvalidArgumentError(
        absl::StrCat("fingerprints: ", request.fingerprints_size(), "; at most ", kMost, " are allowed"));
  }
  std::set<absl::string_view> names;
  for (int i = 0; i < request.fingerprints_size(); ++i) {
    const v1::Fingerprint& given = request.fingerprints(i);
    WEIR_RETURN_IF_ERROR(CheckText(i, "name", given.name(), kLongestName));
    WEIR_RETURN_IF_ERROR(CheckText(i, "value", given.value(), kLongestValue));
    if (!names.insert(given.name()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("fingerprints[", i, "].name: \"", given.name(), "\" is given twice"));
    }
    const auto found = fingerprints_.find(given.name());
    if (found == fingerprints_.end() || found->second.value == given.value()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the workers differ in ", given.name(), ": ", request.task(), " has ", given.value(),
                     ", and ", found->second.task, ", which joined before, has ", found->second.value,
                     ". Start every worker with the same program and the same data in the same order, and "
                     "not with a shard or "
                     "a random split of its own: Weir gives each worker other examples of one training set"));
  }
  return absl::OkStatus();
}

bool JobDeclaration::AddressesOpen() const {
  return !knows_servers_ && !shards_.begun() && members_.waiting().empty();
}

std::string JobDeclaration::DeclaredBy(bool worker) const {
  if (!settled()) {
    for (const MemberTable::WaitingJoin& join : members_.waiting()) {
      if (worker && !join.worker()) continue;
      return absl::StrCat("that of ", join.request.task(), " (which waits for the job to start)");
    }
  }
  return "that of the job";
}

void JobDeclaration::Forget() {
  const bool worker_waits = members_.AnyWorkerWaits();
  if (!worker_waits && !fingerprints_settled_) fingerprints_.clear();
  if (settled()) return;
  if (members_.waiting().empty()) model_.reset();
  if (!worker_waits) SetSize({});
}

void JobDeclaration::SetModel(ModelSpec model) {
  const auto servers = static_cast<uint32_t>(std::max<size_t>(1, shards_.addresses().size()));
  shards_.LimitTo(ServersWithPart(job_.config, model.elements(), servers));
  model_ = std::move(model);
}

JobSize JobDeclaration::SizeWith(uint64_t train_examples) const {
  // A step has the same parts as before, even if the number of workers has changed.
  const auto& newest = checkpoints_.newest();
  const uint32_t parts = newest.has_value() ? std::max(1u, newest->job().parts()) : 0;
  return SizeOf(job_.config, job_.workers, train_examples, parts);
}

void JobDeclaration::SetSize(const JobSize& size) {
  size_ = size;
  size_changed_();
}

void JobDeclaration::Shorten(uint64_t examples, uint64_t batches) {
  size_ = Shortened(job_.config, job_.workers, size_, examples, batches);
}

void JobDeclaration::Lengthen() {
  size_ = SizeOf(job_.config, job_.workers, size_.train_examples, size_.parts);
}

uint32_t JobDeclaration::needed_workers() const {
  const v1::ClusterConfig& cluster = job_.config.cluster();
  return cluster.has_min_workers() ? std::min(job_.workers, cluster.min_workers()) : job_.workers;
}

bool JobDeclaration::DoneBefore() const {
  return checkpoints_.any() && IsEndOf(job_.config, *checkpoints_.newest());
}

// ---- for messages

template <typename Message>
void JobDeclaration::DescribeSize(Message* message) const {
  message->set_parts(size_.parts);
  message->set_total_steps(size_.steps);
  message->set_total_batches(size_.batches);
  message->set_total_examples(size_.examples);
}

void JobDeclaration::Describe(v1::Install* install) const {
  *install->mutable_model() = ToProto(*model_);
  install->set_job_config(job_.config.SerializeAsString());
  install->set_workers(job_.workers);
  DescribeSize(install);
}

void JobDeclaration::Describe(Checkpoints::Snapshot* snapshot) const {
  snapshot->model = ToProto(*model_);
  v1::CoordinatorState& job = snapshot->job;
  *job.mutable_config() = job_.config;
  job.set_workers(job_.workers);
  job.set_train_examples(size_.train_examples);
  DescribeSize(&job);
}

void JobDeclaration::Describe(v1::JoinReply* reply) const {
  reply->set_model_hash(model_->Hash());
  DescribeSize(reply);
}

}  // namespace weir
