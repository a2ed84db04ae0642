#include "fastpath/reason.hpp"

#include <gmock/gmock.h>

#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <vector>

namespace fastpath {
namespace {

const std::string kRoot = std::string(FASTPATH_TEST_DATA) + "/../..";

std::string text_of(const std::string& path) {
  std::ifstream in(path);
  EXPECT_TRUE(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

/// First groups of every match.
std::vector<std::string> all_matches(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern, std::regex::ECMAScript | std::regex::multiline);
  std::vector<std::string> result;
  for (std::sregex_iterator at(text.begin(), text.end(), regex), end; at != end; ++at) result.push_back((*at)[1]);
  return result;
}

/// The advice that the documentation gives for a code, without its code marks.
std::string documented_advice(const std::string& documentation, const std::string& code) {
  const auto found = all_matches(documentation, "^\\| `" + code + "` \\| .* \\| (.*) \\|$");
  return found.size() == 1 ? std::regex_replace(found[0], std::regex("`"), "") : "not one row";
}

/// Enumerators in the order of the header, which is the order of their values.
std::vector<std::string> codes_of_the_header() {
  const std::string text = text_of(kRoot + "/core/include/fastpath/reason.hpp");
  const std::size_t start = text.find("enum class ReasonCode {");
  return all_matches(text.substr(start, text.find("};", start) - start), "^  ([a-z_]+),");
}

TEST(Reason, EveryCodeHasTheNameOfItsEnumerator) {
  const std::vector<std::string> codes = codes_of_the_header();
  ASSERT_GT(codes.size(), 40u);
  for (std::size_t i = 0; i < codes.size(); ++i) EXPECT_EQ(to_string(static_cast<ReasonCode>(i)), codes[i]);
}

TEST(Reason, TheDocumentationListsExactlyTheCodesOfTheHeader) {
  EXPECT_THAT(all_matches(text_of(kRoot + "/docs/reasons.md"), "^\\| `([a-z_]+)` \\|"),
              testing::UnorderedElementsAreArray(codes_of_the_header()));
}

TEST(Reason, TheDocumentationGivesTheAdviceOfTheLibrary) {
  const std::string documentation = text_of(kRoot + "/docs/reasons.md");
  const std::vector<std::string> codes = codes_of_the_header();
  for (std::size_t i = 0; i < codes.size(); ++i) {
    EXPECT_EQ(advice(static_cast<ReasonCode>(i)), documented_advice(documentation, codes[i])) << codes[i];
  }
}

}  // namespace
}  // namespace fastpath
