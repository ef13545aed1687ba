#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/scale.h"

namespace weir::bench {
namespace {

// A panel's size in pixels, with the space around its axes.
constexpr double kWidth = 280, kHeight = 190, kLeft = 50, kTop = 26, kRight = 12, kBottom = 30, kLegend = 44;

struct Figure {
  const char* title;
  std::function<double(const ScaleResult&)> value;
};

const char* Color(const std::string& mode) {
  return mode == "sync" ? "#1f77b4" : mode == "bounded" ? "#2ca02c" : "#d62728";
}

const char* Dash(const std::string& model) { return model == "tiny" ? "" : " stroke-dasharray=\"5 3\""; }

std::string Text(double x, double y, const char* anchor, const std::string& text) {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor, text);
}

std::string Line(double x0, double y0, double x1, double y1, const std::string& style) {
  return absl::StrFormat("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", x0, y0, x1, y1,
                         style);
}

// Both axes are logarithmic: base 2 for workers, base 10 for values.
class Panel {
 public:
  Panel(double x, double y, const std::vector<const ScaleRow*>& rows, const Figure& figure)
      : x_(x + kLeft), y_(y + kTop), rows_(rows), figure_(figure) {
    double least = 1e300, most = 1e-300;
    for (const ScaleRow* row : rows) {
      most_workers_ = std::max(most_workers_, std::log2(row->cell.workers));
      const double value = Value(*row);
      least = std::min(least, value);
      most = std::max(most, value);
    }
    low_ = std::floor(std::log10(least));
    high_ = std::max(low_ + 1, std::ceil(std::log10(most)));
  }

  std::string Draw(const std::string& title) const {
    std::string out = Text(x_ + Inner() / 2, y_ - 8, "middle", title);
    for (double decade = low_; decade <= high_; ++decade) {
      const double y = Y(std::pow(10, decade));
      absl::StrAppend(&out, Line(x_, y, x_ + Inner(), y, "stroke=\"#ddd\""),
                      Text(x_ - 5, y + 4, "end", absl::StrFormat("%g", std::pow(10, decade))));
    }
    std::set<std::pair<std::string, std::string>> lines;
    std::set<int> workers;
    for (const ScaleRow* row : rows_) {
      lines.insert({row->cell.model, row->cell.mode});
      workers.insert(row->cell.workers);
    }
    for (int w : workers) {
      absl::StrAppend(&out, Text(X(w), y_ + InnerHeight() + 16, "middle", absl::StrCat(w)));
    }
    for (const auto& [model, mode] : lines) {
      std::string points;
      for (const ScaleRow* row : rows_) {
        if (row->cell.model != model || row->cell.mode != mode) continue;
        const double x = X(row->cell.workers), y = Y(Value(*row));
        absl::StrAppendFormat(&points, "%.1f,%.1f ", x, y);
        absl::StrAppendFormat(&out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2\" fill=\"%s\"/>\n", x, y,
                              Color(mode));
      }
      absl::StrAppendFormat(&out, "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\"%s/>\n", points,
                            Color(mode), Dash(model));
    }
    return out;
  }

 private:
  double Value(const ScaleRow& row) const { return std::max(figure_.value(row.result), 1e-3); }
  static double Inner() { return kWidth - kLeft - kRight; }
  static double InnerHeight() { return kHeight - kTop - kBottom; }
  double X(int workers) const { return x_ + Inner() * std::log2(workers) / std::max(1.0, most_workers_); }
  double Y(double value) const { return y_ + InnerHeight() * (high_ - std::log10(value)) / (high_ - low_); }

  const double x_, y_;
  const std::vector<const ScaleRow*> rows_;
  const Figure& figure_;
  double most_workers_ = 0, low_ = 0, high_ = 1;
};

}  // namespace

std::string PlotScale(const std::vector<ScaleRow>& rows) {
  const std::vector<Figure> figures = {
      {"pushes/s", [](const ScaleResult& r) { return r.pushes_per_second; }},
      {"p99 of a push, ms", [](const ScaleResult& r) { return r.p99_seconds * 1e3; }},
      {"idle worker on a server, KiB", [](const ScaleResult& r) { return r.idle_bytes_per_worker / 1024; }},
      {"start, s", [](const ScaleResult& r) { return r.start_seconds; }},
  };
  std::set<int> servers;
  std::set<std::pair<std::string, std::string>> lines;
  for (const ScaleRow& row : rows) {
    if (!row.status.ok()) continue;
    servers.insert(row.cell.servers);
    lines.insert({row.cell.model, row.cell.mode});
  }
  const double width = std::max(2.0, static_cast<double>(servers.size())) * kWidth;
  std::string out = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" font-family=\"sans-serif\" "
      "font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
      width, kLegend + static_cast<double>(figures.size()) * kHeight);
  double at = 10;
  for (const auto& [model, mode] : lines) {
    absl::StrAppend(&out,
                    Line(at, 18, at + 24, 18, absl::StrCat("stroke=\"", Color(mode), "\"", Dash(model))),
                    Text(at + 28, 22, "start", absl::StrCat(mode, ", ", model)));
    at += 110;
  }
  absl::StrAppend(&out, Text(10, 38, "start", "x: workers"));
  for (size_t f = 0; f < figures.size(); ++f) {
    double x = 0;
    for (int count : servers) {
      std::vector<const ScaleRow*> some;
      for (const ScaleRow& row : rows) {
        if (row.status.ok() && !row.again && row.cell.servers == count) some.push_back(&row);
      }
      const Panel panel(x, kLegend + static_cast<double>(f) * kHeight, some, figures[f]);
      out += panel.Draw(absl::StrCat(figures[f].title, ", ", count, count == 1 ? " server" : " servers"));
      x += kWidth;
    }
  }
  return out + "</svg>\n";
}

}  // namespace weir::bench
