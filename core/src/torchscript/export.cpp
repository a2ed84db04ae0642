#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <deque>
#include <exception>
#include <span>
#include <vector>

#include "fastpath/error.hpp"
#include "fastpath/fast_path.hpp"
#include "fastpath/torchscript.hpp"
#include "io/file.hpp"
#include "torchscript/source.hpp"
#include "torchscript/writer.h"

namespace fastpath {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWriterFile = "fastpath/fastpath_torchscript.so";  // beside the library

/// The directory of the library that contains this function.
fs::path own_directory() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&export_torchscript), &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code error;
  const fs::path file = fs::canonical(info.dli_fname, error);
  return error ? fs::path() : file.parent_path();
}

/// Opened once and kept: libtorch starts threads and registers operators, and does not come out of a process again.
fastpath_script_writer open_writer() {
  const fs::path directory = own_directory(), file = directory / kWriterFile;
  std::error_code status;
  if (directory.empty() || !fs::exists(file, status)) {
    throw Error(ErrorCode::unavailable,
                fmt::format("TorchScript needs libtorch, and this fastpath was built without it ({} is not there): "
                            "install Debian's libtorch-dev, or give the folder of PyPI's torch as FASTPATH_TORCH_ROOT, "
                            "and build fastpath again (docs/export.md)",
                            file.string()));
  }
  void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* const why = ::dlerror();
    throw Error(ErrorCode::unavailable, fmt::format("{}: cannot be loaded: {}; the library of libtorch that fastpath "
                                                    "was built with has to be installed, Debian's is libtorch1.13",
                                                    file.string(), why != nullptr ? why : "no reason given"));
  }
  void* const symbol = ::dlsym(library, FASTPATH_SCRIPT_WRITER);
  if (symbol == nullptr) {
    throw Error(ErrorCode::unavailable, fmt::format("{}: has no function {}, so it belongs to another fastpath than {}",
                                                    file.string(), FASTPATH_SCRIPT_WRITER, directory.string()));
  }
  return reinterpret_cast<fastpath_script_writer>(symbol);
}

std::int32_t script_dtype(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return FASTPATH_SCRIPT_FLOAT32;
    case DType::float64:
      return FASTPATH_SCRIPT_FLOAT64;
    case DType::int32:
      return FASTPATH_SCRIPT_INT32;
    case DType::int64:
      return FASTPATH_SCRIPT_INT64;
    default:
      throw Error(ErrorCode::unsupported, fmt::format("a tensor of {} cannot be exported", to_string(dtype)));
  }
}

/// The bytes on their way into the file; an error of the file comes out again on this side of the boundary.
struct Sink {
  io::ReplacingFile* file = nullptr;
  std::uint64_t bytes = 0;
  std::exception_ptr error;

  static std::int32_t take(void* user, const void* bytes, std::uint64_t size) {
    Sink& self = *static_cast<Sink*>(user);
    try {
      self.file->write(std::span(static_cast<const std::byte*>(bytes), static_cast<std::size_t>(size)));
      self.bytes += size;
      return 0;
    } catch (...) {
      self.error = std::current_exception();
      return 1;
    }
  }
};

}  // namespace

TorchScriptExport export_torchscript(Model& model, const fs::path& file, bool overwrite) {
  auto* mace = dynamic_cast<models::MaceModel*>(&model);
  if (mace == nullptr) {
    throw Error(ErrorCode::unsupported,
                fmt::format("a model of architecture '{}' cannot be exported, only mace", model.architecture()));
  }
  if (!overwrite && io::type_of(file) != fs::file_type::not_found) {
    throw Error(ErrorCode::io,
                fmt::format("{}: is there already, and is not replaced unless that is asked for", file.string()));
  }
  const fastpath_script_writer write = open_writer();
  deactivate(model);
  const torchscript::Script script = torchscript::mace_script(*mace);

  std::deque<Tensor> kept;
  std::vector<fastpath_script_tensor> tensors;
  const auto add = [&](const StateDict::Entry& entry, bool parameter) {
    const auto& [name, tensor] = entry;
    // As Model::save() stores it.
    const bool keep = !is_floating(tensor.dtype()) || name == "atomic_energies_fn.atomic_energies";
    kept.push_back((keep ? tensor : tensor.to(model.stored_dtype())).contiguous());
    const Tensor& values = kept.back();
    tensors.push_back({name.c_str(), script_dtype(values.dtype()), parameter ? 1 : 0,
                       static_cast<std::int32_t>(values.rank()), values.shape().data(), values.raw()});
  };
  const auto parameters = model.named_parameters(), buffers = model.named_buffers();
  for (const auto& entry : parameters) add(entry, true);
  for (const auto& entry : buffers) add(entry, false);
  std::vector<fastpath_script_constant> constants;
  for (const auto& [name, values] : script.constants) {
    constants.push_back({name.c_str(), static_cast<std::int64_t>(values.size()), values.data()});
  }
  std::vector<const char*> heads;
  for (const std::string& head : model.heads()) heads.push_back(head.c_str());
  const std::string config = model.config_text();
  const std::array files{fastpath_script_file{"config.json", config.c_str()}};
  const fastpath_script_module module{static_cast<std::int64_t>(tensors.size()),
                                      static_cast<std::int64_t>(constants.size()),
                                      static_cast<std::int64_t>(heads.size()),
                                      static_cast<std::int64_t>(files.size()),
                                      tensors.data(),
                                      constants.data(),
                                      heads.data(),
                                      files.data(),
                                      script.text.c_str()};

  io::ReplacingFile target(file);
  Sink sink{&target, 0, nullptr};
  std::array<char, 8192> error{};
  const std::int32_t status = write(&module, &Sink::take, &sink, error.data(), error.size());
  if (sink.error) std::rethrow_exception(sink.error);
  if (status != 0) {
    throw Error(ErrorCode::internal, fmt::format("libtorch refused the module: {}", error.data()));
  }
  target.commit();
  return {model.parameter_count(), sink.bytes};
}

}  // namespace fastpath
