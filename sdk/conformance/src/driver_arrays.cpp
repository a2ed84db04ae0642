#include "driver.hpp"

#include <cstring>
#include <stdexcept>

namespace fastpath::conformance {

Array Array::zeros(std::vector<std::int64_t> sizes, sdk::DType type) {
  Array array;
  array.shape = std::move(sizes);
  array.dtype = type;
  array.present = true;
  array.storage.assign(array.bytes() / 8 + 1, 0.0);  // never empty, for its address is copied from and to
  return array;
}
std::int64_t Array::numel() const noexcept {
  std::int64_t n = present ? 1 : 0;
  for (const std::int64_t size : shape) n *= size;
  return n;
}
double Array::at(std::int64_t i) const noexcept {
  if (dtype == sdk::kFloat32) return static_cast<double>(data<float>()[i]);
  if (dtype == sdk::kFloat64) return data<double>()[i];
  return static_cast<double>(data<std::int32_t>()[i]);
}
void Array::set(std::int64_t i, double value) noexcept {
  if (dtype == sdk::kFloat32) {
    data<float>()[i] = static_cast<float>(value);
  } else if (dtype == sdk::kFloat64) {
    data<double>()[i] = value;
  } else {
    data<std::int32_t>()[i] = static_cast<std::int32_t>(value);
  }
}
void Array::fill_bytes(unsigned char value) noexcept {
  if (bytes() != 0) std::memset(raw(), value, bytes());
}
Array Array::to(sdk::DType wanted) const {
  if (!present || dtype == wanted || dtype.code != FP_CODE_FLOAT) return *this;
  Array result = zeros(shape, wanted);
  for (std::int64_t i = 0; i < numel(); ++i) result.set(i, at(i));
  return result;
}

namespace {
constexpr std::uint64_t kGuardBytes = 256;
constexpr char kGuard = static_cast<char>(0x5A);
}  // namespace

Placed::Placed(Session& session, fp_device* device, const fp_device_info& info, const Array& array, Layout layout)
    : session_(session),
      device_(device),
      info_(info),
      shape_(array.shape),
      dtype_(array.dtype),
      present_(array.present) {
  if (!present_) return;
  numel_ = array.numel();
  on_device_ = info.type != FP_DEVICE_CPU;
  strides_.resize(shape_.size());
  std::int64_t stride = 1;
  for (std::size_t axis = shape_.size(); axis-- > 0;) {
    strides_[axis] = stride;
    stride *= shape_[axis];
    if (layout == Layout::padded && axis + 1 == shape_.size() && axis > 0) stride += 3;
  }
  const std::uint64_t span = static_cast<std::uint64_t>(numel_ == 0 ? 0 : stride) * array.item_bytes();
  placed_.assign(kGuardBytes + span + kGuardBytes, kGuard);
  byte_offset_ = kGuardBytes;
  for (std::int64_t i = 0; i < numel_; ++i) {
    std::memcpy(placed_.data() + offset_of(i), array.raw() + static_cast<std::size_t>(i) * array.item_bytes(),
                array.item_bytes());
  }
  if (!on_device_) {
    own_.reset(new char[placed_.size() + 256]);
    image_ = own_.get() + (256 - reinterpret_cast<std::uintptr_t>(own_.get()) % 256);
    memory_ = image_;
  } else {
    if (!session_.has_memory) session_.trial.skip("the plugin brings no memory for its device");
    const Outcome outcome = session_.call("allocate", [&](const fp_error_sink* errors) {
      return session_.memory.allocate(device_, placed_.size(), &memory_, errors);
    });
    if (!outcome.ok()) throw std::runtime_error("device memory: " + outcome.shown());
  }
  upload(placed_);
}

Placed::~Placed() {
  if (on_device_ && memory_ != nullptr) {
    session_.call_void("release", [&] { session_.memory.release(device_, memory_); });
  }
}

void Placed::upload(const std::vector<char>& image) {
  if (!on_device_) {
    std::memcpy(image_, image.data(), image.size());
    return;
  }
  const Outcome outcome = session_.call("copy_to_device", [&](const fp_error_sink* errors) {
    return session_.memory.copy_to_device(device_, memory_, 0, image.data(), image.size(), nullptr, errors);
  });
  if (!outcome.ok()) throw std::runtime_error("copy to the device: " + outcome.shown());
}

void Placed::fetch() {
  if (!on_device_) return;
  fetched_.resize(placed_.size());
  const Outcome outcome = session_.call("copy_from_device", [&](const fp_error_sink* errors) {
    return session_.memory.copy_from_device(device_, fetched_.data(), memory_, 0, fetched_.size(), nullptr, errors);
  });
  if (!outcome.ok()) throw std::runtime_error("copy from the device: " + outcome.shown());
  image_ = fetched_.data();
}

std::uint64_t Placed::offset_of(std::int64_t element) const {
  std::int64_t at = 0;
  for (std::size_t axis = shape_.size(); axis-- > 0;) {
    at += element % shape_[axis] * strides_[axis];
    element /= shape_[axis];
  }
  return kGuardBytes + static_cast<std::uint64_t>(at) * (dtype_.bits / 8);
}

fp_tensor Placed::c(std::uint32_t access) const {
  static constexpr std::int64_t kNoAxes = 0;
  fp_tensor tensor = sdk::abi_struct<fp_tensor>();
  if (!present_) return tensor;
  tensor.access = access;
  tensor.data = memory_;
  tensor.device_type = info_.type;
  tensor.device_id = info_.index;
  tensor.ndim = static_cast<std::int32_t>(shape_.size());
  tensor.dtype_code = dtype_.code;
  tensor.dtype_bits = dtype_.bits;
  tensor.dtype_lanes = dtype_.lanes;
  tensor.shape = shape_.empty() ? &kNoAxes : shape_.data();
  tensor.strides = shape_.empty() ? &kNoAxes : strides_.data();
  tensor.byte_offset = byte_offset_;
  return tensor;
}

std::string Placed::read(Array& array) {
  if (!present_) return {};
  fetch();
  const std::size_t item = dtype_.bits / 8;
  for (std::int64_t i = 0; i < numel_; ++i) {
    std::memcpy(array.raw() + static_cast<std::size_t>(i) * item, image_ + offset_of(i), item);
  }
  // What is left once the elements are put back must be what was placed.
  std::vector<char> rest(image_, image_ + placed_.size());
  for (std::int64_t i = 0; i < numel_; ++i) {
    std::memcpy(rest.data() + offset_of(i), placed_.data() + offset_of(i), item);
  }
  for (std::size_t i = 0; i < rest.size(); ++i) {
    if (rest[i] == placed_[i]) continue;
    if (i < kGuardBytes) return std::to_string(kGuardBytes - i) + " bytes before its first element were written";
    if (i >= placed_.size() - kGuardBytes) {
      return "the byte " + std::to_string(i - (placed_.size() - kGuardBytes)) + " after its last element was written";
    }
    return "memory between its rows was written";
  }
  return {};
}

std::string Placed::unchanged() {
  if (!present_) return {};
  fetch();
  for (std::size_t i = 0; i < placed_.size(); ++i) {
    if (image_[i] != placed_[i]) {
      return "byte " + std::to_string(static_cast<std::int64_t>(i) - static_cast<std::int64_t>(kGuardBytes)) +
             " of it was changed";
    }
  }
  return {};
}

void Placed::poison() {
  if (!present_) return;
  upload(std::vector<char>(placed_.size(), static_cast<char>(0xFF)));
}

}  // namespace fastpath::conformance
