#include "fake_plugin.hpp"

FASTPATH_PLUGIN(fake_device::FakePlugin, "fake_device", "Example", "1.0.0", "ext", "test");
