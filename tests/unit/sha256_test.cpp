#include "plugin/sha256.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <vector>

namespace fastpath::plugin {
namespace {

std::span<const std::byte> bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

class Sha256Hash : public ::testing::TestWithParam<Sha256::Code> {
 protected:
  static std::string hash(const std::string& text) {
    Sha256 hash(GetParam());
    hash.add(bytes(text));
    return hash.finish();
  }
};
INSTANTIATE_TEST_SUITE_P(Code, Sha256Hash, ::testing::Values(Sha256::Code::fastest, Sha256::Code::portable),
                         [](const auto& code) { return code.param == Sha256::Code::fastest ? "fastest" : "portable"; });

// FIPS 180-2, appendix B, and the empty message and the messages around a block's end of NIST's SHAVS.
TEST_P(Sha256Hash, IsWhatTheStandardSaysOfItsExamples) {
  EXPECT_EQ(hash(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hash("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopq"
                 "rstnopqrstu"),
            "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  EXPECT_EQ(hash(std::string(1'000'000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// Each of these is the output of `head -c N /dev/zero | sha256sum` (coreutils 9.1).
TEST_P(Sha256Hash, IsThatOfSha256sumAroundTheEndOfABlock) {
  EXPECT_EQ(hash(std::string(55, '\0')), "02779466cdec163811d078815c633f21901413081449002f24aa3e80f0b88ef7");
  EXPECT_EQ(hash(std::string(56, '\0')), "d4817aa5497628e7c77e6b606107042bbba3130888c5f47a375e6179be789fbb");
  EXPECT_EQ(hash(std::string(63, '\0')), "c7723fa1e0127975e49e62e753db53924c1bd84b8ac1ac08df78d09270f3d971");
  EXPECT_EQ(hash(std::string(64, '\0')), "f5a5fd42d16a20302798ef6ed309979b43003d2320d9f0e8ea9831a92759fb4b");
  EXPECT_EQ(hash(std::string(65, '\0')), "98ce42deef51d40269d542f5314bef2c7468d401ad5d85168bfab4c0108f75f7");
  EXPECT_EQ(hash(std::string(119, '\0')), "f616b0d54e78571a9611f343c9f8e022e859e920381ab0e4d3da01e193a7bd7e");
  EXPECT_EQ(hash(std::string(120, '\0')), "6edd9f6f9cc92cded36e6c4a580933f9c9f1b90562b46903b806f21902a1a54f");
}

TEST_P(Sha256Hash, OfPiecesIsThatOfTheWhole) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i * i % 251);
  const std::string expected = hash(text);
  for (const std::size_t piece : {1u, 3u, 63u, 64u, 65u, 127u, 128u, 500u}) {
    Sha256 parts(GetParam());
    for (std::size_t at = 0; at < text.size(); at += piece)
      parts.add(bytes(text).subspan(at).first(std::min(piece, text.size() - at)));
    EXPECT_EQ(parts.finish(), expected) << piece;
  }
}

TEST(Sha256OfASource, IsThatOfItsBytes) {
  std::string text(700'001, 'x');
  text[500'000] = 'y';
  EXPECT_EQ(sha256_of(SpanSource(bytes(text))), sha256_of(bytes(text)));
  EXPECT_EQ(sha256_of(SpanSource({})), sha256_of(std::span<const std::byte>()));
}

/// Says it has more bytes than it has, as a file that shrinks does.
class ShrinkingSource final : public ByteSource {
 public:
  std::uint64_t size() const noexcept override { return 1'000'000; }
  bool read(std::uint64_t offset, std::span<std::byte> into) const noexcept override {
    std::fill(into.begin(), into.end(), std::byte{1});
    return offset + into.size() <= 600'000;
  }
};

TEST(Sha256OfASource, IsNothingWhereAReadFails) { EXPECT_EQ(sha256_of(ShrinkingSource()), std::nullopt); }

}  // namespace
}  // namespace fastpath::plugin
