#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "fastpath/sdk/tensor.hpp"
#include "program.hpp"
#include "target.hpp"

namespace fastpath_gpu {

/// Shortest decimal text that reads back to the same value, with the suffix of its type: "0.5f", "1.0".
std::string literal(float value);
std::string literal(double value);

/// Writes the source of a program, one kernel after the other. The dialect:
///   types      real (of the program's dtype), i32, i64
///   memory     FP_GLOBAL before what a pointer points to, FP_SHARED before an array of a kernel
///   functions  FP_DEVICE before a helper's return type
///   items      FP_GROUP (i64), FP_LANE (i32), FP_BARRIER(): every item of the group must reach it
///   loops      FP_UNROLL(n) before one: so many turns at once are enough, where a compiler listens
///   mathematics fp_exp, fp_sin, fp_cos, fp_tanh, fp_pow, fp_sqrt, fp_abs, fp_max, fp_fma on real
///   constants  R(0.5) would be float or double by hand; the generator writes literal() of the dtype instead
/// No contraction of a*b+c is assumed or forbidden; sums that need it say fp_fma.
class Source {
 public:
  Source(const Target& target, sdk::DType dtype);

  const Target& target() const { return target_; }
  sdk::DType dtype() const { return dtype_; }
  std::uint32_t real_bytes() const { return dtype_.bits / 8u; }
  /// The group size that a kernel would like to have, or the largest that the device takes.
  std::uint32_t group_size(std::uint32_t wanted) const { return std::min(wanted, target_.max_group_size); }
  /// A number as a constant of the program's real type.
  std::string real(double value) const;

  /// Adds a line, indented by the braces before it. Numbers among the parts are written as text; no floating-point
  /// number is: they must go through real().
  template <class... Parts>
  void line(const Parts&... parts) {
    std::string text;
    (append(text, parts), ...);
    add_line(text);
  }
  /// Whether this is the first time that it is asked for `name`: for functions that several parts of a program need.
  bool once(const std::string& name) { return written_.insert(name).second; }
  /// An empty line.
  void gap() { body_ += '\n'; }

  /// Arguments of a kernel, in the order in which launches give them.
  struct Parameter {
    enum class Kind { in, out, integer } kind;
    std::string type;  ///< "real", "i32", "i64" of the elements.
    std::string name;
  };
  static Parameter in(std::string name, std::string type = "real") {
    return {Parameter::Kind::in, std::move(type), std::move(name)};
  }
  /// Memory that is written, and may be read.
  static Parameter out(std::string name, std::string type = "real") {
    return {Parameter::Kind::out, std::move(type), std::move(name)};
  }
  static Parameter integer(std::string name) { return {Parameter::Kind::integer, "i64", std::move(name)}; }

  /// How many registers an item may take. For a kernel with dozens of sums, `many` asks for no more than one group at a
  /// time: otherwise ptxas spills a few of them, so that one more group finds room.
  enum class Registers { usual, many };
  /// Opens a kernel: its head, and a pointer of the right type for each buffer. The names are then usable as given.
  void begin_kernel(const std::string& name, std::uint32_t group_size, const std::vector<Parameter>& parameters,
                    Registers registers = Registers::usual);
  /// An array that the group shares; only at the top of a kernel.
  void shared(const std::string& name, std::uint32_t elements, const std::string& type = "real");
  void end_kernel();
  /// `const i64 NAME = FP_GROUP * group_size + FP_LANE;` and a return for items past `end`, an expression.
  /// Not in a kernel with barriers.
  void item(const std::string& name, const std::string& end);

  /// The program: prelude and everything that was written.
  Program finish();

 private:
  static void append(std::string& text, const char* part) { text += part; }
  static void append(std::string& text, const std::string& part) { text += part; }
  static void append(std::string& text, char part) { text += part; }
  template <class T>
  static void append(std::string& text, const T& part) {
    static_assert(std::is_integral_v<T>, "floating-point numbers are written with real()");
    text += std::to_string(part);
  }
  void add_line(const std::string& text);

  Target target_;
  sdk::DType dtype_;
  std::string body_;
  int depth_ = 0;
  std::set<std::string> written_;
  Program program_;
  std::string wrapper_;  // of the kernel that is open, for Language::host
};

/// The prelude of a language for one dtype: what the dialect's words mean there.
std::string prelude(const Target& target, sdk::DType dtype);

}  // namespace fastpath_gpu
