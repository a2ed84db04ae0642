#include "fastpath/safetensors.hpp"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <random>

#include "fastpath/error.hpp"

namespace fastpath {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A folder of its own for each test, removed afterwards.
class Safetensors : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "fastpath-test-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path path(const std::string& name = "t.safetensors") const { return folder_ / name; }

  fs::path with_bytes(const std::string& bytes) const {
    fs::remove(path());  // truncating it instead makes some file systems flush, which is slow
    std::ofstream(path(), std::ios::binary) << bytes;
    return path();
  }

  /// A file of this header and data; the length is right unless it is given.
  fs::path with(const std::string& header, const std::string& data = {}) const {
    const std::uint64_t length = header.size();
    std::string bytes(sizeof length, '\0');
    std::memcpy(bytes.data(), &length, sizeof length);
    return with_bytes(bytes + header + data);
  }

  std::string bytes_of(const fs::path& file) const {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  std::size_t files_in_folder() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator{}));
  }

  fs::path folder_;
};

std::string read_error(const fs::path& file, ErrorCode code = ErrorCode::bad_file) {
  try {
    read_safetensors(file);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(file.filename().string()));
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

StateDict sample() {
  StateDict state;
  state.add("a.weight", Tensor::from<double>({2, 2}, {1.5, -2.5, 0.1, 1e300}));
  state.add("flag", Tensor::zeros({3}, DType::boolean));
  state.add("after an odd byte", Tensor::from<double>({2}, {3.25, 4.25}));
  state.add("i", Tensor::from<std::int64_t>({1, 2}, {-1, 1LL << 60}));
  state.add("j", Tensor::from<std::int32_t>({2}, {-7, 8}));
  state.add("f", Tensor::from<float>({1}, {0.1f}));
  state.add("bytes", Tensor::from<std::uint8_t>({4}, {0, 1, 254, 255}));
  state.add("nothing", Tensor::zeros({0, 5}, DType::float32));
  state.add("scalar", Tensor::scalar(2.75));
  return state;
}

TEST_F(Safetensors, ReadsBackEveryDtypeInTheOrderWritten) {
  const StateDict written = sample();
  write_safetensors(path(), written, {{"format", "pt"}, {"quote \"", "line\nbreak"}});
  const SafetensorsFile read = read_safetensors(path());
  ASSERT_EQ(read.tensors.size(), written.size());
  EXPECT_EQ(read.metadata.at("quote \""), "line\nbreak");
  auto expected = written.begin();
  for (const auto& [name, tensor] : read.tensors) {
    EXPECT_EQ(name, expected->first);
    EXPECT_EQ(tensor.dtype(), expected->second.dtype());
    EXPECT_EQ(tensor.shape(), expected->second.shape());
    EXPECT_EQ(std::memcmp(tensor.raw(), expected->second.raw(), tensor.bytes()), 0) << name;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.raw()) % size_of(tensor.dtype()), 0u) << name;
    ++expected;
  }
}

TEST_F(Safetensors, HeaderIsPaddedSoThatTheDataIsAligned) {
  StateDict state;
  state.add("x", Tensor::scalar(1.0));
  write_safetensors(path(), state);
  std::uint64_t length = 0;
  const std::string bytes = bytes_of(path());
  std::memcpy(&length, bytes.data(), sizeof length);
  EXPECT_EQ(length % 8, 0u);
  EXPECT_EQ(bytes.size(), 8 + length + 8);
}

TEST_F(Safetensors, PacksTensorsThatAreNotContiguous) {
  StateDict state;
  state.add("t", Tensor::from<double>({2, 3}, {1, 2, 3, 4, 5, 6}).transpose(0, 1));
  write_safetensors(path(), state);
  const Tensor read = read_safetensors(path()).tensors.at("t");
  EXPECT_EQ(read.shape(), (Shape{3, 2}));
  EXPECT_EQ(read.span<double>()[1], 4.0);
}

TEST_F(Safetensors, TensorsOutliveTheFileAndItsReplacement) {
  StateDict state;
  state.add("x", Tensor::scalar(1.0));
  write_safetensors(path(), state);
  const Tensor first = read_safetensors(path()).tensors.at("x");
  StateDict other;
  other.add("x", Tensor::scalar(2.0));
  write_safetensors(path(), other);
  EXPECT_EQ(first.item(), 1.0);
  EXPECT_EQ(read_safetensors(path()).tensors.at("x").item(), 2.0);
  fs::remove(path());
  EXPECT_EQ(first.item(), 1.0);
}

