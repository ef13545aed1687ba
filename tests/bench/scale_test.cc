// The judgements and plots that `./dev bench scale` derives from its measurements.
#include "bench/scale.h"

#include <string>
#include <vector>

#include "catch2/catch.hpp"

namespace weir::bench {
namespace {

using Catch::Contains;

ScaleRow Row(const std::string& mode, int workers, double rate, double idle_mib) {
  ScaleRow row;
  row.cell.model = "tiny";
  row.cell.mode = mode;
  row.cell.workers = workers;
  row.result.pushes_per_second = rate;
  row.result.idle_bytes_per_worker = idle_mib * (1 << 20);
  row.result.p99_seconds = 0.01;
  row.result.start_seconds = 1;
  return row;
}

TEST_CASE("Scale: targets are judged where the cells have what it takes") {
  CHECK(JudgeScale({}).empty());
  CHECK(JudgeScale({Row("async", 8, 100, 5), Row("bounded", 8, 100, 5)}).empty());

  std::vector<ScaleTarget> targets = JudgeScale({Row("async", 8, 100, 5), Row("async", 64, 80, 0.5)});
  REQUIRE(targets.size() == 2);
  CHECK(targets[0].value == Approx(0.8));
  CHECK(targets[0].met());
  CHECK(targets[1].value == Approx(0.5));  // the server's fixed cost is not charged to a few workers
  CHECK(targets[1].met());

  targets = JudgeScale({Row("async", 8, 100, 5), Row("async", 64, 79, 1.01)});
  REQUIRE(targets.size() == 2);
  CHECK_FALSE(targets[0].met());
  CHECK_FALSE(targets[1].met());

  ScaleRow sync = Row("sync", 256, 10, 0.1);
  REQUIRE(JudgeScale({sync}).size() == 2);
  CHECK(JudgeScale({sync})[0].met());
  sync.status = absl::DeadlineExceededError("stands");
  REQUIRE(JudgeScale({sync}).size() == 1);
  CHECK_FALSE(JudgeScale({sync})[0].met());
  // A failed row has no throughput.
  ScaleRow stands = Row("async", 64, 0, 0);
  stands.status = sync.status;
  REQUIRE(JudgeScale({Row("async", 8, 100, 5), stands}).size() == 1);
  CHECK_FALSE(JudgeScale({Row("async", 8, 100, 5), stands})[0].met());
}

TEST_CASE("Scale: throughput is compared pair by pair") {
  std::vector<ScaleRow> rows = {Row("async", 8, 100, 5), Row("async", 64, 50, 0.5),
                                Row("async", 8, 60, 5),  Row("async", 64, 66, 0.5),
                                Row("async", 8, 100, 5), Row("async", 64, 81, 0.5)};
  for (size_t i = 2; i < rows.size(); ++i) rows[i].again = true;
  const std::vector<ScaleTarget> targets = JudgeScale(rows);
  REQUIRE(targets.size() == 2);
  CHECK(targets[0].samples == std::vector<double>{50.0 / 100, 66.0 / 60, 81.0 / 100});
  CHECK(targets[0].value == Approx(0.81));
  CHECK(targets[0].met());
  // Repeated rows are not drawn.
  CHECK(PlotScale(rows) == PlotScale({rows[0], rows[1]}));
}

TEST_CASE("Scale: what failed is not drawn") {
  ScaleRow failed = Row("sync", 8, 1, 1);
  failed.status = absl::InternalError("failed");
  const std::string plot = PlotScale({Row("async", 1, 10, 1), Row("async", 8, 1000, 1), failed});
  CHECK_THAT(plot, Contains("async, tiny") && !Contains(">sync, tiny<") && Contains("pushes/s, 1 server<") &&
                       !Contains("nan") && !Contains("inf"));
  CHECK_THAT(PlotScale({failed}), Catch::EndsWith("</svg>\n") && !Contains("polyline"));
}

}  // namespace
}  // namespace weir::bench
