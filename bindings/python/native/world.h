// World and Group as Python objects. Each records whether its C object still exists.
#pragma once

#include <farandole/farandole.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <vector>

#include "callback_thread.h"

namespace farandole_python {

// An object that the end of its world closes, unless another thread is in a call on it.
class EndsWithWorld {
 public:
  virtual ~EndsWithWorld() = default;
  virtual void world_ends() = 0;
};

class World {
 public:
  // `facts`: the arguments of init: rank, size, local_rank, local_size (-1: from the environment), rendezvous, job_key
  // (None: from the environment). `options`: the settings by name.
  World(const pybind11::dict& facts, const pybind11::dict& options);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  void close();
  void add(const std::shared_ptr<EndsWithWorld>& object);
  // See fdl_world_shrink; negative: the default timeout. This world ends.
  std::shared_ptr<World> shrink(double timeout_s);
  bool is_open() const { return world_ != nullptr; }
  fdl_world* get() const;  // throws once closed
  pybind11::dict info() const;
  pybind11::dict metrics() const;
  void start_timeline(const std::string& path, bool mark_cycles) const;
  void stop_timeline() const;
  void open_device(int kind, int index) const;

 private:
  World(fdl_world* world, std::unique_ptr<CallbackThread> stalls);
  void keep();

  fdl_world* world_ = nullptr;
  // Keeps the C object until the end of this one: after close(), other threads may still be in calls that use it.
  fdl_handle* kept_ = nullptr;
  const pid_t process_;                     // that has created the world
  std::unique_ptr<CallbackThread> stalls_;  // calls farandole.errors.warn_of_stall
  std::vector<std::weak_ptr<EndsWithWorld>> ending_;
};

// The calls of other threads that are using a C object, which must stay until they return. Read and written with the
// GIL, which they release meanwhile.
class Users {
 public:
  bool any() const { return count_ > 0; }

  class User {
   public:
    explicit User(const Users& users) : count_(users.count_) { ++count_; }
    ~User() { --count_; }
    User(const User&) = delete;
    User& operator=(const User&) = delete;

   private:
    int& count_;
  };

 private:
  mutable int count_ = 0;
};

class Group {
 public:
  Group(std::shared_ptr<World> world, fdl_group* group, bool owned)
      : world_(std::move(world)), group_(group), owned_(owned) {}
  // In a forked child a call of another thread of the parent may seem to be in progress.
  ~Group() { destroy(); }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  static std::shared_ptr<Group> all(std::shared_ptr<World> world);
  static std::shared_ptr<Group> create(std::shared_ptr<World> world, const std::vector<int>& ranks);
  std::shared_ptr<Group> split(int color, int key) const;

  // Throws while another thread is in a call on the group.
  void close();
  fdl_group* get() const;  // throws once closed
  const Users& users() const { return users_; }
  const std::shared_ptr<World>& world() const { return world_; }
  int rank() const { return fdl_group_rank(get()); }
  int size() const { return fdl_group_size(get()); }
  std::vector<int> ranks() const;

  // See fdl_group_trust, fdl_group_seal and fdl_group_open. The parts of a message are objects with a buffer.
  void check_trust() const;
  pybind11::bytes seal(const std::string& purpose, const pybind11::sequence& objects) const;
  void open(int sender, const std::string& purpose, const pybind11::sequence& objects,
            const pybind11::bytes& seal) const;

 private:
  void destroy();

  std::shared_ptr<World> world_;
  fdl_group* group_;
  bool owned_;
  Users users_;
};

void bind_world(pybind11::module_& module);
void bind_communicator(pybind11::module_& module);
void bind_channel(pybind11::module_& module);
void bind_operations(pybind11::module_& module);
void bind_memory(pybind11::module_& module);

}  // namespace farandole_python
