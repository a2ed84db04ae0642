#include "output_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "fastpath/error.hpp"

namespace fastpath::cli {

void check_output(const std::filesystem::path& output, const std::string& option, const CommandLine& line) {
  namespace fs = std::filesystem;
  const fs::path parent = output.has_parent_path() ? output.parent_path() : ".";
  std::error_code error;
  const fs::file_status folder = fs::status(parent, error);
  if (!fs::status_known(folder)) {
    throw Error(ErrorCode::io, fmt::format("{}: {}: {}", option, parent.string(), error.message()));
  }
  if (!fs::is_directory(folder)) {
    throw Error(ErrorCode::not_found, fmt::format("{}: there is no directory {}", option, parent.string()));
  }
  const fs::file_status file = fs::status(output, error);
  if (fs::is_directory(file)) line.fail(fmt::format("{}: {} is a directory", option, output.string()));
  // A new file is made beside the old one; a link may lead elsewhere, and a device is written itself.
  const bool beside =
      !fs::is_symlink(fs::symlink_status(output, error)) && (fs::is_regular_file(file) || !fs::exists(file));
  if (beside && ::access(parent.c_str(), W_OK | X_OK) != 0) {
    throw Error(ErrorCode::io,
                fmt::format("{}: cannot make a file in {}: {}", option, parent.string(), std::strerror(errno)));
  }
}

void check_apart(const std::filesystem::path& output, const std::string& option,
                 const std::vector<std::filesystem::path>& inputs, const CommandLine& line) {
  for (const std::filesystem::path& input : inputs) {
    std::error_code error;
    if (std::filesystem::equivalent(output, input, error)) {
      line.fail(fmt::format("{}: {} is read by this command; name another file", option, output.string()));
    }
  }
}

}  // namespace fastpath::cli
