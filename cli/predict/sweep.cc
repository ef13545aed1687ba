#include "cli/predict/sweep.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/report/format.h"
#include "nlohmann/json.hpp"

namespace weir {
namespace {

using Json = nlohmann::ordered_json;

// "0.0123", "45.6": FormatRate() rounds rates below 1 to nothing.
std::string Rate(double per_second) {
  return per_second < 10 ? absl::StrFormat("%.3g", per_second) : FormatRate(per_second);
}

}  // namespace

std::string SweepText(const std::vector<SweepRow>& rows, uint32_t batch_size) {
  Table table({"mode", "workers", "servers", "steps/s", "examples/s", "computing", "waiting", "exchange",
               "servers busy", "staleness", "to each worker"});
  for (const SweepRow& row : rows) {
    const ClusterPrediction& p = row.prediction;
    table.AddRow(
        {row.mode, absl::StrCat(row.workers), absl::StrCat(row.servers), Rate(p.steps_per_second),
         FormatRate(p.batches_per_second * batch_size), FormatPercent(p.computing), FormatPercent(p.waiting),
         FormatPercent(p.exchanging), FormatPercent(p.server_busy), absl::StrFormat("%.1f", p.mean_staleness),
         absl::StrCat(FormatBytes(static_cast<uint64_t>(p.pulled_bytes_per_second / row.workers)), "/s")});
  }
  return table.ToString();
}

std::string SweepJson(const std::vector<SweepRow>& rows, uint32_t batch_size) {
  Json out = Json::array();
  for (const SweepRow& row : rows) {
    const ClusterPrediction& p = row.prediction;
    out.push_back({{"mode", row.mode},
                   {"workers", row.workers},
                   {"servers", row.servers},
                   {"steps_per_second", p.steps_per_second},
                   {"pushes_per_second", p.pushes_per_second},
                   {"examples_per_second", p.batches_per_second * batch_size},
                   {"utilization", p.computing},
                   {"waiting", p.waiting},
                   {"exchange", p.exchanging},
                   {"servers_busy", p.server_busy},
                   {"version_staleness_mean", p.mean_staleness},
                   {"pushes_dropped", p.dropped},
                   {"pushed_bytes_per_second", p.pushed_bytes_per_second},
                   {"pulled_bytes_per_second", p.pulled_bytes_per_second}});
  }
  return Json{{"rows", out}}.dump(2) + "\n";
}

std::string SweepSvg(const std::vector<SweepRow>& rows) {
  constexpr double kWidth = 640, kHeight = 420, kLeft = 70, kRight = 210, kTop = 20, kBottom = 50;
  constexpr const char* kColours[] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd",
                                      "#ff7f0e", "#8c564b", "#17becf"};
  std::map<std::string, std::vector<std::pair<double, double>>> lines;
  double least_x = 1e300, most_x = 0, least_y = 1e300, most_y = 0;
  for (const SweepRow& row : rows) {
    const double x = row.workers, y = row.prediction.batches_per_second;
    lines[absl::StrCat(row.mode, ", ", Counted(row.servers, "server"))].emplace_back(x, y);
    least_x = std::min(least_x, x);
    most_x = std::max(most_x, x);
    least_y = std::min(least_y, y);
    most_y = std::max(most_y, y);
  }
  const double low = std::floor(std::log10(least_y)), high = std::max(low + 1, std::ceil(std::log10(most_y)));
  const auto at_x = [&](double x) {
    const double share = most_x > least_x ? std::log(x / least_x) / std::log(most_x / least_x) : 0;
    return kLeft + share * (kWidth - kLeft - kRight);
  };
  const auto at_y = [&](double y) {
    return kHeight - kBottom - (std::log10(y) - low) / (high - low) * (kHeight - kTop - kBottom);
  };
  std::string out = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
      kWidth, kHeight);
  const auto text = [&](double x, double y, const char* anchor, const std::string& what) {
    absl::StrAppendFormat(&out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor,
                          what);
  };
  for (double power = low; power <= high; ++power) {
    const double y = at_y(std::pow(10, power));
    absl::StrAppendFormat(&out, "<path d=\"M%.1f %.1fH%.1f\" stroke=\"#ccc\"/>\n", kLeft, y, kWidth - kRight);
    text(kLeft - 6, y + 4, "end", absl::StrFormat("%g", std::pow(10, power)));
  }
  std::map<uint32_t, bool> ticks;
  for (const SweepRow& row : rows) {
    if (!std::exchange(ticks[row.workers], true))
      text(at_x(row.workers), kHeight - 30, "middle", absl::StrCat(row.workers));
  }
  text((kLeft + kWidth - kRight) / 2, kHeight - 10, "middle", "workers");
  text(8, 14, "start", "batches a second");
  size_t index = 0;
  for (const auto& [name, points] : lines) {
    const char* const colour = kColours[index % std::size(kColours)];
    std::string path;
    for (const auto& [x, y] : points) absl::StrAppendFormat(&path, "%.1f,%.1f ", at_x(x), at_y(y));
    absl::StrAppendFormat(&out,
                          "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s/>\n",
                          path, colour, index >= std::size(kColours) ? " stroke-dasharray=\"5 3\"" : "");
    const double y = kTop + 14 * static_cast<double>(index++);
    absl::StrAppendFormat(&out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"10\" height=\"3\" fill=\"%s\"/>\n",
                          kWidth - kRight + 10, y + 4, colour);
    text(kWidth - kRight + 26, y + 10, "start", name);
  }
  return out + "</svg>\n";
}

}  // namespace weir
