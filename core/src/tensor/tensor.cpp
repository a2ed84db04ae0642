#include "fastpath/tensor.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "fastpath/error.hpp"

namespace fastpath {
namespace {

constexpr std::size_t kAlignment = 64;

Shape row_major(const Shape& shape) {
  Shape strides(shape.size());
  std::int64_t step = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    strides[axis] = step;
    step *= shape[axis] > 0 ? shape[axis] : 1;
  }
  return strides;
}

/// Product of the sizes. @throws Error(invalid_argument) for a negative size or a product past 2^62.
std::int64_t count(const Shape& shape) {
  std::int64_t total = 1;
  for (const std::int64_t size : shape) {
    if (size < 0) {
      throw Error(ErrorCode::invalid_argument, fmt::format("shape {} has a negative size", to_string(shape)));
    }
    if (size != 0 && total > (std::int64_t{1} << 59) / size) {
      throw Error(ErrorCode::invalid_argument, fmt::format("shape {} has too many elements", to_string(shape)));
    }
    total *= size;
  }
  return total;
}

bool row_major_compatible(const Shape& shape, const Shape& strides) {
  std::int64_t step = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    if (shape[axis] == 0) return true;
    if (shape[axis] != 1 && strides[axis] != step) return false;
    step *= shape[axis];
  }
  return true;
}

/// Calls `visit(offset)` with the element offset of every element, in row-major order.
template <class Visit>
void for_each_offset(const Shape& shape, const Shape& strides, Visit visit) {
  std::int64_t total = 1;
  for (const std::int64_t size : shape) total *= size;
  Shape index(shape.size(), 0);
  std::int64_t offset = 0;
  for (std::int64_t done = 0; done < total; ++done) {
    visit(offset);
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      offset += strides[axis];
      if (++index[axis] < shape[axis]) break;
      offset -= strides[axis] * shape[axis];
      index[axis] = 0;
    }
  }
}

template <class Function>
auto with_type(DType dtype, Function function) {
  switch (dtype) {
    case DType::float32:
      return function(float{});
    case DType::float64:
      return function(double{});
    case DType::int32:
      return function(std::int32_t{});
    case DType::int64:
      return function(std::int64_t{});
    case DType::boolean:
      return function(bool{});
    case DType::uint8:
      return function(std::uint8_t{});
  }
  throw Error(ErrorCode::internal, "tensor with a dtype outside the list");
}

void require_host(const Tensor& tensor, const char* action) {
  if (!tensor.defined()) throw Error(ErrorCode::invalid_argument, fmt::format("{} of an undefined tensor", action));
  if (!tensor.device().is_cpu()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{} of a tensor on {}; only tensors on cpu have host elements",
                                                         action, to_string(tensor.device())));
  }
}

}  // namespace

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

Tensor Tensor::empty(Shape shape, DType dtype) {
  const std::int64_t elements = count(shape);
  const std::size_t bytes = static_cast<std::size_t>(elements) * size_of(dtype);
  const std::size_t padded = (bytes + kAlignment) / kAlignment * kAlignment;
  void* memory = std::aligned_alloc(kAlignment, padded);
  if (memory == nullptr) {
    throw Error(ErrorCode::out_of_memory, fmt::format("no memory for a {} tensor of shape {} ({} bytes)",
                                                      to_string(dtype), to_string(shape), bytes));
  }
  std::shared_ptr<const void> owner(memory, [](const void* pointer) { std::free(const_cast<void*>(pointer)); });
  return wrap(memory, std::move(shape), {}, dtype, Device::cpu(), std::move(owner));
}

Tensor Tensor::zeros(Shape shape, DType dtype) {
  // From calloc, so that large zero tensors cost no memory before something is written.
  const std::size_t bytes = static_cast<std::size_t>(count(shape)) * size_of(dtype);
  void* memory = std::calloc(bytes + kAlignment, 1);
  if (memory == nullptr) {
    throw Error(ErrorCode::out_of_memory, fmt::format("no memory for a {} tensor of shape {} ({} bytes)",
                                                      to_string(dtype), to_string(shape), bytes));
  }
  std::shared_ptr<const void> owner(memory, [](const void* pointer) { std::free(const_cast<void*>(pointer)); });
  std::size_t space = bytes + kAlignment;
  void* aligned = std::align(kAlignment, bytes, memory, space);
  return wrap(aligned, std::move(shape), {}, dtype, Device::cpu(), std::move(owner));
}

Tensor Tensor::wrap(void* data, Shape shape, Shape strides, DType dtype, Device device,
                    std::shared_ptr<const void> owner, std::uint64_t byte_offset) {
  Tensor result;
  result.numel_ = count(shape);
  if (strides.empty()) {
    strides = row_major(shape);
  } else if (strides.size() != shape.size()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} strides for a tensor of rank {}", strides.size(), shape.size()));
  }
  result.defined_ = true;
  result.contiguous_ = row_major_compatible(shape, strides);
  result.dtype_ = dtype;
  result.device_ = device;
  result.shape_ = std::move(shape);
  result.strides_ = std::move(strides);
  result.data_ = data;
  result.byte_offset_ = byte_offset;
  result.owner_ = std::move(owner);
  return result;
}

