#ifndef FASTPATH_TESTS_FAKE_DEVICE_COUNTERS_H
#define FASTPATH_TESTS_FAKE_DEVICE_COUNTERS_H

#include "fastpath/plugin.h"

#define FAKE_DEVICE_COUNTERS_ID "org.example.fake_device.counters"

/// What happened on the fake device so far: an extension of its fp_plugin. Read it while no call is under way.
typedef struct fake_device_counters {
  fp_extension extension;
  int64_t open_devices;
  int64_t live_blocks;
  int64_t live_bytes;
  int64_t live_streams;
  int64_t live_events;
  int64_t live_kernels;
  int64_t copies_to_device;
  int64_t copies_from_device;
  int64_t copies_on_device;
  int64_t fills;
  int64_t binds;
  int64_t runs;
  int64_t synchronizations;
  int64_t shutdowns;
  int64_t violations; /* what could not be refused: something released while a stream still uses it, or twice */
} fake_device_counters;

#endif
