// Runs a fuzzer's function over files, and over every prefix of the short ones: what a file that was cut off looks
// like.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "fuzz.hpp"

namespace {

constexpr std::size_t kLongestForPrefixes = 512;

void run(const std::string& bytes) {
  // A copy of exactly this size, so that a sanitizer sees a read past its end.
  const std::vector<std::uint8_t> data(bytes.begin(), bytes.end());
  (void)LLVMFuzzerTestOneInput(data.data(), data.size());
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::filesystem::path> files;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::size_t inputs = 0;
  for (const std::filesystem::path& file : files) {
    std::ifstream in(file, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    if (!in.good() && !in.eof()) {
      std::cerr << file << ": cannot be read\n";
      return 1;
    }
    run(bytes);
    ++inputs;
    if (bytes.size() > kLongestForPrefixes) continue;
    for (std::size_t size = 0; size < bytes.size(); ++size, ++inputs) run(bytes.substr(0, size));
  }
  std::cout << files.size() << " files, " << inputs << " inputs\n";
  return files.empty() ? 1 : 0;
}