std::int64_t Tensor::size(std::int64_t axis) const {
  const std::int64_t positive = axis < 0 ? axis + rank() : axis;
  if (positive < 0 || positive >= rank()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("axis {} of a tensor of shape {}", axis, to_string(shape_)));
  }
  return shape_[static_cast<std::size_t>(positive)];
}

void Tensor::check_access(DType wanted) const {
  require_host(*this, "element access");
  if (dtype_ != wanted) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("tensor holds {}, access asked for {}", to_string(dtype_), to_string(wanted)));
  }
  if (!contiguous_) {
    throw Error(ErrorCode::invalid_argument, fmt::format("tensor of shape {} is not contiguous (strides {})",
                                                         to_string(shape_), to_string(strides_)));
  }
}

double Tensor::item() const {
  require_host(*this, "item()");
  if (numel_ != 1) {
    throw Error(ErrorCode::invalid_argument, fmt::format("item() of a tensor of shape {}", to_string(shape_)));
  }
  return with_type(dtype_, [&](auto zero) { return static_cast<double>(*static_cast<decltype(zero)*>(raw())); });
}

Tensor Tensor::contiguous() const {
  if (!defined_ || contiguous_) return *this;
  return clone();
}

Tensor Tensor::clone() const {
  require_host(*this, "clone()");
  Tensor result = empty(shape_, dtype_);
  result.copy_from(*this);
  return result;
}

Tensor Tensor::to(DType dtype) const {
  if (!defined_ || dtype == dtype_) return *this;
  require_host(*this, "conversion");
  Tensor result = empty(shape_, dtype);
  result.copy_from(*this);
  return result;
}

void Tensor::fill_zero() const {
  require_host(*this, "fill_zero()");
  if (contiguous_) {
    std::memset(raw(), 0, bytes());
    return;
  }
  const std::size_t element = size_of(dtype_);
  for_each_offset(shape_, strides_, [&](std::int64_t offset) {
    std::memset(static_cast<std::byte*>(raw()) + offset * static_cast<std::int64_t>(element), 0, element);
  });
}

void Tensor::copy_from(const Tensor& source) const {
  require_host(*this, "copy into");
  require_host(source, "copy");
  if (source.shape_ != shape_) {
    throw Error(ErrorCode::invalid_argument, fmt::format("copy of a tensor of shape {} into one of shape {}",
                                                         to_string(source.shape_), to_string(shape_)));
  }
  if (numel_ == 0) return;
  if (contiguous_ && source.contiguous_ && dtype_ == source.dtype_) {
    std::memmove(raw(), source.raw(), bytes());
    return;
  }
  with_type(dtype_, [&](auto to_zero) {
    using To = decltype(to_zero);
    with_type(source.dtype_, [&](auto from_zero) {
      using From = decltype(from_zero);
      const From* from = static_cast<const From*>(source.raw());
      To* to = static_cast<To*>(raw());
      if (contiguous_) {
        for_each_offset(source.shape_, source.strides_,
                        [&](std::int64_t offset) { *to++ = static_cast<To>(from[offset]); });
      } else {
        const Tensor packed = source.contiguous();
        from = static_cast<const From*>(packed.raw());
        for_each_offset(shape_, strides_, [&](std::int64_t offset) { to[offset] = static_cast<To>(*from++); });
      }
    });
  });
}

Tensor Tensor::view(Shape shape) const {
  if (!defined_) throw Error(ErrorCode::invalid_argument, "view() of an undefined tensor");
  if (!contiguous_ || count(shape) != numel_) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} tensor of shape {} cannot be viewed as {}",
                            contiguous_ ? "contiguous" : "non-contiguous", to_string(shape_), to_string(shape)));
  }
  return wrap(data_, std::move(shape), {}, dtype_, device_, owner_, byte_offset_);
}

Tensor Tensor::narrow(std::int64_t axis, std::int64_t start, std::int64_t length) const {
  const std::int64_t available = size(axis);
  if (start < 0 || length < 0 || start > available - length) {
    throw Error(ErrorCode::invalid_argument, fmt::format("rows {}..{} of axis {} of a tensor of shape {}", start,
                                                         start + length, axis, to_string(shape_)));
  }
  const auto a = static_cast<std::size_t>(axis < 0 ? axis + rank() : axis);
  Shape shape = shape_;
  shape[a] = length;
  const std::uint64_t offset = byte_offset_ + static_cast<std::uint64_t>(start * strides_[a]) * size_of(dtype_);
  return wrap(data_, std::move(shape), strides_, dtype_, device_, owner_, offset);
}

Tensor Tensor::transpose(std::int64_t a, std::int64_t b) const {
  (void)size(a), (void)size(b);
  Shape shape = shape_;
  Shape strides = strides_;
  const auto i = static_cast<std::size_t>(a < 0 ? a + rank() : a);
  const auto j = static_cast<std::size_t>(b < 0 ? b + rank() : b);
  std::swap(shape[i], shape[j]);
  std::swap(strides[i], strides[j]);
  return wrap(data_, std::move(shape), std::move(strides), dtype_, device_, owner_, byte_offset_);
}

}  // namespace fastpath
