// The picture has a white ground, so that it is readable on dark pages too, and needs no script and no font file.
#include "cli/simulate/picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "cli/simulate/cluster_text.h"

namespace fdl {
namespace {

constexpr double kWidth = 960, kHeight = 560;
constexpr double kLeft = 84, kRight = 250, kTop = 64, kBottom = 60;  // margins; the legend is on the right

// Colours that differ in brightness too; markers tell lines apart without colours.
constexpr std::array<std::string_view, 9> kColours{"#d1495b", "#00798c", "#edae49", "#30638e", "#6a994e",
                                                   "#8d6a9f", "#7f5539", "#e07a5f", "#333333"};

struct Line {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x, and seconds; NaN where the way was refused
};

std::string escaped(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    safe += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  }
  return safe;
}

class Picture {
 public:
  Picture(const std::vector<SimulatedPoint>& points, bool over_ranks, const std::string& bound)
      : over_ranks_(over_ranks) {
    bound_.name = bound;
    for (const SimulatedPoint& point : points) {
      const double x = over_ranks ? point.cluster.ranks() : static_cast<double>(std::max<int64_t>(1, point.bytes));
      xs_.push_back(x);
      bound_.points.emplace_back(x, point.bound_s);
      for (const SimulatedRow& row : point.rows)
        line_named(row.name.substr(0, row.name.find(':')))
            .points.emplace_back(x, row.run ? row.run->seconds : std::nan(""));
    }
    find_range();
  }

  std::string draw(const std::string& title, const std::string& subtitle) {
    out_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
        "font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n",
        kWidth, kHeight);
    text(kLeft, 26, title, "start", 17);
    text(kLeft, 46, subtitle, "start", 11);
    draw_axes();
    draw_line(bound_, "#333333", true, 0);
    for (std::size_t i = 0; i < lines_.size(); ++i) draw_line(lines_[i], kColours[i % kColours.size()], false, i + 1);
    return out_ + "</svg>\n";
  }

 private:
  Line& line_named(const std::string& name) {
    const auto found = std::find_if(lines_.begin(), lines_.end(), [&](const Line& line) { return line.name == name; });
    return found != lines_.end() ? *found : lines_.emplace_back(Line{.name = name, .points = {}});
  }

  void find_range() {
    double least = INFINITY;
    double most = 0;
    for (const Line& line : lines_) {
      for (const auto& [x, seconds] : line.points) {
        if (!(seconds > 0)) continue;
        least = std::min(least, seconds);
        most = std::max(most, seconds);
      }
    }
    for (const auto& [x, seconds] : bound_.points) {
      if (seconds > 0) least = std::min(least, seconds);
    }
    if (!(most > 0)) least = most = 1e-6;
    low_ = std::floor(std::log10(least));
    high_ = std::max(low_ + 1, std::ceil(std::log10(most)));
    first_ = std::log2(*std::min_element(xs_.begin(), xs_.end()));
    last_ = std::max(first_ + 1, std::log2(*std::max_element(xs_.begin(), xs_.end())));
  }

  double x_of(double x) const { return kLeft + (std::log2(x) - first_) / (last_ - first_) * (kWidth - kLeft - kRight); }
  double y_of(double seconds) const {
    return kHeight - kBottom - (std::log10(seconds) - low_) / (high_ - low_) * (kHeight - kTop - kBottom);
  }

  void text(double x, double y, std::string_view what, std::string_view anchor, int size = 13) {
    out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{}\" fill=\"#222\">{}</text>\n",
                        x, y, anchor, size, escaped(what));
  }
  void rule(double x1, double y1, double x2, double y2, std::string_view colour) {
    out_ += fmt::format("<path d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\" stroke=\"{}\"/>\n", x1, y1, x2, y2, colour);
  }

  void draw_axes() {
    const double bottom = kHeight - kBottom;
    const double right = kWidth - kRight;
    for (double power = low_; power <= high_; ++power) {
      const double y = y_of(std::pow(10, power));
      rule(kLeft, y, right, y, "#dddddd");
      text(kLeft - 8, y + 4, seconds_text(std::pow(10, power)), "end");
    }
    // As many labels as fit, at powers of two.
    const double step = std::max(1.0, std::ceil((last_ - first_) / 10));
    for (double power = std::ceil(first_); power <= last_ + 1e-9; power += step) {
      const double x = x_of(std::exp2(power));
      rule(x, kTop, x, bottom, "#eeeeee");
      text(x, bottom + 20, over_ranks_ ? fmt::format("{}", std::exp2(power)) : bytes_text(std::exp2(power)), "middle");
    }
    rule(kLeft, bottom, right, bottom, "#222222");
    rule(kLeft, kTop, kLeft, bottom, "#222222");
    text((kLeft + right) / 2, bottom + 44, over_ranks_ ? "ranks" : "bytes of the vector", "middle");
  }

  void marker(double x, double y, std::string_view colour, std::size_t shape) {
    switch (shape % 3) {
      case 0:
        out_ += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.6\" fill=\"{}\"/>\n", x, y, colour);
        return;
      case 1:
        out_ += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"6.6\" height=\"6.6\" fill=\"{}\"/>\n", x - 3.3,
                            y - 3.3, colour);
        return;
      default:
        out_ += fmt::format("<path d=\"M{:.1f} {:.1f}l4.4 7.6h-8.8z\" fill=\"{}\"/>\n", x, y - 4.6, colour);
    }
  }

  // `row`: the place in the legend.
  void draw_line(const Line& line, std::string_view colour, bool is_bound, std::size_t row) {
    const std::string stroke = fmt::format("fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{}", colour,
                                           is_bound ? " stroke-dasharray=\"2 5\" stroke-linecap=\"round\"" : "");
    std::string path;
    bool is_open = false;
    for (const auto& [x, seconds] : line.points) {
      if (!(seconds > 0)) {
        is_open = false;
        continue;
      }
      path += fmt::format("{}{:.1f} {:.1f}", is_open ? "L" : "M", x_of(x), y_of(seconds));
      is_open = true;
    }
    if (!path.empty()) out_ += fmt::format("<path d=\"{}\" {}/>\n", path, stroke);
    const double x = kWidth - kRight + 22;
    const double y = kTop + 12 + 24 * static_cast<double>(row);
    out_ += fmt::format("<path d=\"M{:.1f} {:.1f}h30\" {}/>\n", x, y, stroke);
    if (!is_bound) {
      for (const auto& [at, seconds] : line.points) {
        if (seconds > 0) marker(x_of(at), y_of(seconds), colour, row);
      }
      marker(x + 15, y, colour, row);
    }
    text(x + 38, y + 4, path.empty() ? line.name + " (too large)" : line.name, "start");
  }

  bool over_ranks_;
  std::vector<double> xs_;
  Line bound_;
  std::vector<Line> lines_;
  double first_ = 0, last_ = 1;  // of the x axis, powers of two
  double low_ = 0, high_ = 1;    // of the y axis, powers of ten
  std::string out_;
};

}  // namespace

std::string picture_of(const std::vector<SimulatedPoint>& points, const std::string& title, bool over_ranks,
                       const std::string& bound) {
  std::string subtitle = cluster_text(points.back().cluster);
  // Along the axis the hosts differ, and the rest of the text does not.
  if (over_ranks) {
    const int locals = points.back().cluster.ranks_per_host;
    subtitle = fmt::format("{} rank{} a host", locals, locals == 1 ? "" : "s") +
               subtitle.substr(std::min(subtitle.find(';'), subtitle.size()));
  }
  return Picture(points, over_ranks, bound).draw(title, subtitle);
}

}  // namespace fdl
