#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include "fastpath/plugin.h"
#include "fastpath/sdk/abi.hpp"
#include "fastpath/sdk/error.hpp"

namespace fastpath::sdk {

/// Type of an element, DLPack's triple.
struct DType {
  std::uint8_t code = 0;
  std::uint8_t bits = 0;
  std::uint16_t lanes = 1;

  friend constexpr bool operator==(const DType&, const DType&) = default;
  /// "float32", "int64"; for others the three numbers.
  std::string name() const {
    if (lanes == 1 && code == FP_CODE_FLOAT) return "float" + std::to_string(bits);
    if (lanes == 1 && code == FP_CODE_INT) return "int" + std::to_string(bits);
    if (lanes == 1 && code == FP_CODE_UINT) return "uint" + std::to_string(bits);
    return "dtype(code " + std::to_string(code) + ", bits " + std::to_string(bits) + ", lanes " +
           std::to_string(lanes) + ")";
  }
};
inline constexpr DType kFloat32{FP_CODE_FLOAT, 32, 1};
inline constexpr DType kFloat64{FP_CODE_FLOAT, 64, 1};
inline constexpr DType kInt32{FP_CODE_INT, 32, 1};
inline constexpr DType kInt64{FP_CODE_INT, 64, 1};

/// The DType of a C++ type; const is ignored.
template <class T>
constexpr DType dtype_of() {
  using Plain = std::remove_const_t<T>;
  static_assert(std::is_same_v<Plain, float> || std::is_same_v<Plain, double> || std::is_same_v<Plain, std::int32_t> ||
                std::is_same_v<Plain, std::int64_t>);
  return {std::is_floating_point_v<Plain> ? std::uint8_t{FP_CODE_FLOAT} : std::uint8_t{FP_CODE_INT},
          static_cast<std::uint8_t>(8 * sizeof(T)), 1};
}

/// Elements of a contiguous tensor in host memory, row-major. Null where the tensor is absent: test it before use.
template <class T>
class TensorView {
 public:
  TensorView() = default;
  TensorView(T* data, std::int64_t rows, std::int64_t row_size)
      : data_(data), rows_(rows), row_size_(row_size), present_(true) {}

  explicit operator bool() const noexcept { return present_; }
  T* data() const noexcept { return data_; }
  std::int64_t rows() const noexcept { return rows_; }          ///< Size of the leading axis.
  std::int64_t row_size() const noexcept { return row_size_; }  ///< Elements per index of the leading axis.
  std::int64_t size() const noexcept { return rows_ * row_size_; }
  T* row(std::int64_t i) const noexcept { return data_ + i * row_size_; }
  T& operator[](std::int64_t i) const noexcept { return data_[i]; }

 private:
  T* data_ = nullptr;
  std::int64_t rows_ = 0;
  std::int64_t row_size_ = 0;
  bool present_ = false;
};

/// One tensor of a call, as the host passed it. Copies are cheap; valid as long as what the host passed.
class Tensor {
 public:
  /// An absent tensor.
  Tensor() = default;
  /// @throws InvalidArgument if the rank is negative or its shape or strides are missing.
  explicit Tensor(const fp_tensor& tensor) : tensor_(tensor) {
    if (!present()) return;
    if (tensor_.ndim < 0 || tensor_.ndim > 16 ||
        (tensor_.ndim > 0 && (tensor_.shape == nullptr || tensor_.strides == nullptr))) {
      throw InvalidArgument("a tensor of rank " + std::to_string(tensor_.ndim) +
                            " without shape or strides, expected rank 0..16 with both");
    }
    numel_ = 1;
    for (std::int32_t axis = 0; axis < tensor_.ndim; ++axis) {
      if (tensor_.shape[axis] < 0 || __builtin_mul_overflow(numel_, tensor_.shape[axis], &numel_)) {
        throw InvalidArgument("a tensor whose size is negative or exceeds 64 bits: " + shape_text());
      }
    }
  }

