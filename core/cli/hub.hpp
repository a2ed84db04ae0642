#pragma once

#include "command.hpp"

namespace fastpath::cli {

int run_hub_list(const Arguments& arguments);
int run_hub_show(const Arguments& arguments);
int run_hub_add(const Arguments& arguments);
int run_hub_verify(const Arguments& arguments);
int run_hub_remove(const Arguments& arguments);

}  // namespace fastpath::cli
