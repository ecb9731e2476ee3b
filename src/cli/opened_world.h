// OpenedWorld: the world that a program's own rank is in, and its communicator; both end with it.
#pragma once

#include "farandole/farandole.h"

namespace fdl {

struct OpenedWorld {
  OpenedWorld() = default;
  OpenedWorld(const OpenedWorld&) = delete;
  OpenedWorld& operator=(const OpenedWorld&) = delete;
  ~OpenedWorld() {
    fdl_comm_destroy(comm);
    fdl_world_destroy(world);
  }

  fdl_world* world = nullptr;
  fdl_comm* comm = nullptr;
};

}  // namespace fdl
