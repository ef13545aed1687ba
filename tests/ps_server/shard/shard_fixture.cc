#include "tests/ps_server/shard/shard_fixture.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_writer.h"
#include "common/model/wire_model.h"
#include "common/optimizer/kernels.h"
#include "tests/ps_server/shard/push_whole.h"

namespace weir {

namespace {

TableKeys KeysOf(const TestRows& rows) {
  TableKeys keys{rows.table, rows.keys.size(), std::make_unique<uint64_t[]>(rows.keys.size())};
  std::copy(rows.keys.begin(), rows.keys.end(), keys.keys.get());
  return keys;
}

}  // namespace

PushedRows RowsOf(const std::vector<TestRows>& rows) {
  PushedRows pushed;
  for (const TestRows& of : rows) {
    auto values = std::make_unique<float[]>(of.values.size());
    std::copy(of.values.begin(), of.values.end(), values.get());
    const auto bad =
        std::find_if_not(of.values.begin(), of.values.end(), [](float v) { return std::isfinite(v); });
    if (bad != of.values.end() && !pushed.non_finite.has_value()) {
      const size_t dim = of.values.size() / of.keys.size(), at = static_cast<size_t>(bad - of.values.begin());
      pushed.non_finite = {absl::StrCat("the gradient of table ", of.table, ", key ", of.keys[at / dim],
                                        ", column ", at % dim),
                           *bad};
    }
    const size_t dim = of.keys.empty() ? 0 : of.values.size() / of.keys.size();
    pushed.tables.push_back({KeysOf(of), dim, std::move(values)});
  }
  return pushed;
}

RowKeys KeysOf(const std::vector<TestRows>& rows) {
  RowKeys keys;
  for (const TestRows& of : rows) keys.push_back(KeysOf(of));
  return keys;
}

ShardFixture::ShardFixture(v1::ConsistencyConfig::Mode mode, uint32_t staleness) {
  config.mutable_consistency()->set_mode(mode);
  if (mode == v1::ConsistencyConfig::MODE_BOUNDED) config.mutable_consistency()->set_staleness(staleness);
  config.mutable_optimizer()->set_type(v1::OptimizerConfig::KIND_SGD);
  config.mutable_optimizer()->set_learning_rate(-1);
  config.mutable_cluster()->set_wait_seconds(60);
  config.mutable_data()->set_batch_size(8);
  config.mutable_checkpoint()->set_directory(kCheckpoints);
  model.tensors = {{"w", {40}, TensorKind::kParameter, Initializer::Zeros()}};
  install.set_shard(0);
  install.set_num_shards(1);
  install.set_workers(2);
  install.set_parts(2);
  install.set_total_batches(2000);
  install.set_total_examples(16000);
  install.set_total_steps(1000);
}

Shard& ShardFixture::Create() {
  Shard::Options options;
  options.config = config;
  options.new_incarnation = [this] { return kIncarnation + installs_++; };
  options.background = [this](std::function<void()> work) {
    if (hold_background) {
      background.push_back(std::move(work));
    } else {
      work();
    }
  };
  options.files = files.get();
  options.clock = &clock;
  options.threads = &threads;
  options.kernels = &BestKernels();
  options.memory_bytes = memory_bytes;
  options.weights_source = weights_source;
  options.make_policy = make_policy;
  options.nudge = [this](absl::Duration in) { nudges.push_back(in); };
  options.on_revoke = [this] {
    if (on_revoke) on_revoke();
  };
  options.on_short = [this] {
    if (on_short) on_short();
  };
  shard = std::make_unique<Shard>(std::move(options));
  shard->SetReporter([this](v1::ShardReport report) { reports_.push_back(std::move(report)); });
  return *shard;
}

void ShardFixture::AddUsers() {
  v1::TableConfig& users = *config.add_tables();
  users.set_name("users");
  users.set_dim(2);
  users.mutable_init()->set_type(v1::TableInit::KIND_CONSTANT);
  users.mutable_init()->set_value(5);
  users.mutable_optimizer()->set_type(v1::TableOptimizer::KIND_SGD);
  users.mutable_optimizer()->set_learning_rate(1);
}

void ShardFixture::Start() {
  Create();
  REQUIRE(Install() == "");
  Members(1, {{0}, {1}});
}

void ShardFixture::Control(const v1::ControlMessage& message) {
  shard->Control(message);
  Settle();
}

void ShardFixture::Settle() {
  if (config.tables_size() == 0) return;
  // A turn of the shard may post further turns: a push for its decision, and the decision for its record.
  for (int i = 0; i < 4; ++i) shard->Quiesce();
}

std::string ShardFixture::Install(const v1::Restore* restore) {
  *install.mutable_model() = ToProto(model);
  install.set_job_config(config.SerializeAsString());
  v1::ControlMessage message;
  *message.mutable_install() = install;
  if (restore != nullptr) *message.mutable_install()->mutable_restore() = *restore;
  Control(message);
  const auto installed = Reports(v1::ShardReport::kInstalled);
  REQUIRE(installed.size() == 1);
  last_installed = installed[0].installed();
  if (installed[0].installed().error().empty()) {
    REQUIRE(installed[0].installed().incarnation() == incarnation());
  }
  return installed[0].installed().error();
}

void ShardFixture::TakeCheckpoint(uint64_t step, bool begin) {
  REQUIRE(files->MakeFolder(kCheckpoints).ok());
  if (begin) REQUIRE(BeginCheckpoint(*files, kCheckpoints, step).ok());
  v1::ControlMessage message;
  message.mutable_checkpoint()->set_step(step);
  Control(message);
}

v1::CheckpointFile ShardFixture::Written() {
  const auto written = Reports(v1::ShardReport::kCheckpoint);
  REQUIRE(written.size() == 1);
  REQUIRE(written[0].checkpoint().error() == "");
  return written[0].checkpoint().record();
}

v1::Restore ShardFixture::Complete(uint64_t step, const std::vector<ShardFixture*>& shards,
                                   std::optional<uint64_t> committed) {
  v1::CheckpointManifest manifest;
  manifest.set_step(step);
  *manifest.mutable_model() = ToProto(shards[0]->model);
  v1::JobConfig& config = *manifest.mutable_job()->mutable_config();
  config = shards[0]->config;
  config.mutable_model()->add_layers()->set_type(v1::LayerConfig::LAYER_RELU);
  config.mutable_data()->set_format(v1::DataConfig::FORMAT_DIGITS);
  manifest.mutable_job()->set_committed_steps(committed.value_or(step));
  for (ShardFixture* shard : shards) *manifest.add_files() = shard->Written();
  const absl::Status status = CommitCheckpoint(*shards[0]->files, kCheckpoints, manifest);
  INFO(status.ToString());
  REQUIRE(status.ok());
  v1::Restore restore;
  restore.set_step(step);
  return restore;
}

void ShardFixture::Members(uint64_t epoch, const std::vector<TestMember>& members) {
  v1::ControlMessage message;
  v1::Membership& membership = *message.mutable_membership()->mutable_membership();
  membership.set_epoch(epoch);
  for (const TestMember& m : members) {
    v1::Member* member = membership.add_members();
    member->set_worker(m.worker);
    member->set_incarnation(m.incarnation == 0 ? 100 + m.worker : m.incarnation);
    member->set_task("worker:" + std::to_string(m.worker));
    member->set_start_clock(m.start_clock);
    member->set_joining(m.joining);
    member->set_idle(m.idle);
    if (m.first_clock.has_value()) member->set_first_clock_plus_one(*m.first_clock + 1);
  }
  Control(message);
}

void ShardFixture::Commit(uint64_t step, const std::vector<uint32_t>& parts) {
  v1::ControlMessage message;
  message.mutable_commit()->set_step(step);
  for (uint32_t part : parts) message.mutable_commit()->add_parts(part);
  Control(message);
}

void ShardFixture::Pin(uint64_t pin, double lease_seconds) {
  v1::ControlMessage message;
  message.mutable_pin()->set_pin(pin);
  message.mutable_pin()->set_lease_seconds(lease_seconds);
  Control(message);
}

void ShardFixture::Shutdown(const std::string& failure) {
  v1::ControlMessage message;
  message.mutable_shutdown()->set_failure(failure);
  Control(message);
}

v1::ShardStats ShardFixture::Stats() {
  v1::ControlMessage message;
  message.mutable_ping()->set_sequence(5);
  Control(message);
  const auto stats = Reports(v1::ShardReport::kStats);
  REQUIRE(stats.size() == 1);
  REQUIRE(stats[0].stats().sequence() == 5);
  return stats[0].stats();
}

v1::Caller ShardFixture::CallerOf(uint32_t worker, uint64_t epoch) const {
  v1::Caller caller;
  caller.set_worker(worker);
  caller.set_incarnation(100 + worker);
  caller.set_epoch(epoch);
  caller.set_model_hash(model.Hash());
  return caller;
}

v1::PushRequest ShardFixture::Header(const TestPush& push) {
  v1::PushRequest header;
  *header.mutable_caller() = CallerOf(push.worker, push.epoch);
  if (push.incarnation != 0) header.mutable_caller()->set_incarnation(push.incarnation);
  header.set_clock(push.clock);
  header.set_part(push.part);
  if (sync()) {
    const uint64_t batch = push.clock * install.parts() + push.part;
    const uint64_t first = batch * config.data().batch_size();
    const uint64_t left = first < install.total_examples() ? install.total_examples() - first : 0;
    header.set_batch_plus_one(push.batch.value_or(batch) + 1);
    header.set_examples(push.examples.value_or(std::clamp<uint64_t>(left, 1, config.data().batch_size())));
    header.mutable_base()->set_count(push.base.value_or(push.clock));
  } else {
    header.set_batch_plus_one(push.batch.has_value() ? *push.batch + 1 : 0);
    header.set_examples(push.examples.value_or(1));
    header.mutable_base()->set_count(push.base.value_or(shard->counters().version.load()));
  }
  header.mutable_base()->set_incarnation(push.base_incarnation.value_or(incarnation()));
  header.set_elements(shard->elements());
  return header;
}

PushReplyPtr ShardFixture::PushHeader(const v1::PushRequest& header, const TestPush& push) {
  std::vector<float> gradient(shard->elements(), push.value);
  if (push.bad_element.has_value()) gradient[*push.bad_element] = std::numeric_limits<float>::quiet_NaN();
  return PushGradient(header, std::move(gradient));
}

PushReplyPtr ShardFixture::PushGradient(const v1::PushRequest& header, std::vector<float> gradient) {
  auto answer = std::make_shared<Answer<v1::PushReply>>();
  PushWhole(*shard, kSession, header, std::move(gradient), Keep(answer));
  Settle();
  return answer;
}

PushReplyPtr ShardFixture::PushRows(const TestPush& push, const std::vector<TestRows>& rows) {
  v1::PushRequest header = Header(push);
  for (const TestRows& of : rows) {
    header.add_rows()->set_table(of.table);
    header.mutable_rows()->rbegin()->set_keys(of.keys.size());
  }
  std::vector<float> gradient(shard->elements(), push.value);
  if (push.bad_element.has_value()) gradient[*push.bad_element] = std::numeric_limits<float>::quiet_NaN();
  auto answer = std::make_shared<Answer<v1::PushReply>>();
  const AnswerPtr<PushBegin> begin = TryBegin(header);
  if (begin->there() && begin->status().ok() && absl::holds_alternative<PushAnswer>(**begin->value)) {
    answer->value = absl::get<PushAnswer>(**begin->value).reply;
    answer->times = 1;
    return answer;
  }
  std::unique_ptr<PushArrival> arrival = ArrivalOf(begin);
  REQUIRE(TakeAll(*arrival, gradient).ok());
  REQUIRE(arrival->SetRows(RowsOf(rows)).ok());
  shard->Push(kSession, std::move(arrival), [answer](absl::StatusOr<PushAnswer> whole) {
    answer->value = whole.ok() ? absl::StatusOr<v1::PushReply>(whole->reply) : whole.status();
    ++answer->times;
  });
  Settle();
  return answer;
}

std::unique_ptr<PushArrival> ShardFixture::Begin(const TestPush& push, WireType type) {
  v1::PushRequest header = Header(push);
  header.set_dtype(type.dtype);
  header.set_kept(type.kept);
  return ArrivalOf(TryBegin(header));
}

AnswerPtr<PushBegin> ShardFixture::TryBegin(const v1::PushRequest& header) {
  auto begin = std::make_shared<Answer<PushBegin>>();
  shard->Begin(kSession, header, Keep(begin));
  Settle();
  return begin;
}

std::unique_ptr<PushArrival> ShardFixture::ArrivalOf(const AnswerPtr<PushBegin>& begin) {
  REQUIRE(begin->there());
  REQUIRE(begin->value->ok());
  REQUIRE(absl::holds_alternative<std::unique_ptr<PushArrival>>(**begin->value));
  return absl::get<std::unique_ptr<PushArrival>>(**std::move(begin->value));
}

AnswerPtr<PushAnswer> ShardFixture::Finish(std::unique_ptr<PushArrival> arrival) {
  auto answer = std::make_shared<Answer<PushAnswer>>();
  shard->Push(kSession, std::move(arrival), Keep(answer));
  Settle();
  return answer;
}

PushReplyPtr ShardFixture::Push(const TestPush& push) { return PushHeader(Header(push), push); }

PullAnswerPtr ShardFixture::PullRequest(const v1::PullRequest& request) {
  auto answer = std::make_shared<Answer<PullAnswer>>();
  shard->Pull(kSession, request, Keep(answer));
  Settle();
  return answer;
}

PullAnswerPtr ShardFixture::PullRows(v1::PullRequest request, const std::vector<TestRows>& keys) {
  for (const TestRows& of : keys) {
    request.add_rows()->set_table(of.table);
    request.mutable_rows()->rbegin()->set_keys(of.keys.size());
  }
  auto answer = std::make_shared<Answer<PullAnswer>>();
  shard->Pull(kSession, request, Keep(answer), KeysOf(keys));
  Settle();
  return answer;
}

PullAnswerPtr ShardFixture::Pull(uint32_t worker, uint64_t clock, uint64_t epoch) {
  v1::PullRequest request;
  *request.mutable_caller() = CallerOf(worker, epoch);
  request.set_clock(clock);
  request.set_with_clocks(true);
  return PullRequest(request);
}

std::shared_ptr<const LentVersion> ShardFixture::Newest() {
  Pin(++last_pin_, 1);
  v1::PullRequest request;
  *request.mutable_caller() = CallerOf(0);
  request.set_pin(last_pin_);
  const PullAnswerPtr answer = PullRequest(request);
  v1::ControlMessage unpin;
  unpin.mutable_unpin()->set_pin(last_pin_);
  Control(unpin);
  REQUIRE(answer->there());
  REQUIRE(answer->value->ok());
  REQUIRE(answer->reply().version != nullptr);
  return answer->reply().version;
}

std::vector<float> ShardFixture::Weights() {
  const auto version = Newest();
  return {version->weights.get(), version->weights.get() + shard->elements()};
}

std::vector<v1::ShardReport> ShardFixture::Reports(v1::ShardReport::ReportCase kind) {
  std::vector<v1::ShardReport> out, rest;
  for (v1::ShardReport& report : reports_) {
    (report.report_case() == kind ? out : rest).push_back(std::move(report));
  }
  reports_ = std::move(rest);
  return out;
}

}  // namespace weir
