#pragma once

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace fastpath::io {

/// A file descriptor that is closed with its object.
class Descriptor {
 public:
  Descriptor() noexcept = default;
  explicit Descriptor(int value) noexcept : value_(value) {}
  ~Descriptor() { close(); }
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const noexcept { return value_; }
  explicit operator bool() const noexcept { return value_ >= 0; }
  /// Some file systems tell only now that they had no room. @return errno, or 0.
  int close() noexcept {
    if (value_ < 0) return 0;
    return ::close(std::exchange(value_, -1)) == 0 || errno == EINTR ? 0 : errno;
  }

 private:
  int value_ = -1;
};

}  // namespace fastpath::io
