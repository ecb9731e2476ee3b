// Worlds and groups of ranks.
#include "world.h"

#include <pybind11/stl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "exceptions.h"
#include "text.h"

namespace farandole_python {
namespace py = pybind11;

namespace {

// Called by a thread without the GIL that waits in the library. Only the main thread runs Python's signal handlers. If
// one raises, the exception stays set, and check() throws it.
int handle_signals(void*) {
  if (::syscall(SYS_gettid) != ::getpid()) return 0;
  py::gil_scoped_acquire acquire;
  return PyErr_CheckSignals() != 0 ? 1 : 0;
}

// Called by a thread that drives the world and must not wait for the GIL. Where memory or a thread is short, the
// warning is in the log alone.
void post_stall(const char* text, void* thread) try {
  std::vector<std::function<void()>> warning;
  warning.emplace_back([copy = std::string(text)] {
    py::gil_scoped_acquire acquire;
    try {
      py::module_::import("farandole.errors").attr("warn_of_stall")(text_of(copy));
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("a warning of farandole");  // a filter turns the warning into an error
    }
  });
  static_cast<CallbackThread*>(thread)->post(warning);
} catch (const std::exception&) {
}

// Called by a thread of its own, which may wait for the GIL.
size_t read_stacks(char* text, size_t capacity, void*) try {
  if (Py_IsInitialized() == 0) return 0;
  py::gil_scoped_acquire acquire;
  try {
    const auto all = py::module_::import("farandole.errors").attr("stacks_of_threads")().cast<std::string>();
    const size_t bytes = std::min(all.size(), capacity);
    std::memcpy(text, all.data(), bytes);
    return bytes;
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("the stacks for `farandole where`");
  }
  return 0;
} catch (const std::exception&) {
  return 0;
}

}  // namespace

World::World(const py::dict& facts, const py::dict& options)
    : process_(::getpid()), stalls_(std::make_unique<CallbackThread>()) {
  fdl_world_options wanted;
  fdl_world_options_init(&wanted);
  wanted.interrupted = &handle_signals;
  wanted.stalled = &post_stall;
  wanted.stalled_context = stalls_.get();
  wanted.stacks = &read_stacks;
  auto number = [&](const char* name, int& target) {
    if (facts.contains(name)) target = facts[name].cast<int>();
  };
  number("rank", wanted.rank);
  number("size", wanted.size);
  number("local_rank", wanted.local_rank);
  number("local_size", wanted.local_size);
  std::vector<std::string> texts;
  texts.reserve(2 + 2 * options.size());
  auto text = [&](const char* name, const char*& target) {
    if (facts.contains(name)) target = texts.emplace_back(facts[name].cast<std::string>()).c_str();
  };
  text("rendezvous", wanted.rendezvous);
  text("job_key", wanted.job_key);
  std::vector<const char*> pairs;
  for (auto [name, value] : options) {
    pairs.push_back(texts.emplace_back(name.cast<std::string>()).c_str());
    pairs.push_back(texts.emplace_back(value.cast<std::string>()).c_str());
  }
  wanted.options = pairs.data();
  wanted.option_count = pairs.size() / 2;
  fdl_result result;
  {
    py::gil_scoped_release release;
    result = fdl_world_create(&wanted, &world_);
  }
  if (PyErr_Occurred() != nullptr) close();
  check_interrupted(result);
  keep();
}

void World::keep() {
  if (fdl_handle_create(world_, &kept_) == FDL_OK) return;
  const Failure failure = Failure::last();
  close();
  raise_failure(failure);
}

World::~World() {
  close();
  if (::getpid() == process_) fdl_handle_free(kept_);
}

void World::add(const std::shared_ptr<EndsWithWorld>& object) {
  std::erase_if(ending_, [](const auto& one) { return one.expired(); });
  ending_.push_back(object);
}

// Communicators end first: ranks that wait in one would be told only when it is destroyed.
void World::close() {
  fdl_world* world = std::exchange(world_, nullptr);
  if (!world) return;
  for (const auto& one : std::exchange(ending_, {})) {
    if (const auto object = one.lock()) object->world_ends();
  }
  py::gil_scoped_release release;
  fdl_world_destroy(world);
  // Intentionally leaked in a forked child, which lacks the thread.
  if (::getpid() != process_) static_cast<void>(stalls_.release());
  stalls_.reset();
}

World::World(fdl_world* world, std::unique_ptr<CallbackThread> stalls)
    : world_(world), process_(::getpid()), stalls_(std::move(stalls)) {
  keep();
}

// The new world calls the thread of this one, whose address is the context of its callback.
std::shared_ptr<World> World::shrink(double timeout_s) {
  fdl_shrink_options options;
  fdl_shrink_options_init(&options);
  if (timeout_s >= 0) options.timeout_ns = std::max<int64_t>(1, static_cast<int64_t>(timeout_s * 1e9));
  fdl_world* world = get();
  fdl_world* survivors = nullptr;
  fdl_result result;
  {
    py::gil_scoped_release release;
    result = fdl_world_shrink(world, &options, &survivors);
  }
  std::shared_ptr<World> made;
  if (result == FDL_OK) {
    made.reset(new World(survivors, std::move(stalls_)));
    close();
  }
  check_interrupted(result);
  return made;
}

fdl_world* World::get() const {
  if (!world_) raise_error(FDL_SHUT_DOWN, "farandole has been shut down; call init() again to create a new world");
  return world_;
}

py::dict World::info() const {
  fdl_world_facts facts{};
  facts.struct_size = sizeof facts;
  check(fdl_world_info(get(), &facts));
  py::dict all;
  all["rank"] = facts.rank;
  all["size"] = facts.size;
  all["local_rank"] = facts.local_rank;
  all["local_size"] = facts.local_size;
  all["cross_rank"] = facts.cross_rank;
  all["cross_size"] = facts.cross_size;
  all["host"] = text_of(facts.host);
  all["source"] = text_of(facts.source);
  all["rendezvous"] = text_of(facts.rendezvous);
  all["transports"] = text_of(facts.transports);
  all["is_homogeneous"] = facts.is_homogeneous != 0;
  return all;
}

py::dict World::metrics() const {
  fdl_counters counters{};
  counters.struct_size = sizeof counters;
  check(fdl_metrics(get(), &counters));
  py::dict all;
  all["control_messages"] = counters.control_messages;
  all["wakeups"] = counters.wakeups;
  all["named_operations"] = counters.named_operations;
  all["buckets"] = counters.buckets;
  all["strangers_refused"] = counters.strangers_refused;
  all["locked_steps"] = counters.locked_steps;
  all["lock_epochs"] = counters.lock_epochs;
  return all;
}

void World::start_timeline(const std::string& path, bool mark_cycles) const {
  fdl_world* world = get();
  fdl_result result;
  {
    py::gil_scoped_release release;
    result = fdl_timeline_start(world, path.c_str(), mark_cycles ? 1 : 0);
  }
  check(result);
}

void World::stop_timeline() const {
  fdl_world* world = get();
  fdl_result result;
  {
    py::gil_scoped_release release;
    result = fdl_timeline_stop(world);
  }
  check(result);
}

void World::open_device(int kind, int index) const {
  fdl_world* world = get();
  fdl_result result;
  {
    py::gil_scoped_release release;
    result = fdl_device_open(world, static_cast<fdl_device_kind>(kind), index);
  }
  check(result);
}

std::shared_ptr<Group> Group::all(std::shared_ptr<World> world) {
  fdl_group* group = fdl_group_all(world->get());
  return std::make_shared<Group>(std::move(world), group, false);
}

std::shared_ptr<Group> Group::create(std::shared_ptr<World> world, const std::vector<int>& ranks) {
  fdl_world* inside = world->get();
  fdl_group* group = nullptr;
  fdl_result result;
  {
    py::gil_scoped_release release;
    result = fdl_group_create(inside, ranks.data(), ranks.size(), &group);
  }
  auto made = group ? std::make_shared<Group>(std::move(world), group, true) : nullptr;
  check_interrupted(result);
  return made;
}

std::shared_ptr<Group> Group::split(int color, int key) const {
  fdl_group* whole = get();
  const Users::User user(users_);
  fdl_group* part = nullptr;
  fdl_result result;
  {
    py::gil_scoped_release release;
    result = fdl_group_split(whole, color, key, &part);
  }
  auto made = part ? std::make_shared<Group>(world_, part, true) : nullptr;
  check_interrupted(result);
  return made;
}

void Group::close() {
  if (users_.any())
    raise_error(FDL_INVALID_ARGUMENT, "another thread is in a call on this group; free the group after that call");
  destroy();
}

void Group::destroy() {
  fdl_group* group = std::exchange(group_, nullptr);
  if (!group || !owned_) return;  // the world owns its own group
  py::gil_scoped_release release;
  fdl_group_destroy(group);
}

fdl_group* Group::get() const {
  world_->get();
  if (!group_) raise_error(FDL_INVALID_ARGUMENT, "this group has been freed");
  return group_;
}

std::vector<int> Group::ranks() const {
  std::vector<int> all(static_cast<size_t>(size()));
  for (int i = 0; i < size(); ++i) all[static_cast<size_t>(i)] = fdl_group_world_rank(get(), i);
  return all;
}

namespace {

// The memory of Python objects, which stays in place while this exists.
class Parts {
 public:
  explicit Parts(const py::sequence& objects) {
    views_.reserve(objects.size());
    for (const py::handle object : objects) {
      Py_buffer& view = views_.emplace_back();
      if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_SIMPLE) != 0) {
        views_.pop_back();
        release();
        throw py::error_already_set();
      }
      starts.push_back(view.buf);
      sizes.push_back(static_cast<size_t>(view.len));
    }
  }
  ~Parts() { release(); }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  std::vector<const void*> starts;
  std::vector<size_t> sizes;

