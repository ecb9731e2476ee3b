// synchronize_stream() waits for the work on a stream of the fake libcuda.
#pragma once

#include <gtest/gtest.h>

#include "contract/device.h"
#include "system/event.h"
#include "system/poller.h"

namespace world_test {

// `notifier` outlives the stream.
inline void synchronize_stream(fdl::Device& device, fdl::Stream stream, fdl::Event& notifier) {
  EXPECT_TRUE(device.ring(stream, notifier).ok());
  EXPECT_TRUE(fdl::wait_readable(notifier.fd(), fdl::Deadline::after_seconds(60))) << "the stream hangs";
  notifier.clear();
}

}  // namespace world_test
