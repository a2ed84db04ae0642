#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "fastpath/export.hpp"

/// A hub is a directory of model folders (docs/model-format.md) that are named rather than given by path. There may be
/// several, and those of a site may be read-only: a name means the first folder of this name. `Model::load` takes
/// names.
///
/// A model that came by add_to_hub() has a file SHA256SUMS, as `sha256sum` writes it, that lists its other files. It is
/// *whole* if all of them are there and have their checksums. One that is not whole is never loaded by its name.
/// All functions are safe from several threads; changes appear, and disappear, by one rename.
namespace fastpath {

/// What is known of one folder of a hub.
struct HubModel {
  enum class State {
    whole,         ///< Files and checksums agree; or, where checksums were not asked for, no file is missing.
    no_checksums,  ///< Both files are there, and no SHA256SUMS: it was put there by hand.
    broken,        ///< Copied in part, or changed; `problem` says what was found.
  };
  std::string name;
  std::filesystem::path directory;
  State state = State::whole;
  std::string problem;      ///< Empty unless broken.
  std::uint64_t bytes = 0;  ///< Of all its files.
  bool shadowed = false;    ///< A hub before this one has a model of this name.
};
FASTPATH_EXPORT std::string_view to_string(HubModel::State state) noexcept;

/// The hubs in search order: those in FASTPATH_HUB, separated by ':'; else `$XDG_DATA_HOME/fastpath/models`, else
/// `~/.local/share/fastpath/models`; empty if none of the variables is set. They need not exist.
FASTPATH_EXPORT std::vector<std::filesystem::path> hub_directories();

/// Every model of every hub, by hub, then by name. What an interrupted copy left behind is listed, too, as broken.
/// @param checksums  Whether files are compared with their checksums, which reads all of them.
/// @throws Error(io) if a hub that exists cannot be read.
FASTPATH_EXPORT std::vector<HubModel> hub_models(bool checksums);

/// The model that a name means. @throws Error(not_found) naming the hubs, Error(io).
FASTPATH_EXPORT HubModel find_hub_model(const std::string& name, bool checksums);

/// Copies a model folder into a hub, with its README.md or, where it has none, one that says what it is, and with
/// checksums. The folder is loaded first, so what is added can be used; copies are compared with what was read.
/// @param name  1 to 63 letters, digits, '_', '-' and '.', not starting with '.' or '-'.
/// @param hub   Made if it does not exist; the first of hub_directories() where empty.
/// @throws as Model::load(); Error(invalid_argument) for a name that is not one; Error(io) if the name is taken in this
/// hub or the hub cannot be written. Nothing is left behind then.
FASTPATH_EXPORT HubModel add_to_hub(const std::filesystem::path& folder, const std::string& name,
                                    const std::filesystem::path& hub = {});

/// Removes the model that a name means. A symbolic link is removed, not what it names.
/// @throws Error(not_found); Error(io) if the hub cannot be written, or if the folder has files that are not the
/// model's: nothing is removed then.
FASTPATH_EXPORT HubModel remove_from_hub(const std::string& name);

}  // namespace fastpath