 private:
  void release() {
    for (Py_buffer& view : views_) PyBuffer_Release(&view);
    views_.clear();
  }
  std::vector<Py_buffer> views_;
};

}  // namespace

void Group::check_trust() const { check(fdl_group_trust(get())); }

py::bytes Group::seal(const std::string& purpose, const py::sequence& objects) const {
  const Parts parts(objects);
  fdl_group* group = get();
  std::array<char, FDL_SEAL_BYTES> made{};
  fdl_result result;
  {
    py::gil_scoped_release release;
    result = fdl_group_seal(group, purpose.c_str(), parts.starts.data(), parts.sizes.data(), parts.sizes.size(),
                            made.data());
  }
  check(result);
  return py::bytes(made.data(), made.size());
}

void Group::open(int sender, const std::string& purpose, const py::sequence& objects, const py::bytes& seal) const {
  const Parts parts(objects);
  const std::string given = seal;
  if (given.size() != FDL_SEAL_BYTES) raise_error(FDL_INVALID_ARGUMENT, "a seal has 32 bytes");
  fdl_group* group = get();
  fdl_result result;
  {
    py::gil_scoped_release release;
    result = fdl_group_open(group, sender, purpose.c_str(), parts.starts.data(), parts.sizes.data(), parts.sizes.size(),
                            given.data());
  }
  check(result);
}

void bind_world(py::module_& module) {
  py::class_<World, std::shared_ptr<World>>(module, "World")
      .def(py::init<const py::dict&, const py::dict&>())
      .def("close", &World::close)
      .def("shrink", &World::shrink)
      .def_property_readonly("is_open", &World::is_open)
      .def("info", &World::info)
      .def("metrics", &World::metrics)
      .def("start_timeline", &World::start_timeline)
      .def("stop_timeline", &World::stop_timeline)
      .def("open_device", &World::open_device);
  py::class_<Group, std::shared_ptr<Group>>(module, "Group")
      .def_static("all", &Group::all)
      .def_static("create", &Group::create)
      .def("split", &Group::split)
      .def("close", &Group::close)
      .def("check_trust", &Group::check_trust)
      .def("seal", &Group::seal)
      .def("open", &Group::open)
      // The fdl_group, for other libraries of this package. It is valid until close().
      .def_property_readonly("address", [](const Group& group) { return reinterpret_cast<uintptr_t>(group.get()); })
      .def_property_readonly("rank", &Group::rank)
      .def_property_readonly("size", &Group::size)
      .def_property_readonly("ranks", &Group::ranks);
}

}  // namespace farandole_python
