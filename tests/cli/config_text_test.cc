#include "cli/report/config_text.h"

#include "catch2/catch.hpp"
#include "common/config/optimizer_slots.h"
#include "common/config/server_memory.h"
#include "common/optimizer/kernels.h"
#include "common/optimizer/optimizer.h"

namespace weir {
namespace {

constexpr char kHead[] = "memory of a server, W = bytes of its weights: ";
constexpr char kOld[] = " + at most 4 W (old versions that workers and readers hold)";
constexpr char kDead[] = " + at most 2 W (what was made of overtaken pushes)";

TEST_CASE("Server memory: slots are those of the optimizer itself") {
  using Config = v1::OptimizerConfig;
  for (int kind = Config::Kind_MIN; kind <= Config::Kind_MAX; ++kind) {
    if (!Config::Kind_IsValid(kind) || kind == Config::KIND_UNSPECIFIED) continue;
    Config config;
    config.set_type(static_cast<Config::Kind>(kind));
    const absl::StatusOr<Optimizer> optimizer = Optimizer::Create(config, BestKernels());
    CHECK(OptimizerSlots(config).size() == optimizer->slots().size());
  }
}

TEST_CASE("Server memory: a version while it is saved") {
  v1::JobConfig config;
  config.mutable_checkpoint()->set_directory("runs/7");
  config.mutable_optimizer()->set_type(v1::OptimizerConfig::KIND_ADAM);
  CHECK_THAT(DescribeServerMemory(config), Catch::Contains(" + at most 3 W (a version while it is saved)"));
}

TEST_CASE("Server memory: sync") {
  v1::JobConfig config;
  CHECK(DescribeServerMemory(config) ==
        kHead + std::string("1 W (weights and 0 slots) + W for each worker (the parts of a step)") + kOld +
            " + 1 MiB for each worker (chunks on their way)");
  config.mutable_cluster()->set_workers(4);
  config.mutable_optimizer()->set_type(v1::OptimizerConfig::KIND_ADAM);
  CHECK(DescribeServerMemory(config) ==
        kHead + std::string("3 W (weights and 2 slots) + 4 W (the parts of a step)") + kOld +
            " + 4 MiB (chunks on their way)");
  config.mutable_consistency()->set_parts(6);
  config.mutable_wire()->set_chunk_kib(256);
  config.mutable_wire()->set_chunks_in_flight(1);
  config.mutable_cluster()->set_workers(3);
  CHECK(DescribeServerMemory(config) ==
        kHead + std::string("3 W (weights and 2 slots) + 6 W (the parts of a step)") + kOld +
            " + 0.75 MiB (chunks on their way)");
}

TEST_CASE("Server memory: requests to object storage") {
  v1::JobConfig config;
  config.mutable_cluster()->set_workers(1);
  config.mutable_checkpoint()->set_directory("s3://bucket/7");
  CHECK_THAT(DescribeServerMemory(config),
             Catch::EndsWith(" + 1 MiB (chunks on their way) + at most 16 MiB (requests to object storage)"));
}

TEST_CASE("Server memory: bytes, of the servers that hold a part") {
  v1::JobConfig config;
  config.mutable_optimizer()->set_type(v1::OptimizerConfig::KIND_ADAM);
  // Weights and slots 3, parts 4, old versions 4; 2 chunks of 512 KiB a worker.
  constexpr uint64_t kTimes = 11, kChunks = 4 << 20;
  // 17 blocks of 65,536 elements: one more on the first server.
  CHECK(ServerBytes(config, 4, 17 * 65536, 2) == kTimes * 4 * 9 * 65536 + kChunks);
  // A server for each MiB of weights.
  CHECK(ServerBytes(config, 4, 1000, 2) == kTimes * 4 * 1000 + kChunks);
  config.mutable_server()->set_min_shard_kib(0);
  CHECK(ServerBytes(config, 4, 1024, 2) == kTimes * 4 * 512 + kChunks);
  CHECK(DescribeServerBytes(config, 2, 4, 1024) ==
        "that is at most 4216832 bytes (4.0 MiB) with 1024 parameters, 2 servers and 4 workers, and the "
        "program itself");
}

TEST_CASE("Server memory: the least is a part of the most, and what is checked") {
  for (const auto mode : {v1::ConsistencyConfig::MODE_SYNC, v1::ConsistencyConfig::MODE_ASYNC}) {
    v1::JobConfig config;
    config.mutable_consistency()->set_mode(mode);
    const ServerMemory memory = ServerMemoryOf(config, 3);
    CHECK(memory.least() < memory.most());
    const auto least = static_cast<uint64_t>(memory.least() * 4 * 1000);
    CHECK(CheckServerMemory(config, 3, 1000, 1, least).ok());
    CHECK_FALSE(CheckServerMemory(config, 3, 1000, 1, least - 1).ok());
    CHECK(ServerBytes(config, 3, 1000, 1) > least);
  }
}

TEST_CASE("Server memory: the rows of tables that have max_rows, on all servers") {
  v1::JobConfig config;
  config.mutable_optimizer()->set_type(v1::OptimizerConfig::KIND_SGD);
  const uint64_t before = ServerBytes(config, 1, 1000, 1);
  v1::TableConfig& table = *config.add_tables();
  table.set_name("users");
  table.set_dim(15);  // row-wise Adagrad: 16 values
  CHECK(ServerBytes(config, 1, 1000, 1) == before);
  CHECK_THAT(DescribeServerMemory(config),
             Catch::Contains(" + rows of tables without max_rows, however many"));
  // A small model has its part on every server, since tables have.
  CHECK(ServersWithPart(config, 1000, 4) == 4);
  CHECK(ServersWithPart(v1::JobConfig(), 1000, 4) == 1);

  constexpr uint64_t kRows = 1 << 20;
  table.set_max_rows(kRows);
  CHECK(ServerBytes(config, 1, 1000, 1) == before + kRows * (16 * 4 + 37));
  CHECK_THAT(DescribeServerMemory(config),
             Catch::Contains(" + at most 101.0 MiB / servers (rows of tables with max_rows)"));
  CHECK_THAT(DescribeServerMemory(config), !Catch::Contains("however many"));
  // Counts that never expire have no limit, whatever the rows have.
  config.mutable_tables(0)->set_admit_after(2);
  CHECK_THAT(DescribeServerMemory(config),
             Catch::Contains(" + counts of keys that are not admitted in tables without expire_after_steps, "
                             "however many"));
  config.mutable_tables(0)->set_expire_after_steps(1000);
  CHECK_THAT(DescribeServerMemory(config), !Catch::Contains("however many"));
  const double dense = ServerMemoryOf(config, 1).least() * 4 * 250;
  const auto least = static_cast<uint64_t>(dense) + kRows / 4 * (16 * 4 + 24);
  CHECK(CheckServerMemory(config, 1, 1000, 4, least).ok());
  CHECK_THAT(std::string(CheckServerMemory(config, 1, 1000, 4, least - 1).message()),
             Catch::Contains(" + 22.0 MiB (rows of tables, as max_rows has them), and its machine has"));
}

TEST_CASE("Server memory: applied on arrival") {
  v1::JobConfig config;
  config.mutable_consistency()->set_mode(v1::ConsistencyConfig::MODE_ASYNC);
  config.mutable_optimizer()->set_type(v1::OptimizerConfig::KIND_MOMENTUM);
  CHECK(DescribeServerMemory(config) ==
        kHead +
            std::string("4 W (weights and 1 slot, twice: streamed) + at most W for each further worker "
                        "(gradients that are arriving)") +
            kOld + kDead + " + 1 MiB for each worker (chunks on their way)");
  config.mutable_cluster()->set_workers(1);
  CHECK(DescribeServerMemory(config) == kHead + std::string("4 W (weights and 1 slot, twice: streamed)") +
                                            kOld + " + 1 MiB (chunks on their way)");
  config.mutable_cluster()->set_workers(3);
  CHECK(DescribeServerMemory(config) ==
        kHead +
            std::string(
                "4 W (weights and 1 slot, twice: streamed) + at most 2 W (gradients that are arriving)") +
            kOld + kDead + " + 3 MiB (chunks on their way)");
  config.mutable_server()->set_apply(v1::ServerConfig::APPLY_STAGED);
  CHECK(DescribeServerMemory(config) ==
        kHead + std::string("2 W (weights and 1 slot) + at most 3 W (gradients that are arriving)") + kOld +
            " + 3 MiB (chunks on their way)");
}

TEST_CASE("Server memory: the limit is the config's, or the machine's where that has less") {
  v1::JobConfig config;
  config.mutable_optimizer()->set_type(v1::OptimizerConfig::KIND_ADAM);
  constexpr uint64_t kMiB = 1 << 20,
                     kElements = 2 * kMiB;  // 8 MiB of weights: 24 with slots, and 8 for each part
  const auto check = [&](uint32_t limit_mib, uint64_t machine_mib) {
    config.mutable_server()->set_memory_limit_mib(limit_mib);
    return CheckServerMemory(config, 2, kElements, 1, machine_mib * kMiB);
  };
  CHECK(check(40, 0).ok());
  CHECK(check(40, 100).ok());
  CHECK(check(100, 40).ok());
  CHECK(check(0, 0).ok());
  for (uint64_t machine : {uint64_t{0}, uint64_t{100}}) {
    CHECK_THAT(std::string(check(39, machine).message()),
               Catch::Contains(
                   "needs at least 40.0 MiB = 3 W (weights and 2 slots) + 2 W (the parts of a step), and "
                   "server.memory_limit_mib allows 39.0 MiB. Raise it, or take more servers"));
  }
  CHECK_THAT(std::string(check(100, 39).message()),
             Catch::Contains(", and its machine has 39.0 MiB. Take more servers"));
}

TEST_CASE("Checkpoints of a job in words") {
  v1::JobConfig config;
  CHECK_THAT(DescribeCheckpoints(config), Catch::Contains("none") && Catch::Contains("ends the job"));
  config.mutable_checkpoint()->set_directory("/runs/7");
  CHECK(DescribeCheckpoints(config) ==
        "checkpoints: at intervals that follow from what one costs and at the job's end, in /runs/7, the "
        "newest 3 kept");
  config.mutable_checkpoint()->set_every_steps(100);
  config.mutable_checkpoint()->set_every_seconds(2.5);
  config.mutable_checkpoint()->set_keep(1);
  CHECK(DescribeCheckpoints(config) ==
        "checkpoints: every 100 steps and every 2.5 s and at the job's end, in /runs/7, the newest 1 kept");
}

}  // namespace
}  // namespace weir
