#include "fastpath/tensor.hpp"

#include <dlpack/dlpack.h>
#include <gtest/gtest.h>

#include "fastpath/error.hpp"

namespace fastpath {
namespace {

TEST(Tensor, KeepsRowMajorValuesAndItsShape) {
  const Tensor t = Tensor::from<double>({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(t.shape(), (Shape{2, 3}));
  EXPECT_EQ(t.strides(), (Shape{3, 1}));
  EXPECT_EQ(t.span<double>()[5], 6.0);
  EXPECT_EQ(t.bytes(), 48u);
}

TEST(Tensor, TransposeAndNarrowAreViewsOfTheSameStorage) {
  const Tensor t = Tensor::from<std::int64_t>({2, 3}, {1, 2, 3, 4, 5, 6});
  const Tensor column = t.narrow(1, 1, 1);
  EXPECT_TRUE(column.shares_storage(t));
  EXPECT_FALSE(column.is_contiguous());
  EXPECT_EQ(column.contiguous().span<std::int64_t>()[1], 5);
  EXPECT_EQ(t.transpose(0, 1).contiguous().span<std::int64_t>()[1], 4);
}

TEST(Tensor, ConversionKeepsValuesOfStridedTensors) {
  const Tensor t = Tensor::from<double>({2, 2}, {0.5, 1.5, 2.5, 3.5}).transpose(0, 1).to(DType::float32);
  EXPECT_EQ(t.span<float>()[1], 2.5f);
}

TEST(Tensor, CopyIntoAStridedViewWritesOnlyTheView) {
  const Tensor t = Tensor::zeros({2, 2}, DType::float64);
  t.narrow(1, 0, 1).copy_from(Tensor::from<double>({2, 1}, {7, 8}));
  EXPECT_EQ(t.span<double>()[0], 7.0);
  EXPECT_EQ(t.span<double>()[1], 0.0);
  EXPECT_EQ(t.span<double>()[2], 8.0);
}

TEST(Tensor, RefusesAccessWithTheWrongDtypeNamingBoth) {
  const Tensor t = Tensor::zeros({2}, DType::float32);
  try {
    (void)t.data<double>();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_STREQ(error.what(), "tensor holds float32, access asked for float64");
  }
}

TEST(Tensor, RefusesImpossibleShapes) {
  EXPECT_THROW(Tensor::zeros({-1}, DType::float32), Error);
  EXPECT_THROW(Tensor::zeros({std::int64_t{1} << 40, std::int64_t{1} << 40}, DType::float32), Error);
  EXPECT_THROW(Tensor::from<float>({3}, {1, 2}), Error);
  EXPECT_THROW(Tensor::zeros({3}, DType::float32).narrow(0, 2, 2), Error);
}

TEST(Tensor, EmptyAndScalarTensorsAreValid) {
  EXPECT_EQ(Tensor::zeros({0, 5}, DType::float64).numel(), 0);
  EXPECT_EQ(Tensor::scalar(2.5).item(), 2.5);
  EXPECT_FALSE(Tensor().defined());
}

TEST(DLPack, RoundTripSharesStorageAndKeepsStrides) {
  const Tensor t = Tensor::from<float>({2, 3}, {1, 2, 3, 4, 5, 6}).narrow(1, 1, 2);
  const Tensor back = from_dlpack(to_dlpack(t));
  EXPECT_TRUE(back.shares_storage(t));
  EXPECT_EQ(back.strides(), t.strides());
  EXPECT_EQ(back.contiguous().span<float>()[3], 6.0f);
}

TEST(DLPack, TheDeleterRunsOnceWhenTheLastTensorGoes) {
  static int deleted = 0;
  static float values[2] = {1, 2};
  static std::int64_t shape[1] = {2};
  DLManagedTensor managed{};
  managed.dl_tensor.data = values;
  managed.dl_tensor.device = {kDLCPU, 0};
  managed.dl_tensor.ndim = 1;
  managed.dl_tensor.dtype = {kDLFloat, 32, 1};
  managed.dl_tensor.shape = shape;
  managed.deleter = [](DLManagedTensor*) { ++deleted; };
  {
    const Tensor a = from_dlpack(&managed);
    const Tensor b = a;
    EXPECT_EQ(b.span<float>()[1], 2.0f);
    EXPECT_EQ(deleted, 0);
  }
  EXPECT_EQ(deleted, 1);
}

TEST(DLPack, RefusesTypesItDoesNotHaveWithoutTakingOwnership) {
  static int deleted = 0;
  DLManagedTensor managed{};
  managed.dl_tensor.device = {kDLCPU, 0};
  managed.dl_tensor.dtype = {kDLBfloat, 16, 1};
  managed.deleter = [](DLManagedTensor*) { ++deleted; };
  EXPECT_THROW(from_dlpack(&managed), Error);
  managed.dl_tensor.dtype = {kDLFloat, 32, 1};
  managed.dl_tensor.device = {kDLVulkan, 0};
  EXPECT_THROW(from_dlpack(&managed), Error);
  EXPECT_EQ(deleted, 0);
}

TEST(Device, NamesRoundTripAndBadOnesAreRefused) {
  for (const char* name : {"cpu", "cuda:0", "hip:3", "opencl:1", "ext:0"})
    EXPECT_EQ(to_string(parse_device(name)), name);
  EXPECT_EQ(parse_device("cuda"), (Device{DeviceKind::cuda, 0}));
  for (const char* name : {"", "gpu", "cuda:", "cuda:-1", "cuda:1x", "cpu:1", "CUDA:0"}) {
    EXPECT_THROW(parse_device(name), Error) << name;
  }
}

TEST(DType, NamesRoundTrip) {
  for (const DType dtype : {DType::float32, DType::float64, DType::int32, DType::int64, DType::boolean, DType::uint8}) {
    EXPECT_EQ(parse_dtype(to_string(dtype)), dtype);
  }
  EXPECT_THROW(parse_dtype("float16"), Error);
}

}  // namespace
}  // namespace fastpath
