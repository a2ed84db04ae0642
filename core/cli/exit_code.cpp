#include "exit_code.hpp"

namespace fastpath::cli {

int exit_code(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::invalid_argument:
      return 2;
    case ErrorCode::not_found:
      return 3;
    case ErrorCode::bad_file:
      return 4;
    case ErrorCode::io:
      return 5;
    case ErrorCode::unsupported:
    case ErrorCode::unavailable:
      return 6;
    case ErrorCode::strict_violation:
      return 7;
    case ErrorCode::out_of_memory:
      return 8;
    case ErrorCode::device_lost:
    case ErrorCode::kernel_failed:
      return 9;
    case ErrorCode::numerics:
      return 10;
    case ErrorCode::internal:
      break;
  }
  return 70;
}

}  // namespace fastpath::cli
