// OpenedWorld owns the world and the communicator of a program that is itself one rank of a measurement: a subcommand
// or a benchmark. It uses the C API alone.
#pragma once

#include <cstddef>
#include <span>
#include <string>

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

  // A rank of a measurement. If it was `launched`, the environment gives the rank, and the other fields are not used.
  struct Place {
    bool launched = false;
    int rank = -1;
    int size = 0;
    const std::string& rendezvous;
    const char* job_key = nullptr;
  };
  // Creates both; `options` are names and values in turn. False: fdl_last_error() gives the reason.
  bool open(const Place& place, std::span<const char* const> options) {
    fdl_world_options world_options;
    fdl_world_options_init(&world_options);
    if (!place.launched) {
      world_options.rank = place.rank;
      world_options.size = place.size;
      world_options.rendezvous = place.rendezvous.c_str();
      world_options.job_key = place.job_key;
    }
    world_options.options = options.data();
    world_options.option_count = options.size() / 2;
    return fdl_world_create(&world_options, &world) == FDL_OK && fdl_comm_create(fdl_group_all(world), &comm) == FDL_OK;
  }

  // Null until created. The communicator is destroyed before its world.
  fdl_world* world = nullptr;
  fdl_comm* comm = nullptr;
};

}  // namespace fdl
