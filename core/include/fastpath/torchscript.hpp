#pragma once

#include <cstdint>
#include <filesystem>

#include "fastpath/export.hpp"

namespace fastpath {

class Model;

/// What export_torchscript() wrote.
struct TorchScriptExport {
  std::int64_t parameters = 0;  ///< Elements of all parameters.
  std::uint64_t bytes = 0;      ///< Of the file.
};

/// Writes a model as a TorchScript archive, which libtorch and PyTorch load without fastpath (docs/export.md). It
/// computes the reference, whichever plugins are here, and has the parameters and buffers of the model's state dict
/// under their names, in the dtype that the model is stored in.
/// Fast paths of the model are deactivated; the next evaluation decides anew.
/// @param file       Appears whole or not at all.
/// @param overwrite  Whether a file of this name is replaced.
/// @throws Error(unavailable) where this build, or this machine, has no libtorch, with what to install; (unsupported)
/// for a model of another architecture than MACE; (io) if the file is there, or cannot be written; (internal) if
/// libtorch refuses the module, with its words. Nothing has been written then. Not while the model is evaluated in
/// another thread. The library with libtorch stays loaded.
FASTPATH_EXPORT TorchScriptExport export_torchscript(Model& model, const std::filesystem::path& file,
                                                     bool overwrite = false);

}  // namespace fastpath
