#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fastpath/export.hpp"
#include "fastpath/types.hpp"

struct DLManagedTensor;

namespace fastpath {

/// Sizes of the axes of a tensor, outermost first; empty for a scalar.
using Shape = std::vector<std::int64_t>;

/// "[2, 3]", for messages.
FASTPATH_EXPORT std::string to_string(const Shape& shape);

/// A strided array of one dtype on one device. Copies share storage, like a shared pointer: constness of a Tensor
/// is constness of its shape, not of its elements. Distinct tensors may be used from distinct threads.
class FASTPATH_EXPORT Tensor {
 public:
  /// An undefined tensor: stands for "absent" wherever a tensor is optional.
  Tensor() = default;

  /// Uninitialised elements in fresh host memory, aligned to 64 bytes.
  /// @throws Error(invalid_argument) for a negative size, Error(out_of_memory) if the memory cannot be had.
  static Tensor empty(Shape shape, DType dtype);
  /// As empty, all elements zero.
  static Tensor zeros(Shape shape, DType dtype);
  /// A copy of `values`, row-major.
  /// @throws Error(invalid_argument) if their number does not match the shape.
  template <class T>
  static Tensor from(Shape shape, const std::vector<T>& values);
  /// A rank-0 tensor.
  template <class T>
  static Tensor scalar(T value);
  /// A view of memory that somebody else owns; `owner` keeps it alive and may be null.
  /// @param data     Base address, or a device handle; element (0,...,0) lies `byte_offset` bytes after it.
  /// @param strides  In elements, one per axis; empty means row-major.
  static Tensor wrap(void* data, Shape shape, Shape strides, DType dtype, Device device,
                     std::shared_ptr<const void> owner, std::uint64_t byte_offset = 0);

  bool defined() const noexcept { return defined_; }
  DType dtype() const noexcept { return dtype_; }
  Device device() const noexcept { return device_; }
  std::int64_t rank() const noexcept { return static_cast<std::int64_t>(shape_.size()); }
  const Shape& shape() const noexcept { return shape_; }
  /// In elements.
  const Shape& strides() const noexcept { return strides_; }
  /// Size of one axis; a negative axis counts from the end.
  /// @throws Error(invalid_argument) if there is no such axis.
  std::int64_t size(std::int64_t axis) const;
  /// Number of elements; 1 for a scalar, 0 for an undefined tensor.
  std::int64_t numel() const noexcept { return numel_; }
  /// numel() times the size of an element.
  std::size_t bytes() const noexcept { return static_cast<std::size_t>(numel_) * size_of(dtype_); }
  bool is_contiguous() const noexcept { return contiguous_; }

  /// Base address or device handle, without the byte offset.
  void* base() const noexcept { return data_; }
  std::uint64_t byte_offset() const noexcept { return byte_offset_; }
  /// Address of the first element. Meaningful as a host pointer only on the CPU.
  void* raw() const noexcept { return static_cast<std::byte*>(data_) + byte_offset_; }
  /// The elements of a contiguous host tensor.
  /// @throws Error(invalid_argument) naming what differs: dtype, device, contiguity, or that it is undefined.
  template <class T>
  std::span<T> span() const {
    check_access(DTypeOf<T>::value);
    return {static_cast<T*>(raw()), static_cast<std::size_t>(numel_)};
  }
  /// span<T>().data().
  template <class T>
  T* data() const {
    check_access(DTypeOf<T>::value);
    return static_cast<T*>(raw());
  }
  /// The only element of a host tensor, converted to double.
  /// @throws Error(invalid_argument) if there is not exactly one.
  double item() const;

  /// This tensor if it is contiguous, otherwise a contiguous copy. Host only, like clone() and to().
  Tensor contiguous() const;
  /// A contiguous copy with storage of its own.
  Tensor clone() const;
  /// Converted elements; this tensor itself if the dtype is already right.
  Tensor to(DType dtype) const;
  /// The same elements under another shape. @throws Error(invalid_argument) unless contiguous and of equal size.
  Tensor view(Shape shape) const;
  /// Rows [start, start + length) of an axis, without copy.
  Tensor narrow(std::int64_t axis, std::int64_t start, std::int64_t length) const;
  /// Two axes exchanged, without copy.
  Tensor transpose(std::int64_t a, std::int64_t b) const;
  /// Fills a host tensor with zero bytes, or copies equal-shaped elements from `source` (converting the dtype).
  void fill_zero() const;
  void copy_from(const Tensor& source) const;

  /// True if both use the same allocation.
  bool shares_storage(const Tensor& other) const noexcept { return defined_ && other.defined_ && data_ == other.data_; }
  /// What keeps the memory alive; null where nothing does.
  const std::shared_ptr<const void>& owner() const noexcept { return owner_; }

 private:
  void check_access(DType wanted) const;

  bool defined_ = false;
  bool contiguous_ = true;
  DType dtype_ = DType::float64;
  Device device_;
  Shape shape_;
  Shape strides_;
  std::int64_t numel_ = 0;
  void* data_ = nullptr;
  std::uint64_t byte_offset_ = 0;
  std::shared_ptr<const void> owner_;
};

/// Hands a tensor to another library without copying. The result owns a share of the storage; the receiver calls its
/// deleter once. Strides are always present. @throws Error(invalid_argument) for an undefined tensor.
FASTPATH_EXPORT DLManagedTensor* to_dlpack(const Tensor& tensor);
/// Takes over a DLPack tensor without copying; its deleter runs when the last Tensor that shares it goes.
/// @throws Error(unsupported) for a dtype, lane count or device code fastpath does not have; the deleter has then not
/// run.
FASTPATH_EXPORT Tensor from_dlpack(DLManagedTensor* managed);

template <class T>
Tensor Tensor::from(Shape shape, const std::vector<T>& values) {
  Tensor source = wrap(const_cast<T*>(values.data()), {static_cast<std::int64_t>(values.size())}, {}, DTypeOf<T>::value,
                       Device::cpu(), nullptr);
  return source.view(std::move(shape)).clone();
}

template <class T>
Tensor Tensor::scalar(T value) {
  Tensor result = empty({}, DTypeOf<T>::value);
  *result.data<T>() = value;
  return result;
}

}  // namespace fastpath
