#include "ps_server/coordinator/job/job.h"

#include <catch2/catch.hpp>

namespace weir {
namespace {

v1::JobConfig Config(v1::ConsistencyConfig::Mode mode, uint32_t batch, double epochs) {
  v1::JobConfig config;
  config.mutable_consistency()->set_mode(mode);
  config.mutable_data()->set_batch_size(batch);
  config.mutable_train()->set_epochs(epochs);
  return config;
}

TEST_CASE("A job's size follows from its config and its training set") {
  v1::JobConfig config = Config(v1::ConsistencyConfig::MODE_SYNC, 8, 1.5);
  const JobSize size = SizeOf(config, 3, 100);
  CHECK(size.train_examples == 100);
  CHECK(size.parts == 3);
  CHECK(size.examples == 150);
  CHECK(size.batches == 19);
  CHECK(size.steps == 7);
  CHECK(SizeOf(config, 3, 100, 4).steps == 5);
  config.mutable_consistency()->set_parts(19);
  CHECK(SizeOf(config, 3, 100).steps == 1);
  config.mutable_train()->set_examples(16);
  CHECK(SizeOf(config, 3, 100).batches == 2);
  config.mutable_train()->set_examples(17);
  CHECK(SizeOf(config, 3, 100).batches == 3);
}

TEST_CASE("A job's length in steps is so many of its parts, or batches of each worker") {
  v1::JobConfig config = Config(v1::ConsistencyConfig::MODE_SYNC, 8, 1);
  config.mutable_train()->clear_epochs();
  config.mutable_train()->set_steps(7);
  CHECK(SizeOf(config, 3, 100).steps == 7);
  CHECK(SizeOf(config, 3, 100).examples == 7 * 3 * 8);
  CHECK(SizeOf(config, 3, 100, 4).examples == 7 * 4 * 8);  // as the checkpoint has it
  config.mutable_data()->set_drop_last(true);
  CHECK(SizeOf(config, 3, 100).dropped == 0);
  config.mutable_consistency()->set_mode(v1::ConsistencyConfig::MODE_ASYNC);
  CHECK(SizeOf(config, 3, 100, 4).steps == 7);
  CHECK(SizeOf(config, 3, 100, 4).batches == 7 * 3);
}

TEST_CASE("Where no step commits, a step is a batch a worker") {
  const v1::JobConfig config = Config(v1::ConsistencyConfig::MODE_ASYNC, 10, 1);
  CHECK(SizeOf(config, 4, 100).steps == 3);
  CHECK(SizeOf(config, 4, 1).examples == 1);
  const JobSize shorter = Shortened(config, 4, SizeOf(config, 4, 100), 40, 4);
  CHECK(shorter.examples == 40);
  CHECK(shorter.batches == 4);
  CHECK(shorter.steps == 1);
  CHECK(shorter.train_examples == 100);
}

TEST_CASE("data.drop_last leaves out the last batch, and in sync the last step, if it has fewer examples") {
  using Catch::Contains;
  v1::JobConfig config = Config(v1::ConsistencyConfig::MODE_ASYNC, 8, 1.5);
  config.mutable_data()->set_drop_last(true);
  JobSize size = SizeOf(config, 3, 100);
  CHECK(size.examples == 144);
  CHECK(size.dropped == 6);
  CHECK(size.batches == 18);
  CHECK(size.steps == 6);
  config.mutable_train()->set_examples(16);
  CHECK(SizeOf(config, 3, 100).batches == 2);
  config.mutable_train()->set_examples(17);
  CHECK(SizeOf(config, 3, 100).batches == 2);
  CHECK(CheckSize(config, SizeOf(config, 3, 100)).ok());
  config.mutable_train()->set_examples(7);
  CHECK_THAT(std::string(CheckSize(config, SizeOf(config, 3, 100)).message()),
             Contains("data.drop_last") && Contains("7 examples") && Contains("data.batch_size") &&
                 Contains("has 8"));

  config = Config(v1::ConsistencyConfig::MODE_SYNC, 8, 1.5);
  config.mutable_data()->set_drop_last(true);
  size = SizeOf(config, 3, 100);
  CHECK(size.examples == 144);
  CHECK(size.batches == 18);
  CHECK(size.steps == 6);
  // The last step has all of its parts, and each part is full.
  size = SizeOf(config, 3, 100, 4);
  CHECK(size.examples == 128);
  CHECK(size.dropped == 22);
  CHECK(size.batches == 16);
  CHECK(size.steps == 4);
  CHECK_THAT(std::string(CheckSize(config, SizeOf(config, 3, 10, 4)).message()),
             Contains("15 examples") && Contains("a step has 32 (4 parts of data.batch_size 8)"));
}

TEST_CASE("A batch of local steps has the examples of all of them") {
  v1::JobConfig config = Config(v1::ConsistencyConfig::MODE_SYNC, 8, 1.5);
  config.mutable_local()->set_steps(5);
  JobSize size = SizeOf(config, 3, 100);
  CHECK(size.batches == 4);
  CHECK(size.steps == 2);
  config.mutable_data()->set_drop_last(true);
  CHECK_THAT(std::string(CheckSize(config, SizeOf(config, 4, 100)).message()),
             Catch::Contains("a step has 160 (4 parts of data.batch_size 8 x local.steps 5). Lower "
                             "data.batch_size or local.steps, or take"));
  config.mutable_consistency()->set_mode(v1::ConsistencyConfig::MODE_ASYNC);
  CHECK(SizeOf(config, 3, 100).batches == 3);
  CHECK_THAT(std::string(CheckSize(config, SizeOf(config, 4, 20)).message()),
             Catch::Contains("a batch has 40 (data.batch_size 8 x local.steps 5)"));

  v1::CheckpointManifest checkpoint;
  *checkpoint.mutable_job()->mutable_config() = config;
  CHECK(CanGoOn(config, checkpoint).ok());
  config.mutable_local()->set_steps(4);
  CHECK_THAT(std::string(CanGoOn(config, checkpoint).message()),
             Catch::Contains("local.steps is 4, the checkpoint's is 5"));
}

TEST_CASE("Where no step commits, parts are the configured workers, whatever a checkpoint had") {
  CHECK(SizeOf(Config(v1::ConsistencyConfig::MODE_ASYNC, 10, 1), 4, 100, 7).parts == 4);
}

TEST_CASE("A checkpoint is the end of a job whose batches are all in it") {
  const v1::JobConfig config = Config(v1::ConsistencyConfig::MODE_SYNC, 10, 2);
  v1::CheckpointManifest checkpoint;
  checkpoint.mutable_job()->set_train_examples(100);
  checkpoint.mutable_job()->set_total_batches(20);
  CHECK_FALSE(IsEndOf(config, checkpoint));
  checkpoint.mutable_job()->set_done(true);
  CHECK(IsEndOf(config, checkpoint));
  CHECK_FALSE(IsEndOf(Config(v1::ConsistencyConfig::MODE_SYNC, 10, 3), checkpoint));
}

TEST_CASE("a job of another name does not go on from a checkpoint") {
  v1::JobConfig config = Config(v1::ConsistencyConfig::MODE_SYNC, 10, 2);
  v1::CheckpointManifest checkpoint;
  *checkpoint.mutable_job()->mutable_config() = config;
  CHECK(CanGoOn(config, checkpoint).ok());
  config.set_name("another");
  const absl::Status refused = CanGoOn(config, checkpoint);
  CHECK(absl::IsFailedPrecondition(refused));
  CHECK_THAT(std::string(refused.message()), Catch::Contains("name is 'another', the checkpoint's is 'job'"));
}

TEST_CASE("The end of a job with data.drop_last is its last whole step") {
  v1::JobConfig config = Config(v1::ConsistencyConfig::MODE_SYNC, 10, 2);
  config.mutable_data()->set_drop_last(true);
  v1::CheckpointManifest checkpoint;
  checkpoint.mutable_job()->set_done(true);
  checkpoint.mutable_job()->set_parts(3);
  checkpoint.mutable_job()->set_train_examples(100);
  checkpoint.mutable_job()->set_total_batches(18);
  CHECK(IsEndOf(config, checkpoint));
  config.mutable_data()->set_drop_last(false);
  CHECK_FALSE(IsEndOf(config, checkpoint));
}

}  // namespace
}  // namespace weir
