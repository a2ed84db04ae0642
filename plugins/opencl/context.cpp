#include "context.hpp"

#include <algorithm>

namespace fastpath_opencl {

Context::Context(const Icd& cl, const Handle& handle) : cl_(cl) {
  const cl_context_properties properties[] = {CL_CONTEXT_PLATFORM,
                                              reinterpret_cast<cl_context_properties>(handle.platform), 0};
  cl_int code = CL_SUCCESS;
  context_ = cl_.clCreateContext(properties, 1, &handle.device, nullptr, nullptr, &code);
  check(code, "making an OpenCL context");
}

Context::~Context() {
  code_.clear();
  if (context_ != nullptr) cl_.clReleaseContext(context_);
}

std::shared_ptr<gpu::Module> Context::code(const std::string& source,
                                           const std::function<std::shared_ptr<gpu::Module>()>& build) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(code_.begin(), code_.end(), [&](const Code& code) { return code.source == source; });
  if (found != code_.end()) {
    found->used = ++uses_;
    return found->module;
  }
  std::shared_ptr<gpu::Module> module = build();
  Code code{source, module, ++uses_};
  if (code_.size() < kMostCode) {
    code_.push_back(std::move(code));
  } else {
    *std::min_element(code_.begin(), code_.end(), [](const Code& a, const Code& b) { return a.used < b.used; }) =
        std::move(code);
  }
  return module;
}

}  // namespace fastpath_opencl
