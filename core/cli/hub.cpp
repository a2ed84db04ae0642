#include "hub.hpp"

#include <array>

#include "command.hpp"
#include "terminal.hpp"

namespace fastpath::cli {

int run_hub(const Arguments& arguments) {
  static constexpr std::array kCommands{
      Command{"list", "the models that can be named", run_hub_list},
      Command{"show", "what one model is", run_hub_show},
      Command{"add", "copy a model folder into the hub", run_hub_add},
      Command{"verify", "compare models with their checksums", run_hub_verify},
      Command{"remove", "remove a model from the hub", run_hub_remove},
      Command{"create", "make a model folder with weights drawn from a seed", run_hub_create},
  };
  return dispatch(kCommands, "fastpath hub", arguments);
}

}  // namespace fastpath::cli
