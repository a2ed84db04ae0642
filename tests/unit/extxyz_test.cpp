#include "fastpath/extxyz.hpp"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>

#include "fastpath/error.hpp"
#include "fastpath/safetensors.hpp"

namespace fastpath {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Ints = std::vector<std::int64_t>;
using Reals = std::vector<double>;
using Truths = std::vector<bool>;
using Words = std::vector<std::string>;

std::vector<Structure> parse(const std::string& text) { return parse_extxyz(text, "t.xyz"); }

/// The only frame of a text.
Structure parse_one(const std::string& text) {
  std::vector<Structure> frames = parse(text);
  EXPECT_EQ(frames.size(), 1u);
  return frames.at(0);
}

/// A frame of one atom with this comment line.
Structure with_comment(const std::string& comment) { return parse_one("1\n" + comment + "\nH 0 0 0\n"); }

template <class T>
T info(const Structure& frame, const std::string& key) {
  const Values* values = frame.find_info(key);
  if (values == nullptr || !std::holds_alternative<T>(*values)) {
    ADD_FAILURE() << key << (values == nullptr ? " is not there" : " has another type");
    return {};
  }
  return std::get<T>(*values);
}

std::string error_of(const std::string& text) {
  try {
    parse(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_file);
    return error.what();
  }
  ADD_FAILURE() << "no error for\n" << text;
  return {};
}

std::string comment_error(const std::string& comment) { return error_of("1\n" + comment + "\nH 0 0 0\n"); }

std::string written(const std::vector<Structure>& frames) {
  std::ostringstream out;
  write_extxyz(out, frames);
  return out.str();
}

std::string refusal(const Structure& frame) {
  try {
    written({frame});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

void expect_same(const Structure& a, const Structure& b) {
  EXPECT_EQ(a.atomic_numbers, b.atomic_numbers);
  EXPECT_EQ(a.positions, b.positions);
  EXPECT_EQ(a.cell, b.cell);
  EXPECT_EQ(a.pbc, b.pbc);
  EXPECT_EQ(a.info, b.info);
  ASSERT_EQ(a.columns.size(), b.columns.size());
  for (std::size_t i = 0; i < a.columns.size(); ++i) {
    EXPECT_EQ(a.columns[i].name, b.columns[i].name);
    EXPECT_EQ(a.columns[i].width, b.columns[i].width);
    EXPECT_EQ(a.columns[i].values, b.columns[i].values);
  }
}

TEST(Elements, SymbolsAndNumbersAreInverse) {
  for (std::int32_t z = 0; z <= 118; ++z) EXPECT_EQ(atomic_number(chemical_symbol(z)), z);
  EXPECT_EQ(chemical_symbol(1), "H");
  EXPECT_EQ(chemical_symbol(26), "Fe");
  EXPECT_EQ(chemical_symbol(57), "La");
  EXPECT_EQ(chemical_symbol(79), "Au");
  EXPECT_EQ(chemical_symbol(92), "U");
  EXPECT_EQ(chemical_symbol(118), "Og");
}

TEST(Elements, RefusesWhatIsNoElement) {
  EXPECT_THROW(chemical_symbol(-1), Error);
  EXPECT_THROW(chemical_symbol(119), Error);
  EXPECT_THROW(atomic_number(""), Error);
  try {
    atomic_number("SI");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("'SI'"), HasSubstr("is it 'Si'?")));
  }
}

TEST(Structure, ReplacesKeysAndColumnsInPlace) {
  Structure frame = with_comment("a=1 b=2");
  frame.set_info("a", Reals{0.5});
  frame.set_info("c", Truths{true});
  ASSERT_EQ(frame.info.size(), 3u);
  EXPECT_EQ(frame.info[0].first, "a");
  EXPECT_EQ(info<Reals>(frame, "a"), Reals{0.5});
  frame.set_column({"forces", 3, Reals{1, 2, 3}});
  frame.set_column({"forces", 3, Reals{4, 5, 6}});
  ASSERT_EQ(frame.columns.size(), 1u);
  EXPECT_EQ(std::get<Reals>(frame.find_column("forces")->values)[0], 4.0);
  EXPECT_EQ(frame.find_column("absent"), nullptr);
  EXPECT_THROW(frame.set_column({"short", 3, Reals{1, 2}}), Error);
  EXPECT_THROW(frame.set_column({"none", 0, Reals{}}), Error);
}

TEST(Extxyz, ReadsSeveralFramesWithTheirOwnKeys) {
  const auto frames = parse(
      "2\nLattice=\"5 0 0 0 6 0 0 0 7\" Properties=species:S:1:pos:R:3:tag:I:1 energy=-1.5 pbc=\"T F T\"\n"
      "Si 0.0 0.1 0.2 7\nO 1 2 3 -8\n"
      "1\nProperties=Z:I:1:pos:R:3 name=second\n8 1e1 -2.5E-1 +3\n\n  \n");
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_THAT(frames[0].atomic_numbers, ElementsAre(14, 8));
  EXPECT_EQ(frames[0].cell[1], (Vec3{0, 6, 0}));
  EXPECT_EQ(frames[0].pbc, (std::array<bool, 3>{true, false, true}));
  EXPECT_EQ(std::get<Ints>(frames[0].find_column("tag")->values), (Ints{7, -8}));
  EXPECT_EQ(info<Reals>(frames[0], "energy"), Reals{-1.5});
  EXPECT_THAT(frames[1].atomic_numbers, ElementsAre(8));
  EXPECT_EQ(frames[1].positions[0], (Vec3{10, -0.25, 3}));
  EXPECT_EQ(frames[1].pbc, (std::array<bool, 3>{}));
  EXPECT_EQ(info<Words>(frames[1], "name"), Words{"second"});
}

TEST(Extxyz, ReadsPlainXyzAndKeepsItsComment) {
  const Structure frame = parse_one("3\n  water, from \"somewhere\" (it's wet)  \nO 0 0 0\nH 0 0 1\n1 0 1 0");
  EXPECT_THAT(frame.atomic_numbers, ElementsAre(8, 1, 1));
  EXPECT_EQ(info<Words>(frame, "comment"), Words{"water, from \"somewhere\" (it's wet)"});
  EXPECT_EQ(frame.cell, (std::array<Vec3, 3>{}));
  EXPECT_TRUE(with_comment("").info.empty());
  EXPECT_EQ(info<Words>(with_comment("1 2 3"), "comment"), Words{"1 2 3"});
}

TEST(Extxyz, CarriageReturnsTabsAndAByteOrderMarkChangeNothing) {
  const Structure frame =
      parse_one("\xef\xbb\xbf 2\r\nProperties=species:S:1:pos:R:3:w:S:1 k=v\r\nH\t0  0\t1 a\r\n H 0 0 2 b \r\n\r\n");
  EXPECT_EQ(frame.positions[1][2], 2.0);
  EXPECT_EQ(info<Words>(frame, "k"), Words{"v"});
  EXPECT_EQ(std::get<Words>(frame.columns[0].values), (Words{"a", "b"}));
}

TEST(Extxyz, TypesValuesByTheirText) {
  const Structure frame = with_comment(
      R"(i=-7 r=1.5 f=1.0D+02 g=2.5d-1 t=T f2=False w=hello flag big=123456789012345678901 n=nan quoted="two words" )"
      R"(ints="1 2 3" mixed="1 2.5" truths={T F true} words=[a, "b c"] one="4" none=[] m=[[1,2],[3,4]] s='single "x"' )"
      R"(esc="a\"b\\c\nd" spaced = 3 "odd key"=1 url=http://x?a=b)");
  EXPECT_EQ(info<Ints>(frame, "i"), Ints{-7});
  EXPECT_EQ(info<Reals>(frame, "r"), Reals{1.5});
  EXPECT_EQ(info<Reals>(frame, "f"), Reals{100.0});
  EXPECT_EQ(info<Reals>(frame, "g"), Reals{0.25});
  EXPECT_EQ(info<Truths>(frame, "t"), Truths{true});
  EXPECT_EQ(info<Truths>(frame, "f2"), Truths{false});
  EXPECT_EQ(info<Words>(frame, "w"), Words{"hello"});
  EXPECT_EQ(info<Truths>(frame, "flag"), Truths{true});
  EXPECT_EQ(info<Words>(frame, "big"), Words{"123456789012345678901"});
  EXPECT_TRUE(std::isnan(info<Reals>(frame, "n").at(0)));
  EXPECT_EQ(info<Words>(frame, "quoted"), Words{"two words"});
  EXPECT_EQ(info<Ints>(frame, "ints"), (Ints{1, 2, 3}));
  EXPECT_EQ(info<Reals>(frame, "mixed"), (Reals{1, 2.5}));
  EXPECT_EQ(info<Truths>(frame, "truths"), (Truths{true, false, true}));
  EXPECT_EQ(info<Words>(frame, "words"), (Words{"a", "b c"}));
  EXPECT_EQ(info<Ints>(frame, "one"), Ints{4});
  EXPECT_EQ(info<Words>(frame, "none"), Words{});
  EXPECT_EQ(info<Ints>(frame, "m"), (Ints{1, 2, 3, 4}));
  EXPECT_EQ(info<Words>(frame, "s"), Words{"single \"x\""});
  EXPECT_EQ(info<Words>(frame, "esc"), Words{"a\"b\\c\nd"});
  EXPECT_EQ(info<Ints>(frame, "spaced"), Ints{3});
  EXPECT_EQ(info<Ints>(frame, "odd key"), Ints{1});
  EXPECT_EQ(info<Words>(frame, "url"), Words{"http://x?a=b"});
}

TEST(Extxyz, ReadsEveryFormOfLatticeAndPbc) {
  const std::array<Vec3, 3> cell{{{1, 2, 3}, {4, 5, 6}, {7, 8, 10}}};
  for (const char* lattice : {"Lattice=\"1 2 3 4 5 6 7 8 10\"", "Lattice=[[1,2,3],[4,5,6],[7,8,10]]",
                              "Lattice={1. 2 3 4 5 6 7 8 1.0D1}", "lattice='1 2 3 4 5 6 7 8 10'"}) {
    const Structure frame = with_comment(lattice);
    EXPECT_EQ(frame.cell, cell) << lattice;
    EXPECT_EQ(frame.pbc, (std::array<bool, 3>{true, true, true})) << lattice;
    EXPECT_TRUE(frame.info.empty()) << lattice;
  }
  EXPECT_EQ(with_comment("Lattice=\"2 3 4\"").cell, (std::array<Vec3, 3>{{{2, 0, 0}, {0, 3, 0}, {0, 0, 4}}}));
  for (const char* pbc : {"pbc=\"T T F\"", "pbc=[T, T, F]", "pbc={1 1 0}", "pbc=\"True true False\""}) {
    EXPECT_EQ(with_comment(std::string("Lattice=\"2 3 4\" ") + pbc).pbc, (std::array<bool, 3>{true, true, false}))
        << pbc;
  }
  EXPECT_EQ(with_comment("Lattice=\"2 3 4\" pbc=F").pbc, (std::array<bool, 3>{}));
}

TEST(Extxyz, ReadsEveryTypeOfColumn) {
  const Structure frame = parse_one(
      "2\nProperties=pos:R:3:species:S:1:Z:I:1:forces:R:3:fixed:L:2:label:S:1:id:I:1\n"
      "0 0 0 C 6 1.5 -2.5D+1 nan T F \"a b\" 9007199254740993\n"
      "1 1 1 X 0 0 0 inf false True 'x -9223372036854775808\n");
  EXPECT_THAT(frame.atomic_numbers, ElementsAre(6, 0));
  const Reals& forces = std::get<Reals>(frame.find_column("forces")->values);
  EXPECT_EQ(forces[1], -25.0);
  EXPECT_TRUE(std::isnan(forces[2]));
  EXPECT_TRUE(std::isinf(forces[5]));
  EXPECT_EQ(std::get<Truths>(frame.find_column("fixed")->values), (Truths{true, false, false, true}));
  EXPECT_EQ(std::get<Words>(frame.find_column("label")->values), (Words{"a b", "'x"}));
  EXPECT_EQ(std::get<Ints>(frame.find_column("id")->values),
            (Ints{9007199254740993, std::numeric_limits<std::int64_t>::min()}));
  EXPECT_EQ(frame.find_column("Z"), nullptr);
}

TEST(Extxyz, AFrameWithoutAtomsIsLegalAndAFileWithoutFramesIsNot) {
  const auto frames = parse("0\n\n0\nProperties=species:S:1:pos:R:3:q:R:1 a=1\n1\n\nH 0 0 0\n");
  ASSERT_EQ(frames.size(), 3u);
  EXPECT_EQ(frames[0].size(), 0);
  EXPECT_EQ(frames[1].columns.at(0).name, "q");
  EXPECT_EQ(frames[2].size(), 1);
  EXPECT_THAT(error_of(""), AllOf(StartsWith("t.xyz:1:1: "), HasSubstr("empty")));
  EXPECT_THAT(error_of("\n \n"), HasSubstr("empty"));
  EXPECT_THAT(error_of("0\n"), AllOf(StartsWith("t.xyz:2:1: "), HasSubstr("comment line")));
}

TEST(Extxyz, RefusesNumbersOfAtomsThatLie) {
  EXPECT_THAT(error_of("3\n\nH 0 0 0\nH 0 0 1\n"), AllOf(StartsWith("t.xyz:5:1: "), HasSubstr("ends after 2")));
  EXPECT_THAT(error_of("1\n\nH 0 0 0\nH 0 0 1\n"),
              AllOf(StartsWith("t.xyz:4:1: "), HasSubstr("'H'"), HasSubstr("frame 1 have more rows")));
  EXPECT_THAT(error_of("9223372036854775807\n\nH 0 0 0\n"), HasSubstr("ends after 1"));
  EXPECT_THAT(error_of("99999999999999999999\n\nH 0 0 0\n"), HasSubstr("number of atoms"));
  EXPECT_THAT(error_of("-1\n\n"), HasSubstr("'-1'"));
  EXPECT_THAT(error_of("1.0\n\nH 0 0 0\n"), HasSubstr("'1.0'"));
  EXPECT_THAT(error_of("  two\n\n"), StartsWith("t.xyz:1:3: "));
  EXPECT_THAT(error_of("1 atom\n\nH 0 0 0\n"), AllOf(StartsWith("t.xyz:1:3: "), HasSubstr("'atom'")));
  EXPECT_THAT(error_of("1\n\nH 0 0 0\n\n1\n\nH 0 0 0\n"), AllOf(StartsWith("t.xyz:4:1: "), HasSubstr("blank line")));
  EXPECT_THAT(error_of("2\n\nH 0 0 0\n\n"), StartsWith("t.xyz:4:1: "));
}

TEST(Extxyz, RefusesRowsThatDoNotMatchTheirProperties) {
  EXPECT_THAT(error_of("1\n\nH 0 0\n"), AllOf(StartsWith("t.xyz:3:6: "), HasSubstr("before column 3 of 'pos'")));
  EXPECT_THAT(error_of("1\n\nH 0 0 0 0\n"), AllOf(StartsWith("t.xyz:3:9: "), HasSubstr("'0' after the last column")));
  EXPECT_THAT(error_of("1\n\nQq 0 0 0\n"), AllOf(StartsWith("t.xyz:3:1: "), HasSubstr("'Qq'")));
  EXPECT_THAT(error_of("1\n\n119 0 0 0\n"), HasSubstr("119 is outside 0..118"));
  EXPECT_THAT(error_of("1\n\nH 0 zero 0\n"), AllOf(StartsWith("t.xyz:3:5: "), HasSubstr("'zero'")));
  EXPECT_THAT(error_of("1\n\nH 0 0x1 0\n"), HasSubstr("'0x1'"));
  EXPECT_THAT(error_of("1\n\nH 0 1e999 0\n"), HasSubstr("range of a double"));
  EXPECT_THAT(error_of("1\nProperties=Z:I:1:pos:R:3\nH 0 0 0\n"), HasSubstr("'H' is not an atomic number"));
  EXPECT_THAT(error_of("1\nProperties=species:S:1:Z:I:1:pos:R:3\nH 2 0 0 0\n"), HasSubstr("H and He"));
  EXPECT_THAT(error_of("1\nProperties=species:S:1:pos:R:3:n:I:1\nH 0 0 0 1.5\n"), HasSubstr("'1.5' of 'n'"));
  EXPECT_THAT(error_of("1\nProperties=species:S:1:pos:R:3:l:L:1\nH 0 0 0 yes\n"), HasSubstr("not T or F"));
  EXPECT_THAT(error_of("1\nProperties=species:S:1:pos:R:3:w:S:1\nH 0 0 0 \"open\n"),
              AllOf(StartsWith("t.xyz:3:9: "), HasSubstr("not closed")));
}

TEST(Extxyz, NamesTheAtomOfAPositionThatIsNotFinite) {
  EXPECT_THAT(error_of("2\n\nH 0 0 0\nH 0 nan 0\n"),
              AllOf(StartsWith("t.xyz:4:5: "), HasSubstr("atom 2 of 2"), HasSubstr("position y is nan")));
  EXPECT_THAT(error_of("1\n\nH 0 0 -inf\n"), HasSubstr("position z is -inf"));
}

TEST(Extxyz, RefusesMalformedProperties) {
  const auto properties = [](const std::string& text) { return comment_error("Properties=" + text); };
  EXPECT_THAT(properties("species:S:1:pos:R"), AllOf(StartsWith("t.xyz:2:12: "), HasSubstr("5 parts")));
  EXPECT_THAT(properties("species:S:1:pos:R:3:q:R:0"), AllOf(StartsWith("t.xyz:2:36: "), HasSubstr("'0' columns")));
  EXPECT_THAT(properties("species:S:1:pos:R:3:q:R:-3"), HasSubstr("'-3' columns"));
  EXPECT_THAT(properties("species:S:1:pos:R:3:q:R:99999999999999999999"), HasSubstr("columns"));
  EXPECT_THAT(properties("species:S:1:pos:R:3:q:R:1000000"), HasSubstr("row ends before column 1"));
  EXPECT_THAT(properties("species:S:1:pos:R:3:q:Q:1"), HasSubstr("type 'Q'"));
  EXPECT_THAT(properties("species:S:1:pos:R:3::R:1"), HasSubstr("without a name"));
  EXPECT_THAT(properties("species:S:1:pos:R:3:pos:R:3"), HasSubstr("'pos' is given twice"));
  EXPECT_THAT(properties("species:S:1:pos:R:2"), HasSubstr("expected R:3"));
  EXPECT_THAT(properties("species:R:1:pos:R:3"), HasSubstr("expected S:1"));
  EXPECT_THAT(properties("pos:R:3"), HasSubstr("neither species:S:1 nor Z:I:1"));
  EXPECT_THAT(properties("species:S:1"), HasSubstr("no pos:R:3"));
  EXPECT_THAT(properties("7"), HasSubstr("name:type:columns"));
  EXPECT_THAT(properties("\"\""), HasSubstr("1 parts"));
}

TEST(Extxyz, RefusesMalformedCommentsAtTheirColumn) {
  EXPECT_THAT(comment_error("a=1 b=\"open"), AllOf(StartsWith("t.xyz:2:7: "), HasSubstr("not closed")));
  EXPECT_THAT(comment_error("a=[1, 2"), AllOf(StartsWith("t.xyz:2:3: "), HasSubstr("not closed")));
  EXPECT_THAT(comment_error("a=[1,,2]"), StartsWith("t.xyz:2:6: "));
  EXPECT_THAT(comment_error("a=[1,]"), HasSubstr("']'"));
  EXPECT_THAT(comment_error("a={1 2]"), HasSubstr("']'"));
  EXPECT_THAT(comment_error("a=[[1,2],[3]]"), HasSubstr("differ in length"));
  EXPECT_THAT(comment_error("a=[1,[3]]"), HasSubstr("array"));
  EXPECT_THAT(comment_error("a=[[3],1]"), HasSubstr("both"));
  EXPECT_THAT(comment_error("a=[[[1]]]"), HasSubstr("two dimensions"));
  EXPECT_THAT(comment_error("a=\"x\"y"), AllOf(StartsWith("t.xyz:2:6: "), HasSubstr("blank")));
  EXPECT_THAT(comment_error("a=1 =2"), HasSubstr("expected a key"));
  EXPECT_THAT(comment_error("a=1 b="), HasSubstr("no value for 'b'"));
  EXPECT_THAT(comment_error("a=1 a=2"), AllOf(StartsWith("t.xyz:2:5: "), HasSubstr("twice")));
  EXPECT_THAT(comment_error("pbc=F PBC=F"), HasSubstr("twice"));
  EXPECT_THAT(comment_error("Lattice=\"1 2 3\" Lattice=\"1 2 3\""), HasSubstr("twice"));
  EXPECT_THAT(comment_error("Lattice=\"1 2\""), AllOf(StartsWith("t.xyz:2:9: "), HasSubstr("2 numbers")));
  EXPECT_THAT(comment_error("Lattice=\"a b c\""), HasSubstr("not numbers"));
  EXPECT_THAT(comment_error("Lattice=\"1 0 0 0 1 0 0 0 nan\""), HasSubstr("number 9 of Lattice"));
  EXPECT_THAT(comment_error("some text Lattice=\"1 0 0"), HasSubstr("not closed"));
  EXPECT_THAT(comment_error("pbc=\"T T\""), HasSubstr("three truth values"));
  EXPECT_THAT(comment_error("pbc=\"2 0 0\""), HasSubstr("pbc holds 2"));
  EXPECT_THAT(comment_error("pbc=\"T F F\""), HasSubstr("periodic along a"));
  EXPECT_THAT(comment_error("Lattice=\"1 0 0 0 1 0 0 0 0\" pbc=\"T T T\""), HasSubstr("periodic along c"));
  EXPECT_THAT(error_of("1\na=[" + std::string(100000, '[') + "\nH 0 0 0\n"), HasSubstr("dimensions"));
}

TEST(Extxyz, RoundTripKeepsEverything) {
  const double third = 1.0 / 3.0;
  Structure frame;
  frame.atomic_numbers = {1, 118, 0};
  frame.positions = {{0.1, third, -1e-300}, {5e-324, 1.7976931348623157e308, -0.0}, {1e22, 123456789.123456789, 3}};
  frame.cell = {{{third, 0, 0}, {0.5, 2, 0}, {0, 0, 0}}};
  frame.pbc = {true, true, false};
  frame.info = {{"energy", Reals{third}},
                {"whole", Reals{3.0}},
                {"count", Ints{42}},
                {"stress", Reals{1, 2, 3, 4, 5, 6, 7, 8, 9.5}},
                {"infinite", Reals{std::numeric_limits<double>::infinity()}},
                {"ids", Ints{1, -2}},
                {"yes", Truths{true}},
                {"several", Truths{true, false}},
                {"word", Words{"plain"}},
                {"text", Words{"with blanks, \"quotes\", \\ and\na line"}},
                {"number as text", Words{"123"}},
                {"truth_as_text", Words{"T"}},
                {"array_as_text", Words{"1 2 3"}},
                {"words", Words{"a", "b c", ""}},
                {"empty_text", Words{""}},
                {"blank_text", Words{" "}},
                {"nothing", Words{}},
                {"bracket", Words{"[1, 2]"}},
                {"utf8", Words{"\xc3\x85ngstr\xc3\xb6m"}}};
  frame.columns = {{"forces", 3, Reals{1, 2, 3, third, 0.1, -5e-324, 7, 8, 9}},
                   {"fixed", 1, Truths{true, false, true}},
                   {"label", 2, Words{"a", "b c", "", "\"q\"", "back\\slash", "line\nbreak"}},
                   {"odd \"name\"", 1, Words{"x", "y", "z"}},
                   {"id", 1, Ints{std::numeric_limits<std::int64_t>::max(), 0, -1}}};
  const std::string text = written({frame, Structure{}, frame});
  const std::vector<Structure> read = parse(text);
  ASSERT_EQ(read.size(), 3u);
  expect_same(read[0], frame);
  EXPECT_EQ(read[1].size(), 0);
  expect_same(read[2], frame);
  EXPECT_TRUE(std::signbit(read[0].positions[1][2]));
  EXPECT_EQ(written(read), text);
}

TEST(Extxyz, RoundTripKeepsRandomDoublesToTheLastBit) {
  std::mt19937_64 random(3);
  Structure frame;
  while (frame.positions.size() < 2000) {
    Vec3 position{};
    for (double& x : position) {
      do {
        const std::uint64_t bits = random();
        std::memcpy(&x, &bits, sizeof x);
      } while (!std::isfinite(x));
    }
    frame.positions.push_back(position);
    frame.atomic_numbers.push_back(static_cast<std::int32_t>(random() % 119));
  }
  expect_same(parse_one(written({frame})), frame);
}

TEST(Extxyz, NumbersTooSmallForADoubleBecomeZero) {
  EXPECT_EQ(parse_one("1\n\nH 1e-400 -1D-500 4.9e-324\n").positions[0], (Vec3{0.0, -0.0, 4.9e-324}));
}

TEST(Extxyz, WriterRefusesWhatCouldNotBeReadBack) {
  const Structure good = with_comment("");
  Structure frame = good;
  frame.positions[0][1] = std::nan("");
  EXPECT_THAT(refusal(frame), AllOf(HasSubstr("frame 1"), HasSubstr("atom 1 of 1")));
  frame = good;
  frame.atomic_numbers.push_back(1);
  EXPECT_THAT(refusal(frame), HasSubstr("2 atomic numbers for 1 positions"));
  frame = good;
  frame.atomic_numbers[0] = 119;
  EXPECT_THAT(refusal(frame), HasSubstr("119"));
  frame = good;
  frame.pbc[2] = true;
  EXPECT_THAT(refusal(frame), HasSubstr("periodic along c"));
  for (const char* key : {"", "Lattice", "properties", "pbc"}) {
    frame = good;
    frame.info = {{key, Ints{1}}};
    EXPECT_THAT(refusal(frame), HasSubstr("key"));
  }
  frame = good;
  frame.info = {{"a", Ints{1}}, {"a", Ints{2}}};
  EXPECT_THAT(refusal(frame), HasSubstr("twice"));
  for (const char* name : {"", "pos", "species", "Z", "a:b"}) {
    frame = good;
    frame.columns = {{name, 1, Ints{1}}};
    EXPECT_THAT(refusal(frame), HasSubstr("column name"));
  }
  frame = good;
  frame.columns = {{"q", 2, Ints{1}}};
  EXPECT_THAT(refusal(frame), HasSubstr("1 values for 1 atoms"));
}

TEST(Extxyz, ReadsTheReferenceStructures) {
  const fs::path folder = fs::path(FASTPATH_TEST_DATA) / "refdata/mace_a";
  const SafetensorsFile data = read_safetensors(folder / "data.safetensors");
  for (const std::string name : {"molecule", "triclinic", "water8", "slab", "sparse"}) {
    const std::vector<Structure> frames = read_extxyz(folder / (name + ".xyz"));
    ASSERT_EQ(frames.size(), 1u) << name;
    const Structure& frame = frames[0];
    const auto numbers = data.tensors.at(name + ":numbers").span<std::int64_t>();
    ASSERT_EQ(frame.atomic_numbers.size(), numbers.size()) << name;
    EXPECT_TRUE(std::equal(numbers.begin(), numbers.end(), frame.atomic_numbers.begin())) << name;
    const auto positions = data.tensors.at(name + ":positions").span<double>();
    for (std::size_t i = 0; i < positions.size(); ++i) EXPECT_EQ(frame.positions[i / 3][i % 3], positions[i]) << name;
    const auto pbc = data.tensors.at(name + ":pbc").span<bool>();
    EXPECT_TRUE(std::equal(pbc.begin(), pbc.end(), frame.pbc.begin())) << name;
    if (frame.pbc[0]) {
      const auto cell = data.tensors.at(name + ":cell").span<double>();
      for (std::size_t i = 0; i < 9; ++i) EXPECT_EQ(frame.cell[i / 3][i % 3], cell[i]) << name;
    }
    expect_same(parse_one(written(frames)), frame);
  }
}

TEST(Extxyz, RandomCorruptionEitherReadsOrIsRefused) {
  const std::string whole =
      "2\nLattice=\"5 0 0 0 6 0 0 0 7\" Properties=species:S:1:pos:R:3:w:S:1:f:L:1 e=-1.5 a=[1, 2] b={x y} pbc=\"T F "
      "T\"\n"
      "Si 0.0 0.1 0.2 \"q r\" T\nO 1 2 3 s F\n1\nplain text\nH 0 0 0\n";
  const std::string interesting = "\"'[]{}=:,\\\n\r\t 0123456789.-+eEdDTFnaif\xff";
  std::mt19937 random(11);
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text = whole;
    for (unsigned change = 0; change <= random() % 4; ++change) {
      if (text.empty()) break;
      const std::size_t at = random() % text.size();
      const char c = interesting[random() % interesting.size()];
      if (const unsigned kind = random() % 4; kind == 0) {
        text.erase(at, 1 + random() % 5);
      } else if (kind == 1) {
        text.insert(at, 1, c);
      } else if (kind == 2) {
        text.resize(at + 1);
      } else {
        text[at] = c;
      }
    }
    try {
      const std::vector<Structure> frames = parse(text);
      const std::string again = written(frames);        // what is read can be written,
      EXPECT_EQ(written(parse(again)), again) << text;  // and nothing is lost on the way
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::bad_file) << error.what() << "\n" << text;
      EXPECT_THAT(error.what(), StartsWith("t.xyz:"));
      ++refused;
    }
  }
  EXPECT_GT(refused, 5000);
}

TEST(Extxyz, WritesAFileWholeOrNotAtAll) {
  std::string name = (fs::temp_directory_path() / "fastpath-test-XXXXXX").string();
  ASSERT_NE(::mkdtemp(name.data()), nullptr);
  const fs::path folder = name;
  const Structure good = with_comment("k=1");
  Structure bad = good;
  bad.positions[0][0] = std::nan("");
  write_extxyz(folder / "t.xyz", {good});
  EXPECT_THROW(write_extxyz(folder / "t.xyz", {good, bad}), Error);
  EXPECT_EQ(read_extxyz(folder / "t.xyz").size(), 1u);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator{}), 1);
  if (fs::exists("/dev/full")) {
    try {
      write_extxyz("/dev/full", {good});
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::io);
      EXPECT_THAT(error.what(), HasSubstr("/dev/full"));
    }
    std::ofstream full("/dev/full");
    EXPECT_THROW(write_extxyz(full, {good}), Error);
  }
  try {
    read_extxyz(folder / "absent.xyz");
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_found);
    EXPECT_THAT(error.what(), HasSubstr("absent.xyz"));
  }
  EXPECT_THROW(read_extxyz(folder), Error);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace fastpath
