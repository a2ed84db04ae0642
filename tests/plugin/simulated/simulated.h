#ifndef FASTPATH_TESTS_SIMULATED_H
#define FASTPATH_TESTS_SIMULATED_H

#include "fastpath/plugin.h"

#define SIMULATED_COSTS_ID "org.example.simulated.costs"

/// What the kernels of the simulated device have cost so far: an extension of its fp_plugin. Read it while no call is
/// under way.
typedef struct simulated_costs {
  fp_extension extension;
  double seconds; /* of forward passes; nothing waits for as long */
} simulated_costs;

#endif