  /// As the host passed it: for a kernel that makes calls of its own from the tensors of one.
  const fp_tensor& c() const noexcept { return tensor_; }
  bool present() const noexcept { return tensor_.access != FP_ACCESS_ABSENT; }
  /// Whether the host grants all of these FP_ACCESS_* bits.
  bool grants(std::uint32_t access) const noexcept { return (tensor_.access & access) == access; }
  std::int32_t ndim() const noexcept { return tensor_.ndim; }
  std::int64_t size(std::int32_t axis) const noexcept { return tensor_.shape[axis]; }
  std::int64_t stride(std::int32_t axis) const noexcept { return tensor_.strides[axis]; }  ///< In elements.
  std::int64_t numel() const noexcept { return numel_; }
  DType dtype() const noexcept { return {tensor_.dtype_code, tensor_.dtype_bits, tensor_.dtype_lanes}; }
  std::int32_t device_type() const noexcept { return tensor_.device_type; }
  std::int32_t device_id() const noexcept { return tensor_.device_id; }
  /// Host address or device handle. Element 0 lies byte_offset() bytes after it.
  void* handle() const noexcept { return tensor_.data; }
  std::uint64_t byte_offset() const noexcept { return tensor_.byte_offset; }
  bool is_contiguous() const noexcept {
    std::int64_t expected = 1;
    for (std::int32_t axis = tensor_.ndim - 1; axis >= 0; --axis) {
      if (size(axis) != 1 && stride(axis) != expected) return numel_ == 0;
      expected *= size(axis);
    }
    return true;
  }
  /// "[2, 3]".
  std::string shape_text() const {
    std::string text = "[";
    for (std::int32_t axis = 0; axis < tensor_.ndim; ++axis) {
      text += (axis == 0 ? "" : ", ") + std::to_string(size(axis));
    }
    return text + "]";
  }

  /// The elements in host memory; a null view if the tensor is absent. T const: to read, else to write.
  /// @throws InvalidArgument for another dtype or device, access the host did not grant, or an address that is null or
  /// misaligned. @throws Refused if the tensor is not contiguous.
  template <class T>
  TensorView<T> view() const {
    if (!present()) return TensorView<T>();
    if (!(dtype() == dtype_of<T>())) {
      throw InvalidArgument("a tensor of " + dtype().name() + ", expected " + dtype_of<T>().name());
    }
    if (tensor_.device_type != FP_DEVICE_CPU) {
      throw InvalidArgument("a tensor on device type " + std::to_string(tensor_.device_type) + ", expected the CPU");
    }
    constexpr std::uint32_t kNeeded = std::is_const_v<T> ? FP_ACCESS_READ : FP_ACCESS_WRITE;
    if ((tensor_.access & kNeeded) == 0) {
      throw InvalidArgument(std::string("a tensor without the right to ") + (std::is_const_v<T> ? "read" : "write"));
    }
    if (!is_contiguous()) throw Refused("a strided tensor of shape " + shape_text() + ", expected a contiguous one");
    char* address = static_cast<char*>(tensor_.data) + (tensor_.data == nullptr ? 0 : tensor_.byte_offset);
    if (numel_ != 0 && (address == nullptr || reinterpret_cast<std::uintptr_t>(address) % alignof(T) != 0)) {
      throw InvalidArgument("a tensor whose address is null or not aligned to its dtype");
    }
    const std::int64_t rows = tensor_.ndim == 0 ? 1 : size(0);
    std::int64_t row_size = 1;
    for (std::int32_t axis = 1; axis < tensor_.ndim; ++axis) row_size *= size(axis);
    return TensorView<T>(reinterpret_cast<T*>(address), rows, row_size);
  }

 private:
  fp_tensor tensor_{};
  std::int64_t numel_ = 0;
};

/// A list of tensors in the order of the op's schema. What lies past its end is absent.
class TensorList {
 public:
  TensorList() = default;
  /// Null is an empty list. @throws InvalidArgument if it has items without an address or a stride.
  explicit TensorList(const fp_tensor_list* list) : list_(known(list)) {
    if (list_.count != 0 && (list_.items == nullptr || list_.stride < sizeof(std::uint32_t))) {
      throw InvalidArgument("a tensor list of " + std::to_string(list_.count) + " without items or stride");
    }
  }
  std::uint64_t size() const noexcept { return list_.count; }
  Tensor operator[](std::uint64_t i) const { return i < list_.count ? Tensor(element(list_, i)) : Tensor(); }

 private:
  fp_tensor_list list_{};
};

}  // namespace fastpath::sdk
