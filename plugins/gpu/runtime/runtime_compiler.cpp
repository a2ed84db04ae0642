#include "runtime_compiler.hpp"

#include "fastpath/sdk/error.hpp"

namespace fastpath_gpu {

namespace sdk = fastpath::sdk;

RuntimeCompiler::RuntimeCompiler(const Vendor& vendor) : library_(vendor.names, vendor.name), name_(vendor.name) {
  const std::string prefix = vendor.prefix, code = vendor.code;
  const auto get = [&](auto*& function, const std::string& name) {
    library_.get(function, (prefix + name).c_str(), vendor.needed);
  };
  get(version_of_, "Version");
  get(error_text_, "GetErrorString");
  get(create_, "CreateProgram");
  get(destroy_, "DestroyProgram");
  get(compile_, "CompileProgram");
  get(log_size_, "GetProgramLogSize");
  get(log_, "GetProgramLog");
  get(code_size_, "Get" + code + "Size");
  get(code_, "Get" + code);
  if (const int status = version_of_(&major_, &minor_); status != 0) fail("its version", status);
  version_ = name_ + " " + std::to_string(major_) + "." + std::to_string(minor_);
}

void RuntimeCompiler::fail(const char* doing, int status) const {
  const char* text = error_text_(status);
  throw sdk::Refused(name_ + ": " + doing + ": " + (text == nullptr ? "status " + std::to_string(status) : text));
}

RuntimeCompiler::Output RuntimeCompiler::compile(const std::string& source,
                                                 const std::vector<std::string>& options) const {
  struct Guard {  // the program goes whatever happens
    const RuntimeCompiler& compiler;
    void* program = nullptr;
    ~Guard() {
      if (program != nullptr) compiler.destroy_(&program);
    }
  } guard{*this};
  if (const int status = create_(&guard.program, source.c_str(), "fastpath.cu", 0, nullptr, nullptr); status != 0) {
    fail("a program", status);
  }
  std::vector<const char*> c_options;
  for (const std::string& option : options) c_options.push_back(option.c_str());
  const int compiled = compile_(guard.program, static_cast<int>(c_options.size()), c_options.data());

  Output output;
  std::size_t size = 0;
  if (log_size_(guard.program, &size) == 0 && size > 1) {
    output.log.resize(size);
    if (log_(guard.program, output.log.data()) != 0) output.log.clear();
    output.log.resize(output.log.find_last_not_of(std::string("\0\n ", 3)) + 1);
  }
  if (compiled != 0) {
    const char* text = error_text_(compiled);
    throw sdk::Refused(version_ + ": the source does not compile: " + (text == nullptr ? "" : text) +
                       (output.log.empty() ? "" : "\n" + output.log));
  }
  if (const int status = code_size_(guard.program, &size); status != 0) fail("the size of the code", status);
  output.code.resize(size);
  if (const int status = code_(guard.program, reinterpret_cast<char*>(output.code.data())); status != 0) {
    fail("the code", status);
  }
  return output;
}

}  // namespace fastpath_gpu
