#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "fastpath/error.hpp"
#include "fastpath/tune.hpp"

using namespace fastpath;
using testing::HasSubstr;
using testing::Not;

namespace {

constexpr const char* kMalicious = "<script>document.title=1</script>\"'><img src=x onerror=x>&\x01";

/// 50 us + 20 ns n against 2 us + 100 ns n, from 8 to 131072 edges; one size says nothing.
Measurement crossover(const std::string& op, const std::string& plugin) {
  Measurement result;
  result.key = {op, 1, "0123456789abcdef", "cpu Some CPU x86-64-v4 2", DType::float64, kPassesForces.bits(), 2, plugin};
  for (std::int64_t edges = 8; edges < 200000; edges *= 4) {
    const auto n = static_cast<double>(edges);
    MeasuredPoint point{edges, edges / 30 + 2};
    if (edges != 32768) {
      point = {edges, edges / 30 + 2, true, 2e-6 + 100e-9 * n, 50e-6 + 20e-9 * n, 0.03, 0.08, 21};
    }
    result.points.push_back(point);
  }
  result.windows = {{600, 0, 0.04, 0}};
  result.plugin_version = "1.2.3";
  result.plugin_build = "fedcba9876543210";
  result.library_version = "0.1.0";
  result.driver = "535.1";
  result.host = "somewhere";
  result.unix_time = 1760000000;
  return result;
}

std::size_t count(std::string_view text, std::string_view what) {
  std::size_t result = 0;
  for (std::size_t at = text.find(what); at != std::string_view::npos; at = text.find(what, at + 1)) ++result;
  return result;
}

TEST(TuningReport, DrawsEverySampleOfBothCurves) {
  const Measurement measurement = crossover("radial_basis", "acme");
  const std::string page = tuning_report({measurement});
  // One more of each in the legend.
  EXPECT_EQ(count(page, "<circle class=\"kernel mark\""), measurement.points.size());
  EXPECT_EQ(count(page, "<rect class=\"reference mark\""), measurement.points.size());
  EXPECT_EQ(count(page, "<path class=\"unknown\""), 1u);
  EXPECT_EQ(count(page, "class=\"kernel curve\""), 1u);
  EXPECT_EQ(count(page, "class=\"window\""), 1u);
  EXPECT_EQ(count(page, "class=\"band\""), 1u);
}

TEST(TuningReport, SaysWhatWasMeasuredAndWithWhat) {
  const std::string page = tuning_report({crossover("radial_basis", "acme")});
  for (const char* words : {"radial_basis by acme", "from 600 (±4 %) edges", "float64", "forward, backward",
                            "2 threads", "Some CPU", "1.2.3", "fedcba987654", "fastpath 0.1.0", "535.1", "somewhere",
                            "2025-10-09 08:53 UTC", "131,072", "2.8 µs", "inconclusive"}) {
    EXPECT_THAT(page, HasSubstr(words));
  }
}

TEST(TuningReport, WindowsOfEveryKindAreWords) {
  Measurement measurement = crossover("radial_basis", "acme");
  const auto expect = [&](const std::string& words) { EXPECT_THAT(tuning_report({measurement}), HasSubstr(words)); };
  measurement.windows = {{356, 19644, 0.02, 0.03}};
  expect("356 (±2 %) to 19,644 (±3 %) edges");
  measurement.windows = {{0, 900, 0, 0.03}, {5000, 0, 0.2, 0}};
  expect("up to 900 (±3 %) edges, from 5,000 (±20 %) edges");
  measurement.windows = {{}};
  expect("<strong>always</strong>");
  measurement.windows = {};
  expect("<strong>not up to ");
  measurement.inconclusive = true;
  for (MeasuredPoint& point : measurement.points) point = {point.n_edges, point.n_nodes};
  expect("nothing to draw");
}

TEST(TuningReport, WhatPluginsAndDriversSayIsTextNotMarkup) {
  Measurement measurement = crossover(kMalicious, kMalicious);
  measurement.key.config = measurement.key.device = measurement.plugin_version = measurement.plugin_build =
      measurement.library_version = measurement.driver = measurement.host = kMalicious;
  const std::string page = tuning_report({measurement});
  EXPECT_THAT(page, HasSubstr("&lt;script&gt;document.title=1&lt;/script&gt;&quot;"));
  for (const char* markup : {"<script", "<img", "\x01", "title=1</"}) EXPECT_THAT(page, Not(HasSubstr(markup)));
}

TEST(TuningReport, NeedsNothingButItself) {
  const std::string page = tuning_report({crossover("radial_basis", "acme")});
  for (const char* foreign :
       {"<script", "<link", "<iframe", "http:", "https:", "src=", "url(", "@import", "javascript"}) {
    EXPECT_THAT(page, Not(HasSubstr(foreign)));
  }
  EXPECT_THAT(page, HasSubstr("<meta name=\"viewport\""));
}

TEST(TuningReport, WithoutMeasurementsItSaysHowToMakeSome) {
  EXPECT_THAT(tuning_report({}), HasSubstr("fastpath tune --model DIR"));
}

// tests/cli/tune_report_test.py looks at this page in a browser, and says where it wants it.
TEST(TuningReport, IsWrittenToAFile) {
  const char* wanted = std::getenv("FASTPATH_TEST_PAGE");
  const std::filesystem::path file =
      wanted != nullptr ? wanted : testing::TempDir() + "fastpath-report-" + std::to_string(::getpid()) + ".html";
  Measurement window = crossover("spherical_harmonics", kMalicious);
  window.windows = {{356, 19644, 0.02, 0.03}};
  for (MeasuredPoint& point : window.points) {
    const auto n = static_cast<double>(point.n_edges);
    if (point.conclusive) point.kernel_seconds = 30e-6 + 20e-9 * n + 4e-12 * n * n;
  }
  window.driver = kMalicious;
  const std::vector<Measurement> measurements = {crossover("radial_basis", "acme"), window};
  write_tuning_report(file, measurements);
  std::stringstream content;
  content << std::ifstream(file).rdbuf();
  EXPECT_EQ(content.str(), tuning_report(measurements));
  if (wanted == nullptr) std::filesystem::remove(file);
  EXPECT_THROW(write_tuning_report(file / "below" / "a file", measurements), Error);
}

}  // namespace
