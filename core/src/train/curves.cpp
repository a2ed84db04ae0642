#include "train/curves.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace fastpath::training {
namespace {

constexpr double kWidth = 760, kLeft = 70, kRight = 20, kPanel = 250, kGap = 60, kTop = 40;
constexpr double kInner = kWidth - kLeft - kRight;

struct Curve {
  std::string title;
  const char* colour;
  std::vector<std::optional<double>> values;  // per epoch
};

/// 1, 2 or 5 times a power of ten.
double round_step(double rough) {
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double ratio = rough / power;
  return power * (ratio <= 1 ? 1 : ratio <= 2 ? 2 : ratio <= 5 ? 5 : 10);
}

std::string text(double x, double y, const char* anchor, const std::string& content, const char* more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, more, content);
}

std::string panel(double top, const std::string& title, const std::vector<Curve>& curves, double first_epoch,
                  double last_epoch) {
  double low = 0, high = 0;
  bool any = false;
  for (const Curve& curve : curves) {
    for (const auto& value : curve.values) {
      if (!value || !(*value > 0)) continue;
      low = any ? std::min(low, *value) : *value;
      high = any ? std::max(high, *value) : *value;
      any = true;
    }
  }
  std::string svg = text(kLeft, top - 10, "start", title, " font-weight=\"bold\"");
  svg += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#999\"/>\n", kLeft, top,
                     kInner, kPanel);
  if (!any) return svg;
  const double first = std::floor(std::log10(low) - 1e-9), last = std::max(first + 1, std::ceil(std::log10(high)));
  const double span = last_epoch - first_epoch;
  const auto x_of = [&](double epoch) { return kLeft + kInner * (span > 0 ? (epoch - first_epoch) / span : 0.5); };
  const auto y_of = [&](double value) { return top + kPanel * (last - std::log10(value)) / (last - first); };
  for (double decade = first; decade <= last; decade += 1) {
    const double y = y_of(std::pow(10, decade));
    svg += fmt::format("<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>\n", kLeft,
                       kLeft + kInner, y, y);
    svg += text(kLeft - 8, y + 4, "end", fmt::format("1e{:.0f}", decade));
  }
  const double step = round_step(std::max(1.0, last_epoch / 8));
  for (double epoch = 0; epoch <= last_epoch; epoch += step) {
    if (epoch >= first_epoch) svg += text(x_of(epoch), top + kPanel + 16, "middle", fmt::format("{:.0f}", epoch));
  }
  double legend = kLeft + kInner;
  for (std::size_t i = curves.size(); i-- > 0;) {
    const Curve& curve = curves[i];
    std::string points;
    for (std::size_t k = 0; k < curve.values.size(); ++k) {
      if (!curve.values[k] || !(*curve.values[k] > 0)) continue;
      points += fmt::format("{:.1f},{:.1f} ", x_of(first_epoch + static_cast<double>(k)), y_of(*curve.values[k]));
    }
    if (points.empty()) continue;
    points.pop_back();
    svg += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"/>\n", points,
                       curve.colour);
    svg += text(legend, top - 10, "end", curve.title, fmt::format(" fill=\"{}\"", curve.colour).c_str());
    legend -= 14 + 6.6 * static_cast<double>(curve.title.size());
  }
  return svg;
}

}  // namespace

std::string curves(const std::vector<TrainingEpoch>& history) {
  std::vector<Curve> losses{{"training", "#1f77b4", {}}, {"validation", "#d62728", {}}};
  std::vector<Curve> errors{
      {"energy, eV/atom", "#1f77b4", {}}, {"forces, eV/A", "#d62728", {}}, {"stress, eV/A^3", "#2ca02c", {}}};
  for (const TrainingEpoch& epoch : history) {
    losses[0].values.emplace_back(epoch.training_loss);
    losses[1].values.emplace_back(epoch.validation_loss);
    errors[0].values.push_back(epoch.errors.energy);
    errors[1].values.push_back(epoch.errors.forces);
    errors[2].values.push_back(epoch.errors.stress);
  }
  const double height = kTop + 2 * kPanel + 2 * kGap;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n",
      kWidth, height);
  const double first = history.empty() ? 0 : static_cast<double>(history.front().epoch);
  const double last = history.empty() ? 0 : static_cast<double>(history.back().epoch);
  svg += panel(kTop, "loss", losses, first, last);
  svg += panel(kTop + kPanel + kGap, "errors on the validation set (root mean square)", errors, first, last);
  svg += text(kLeft + kInner / 2, height - 22, "middle", "epoch");
  return svg + "</svg>\n";
}

}  // namespace fastpath::training
