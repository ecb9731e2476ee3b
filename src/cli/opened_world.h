// OpenedWorld owns the world of a subcommand that is itself a rank, and its communicator.
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

  // Null until created. The communicator is destroyed before its world.
  fdl_world* world = nullptr;
  fdl_comm* comm = nullptr;
};

}  // namespace fdl