TEST_F(Safetensors, OrdersTensorsByOffsetWhateverTheHeaderSays) {
  const auto file = with(
      R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},"e":{"dtype":"F64","shape":[0],"data_offsets":[1,1]},)"
      R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
      "xy");
  std::vector<std::string> names;
  for (const auto& [name, tensor] : read_safetensors(file).tensors) names.push_back(name);
  EXPECT_THAT(names, ElementsAre("a", "e", "b"));
}

TEST_F(Safetensors, AFileWithoutTensorsIsLegal) {
  EXPECT_EQ(read_safetensors(with("{}")).tensors.size(), 0u);
  EXPECT_EQ(read_safetensors(with("{}      ")).tensors.size(), 0u);
  write_safetensors(path(), {}, {{"only", "metadata"}});
  EXPECT_EQ(read_safetensors(path()).metadata.size(), 1u);
}

TEST_F(Safetensors, ReadsTheReferenceFiles) {
  const fs::path folder = fs::path(FASTPATH_TEST_DATA) / "refdata/mace_a";
  const SafetensorsFile model = read_safetensors(folder / "model/model.safetensors");
  EXPECT_EQ(model.tensors.at("atomic_energies_fn.atomic_energies").shape(), (Shape{3}));
  const std::vector<std::int64_t> numbers{1, 6, 8};
  const Tensor read = model.tensors.at("atomic_numbers");
  EXPECT_TRUE(std::equal(numbers.begin(), numbers.end(), read.data<std::int64_t>()));
  const SafetensorsFile data = read_safetensors(folder / "data.safetensors");
  EXPECT_EQ(data.tensors.at("molecule:pbc").dtype(), DType::boolean);
  const Tensor positions = data.tensors.at("molecule:positions");  // at an odd offset of the file
  EXPECT_EQ(positions.shape(), (Shape{9, 3}));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(positions.raw()) % alignof(double), 0u);
  EXPECT_EQ(positions.span<double>()[0], -0.8889742169824045);
  EXPECT_EQ(read_safetensors(folder / "paramgrads.safetensors").tensors.contains("dE:interactions.0.linear.weight"),
            true);
}

TEST_F(Safetensors, NamesAFileThatIsNotThere) {
  read_error(path("absent.safetensors"), ErrorCode::not_found);
  read_error(folder_, ErrorCode::io);
}

TEST_F(Safetensors, RefusesHeadersThatLieAboutTheirLength) {
  EXPECT_THAT(read_error(with_bytes("")), HasSubstr("0 bytes"));
  EXPECT_THAT(read_error(with_bytes("\1\0\0")), HasSubstr("bytes"));
  EXPECT_THAT(read_error(with_bytes(std::string(8, '\0'))), HasSubstr("'{'"));
  EXPECT_THAT(read_error(with_bytes(std::string("\3\0\0\0\0\0\0\0{}", 10))), HasSubstr("claims a header of 3 bytes"));
  EXPECT_THAT(read_error(with_bytes(std::string(8, '\xff') + "{}")),
              HasSubstr("claims a header of 18446744073709551615"));
  EXPECT_THAT(read_error(with_bytes("#!/bin/sh\necho this is no such file\n")), HasSubstr("claims a header"));
}

