#include "source.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <stdexcept>

namespace fastpath_gpu {
namespace {

template <class T>
std::string shortest(T value) {
  if (!std::isfinite(value)) throw std::logic_error("a constant of generated source that is not finite");
  std::array<char, 64> text;
  const std::to_chars_result end = std::to_chars(text.data(), text.data() + text.size(), value);
  std::string result(text.data(), end.ptr);
  if (result.find_first_of(".e") == std::string::npos) result += ".0";
  return result;
}

}  // namespace

std::string literal(float value) { return shortest(value) + "f"; }
std::string literal(double value) { return shortest(value); }

Source::Source(const Target& target, sdk::DType dtype) : target_(target), dtype_(dtype) {}

std::string Source::real(double value) const {
  return dtype_ == sdk::kFloat32 ? literal(static_cast<float>(value)) : literal(value);
}

void Source::add_line(const std::string& text) {
  const std::size_t first = text.find_first_not_of(' ');
  if (first == std::string::npos) return gap();
  if (text[first] == '}') --depth_;
  body_.append(static_cast<std::size_t>(2 * depth_), ' ');
  body_ += text;
  body_ += '\n';
  if (text.back() == '{') ++depth_;
}

void Source::begin_kernel(const std::string& name, std::uint32_t group_size, const std::vector<Parameter>& parameters,
                          Registers registers) {
  if (group_size > target_.max_group_size) {
    throw std::logic_error("kernel '" + name + "' wants groups of " + std::to_string(group_size) + " items");
  }
  const bool host = target_.language == Language::host;
  KernelInfo info{name, group_size, 0, {}};
  std::string head, unpack;
  for (const Parameter& parameter : parameters) {
    const std::string i = std::to_string(info.buffers.size());
    const bool buffer = parameter.kind != Parameter::Kind::integer;
    const char* constant = parameter.kind == Parameter::Kind::in ? "const " : "";
    head += info.buffers.empty() ? "" : ", ";
    unpack += info.buffers.empty() ? "" : ", ";
    if (buffer) {
      head += std::string("FP_GLOBAL ") + constant + "char* " + parameter.name + "_base, i64 " + parameter.name + "_at";
      unpack += std::string("static_cast<") + constant + "char*>(buffers[" + i + "]), values[" + i + "]";
    } else {
      head += "i64 " + parameter.name;
      unpack += "values[" + i + "]";
    }
    info.buffers.push_back(buffer);
  }
  line(host ? "static void " + name + "_items("
            : std::string(registers == Registers::many ? "FP_KERNEL_LARGE(" : "FP_KERNEL(") +
                  std::to_string(group_size) + ") " + name + "(",
       head, ") {");
  for (const Parameter& parameter : parameters) {
    if (parameter.kind == Parameter::Kind::integer) continue;
    const std::string type = (parameter.kind == Parameter::Kind::in ? "const " : "") + parameter.type;
    line("FP_GLOBAL ", type, "* const FP_RESTRICT ", parameter.name, " = (FP_GLOBAL ", type, "*)(", parameter.name,
         "_base + ", parameter.name, "_at);");
  }
  if (host) {
    wrapper_ = "extern \"C\" void " + name + "(void* const* buffers, const i64* values) { " + name + "_items(" +
               unpack + "); }";
  }
  program_.kernels.push_back(std::move(info));
}

void Source::shared(const std::string& name, std::uint32_t elements, const std::string& type) {
  program_.kernels.back().local_bytes += elements * (type == "real"                      ? real_bytes()
                                                     : type == "i64" || type == "double" ? 8u
                                                                                         : 4u);
  if (program_.kernels.back().local_bytes > target_.local_bytes) {
    throw std::logic_error("kernel '" + program_.kernels.back().name + "' wants " +
                           std::to_string(program_.kernels.back().local_bytes) + " bytes of shared memory");
  }
  line("FP_SHARED ", type, " ", name, "[", elements, "];");
  if (target_.language == Language::host) line("fp_items.shared(", name, ", sizeof(", name, "));");
}

void Source::end_kernel() {
  line("}");
  if (target_.language == Language::host) line(wrapper_);
  gap();
}

void Source::item(const std::string& name, const std::string& end) {
  line("const i64 ", name, " = FP_GROUP * ", program_.kernels.back().group_size, " + FP_LANE;");
  line("if (", name, " >= ", end, ") return;");
}

Program Source::finish() {
  if (depth_ != 0) throw std::logic_error("generated source with an open brace");
  Program result = program_;
  result.source = prelude(target_, dtype_) + "\n" + body_;
  return result;
}

}  // namespace fastpath_gpu
