#include "plugin/elf.hpp"

#include <elf.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "plugin/abi.hpp"

namespace fastpath::plugin {
namespace {

using Bytes = std::vector<std::byte>;

const Bytes& sample() {
  static const Bytes bytes = [] {
    std::ifstream file(FASTPATH_ELF_SAMPLE, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    Bytes result(text.size());
    std::memcpy(result.data(), text.data(), text.size());
    return result;
  }();
  return bytes;
}

/// Inspects a copy of exactly this size, so that a sanitizer sees a byte that is read past its end.
ObjectReport inspect(const Bytes& bytes) { return inspect_object(SpanSource(Bytes(bytes))); }

template <class T>
T get(const Bytes& bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}
template <class T>
void put(Bytes& bytes, std::size_t at, const T& value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

/// True if what the linker maps lies inside the file, by a check of this test's own.
bool segments_are_backed(const Bytes& bytes) {
  const auto header = get<Elf64_Ehdr>(bytes, 0);
  for (std::size_t i = 0; i < header.e_phnum; ++i) {
    const auto segment = get<Elf64_Phdr>(bytes, header.e_phoff + i * sizeof(Elf64_Phdr));
    if (segment.p_type != PT_LOAD) continue;
    if (segment.p_offset > bytes.size() || segment.p_filesz > bytes.size() - segment.p_offset) return false;
  }
  return true;
}

/// Sample with the first program header of a type changed by `change`.
template <class Change>
Bytes with_segment(std::uint32_t type, Change change) {
  Bytes bytes = sample();
  const auto header = get<Elf64_Ehdr>(bytes, 0);
  for (std::size_t i = 0; i < header.e_phnum; ++i) {
    const std::size_t at = header.e_phoff + i * sizeof(Elf64_Phdr);
    auto segment = get<Elf64_Phdr>(bytes, at);
    if (segment.p_type != type) continue;
    change(segment);
    put(bytes, at, segment);
    return bytes;
  }
  ADD_FAILURE() << "the sample has no segment of type " << type;
  return bytes;
}

TEST(Elf, ReadsTheMetadataOfARealPlugin) {
  ASSERT_FALSE(sample().empty());
  const ObjectReport report = inspect(sample());
  EXPECT_EQ(to_string(report.reason.code), "usable") << report.reason.text;
  ASSERT_TRUE(report.metadata.has_value());
  EXPECT_EQ(report.metadata->id, "zoo_good");
  EXPECT_EQ(report.metadata->vendor, "Zoo");
  EXPECT_EQ(report.metadata->version, "1.2.3");
  EXPECT_EQ(report.metadata->build_tag, "zoo");
  EXPECT_EQ(report.metadata->abi_version, FP_ABI_VERSION);
  EXPECT_EQ(report.metadata->sdk_version, FP_SDK_VERSION);
  EXPECT_EQ(report.metadata->device_kinds, std::vector{DeviceKind::cpu});
}

TEST(Elf, RefusesAPluginThatIsCutOffAnywhere) {
  for (std::size_t size = 0; size < sample().size(); ++size) {
    const ObjectReport report = inspect(Bytes(sample().begin(), sample().begin() + static_cast<std::ptrdiff_t>(size)));
    const ReasonCode expected = size < SELFMAG ? ReasonCode::not_elf : ReasonCode::truncated;
    ASSERT_EQ(to_string(report.reason.code), to_string(expected)) << size << " bytes: " << report.reason.text;
  }
}

TEST(Elf, AcceptsAPluginWithBytesBehindIt) {
  Bytes bytes = sample();
  bytes.resize(bytes.size() + 1000);
  EXPECT_EQ(to_string(inspect(bytes).reason.code), "usable");
}

TEST(Elf, FindsTheSegmentThatEndsBehindTheFile) {
  for (const std::uint64_t excess : {std::uint64_t{1} << 20, std::uint64_t{1} << 62, ~std::uint64_t{0}}) {
    const ObjectReport report = inspect(with_segment(PT_LOAD, [&](Elf64_Phdr& segment) {
      segment.p_filesz = excess;
      segment.p_memsz = excess;
    }));
    EXPECT_EQ(to_string(report.reason.code), "truncated") << report.reason.text;
  }
}

TEST(Elf, FindsTheDynamicSectionThatIsNotLoaded) {
  const ObjectReport report =
      inspect(with_segment(PT_DYNAMIC, [](Elf64_Phdr& segment) { segment.p_vaddr += 1 << 30; }));
  EXPECT_EQ(to_string(report.reason.code), "not_elf");
  EXPECT_THAT(report.reason.text, testing::HasSubstr("dynamic section"));
}

TEST(Elf, RefusesSegmentsThatOverlapOrEndOutsideTheAddressSpace) {
  EXPECT_THAT(inspect(with_segment(PT_LOAD, [](Elf64_Phdr& segment) { segment.p_memsz = 1 << 30; })).reason.text,
              testing::HasSubstr("overlap"));
  EXPECT_THAT(
      inspect(with_segment(PT_LOAD, [](Elf64_Phdr& segment) { segment.p_memsz = ~std::uint64_t{0}; })).reason.text,
      testing::HasSubstr("address space"));
}

TEST(Elf, DoesNotBelieveAHugeNumberOfSections) {
  Bytes bytes = sample();
  auto header = get<Elf64_Ehdr>(bytes, 0);
  auto first = get<Elf64_Shdr>(bytes, header.e_shoff);
  header.e_shnum = 0;  // the number then stands in section 0
  first.sh_size = std::uint64_t{1} << 60;
  put(bytes, 0, header);
  put(bytes, header.e_shoff, first);
  EXPECT_EQ(to_string(inspect(bytes).reason.code), "not_elf");
}

TEST(Elf, SurvivesRandomDamage) {
  std::mt19937 random(20240229);
  const auto below = [&](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random); };
  const auto header = get<Elf64_Ehdr>(sample(), 0);
  std::size_t accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    Bytes bytes = sample();
    const std::size_t changes = 1 + below(6);
    for (std::size_t change = 0; change < changes; ++change) {
      // Mostly where the structure is: the header, the program headers, the section headers.
      const std::size_t where = below(4);
      const std::size_t at = where == 0   ? below(sizeof(Elf64_Ehdr))
                             : where == 1 ? header.e_phoff + below(header.e_phnum * sizeof(Elf64_Phdr))
                             : where == 2 ? header.e_shoff + below(header.e_shnum * sizeof(Elf64_Shdr))
                                          : below(bytes.size());
      bytes[at] =
          below(2) == 0 ? static_cast<std::byte>(below(256)) : bytes[at] ^ static_cast<std::byte>(1 << below(8));
    }
    if (below(8) == 0) bytes.resize(below(bytes.size()));
    const ObjectReport report = inspect(bytes);
    if (report.reason.code != ReasonCode::usable) {
      EXPECT_FALSE(report.reason.text.empty()) << to_string(report.reason.code);
      continue;
    }
    ++accepted;
    ASSERT_TRUE(report.metadata.has_value());
    ASSERT_TRUE(is_plugin_id(report.metadata->id));
    ASSERT_TRUE(segments_are_backed(bytes)) << "round " << round;
  }
  EXPECT_GT(accepted, 100u);  // else the damage is too great to say anything about what is accepted
}

TEST(Elf, SurvivesRandomBytesBehindAValidHeader) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    Bytes bytes(64 + random() % 4096);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    std::copy_n(sample().begin(), round % 2 == 0 ? 20 : 64, bytes.begin());
    EXPECT_NE(to_string(inspect(bytes).reason.code), "usable");
  }
}