TEST_F(Safetensors, RefusesHeadersThatAreNotTheExpectedJson) {
  EXPECT_THAT(read_error(with("[]")), HasSubstr("'{'"));
  EXPECT_THAT(read_error(with("{")), HasSubstr("not JSON"));
  EXPECT_THAT(read_error(with("{} x")), HasSubstr("not JSON"));
  EXPECT_THAT(read_error(with("{\"a\xff\":1}")), HasSubstr("not JSON"));
  EXPECT_THAT(read_error(with(R"({"a":7})")), HasSubstr("'a' is 7, expected an object"));
  EXPECT_THAT(read_error(with(R"({"a":null})")), HasSubstr("null"));
  EXPECT_THAT(read_error(with(R"({"a":[]})")), HasSubstr("an array"));
  EXPECT_THAT(read_error(with(R"({"a":{}})")), HasSubstr("tensor 'a' has no dtype, shape, data_offsets"));
  EXPECT_THAT(read_error(with(R"({"a":{"x":1}})")), HasSubstr("the key 'x'"));
  EXPECT_THAT(read_error(with(R"({"a":{"dtype":{}}})")), HasSubstr("an object"));
  EXPECT_THAT(read_error(with(R"({"a":{"dtype":["F32"]}})")), HasSubstr("dtype of tensor 'a' is an array"));
  EXPECT_THAT(read_error(with(R"({"a":{"shape":"3"}})")), HasSubstr("shape of tensor 'a' is '3'"));
  EXPECT_THAT(read_error(with(R"({"a":{"shape":[-1]}})")), HasSubstr("shape of tensor 'a' holds -1"));
  EXPECT_THAT(read_error(with(R"({"a":{"shape":[1.5]}})")), HasSubstr("'1.5'"));
  EXPECT_THAT(read_error(with(R"({"a":{"shape":[99999999999999999999]}})")), HasSubstr("99999999999999999999"));
  EXPECT_THAT(read_error(with(R"({"a":{"shape":[[1]]}})")), HasSubstr("an array"));
  EXPECT_THAT(read_error(with(R"({"a":{"data_offsets":[0]}})")), HasSubstr("1 data_offsets, expected 2"));
  EXPECT_THAT(read_error(with(R"({"a":{"data_offsets":[0,1,2]}})")), HasSubstr("more than 2"));
  EXPECT_THAT(read_error(with(R"({"__metadata__":{"k":1}})")), HasSubstr("metadata 'k' is 1, expected a string"));
  EXPECT_THAT(read_error(with(R"({"__metadata__":7})")), HasSubstr("__metadata__"));
  std::string deep = R"({"a":{"shape":)";
  for (int i = 0; i < 100000; ++i) deep += '[';
  read_error(with(deep));
}

TEST_F(Safetensors, RefusesNamesGivenTwice) {
  const std::string x = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  EXPECT_THAT(read_error(with("{\"a\":" + x + ",\"a\":" + x + "}")), HasSubstr("'a' twice"));
  EXPECT_THAT(read_error(with(R"({"a":{"dtype":"U8","dtype":"F32"}})")), HasSubstr("'dtype' twice"));
  EXPECT_THAT(read_error(with(R"({"__metadata__":{"k":"1","k":"2"}})")), HasSubstr("'k' twice"));
  EXPECT_THAT(read_error(with(R"({"__metadata__":{},"__metadata__":{}})")), HasSubstr("'__metadata__' twice"));
}

TEST_F(Safetensors, RefusesADtypeItDoesNotHaveNamingIt) {
  EXPECT_THAT(read_error(with(R"({"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}})", "xx")),
              AllOf(HasSubstr("'BF16'"), HasSubstr("F64")));
}

TEST_F(Safetensors, RefusesShapesAndOffsetsThatDoNotMatchTheData) {
  const auto file = [&](const std::string& shape, const std::string& offsets, std::size_t bytes) {
    return with(R"({"a":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}",
                std::string(bytes, 'x'));
  };
  EXPECT_THAT(read_error(file("[2]", "[0,4]", 4)), HasSubstr("needs 8 bytes, its data_offsets give 4"));
  EXPECT_THAT(read_error(file("[]", "[0,8]", 8)), HasSubstr("needs 4 bytes"));
  EXPECT_THAT(read_error(file("[1]", "[0,4]", 3)), HasSubstr("the file has only 3"));
  EXPECT_THAT(read_error(file("[1]", "[0,4]", 5)), HasSubstr("need 4 bytes of data, the file has 5"));
  EXPECT_THAT(read_error(file("[1]", "[4,0]", 4)), HasSubstr("the end before the begin"));
  EXPECT_THAT(read_error(file("[1]", "[1,5]", 5)), HasSubstr("hole"));
  EXPECT_THAT(read_error(file("[1]", "[0,18446744073709551615]", 4)), HasSubstr("18446744073709551615"));
  EXPECT_THAT(read_error(file("[4294967296,4294967296]", "[0,0]", 0)), HasSubstr("more elements than can be counted"));
  EXPECT_THAT(read_error(file("[9223372036854775808]", "[0,0]", 0)), HasSubstr("more elements"));
  EXPECT_THAT(read_error(file("[1152921504606846976,16,0]", "[0,0]", 0)), HasSubstr("more elements"));
  std::string axes = "[1";
  for (int i = 0; i < 100; ++i) axes += ",1";
  EXPECT_THAT(read_error(file(axes + "]", "[0,4]", 4)), HasSubstr("axes"));
  const std::string two =
      R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})";
  EXPECT_THAT(read_error(with(two, "xyz")),
              HasSubstr("tensor 'b' begins at byte 1 of the data, expected 2: it overlaps"));
}

