#include "tests/simulation/plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/model/key_bucket.h"

namespace weir {
namespace {

class Dice {
 public:
  explicit Dice(uint64_t seed, const char* of = "plan") : random_(RandomKey(seed, of), 0) {}
  uint32_t Below(uint32_t bound) { return random_.NextBelow(bound); }
  // In [least, most].
  uint32_t From(uint32_t least, uint32_t most) { return least + Below(most - least + 1); }
  bool Chance(double probability) { return random_.Next() < probability * 4294967296.0; }
  absl::Duration Time(absl::Duration least, absl::Duration most) {
    return least +
           absl::Microseconds(Below(static_cast<uint32_t>(absl::ToInt64Microseconds(most - least)) + 1));
  }

 private:
  RandomStream random_;
};

// Mostly 1 to `few`; sometimes up to `many`, rarely up to `most`: the cost of a run rises with its width.
uint32_t Width(Dice& dice, uint32_t few, uint32_t many, uint32_t most) {
  const uint32_t draw = dice.Below(100);
  if (draw < 80) return dice.From(1, few);
  return draw < 94 ? dice.From(few + 1, many) : dice.From(many + 1, most);
}

void PlanReaders(Dice& dice, Plan* plan) {
  if (!dice.Chance(0.4)) return;
  plan->readers.resize(dice.Chance(0.7) ? 1 : dice.From(2, 4));
  for (ReaderPlan& reader : plan->readers) {
    if (dice.Chance(0.6)) continue;
    reader.habit = dice.Chance(0.5) ? ReaderPlan::Habit::kHangs : ReaderPlan::Habit::kPins;
    reader.at = dice.Time(absl::Milliseconds(100), absl::Milliseconds(1300));
    reader.holds = dice.From(1, 4);
  }
}

void PlanConfig(Dice& dice, Plan* plan) {
  v1::JobConfig& config = plan->config;
  config.set_name("ledger");
  v1::LayerConfig* layer = config.mutable_model()->add_layers();
  layer->set_type(v1::LayerConfig::LAYER_DENSE);
  layer->set_units(1);
  config.mutable_data()->set_format(v1::DataConfig::FORMAT_DIGITS);
  config.mutable_optimizer()->set_type(v1::OptimizerConfig::KIND_SGD);
  config.mutable_optimizer()->set_learning_rate(-1);

  auto& cluster = *config.mutable_cluster();
  cluster.set_start_seconds(15);
  cluster.set_lease_seconds(1);
  cluster.set_grace_seconds(0.2);
  cluster.set_server_wait_seconds(8);
  cluster.set_wait_seconds(30);

  auto& consistency = *config.mutable_consistency();
  // Some batches are poisoned (Ledger::Options::poisoned), and the job has to go on.
  consistency.set_on_nonfinite(v1::ConsistencyConfig::ON_NONFINITE_REJECT);
  const uint32_t workers = Width(dice, 5, 10, 24);
  const uint32_t mode = dice.Below(5);
  Ledger::Options& ledger = plan->ledger;
  ledger.sync = mode < 2;
  ledger.shards = Width(dice, 4, 6, 8);
  if (ledger.sync) {
    consistency.set_mode(v1::ConsistencyConfig::MODE_SYNC);
    ledger.parts = dice.Chance(0.5) ? workers : dice.From(1, 5);
    consistency.set_parts(ledger.parts);
  } else if (mode < 4) {
    consistency.set_mode(v1::ConsistencyConfig::MODE_BOUNDED);
    consistency.set_staleness(dice.Chance(0.3) ? 0 : dice.From(1, 4));
  } else {
    consistency.set_mode(v1::ConsistencyConfig::MODE_ASYNC);
  }
  config.mutable_server()->set_apply(dice.Chance(0.5) ? v1::ServerConfig::APPLY_STREAMED
                                                      : v1::ServerConfig::APPLY_STAGED);
  ledger.batch_size = dice.From(1, 4);
  // With many workers, each gets several batches.
  const uint32_t at_once = ledger.sync ? std::min(workers, ledger.parts) : workers;
  const uint64_t batches = dice.From(8, 44) + (at_once > 5 ? dice.From(2, 6) * at_once : 0);
  ledger.total_examples = ledger.batch_size * batches - dice.Below(static_cast<uint32_t>(ledger.batch_size));
  if (dice.Chance(0.15)) {
    for (uint32_t i = dice.From(1, 3); i > 0; --i) {
      ledger.poisoned.insert({dice.Below(static_cast<uint32_t>(batches)), dice.Below(ledger.shards)});
    }
  }
  config.mutable_data()->set_batch_size(static_cast<uint32_t>(ledger.batch_size));
  config.mutable_train()->set_examples(ledger.total_examples);

  plan->workers.resize(workers);
  uint32_t late = 0;
  for (uint32_t rank = 0; rank < workers; ++rank) {
    WorkerPlan& worker = plan->workers[rank];
    worker.start = dice.Time(absl::ZeroDuration(), absl::Milliseconds(100));
    // A join in the middle.
    if (rank > 0 && dice.Chance(0.2)) {
      worker.start = dice.Time(absl::Milliseconds(200), absl::Seconds(1));
      ++late;
    }
    const absl::Duration usual = dice.Time(absl::Milliseconds(5), absl::Milliseconds(60));
    worker.compute_least = usual / 2;
    worker.compute_most = dice.Chance(0.2) ? usual * 4 : usual;
    worker.pulls_apart = !ledger.sync && dice.Chance(0.2);
    worker.holds_view = dice.Chance(0.2);
    if (dice.Chance(0.03)) {
      worker.keeps = dice.From(1, 3);
      worker.keeps_from = dice.Time(absl::Milliseconds(100), absl::Milliseconds(1300));
      worker.keeps_for = dice.Time(absl::Seconds(1), absl::Seconds(10));
    }
  }
  if (late > 0) cluster.set_min_workers(workers - late);
  plan->shared_memory = dice.Chance(0.6);
  v1::WireConfig& wire = *config.mutable_wire();
  wire.set_transport(plan->shared_memory ? v1::WireConfig::TRANSPORT_AUTO : v1::WireConfig::TRANSPORT_TCP);
  PlanReaders(dice, plan);

  if (dice.Chance(0.25)) return;
  auto& checkpoint = *config.mutable_checkpoint();
  checkpoint.set_directory("/checkpoints");
  checkpoint.set_keep(dice.From(1, 3));
  if (dice.Chance(0.4)) {
    checkpoint.set_every_steps(dice.From(1, 4));
  } else if (dice.Chance(0.7)) {
    checkpoint.set_every_seconds(0.05 * dice.From(1, 12));
  }
}

void PlanServerFaults(Dice& dice, Plan* plan) {
  using Kind = FaultPlan::Kind;
  static constexpr Kind kKinds[] = {Kind::kServerCrash, Kind::kServerCrash,   Kind::kServerCrash,
                                    Kind::kCrashAtDisk, Kind::kCrashAtDisk,   Kind::kPowerLoss,
                                    Kind::kDiskFull,    Kind::kDiskErrors,    Kind::kDiskHangs,
                                    Kind::kServerPause, Kind::kControlBreaks, Kind::kServerPartition};
  for (uint32_t i = dice.Below(5); i > 0; --i) {
    FaultPlan fault;
    fault.kind = kKinds[dice.Below(sizeof(kKinds) / sizeof(kKinds[0]))];
    fault.at = dice.Time(absl::Milliseconds(150), absl::Milliseconds(2500));
    fault.duration = dice.Time(absl::Milliseconds(10), absl::Milliseconds(1500));
    fault.first = dice.Below(plan->shards());
    fault.second = dice.From(1, 12);
    const bool remote = fault.kind == Kind::kControlBreaks || fault.kind == Kind::kServerPartition;
    if (remote && fault.first == 0) continue;
    plan->faults.push_back(fault);
  }
}

void PlanFaults(Dice& dice, Plan* plan) {
  const auto some = [&dice](double often, double rate) { return dice.Chance(often) ? rate : 0.0; };
  plan->network.stream_break = some(0.5, 0.01);
  plan->network.request_lost = some(0.5, 0.03);
  plan->network.reply_lost = some(0.5, 0.03);
  plan->network.duplicate = some(0.5, 0.05);
  plan->network.delay = some(0.4, 0.02);
  plan->heal = absl::Milliseconds(1500);
  plan->patience = absl::Seconds(plan->recoverable() ? 40 : 20);

  using Kind = FaultPlan::Kind;
  const uint32_t workers = static_cast<uint32_t>(plan->workers.size());
  for (uint32_t i = dice.Below(7); i > 0; --i) {
    FaultPlan fault;
    static constexpr Kind kKinds[] = {
        Kind::kWorkerPause,  Kind::kWorkerPause,  Kind::kWorkerCrash, Kind::kWorkerCrash, Kind::kWorkerGone,
        Kind::kWorkerHangs,  Kind::kPartition,    Kind::kPartition,   Kind::kOneWay,      Kind::kSlowLink,
        Kind::kStreamsBreak, Kind::kStreamsBreak, Kind::kServerPause};
    fault.kind = kKinds[dice.Below(sizeof(kKinds) / sizeof(kKinds[0]))];
    fault.at = dice.Time(absl::Milliseconds(50), absl::Milliseconds(1300));
    fault.duration = dice.Time(absl::Milliseconds(20), absl::Milliseconds(2200));
    fault.first = dice.Below(workers);
    fault.second = dice.Below(plan->shards());
    fault.back = dice.Chance(0.5);
    if (fault.kind == Kind::kServerPause) {
      fault.first = fault.second;
      fault.duration = dice.Time(absl::Milliseconds(20), absl::Milliseconds(400));
    }
    plan->faults.push_back(fault);
  }
  if (plan->recoverable()) {
    PlanServerFaults(dice, plan);
  } else if (plan->shards() > 1 && dice.Chance(0.03)) {
    FaultPlan fault;
    fault.kind = Kind::kControlBreaks;
    fault.at = dice.Time(absl::Milliseconds(50), absl::Milliseconds(1300));
    fault.first = dice.From(1, plan->shards() - 1);
    plan->faults.push_back(fault);
    plan->may_fail = true;
  }
}

// Draws from its own stream of chance, so that the draws of the others stay the same.
void PlanDisk(Dice& dice, Plan* plan) {
  using Kind = FaultPlan::Kind;
  if (!plan->recoverable()) return;
  if (!plan->sync() && dice.Chance(0.3)) {
    v1::ServerConfig& server = *plan->config.mutable_server();
    server.set_durability(v1::ServerConfig::DURABILITY_LOG);
    server.set_apply(v1::ServerConfig::APPLY_STAGED);
    // A log that cannot be written ends the job.
    for (FaultPlan& fault : plan->faults) {
      if (fault.kind == Kind::kDiskFull || fault.kind == Kind::kDiskErrors) fault.kind = Kind::kDiskHangs;
    }
  }
  for (const Kind kind : {Kind::kDiskHangsWithin, Kind::kReplaced}) {
    if (!dice.Chance(0.15)) continue;
    FaultPlan fault;
    fault.kind = kind;
    fault.at = dice.Time(absl::Milliseconds(50), absl::Milliseconds(1500));
    fault.duration = dice.Time(absl::Milliseconds(50), absl::Milliseconds(3000));
    fault.first = kind == Kind::kReplaced ? 0 : dice.Below(plan->shards());
    fault.second = dice.From(1, 80);
    fault.back = dice.Chance(0.3);
    plan->faults.push_back(fault);
  }
}

// Of a stream of chance of its own, too. With a log the checkpoint before may not be enough: a later
// checkpoint that failed may have dropped what follows on it. Where one checkpoint is kept, the one before
// may be there only because a disk that hangs has yet to remove it.
void PlanDecay(Dice& dice, Plan* plan) {
  if (!plan->recoverable() || plan->logs() || plan->config.checkpoint().keep() < 2) return;
  if (!dice.Chance(0.25)) return;
  for (uint32_t i = dice.From(1, 2); i > 0; --i) {
    FaultPlan fault;
    fault.kind = FaultPlan::Kind::kBitFlips;
    fault.at = dice.Time(absl::Milliseconds(200), absl::Milliseconds(2000));
    fault.first = dice.Below(plan->shards());
    fault.duration = dice.Time(absl::Milliseconds(10), absl::Milliseconds(500));
    plan->faults.push_back(fault);
  }
}

// Of a stream of chance of its own, too.
void PlanTraining(Dice& dice, Plan* plan) {
  plan->config.mutable_cluster()->set_workers(static_cast<uint32_t>(plan->workers.size()));
  v1::ConsistencyConfig& consistency = *plan->config.mutable_consistency();
  if (consistency.staleness() > 0 && dice.Chance(0.4)) consistency.set_prefetch(true);
  for (WorkerPlan& worker : plan->workers) {
    worker.in_place = dice.Chance(0.5);
    worker.device = dice.Chance(0.5);
  }
}

// Of a stream of chance of its own, too.
void PlanChunks(Dice& dice, Plan* plan) { plan->config.mutable_wire()->set_chunk_kib(256 * dice.From(1, 4)); }

// Of a stream of chance of its own, too.
void PlanMoves(Dice& dice, Plan* plan) {
  if (plan->recoverable() && dice.Chance(0.5)) plan->moves = 0.6;
}

// Of a stream of chance of its own, too.
void PlanStandby(Dice& dice, bool table, Plan* plan) {
  using Kind = FaultPlan::Kind;
  plan->config.mutable_server()->set_min_shard_kib(0);
  // The ledger's model is far below a MiB, and so has one shard.
  if (plan->shards() > 1 || !dice.Chance(0.5) || table) return;
  plan->config.mutable_server()->set_min_shard_kib(1024);
  plan->standby = dice.From(1, 2);
  for (FaultPlan& fault : plan->faults) {
    const bool any_server = fault.kind == Kind::kServerPause || fault.kind == Kind::kServerCrash;
    if (any_server && dice.Chance(0.5)) fault.first = dice.From(1, plan->standby);
  }
  // Otherwise the server that loses ps:0 ends, as it should.
  if (!plan->recoverable() || !dice.Chance(0.5)) return;
  FaultPlan fault;
  static constexpr Kind kKinds[] = {Kind::kServerPause, Kind::kControlBreaks, Kind::kServerPartition,
                                    Kind::kServerCrash};
  fault.kind = kKinds[dice.Below(sizeof(kKinds) / sizeof(kKinds[0]))];
  fault.at = dice.Time(absl::Milliseconds(50), absl::Milliseconds(2500));
  fault.duration = dice.Time(absl::Milliseconds(10), absl::Milliseconds(1500));
  fault.first = dice.From(1, plan->standby);
  plan->faults.push_back(fault);
}

// Of a stream of chance of its own, too.
void PlanUploads(Dice& dice, Plan* plan) {
  using Kind = FaultPlan::Kind;
  if (!dice.Chance(0.3)) return;
  plan->ledger.uploaded = true;
  // While they are uploaded and saved, or soon after.
  const auto strike = [&](Kind kind, uint32_t first) {
    FaultPlan fault;
    fault.kind = kind;
    fault.at = dice.Time(absl::Milliseconds(100), absl::Milliseconds(600));
    fault.duration = dice.Time(absl::Milliseconds(10), absl::Milliseconds(1500));
    fault.first = first;
    fault.second = kind == Kind::kCrashAtDisk ? dice.From(1, 12) : dice.Below(plan->shards());
    plan->faults.push_back(fault);
  };
  if (dice.Chance(0.6)) {
    strike(dice.Chance(0.5) ? Kind::kWorkerCrash : Kind::kWorkerPause,
           dice.Below(std::min<uint32_t>(2, static_cast<uint32_t>(plan->workers.size()))));
  }
  if (plan->recoverable() && dice.Chance(0.4)) {
    static constexpr Kind kKinds[] = {Kind::kServerCrash, Kind::kCrashAtDisk, Kind::kPowerLoss,
                                      Kind::kControlBreaks};
    const Kind kind = kKinds[dice.Below(4)];
    const uint32_t first = dice.Below(plan->shards());
    if (kind != Kind::kControlBreaks || first != 0) strike(kind, first);
  }
}

// Of a stream of chance of its own, too.
void PlanTable(Dice& dice, bool forced, Plan* plan) {
  // With a table, all servers hold a part of the job.
  if ((!dice.Chance(0.3) && !forced) || plan->standby > 0) return;
  plan->ledger.table = true;
  Ledger::RowRules& rules = plan->ledger.rules;
  if (dice.Chance(0.4)) rules.admit_after = dice.From(1, 3);
  if (dice.Chance(0.4)) rules.expire_after_steps = dice.From(2, 10);
  // Quotas of one row and, in the first buckets, of two.
  if (dice.Chance(0.4)) rules.max_rows = kKeyBuckets + dice.Below(4);
  v1::TableConfig& table = *plan->config.add_tables();
  table.set_name("rows");
  table.set_dim(Ledger::kDim);
  table.set_admit_after(rules.admit_after);
  table.set_expire_after_steps(rules.expire_after_steps);
  table.set_max_rows(rules.max_rows);
  table.mutable_init()->set_type(v1::TableInit::KIND_CONSTANT);
  table.mutable_init()->set_value(0);
  table.mutable_optimizer()->set_type(v1::TableOptimizer::KIND_SGD);
  table.mutable_optimizer()->set_learning_rate(1);
  if (plan->recoverable() && dice.Chance(0.8)) {
    plan->config.mutable_checkpoint()->set_table_deltas(dice.From(1, 10));
  }
}

// Of a stream of chance of its own, too: jobs whose rows come and go, which save what has changed all the
// time and lose servers meanwhile. So a checkpoint that has the removal of rows alone is restored now and
// then. Returns whether it is such a job.
bool PlanChurn(Dice& dice, Plan* plan) {
  const auto workers = static_cast<uint32_t>(plan->workers.size());
  if (!plan->ledger.table || !plan->recoverable() || workers > 5 || plan->ledger.parts > 5 ||
      !dice.Chance(0.5)) {
    return false;
  }
  Ledger::Options& ledger = plan->ledger;
  const uint32_t of_version = ledger.sync ? ledger.parts : 1;  // batches
  ledger.rarity = 40;
  ledger.rules.admit_after = 0;
  ledger.rules.expire_after_steps = std::max<uint32_t>(2, dice.From(8, 16) / of_version);
  ledger.total_examples = std::max(ledger.total_examples, ledger.batch_size * std::max(40u, 12 * of_version));
  v1::JobConfig& config = plan->config;
  config.mutable_train()->set_examples(ledger.total_examples);
  config.mutable_tables(0)->set_admit_after(ledger.rules.admit_after);
  config.mutable_tables(0)->set_expire_after_steps(ledger.rules.expire_after_steps);
  // A quota would take rows away again that a checkpoint has brought back.
  ledger.rules.max_rows = 0;
  config.mutable_tables(0)->set_max_rows(0);
  v1::CheckpointConfig& checkpoint = *config.mutable_checkpoint();
  checkpoint.clear_every_seconds();
  checkpoint.set_every_steps(1);
  checkpoint.set_table_deltas(dice.From(3, 10));
  // A checkpoint takes as long as a few batches, which leave most rows as they are.
  for (WorkerPlan& worker : plan->workers) {
    worker.compute_least = absl::Milliseconds(40) * workers;
    worker.compute_most = absl::Milliseconds(80) * workers;
  }
  // Such a job takes some seconds.
  for (uint32_t i = dice.From(2, 4); i > 0; --i) {
    FaultPlan fault;
    fault.kind = FaultPlan::Kind::kServerCrash;
    fault.at = dice.Time(absl::Seconds(1), absl::Seconds(5));
    fault.duration = dice.Time(absl::Milliseconds(10), absl::Milliseconds(400));
    fault.first = dice.Below(plan->shards());
    plan->faults.push_back(fault);
  }
  return true;
}

// Of a stream of chance of its own, too.
void PlanEarlyRows(Dice& dice, bool forced, Plan* plan) {
  if (!plan->ledger.table || !dice.Chance(forced ? 0.5 : 0.4)) return;
  if (plan->config.consistency().mode() == v1::ConsistencyConfig::MODE_ASYNC) return;
  plan->config.mutable_consistency()->set_tables(v1::ConsistencyConfig::TABLES_ASYNC);
  if (!plan->sync()) return;
  plan->ledger.early_rows = true;
  if (!plan->ledger.poisoned.empty()) {
    // Whether the other shards take the rows of such a batch is open, so all pushes of a key must show in its
    // row.
    plan->ledger.rules = {};
    v1::TableConfig& table = *plan->config.mutable_tables(0);
    table.set_admit_after(0);
    table.set_expire_after_steps(0);
    table.set_max_rows(0);
  }
  if (!plan->recoverable() || !dice.Chance(0.8)) return;
  // Checkpoints in the midst of steps, and a need for them.
  plan->config.mutable_checkpoint()->clear_every_steps();
  plan->config.mutable_checkpoint()->set_every_seconds(0.01 * dice.From(2, 8));
  FaultPlan crash;
  crash.kind = FaultPlan::Kind::kServerCrash;
  crash.at = dice.Time(absl::Milliseconds(150), absl::Milliseconds(900));
  crash.duration = dice.Time(absl::Milliseconds(10), absl::Milliseconds(500));
  crash.first = dice.Below(plan->shards());
  plan->faults.push_back(crash);
}

// Of a stream of chance of its own, too: less memory than former rows take, so that every update ends the
// pins of readers, and waits for what a checkpoint keeps.
void PlanMemory(Dice& dice, Plan* plan) {
  // The rows of a step's parts must fit, and so must those that max_rows allows.
  const bool needs_more = plan->sync() && !plan->ledger.early_rows;
  if (!plan->ledger.table || plan->ledger.rules.max_rows > 0 || needs_more || !dice.Chance(0.4)) return;
  plan->config.mutable_server()->set_memory_limit_mib(1);
}

}  // namespace

const char* Name(FaultPlan::Kind kind) {
  switch (kind) {
    case FaultPlan::Kind::kWorkerPause:
      return "worker paused";
    case FaultPlan::Kind::kWorkerCrash:
      return "worker crash";
    case FaultPlan::Kind::kWorkerGone:
      return "worker gone";
    case FaultPlan::Kind::kPartition:
      return "partition";
    case FaultPlan::Kind::kOneWay:
      return "one-way partition";
    case FaultPlan::Kind::kSlowLink:
      return "slow link";
    case FaultPlan::Kind::kStreamsBreak:
      return "streams broken";
    case FaultPlan::Kind::kWorkerHangs:
      return "worker hangs";
    case FaultPlan::Kind::kServerPause:
      return "server paused";
    case FaultPlan::Kind::kControlBreaks:
      return "control stream broken";
    case FaultPlan::Kind::kServerCrash:
      return "server crash";
    case FaultPlan::Kind::kCrashAtDisk:
      return "server crash while it writes";
    case FaultPlan::Kind::kPowerLoss:
      return "power loss of all servers";
    case FaultPlan::Kind::kDiskFull:
      return "disk full";
    case FaultPlan::Kind::kDiskErrors:
      return "disk errors";
    case FaultPlan::Kind::kDiskHangs:
      return "disk hangs";
    case FaultPlan::Kind::kServerPartition:
      return "partition between servers";
    case FaultPlan::Kind::kDiskHangsWithin:
      return "disk hangs within";
    case FaultPlan::Kind::kReplaced:
      return "coordinator to be replaced";
    case FaultPlan::Kind::kBitFlips:
      return "a bit of the newest checkpoint flips";
  }
  return "";
}

namespace {

std::string Words(const std::vector<ReaderPlan>& readers) {
  using Habit = ReaderPlan::Habit;
  std::string out;
  for (const ReaderPlan& reader : readers) {
    absl::StrAppend(&out, ", a reader");
    if (reader.habit == Habit::kReads) continue;
    absl::StrAppend(&out, reader.habit == Habit::kHangs ? " that hangs with " : " that pins ", reader.holds,
                    " at ", absl::FormatDuration(reader.at));
  }
  return out;
}

std::string Words(const Ledger::RowRules& rules) {
  std::string out;
  if (rules.admit_after > 0) absl::StrAppend(&out, ", rows from push ", rules.admit_after + 1, " on");
  if (rules.expire_after_steps > 0) {
    absl::StrAppend(&out, ", rows expire after ", rules.expire_after_steps);
  }
  if (rules.max_rows > 0) absl::StrAppend(&out, ", at most ", rules.max_rows, " rows");
  return out;
}

}  // namespace

// Each commit of a step waits for a norm over all servers, which no step reaches.
void PlanNorms(Dice& dice, Plan* plan) {
  if (!plan->sync() || plan->ledger.table || !dice.Chance(0.3)) return;
  plan->config.mutable_train()->set_clip(v1::TrainConfig::CLIP_MEAN);
  plan->config.mutable_train()->set_clip_norm(1e30f);
}

// In some jobs a batch of the ledger is several local steps. Its examples are the same.
void PlanLocalSteps(Dice& dice, Plan* plan) {
  const auto batch = static_cast<uint32_t>(plan->ledger.batch_size);
  if (plan->ledger.table || batch == 1 || !dice.Chance(0.6)) return;
  const uint32_t steps = batch == 4 && dice.Chance(0.5) ? 2 : batch;
  plan->config.mutable_local()->set_steps(steps);
  plan->config.mutable_data()->set_batch_size(batch / steps);
}

// RowModel knows no rows that were scaled or dropped.
void PlanStaleness(Dice& dice, Plan* plan) {
  if (plan->sync() || plan->ledger.table || !dice.Chance(0.4)) return;
  v1::StalenessPolicy& policy = *plan->config.mutable_consistency()->mutable_staleness_policy();
  // With 1 bit a push changes all values of a block, which scaled ones would blur.
  if (dice.Chance(0.5) && plan->ledger.push_dtype != v1::BIT1) {
    policy.set_type(v1::StalenessPolicy::STALENESS_SCALE);
  } else {
    policy.set_type(v1::StalenessPolicy::STALENESS_DROP);
    policy.set_limit(dice.Below(5));
  }
}

void PlanCodec(Dice& dice, Plan* plan) {
  if (plan->ledger.table || !dice.Chance(0.3)) return;
  using Type = std::pair<v1::WireConfig::Type, v1::Dtype>;
  static constexpr Type kTypes[] = {{v1::WireConfig::TYPE_INT8, v1::INT8},
                                    {v1::WireConfig::TYPE_INT4, v1::INT4},
                                    {v1::WireConfig::TYPE_BIT1, v1::BIT1}};
  const auto& [type, dtype] = kTypes[dice.Below(3)];
  plan->ledger.push_dtype = dtype;
  plan->ledger.feedback = dice.Chance(0.6);
  plan->config.mutable_wire()->set_push_dtype(type);
  plan->config.mutable_wire()->set_error_feedback(plan->ledger.feedback);
}

Plan MakePlan(uint64_t seed, bool with_table) {
  Dice dice(seed);
  Plan plan;
  plan.seed = seed;
  plan.config.set_seed(seed + 1);
  PlanConfig(dice, &plan);
  PlanFaults(dice, &plan);
  Dice disk(seed, "plan: disk");
  PlanDisk(disk, &plan);
  Dice decay(seed, "plan: decay");
  PlanDecay(decay, &plan);
  Dice training(seed, "plan: training");
  PlanTraining(training, &plan);
  Dice chunks(seed, "plan: chunks");
  PlanChunks(chunks, &plan);
  Dice moves(seed, "plan: moves");
  PlanMoves(moves, &plan);
  Dice standby(seed, "plan: standby");
  PlanStandby(standby, with_table, &plan);
  Dice uploads(seed, "plan: uploads");
  PlanUploads(uploads, &plan);
  Dice table(seed, "plan: table");
  PlanTable(table, with_table, &plan);
  Dice churn(seed, "plan: churn");
  const bool churns = PlanChurn(churn, &plan);
  Dice early(seed, "plan: early rows");
  PlanEarlyRows(early, with_table, &plan);
  Dice norms(seed, "plan: norms");
  PlanNorms(norms, &plan);
  Dice local(seed, "plan: local steps");
  PlanLocalSteps(local, &plan);
  Dice codec(seed, "plan: codec");
  PlanCodec(codec, &plan);
  Dice staleness(seed, "plan: staleness");
  PlanStaleness(staleness, &plan);
  Dice memory(seed, "plan: memory");
  // Rows that come and go must do so while a checkpoint is written, too.
  if (!churns) PlanMemory(memory, &plan);
  for (const FaultPlan& fault : plan.faults) plan.heal = std::max(plan.heal, fault.at + fault.duration);
  return plan;
}

std::string Plan::ToString() const {
  const auto& consistency = config.consistency();
  std::string out = absl::StrCat(
      sync() ? absl::StrCat("sync, ", ledger.parts, " parts")
             : (consistency.mode() == v1::ConsistencyConfig::MODE_BOUNDED
                    ? absl::StrCat("bounded(", consistency.staleness(), ")")
                    : "async"),
      config.server().apply() == v1::ServerConfig::APPLY_STREAMED ? ", streamed" : ", staged", ", ", shards(),
      " shards, ", standby > 0 ? absl::StrCat(standby, " servers on standby, ") : "", workers.size(),
      " workers, ", (ledger.total_examples + ledger.batch_size - 1) / ledger.batch_size, " batches",
      Words(readers), consistency.prefetch() ? ", prefetch" : "", ", chunks of ", config.wire().chunk_kib(),
      " KiB", shared_memory ? ", shared memory" : "", recoverable() ? ", checkpoints" : "",
      logs() ? ", log" : "", moves > 0 ? ", servers move" : "",
      ledger.poisoned.empty() ? "" : ", poisoned batches", ledger.uploaded ? ", values uploaded" : "",
      ledger.table ? ", a table" : "", Words(ledger.rules),
      consistency.tables() == v1::ConsistencyConfig::TABLES_ASYNC ? ", rows on arrival" : "",
      config.server().memory_limit_mib() > 0 ? ", little memory" : "",
      config.train().clip_norm() > 0 ? ", norms" : "",
      config.local().steps() > 1 ? absl::StrCat(", ", config.local().steps(), " local steps") : "",
      ledger.push_dtype != v1::F32 ? absl::StrCat(", ", v1::Dtype_Name(ledger.push_dtype)) : "",
      ledger.feedback ? " with feedback" : "", scales() ? ", scaled by staleness" : "",
      staleness_limit().has_value() ? absl::StrCat(", dropped beyond ", *staleness_limit()) : "");
  for (const FaultPlan& fault : faults) {
    absl::StrAppend(&out, "; ", Name(fault.kind), " ", fault.first, " ", fault.second, " at ",
                    absl::FormatDuration(fault.at), " for ", absl::FormatDuration(fault.duration));
  }
  return out;
}

}  // namespace weir
