#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "fastpath/plugin.h"

/// How structs cross the ABI: the other side may have been built with an older or a newer header.
namespace fastpath::sdk {

/// Bytes of a struct up to the last member that this header knows.
constexpr std::uint32_t abi_size(const fp_error_sink*) noexcept { return FP_SIZE_ERROR_SINK; }
constexpr std::uint32_t abi_size(const fp_host*) noexcept { return FP_SIZE_HOST; }
constexpr std::uint32_t abi_size(const fp_device_info*) noexcept { return FP_SIZE_DEVICE_INFO; }
constexpr std::uint32_t abi_size(const fp_device_list*) noexcept { return FP_SIZE_DEVICE_LIST; }
constexpr std::uint32_t abi_size(const fp_native*) noexcept { return FP_SIZE_NATIVE; }
constexpr std::uint32_t abi_size(const fp_open_args*) noexcept { return FP_SIZE_OPEN_ARGS; }
constexpr std::uint32_t abi_size(const fp_memory_api*) noexcept { return FP_SIZE_MEMORY_API; }
constexpr std::uint32_t abi_size(const fp_tensor*) noexcept { return FP_SIZE_TENSOR; }
constexpr std::uint32_t abi_size(const fp_tensor_list*) noexcept { return FP_SIZE_TENSOR_LIST; }
constexpr std::uint32_t abi_size(const fp_graph*) noexcept { return FP_SIZE_GRAPH; }
constexpr std::uint32_t abi_size(const fp_attribute*) noexcept { return FP_SIZE_ATTRIBUTE; }
constexpr std::uint32_t abi_size(const fp_attribute_list*) noexcept { return FP_SIZE_ATTRIBUTE_LIST; }
constexpr std::uint32_t abi_size(const fp_kernel_query*) noexcept { return FP_SIZE_KERNEL_QUERY; }
constexpr std::uint32_t abi_size(const fp_kernel_answer*) noexcept { return FP_SIZE_KERNEL_ANSWER; }
constexpr std::uint32_t abi_size(const fp_sizes*) noexcept { return FP_SIZE_SIZES; }
constexpr std::uint32_t abi_size(const fp_workspace*) noexcept { return FP_SIZE_WORKSPACE; }
constexpr std::uint32_t abi_size(const fp_bind_args*) noexcept { return FP_SIZE_BIND_ARGS; }
constexpr std::uint32_t abi_size(const fp_run_args*) noexcept { return FP_SIZE_RUN_ARGS; }
constexpr std::uint32_t abi_size(const fp_create_args*) noexcept { return FP_SIZE_CREATE_ARGS; }
constexpr std::uint32_t abi_size(const fp_kernel_api*) noexcept { return FP_SIZE_KERNEL_API; }
constexpr std::uint32_t abi_size(const fp_op_info*) noexcept { return FP_SIZE_OP_INFO; }
constexpr std::uint32_t abi_size(const fp_op_list*) noexcept { return FP_SIZE_OP_LIST; }
constexpr std::uint32_t abi_size(const fp_plugin*) noexcept { return FP_SIZE_PLUGIN; }

/// A struct with every member zero and its size set.
template <class T>
T abi_struct() noexcept {
  T result{};
  result.struct_size = abi_size(&result);
  return result;
}

/// What both sides know of a struct of the other side; the rest is zero. A null pointer gives zeros.
/// `limit` bounds the bytes that may be read, for an element of an array.
template <class T>
T known(const T* theirs, std::uint32_t limit = UINT32_MAX) noexcept {
  T mine{};
  if (theirs != nullptr) {
    std::memcpy(static_cast<void*>(&mine), static_cast<const void*>(theirs),
                std::min({theirs->struct_size, abi_size(theirs), limit}));
  }
  return mine;
}

/// Writes into a struct of the other side what it knows of mine; its struct_size stays.
template <class T>
void write_known(T* theirs, const T& mine) noexcept {
  constexpr std::uint32_t kSkip = sizeof(std::uint32_t);
  const std::uint32_t size = std::min(theirs->struct_size, abi_size(theirs));
  if (size > kSkip) {
    std::memcpy(reinterpret_cast<char*>(theirs) + kSkip, reinterpret_cast<const char*>(&mine) + kSkip, size - kSkip);
  }
}

/// Element i of a list, whatever its stride; the caller has checked i against list.count.
template <class List>
auto element(const List& list, std::uint64_t i) noexcept {
  const char* first = reinterpret_cast<const char*>(list.items);
  using Item = std::remove_cv_t<std::remove_pointer_t<decltype(list.items)>>;
  return known(reinterpret_cast<const Item*>(first + i * list.stride), list.stride);
}

/// Text of the ABI: UTF-8 with a length; null is empty.
inline std::string_view text_view(const char* text, std::uint64_t size) noexcept {
  return text == nullptr ? std::string_view() : std::string_view(text, size);
}

}  // namespace fastpath::sdk