TEST_F(Safetensors, RefusesTruthValuesOtherThanZeroAndOne) {
  EXPECT_THAT(read_error(with(R"({"a":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})", "\x01\x02")),
              HasSubstr("byte 2"));
}

TEST_F(Safetensors, DoesNotPutControlCharactersOfAFileIntoMessages) {
  const std::string text = read_error(with("{\"a\\u001b[31m" + std::string(5000, 'n') + "\":7}"));
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_LT(text.size(), 500u);
}

TEST_F(Safetensors, EveryTruncationOfAValidFileIsRefused) {
  write_safetensors(path("whole"), sample());
  const std::string whole = bytes_of(path("whole"));
  for (std::size_t length = 0; length < whole.size(); ++length) read_error(with_bytes(whole.substr(0, length)));
  read_error(with_bytes(whole + "x"));
}

TEST_F(Safetensors, RandomCorruptionEitherReadsOrIsRefused) {
  write_safetensors(path("whole"), sample(), {{"k", "v"}});
  const std::string whole = bytes_of(path("whole"));
  std::mt19937 random(7);
  const std::string interesting = "{}[]\",:0123456789-. F\xff";
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = whole;
    for (unsigned change = 0; change <= random() % 3; ++change) {
      // Mostly the length and the header: that is where lies are told.
      const std::size_t at = random() % (round % 8 == 0 ? bytes.size() : 600);
      bytes[at] = round % 2 == 0 ? static_cast<char>(random()) : interesting[random() % interesting.size()];
    }
    try {
      double sum = 0;
      for (const auto& [name, tensor] : read_safetensors(with_bytes(bytes)).tensors) {
        const auto* elements = static_cast<const unsigned char*>(tensor.raw());
        for (std::size_t i = 0; i < tensor.bytes(); ++i) sum += elements[i];
      }
      EXPECT_GE(sum, 0);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::bad_file) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST_F(Safetensors, WriterRefusesWhatAFileCannotHold) {
  const auto code_of = [&](const std::string& name, const Tensor& tensor) {
    StateDict state;
    state.add(name, tensor);
    try {
      write_safetensors(path(), state);
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::internal;
  };
  EXPECT_EQ(code_of("__metadata__", Tensor::scalar(1.0)), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of("undefined", Tensor()), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of("\xff", Tensor::scalar(1.0)), ErrorCode::invalid_argument);
  EXPECT_EQ(files_in_folder(), 0u);
}

void expect_io_error(const fs::path& file) {
  try {
    write_safetensors(file, sample());
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(file.string()));
  }
}

TEST_F(Safetensors, WriterReportsAPathItCannotWrite) {
  expect_io_error(folder_);
  expect_io_error(path("absent") / "t.safetensors");
  if (fs::exists("/dev/full")) {
    expect_io_error("/dev/full");
    EXPECT_TRUE(fs::is_character_file("/dev/full"));
  }
  EXPECT_EQ(files_in_folder(), 0u);
}

TEST_F(Safetensors, AFailedWriteLeavesTheOldFileAndNothingElse) {
  with_bytes("old");
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);  // so that the limit is an error, as a full disk is
  const struct rlimit small { 100, before.rlim_max };
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  expect_io_error(path());
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(bytes_of(path()), "old");
  EXPECT_EQ(files_in_folder(), 1u);
}

TEST_F(Safetensors, ReplacingKeepsPermissionsAndSymbolicLinks) {
  with_bytes("old");
  fs::permissions(path(), fs::perms::owner_read | fs::perms::owner_write | fs::perms::group_read);
  const auto permissions = fs::status(path()).permissions();
  fs::create_symlink(path(), path("link"));
  write_safetensors(path("link"), sample());
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(fs::status(path()).permissions(), permissions);
  EXPECT_EQ(read_safetensors(path()).tensors.size(), sample().size());
  EXPECT_EQ(files_in_folder(), 2u);
}

}  // namespace
}  // namespace fastpath
