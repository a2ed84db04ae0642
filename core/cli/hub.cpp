#include <array>

#include "command.hpp"
#include "terminal.hpp"

namespace fastpath::cli {

int run_hub(const Arguments& arguments) {
  static constexpr std::array kCommands{
      Command{"create", "make a model folder with weights drawn from a seed", run_hub_create},
  };
  return dispatch(kCommands, "fastpath hub", arguments);
}

}  // namespace fastpath::cli