/// A file that got shorter after its size was asked for.
class ShrinkingSource final : public ByteSource {
 public:
  explicit ShrinkingSource(std::uint64_t end) : end_(end) {}
  std::uint64_t size() const noexcept override { return sample().size(); }
  bool read(std::uint64_t offset, std::span<std::byte> into) const noexcept override {
    return offset + into.size() <= end_ && SpanSource(sample()).read(offset, into);
  }

 private:
  std::uint64_t end_;
};

TEST(Elf, ReportsAFileThatShrinksMeanwhile) {
  for (const std::uint64_t end : {std::uint64_t{0}, std::uint64_t{60}, std::uint64_t{sample().size() - 1}}) {
    EXPECT_EQ(to_string(inspect_object(ShrinkingSource(end)).reason.code), "unreadable");
  }
}

TEST(Elf, KnowsWhatAnIdMayBe) {
  for (const char* id : {"a", "cpu_ref", "acme-2.0", "9lives", "_x"}) EXPECT_TRUE(is_plugin_id(id)) << id;
  for (const char* id : {"", "..", ".hidden", "-option", "a b", "a/b", "\xc3\xa9", "a\n"}) {
    EXPECT_FALSE(is_plugin_id(id)) << id;
  }
  EXPECT_TRUE(is_plugin_id(std::string(63, 'x')));
  EXPECT_FALSE(is_plugin_id(std::string(64, 'x')));
}

TEST(PluginText, KeepsUtf8AndReplacesWhatIsNone) {
  EXPECT_EQ(clean_text("gr\xc3\xbc\xc3\x9f \xf0\x9f\xa6\x81", 100), "gr\xc3\xbc\xc3\x9f \xf0\x9f\xa6\x81");
  EXPECT_EQ(clean_text("a\xffz", 100), "a\xef\xbf\xbdz");
  EXPECT_EQ(clean_text("\xc0\xaf", 100), "\xef\xbf\xbd\xef\xbf\xbd");                  // an overlong slash
  EXPECT_EQ(clean_text("\xed\xa0\x80", 100), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");  // a surrogate
  EXPECT_EQ(clean_text("cut \xc3", 100), "cut \xef\xbf\xbd");
  EXPECT_EQ(clean_text("two\nlines\x1b[0m\n", 100), "two lines [0m");
}

TEST(PluginText, IsCutAtTheLimitBetweenCharacters) {
  EXPECT_EQ(clean_text("abc\xc3\xbc", 4), "abc");
  EXPECT_EQ(clean_text("abc\xc3\xbc", 5), "abc\xc3\xbc");
  EXPECT_EQ(clean_text("", 0), "");
}

TEST(PluginAbi, RangesThatMeetAreCompatible) {
  constexpr std::uint32_t kOneZero = 1u << 16;
  EXPECT_EQ(abi_conflict(kOneZero, kOneZero, kOneZero), "");
  EXPECT_EQ(abi_conflict(kOneZero + 5, kOneZero, kOneZero + 5), "");  // a later minor version that still serves 1.0
  EXPECT_EQ(abi_conflict(kOneZero + 5, kOneZero + 5, kOneZero + 5), "serves ABI 1.5 to 1.5, host speaks 1.0 to 1.0");
  EXPECT_NE(abi_conflict(3u << 16, 2u << 16, 3u << 16), "");
  EXPECT_NE(abi_conflict(0, 0, kOneZero), "");
  EXPECT_NE(abi_conflict(kOneZero, kOneZero + 1, kOneZero), "");
  EXPECT_NE(abi_conflict(7, 3, 9), "");  // below 1.0
}

}  // namespace
}  // namespace fastpath::plugin
