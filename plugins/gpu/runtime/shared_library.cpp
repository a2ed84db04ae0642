#include "shared_library.hpp"

#include <dlfcn.h>

#include "fastpath/sdk/error.hpp"

namespace fastpath_gpu {
namespace {

namespace sdk = fastpath::sdk;

/// Whether the linker found the file and something else was wrong.
bool was_there(const std::string& words, const std::string& name) {
  return words.find(name + ": cannot open shared object file: No such file") == std::string::npos;
}

}  // namespace

SharedLibrary::SharedLibrary(const std::vector<std::string>& names, const std::string& what) {
  std::string reason;
  for (const std::string& name : names) {
    handle_ = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) {
      name_ = name;
      return;
    }
    const char* words = ::dlerror();
    const std::string text = words == nullptr ? "the linker gives no reason" : words;
    if (reason.empty() || was_there(text, name)) reason = text;
  }
  throw sdk::Unavailable(what + " could not be opened: " + (reason.empty() ? "no name to look for" : reason));
}

void* SharedLibrary::find(const char* symbol) const noexcept { return ::dlsym(handle_, symbol); }

void* SharedLibrary::required(const char* symbol, const char* needed) const {
  void* const address = find(symbol);
  if (address == nullptr) {
    throw sdk::Unavailable(name_ + " has no function " + symbol + ", expected " + needed + " or later");
  }
  return address;
}

}  // namespace fastpath_gpu
