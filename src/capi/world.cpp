// C API, part world: worlds, their facts, counters and timelines, and groups.
#include <array>
#include <cstring>

#include "base/log.h"
#include "capi/objects.h"

using namespace fdl;
using namespace fdl::capi;

namespace {

// Structures grow with versions of the library. Copies only the members that the caller's version has.
template <typename Struct>
void copy_known(Struct& target, const Struct& source) {
  // struct_size is the first member of each structure. Here it becomes the number of bytes that this library has
  // filled in, so that a newer caller detects which members an older library left untouched.
  const std::size_t size = std::min(target.struct_size, sizeof(Struct));
  std::memcpy(&target, &source, size);
  target.struct_size = size;
}

// The new object holds a reference to the world until fdl_group_destroy().
fdl_group* adopt(fdl_world* world, Group* group) {
  world->hold();
  return new fdl_group{world, group};
}

fdl_world* adopt(std::unique_ptr<Runtime> runtime) {
  auto made = std::make_unique<fdl_world>();
  made->runtime = std::move(runtime);
  made->all = {made.get(), &made->runtime->all()};  // part of the world, so it holds no reference
  return made.release();
}

// usable() also refuses a forked child: the threads and connections of the world belong to the parent.
Status check(const fdl_world* world) {
  if (world == nullptr || world->runtime == nullptr) {
    return Status(Code::not_initialized, "farandole has not been initialized: create a world first");
  }
  return world->runtime->usable();
}

// Words are shorter: see Runtime::meet_through().
constexpr std::size_t kShared = 1024;

Result<std::string> share_word(int (*share)(char*, std::size_t, void*), void* context, const std::string& word) {
  std::array<char, kShared> text{};
  std::memcpy(text.data(), word.data(), std::min(word.size(), kShared - 1));
  if (const int code = share(text.data(), text.size(), context); code != 0) {
    return Status(
        Code::transport,
        "the program could not pass on the address of rank 0: its function `share` returned " + std::to_string(code));
  }
  text.back() = 0;
  if (text.front() == 0) return Status(Code::invalid_argument, "the function `share` has not set the text of rank 0");
  return std::string(text.data());
}

std::string read_stacks(decltype(fdl_world_options::stacks) function, void* context) {
  std::string text(RankState::kMostStacks, '\0');
  text.resize(std::min(function(text.data(), text.size(), context), text.size()));
  return text;
}

// Members behind the caller's struct_size keep their defaults. The bounds refuse a structure that was not initialized.
Result<RuntimeOptions> translate(const fdl_world_options* given) {
  RuntimeOptions options;
  if (given == nullptr) return options;
  fdl_world_options known;
  fdl_world_options_init(&known);
  if (auto fault = fault_of_size("fdl_world_options", given->struct_size)) {
    return Status(Code::invalid_argument, *fault);
  }
  // Texts and arrays are copied below: the caller may free them when fdl_world_create() returns.
  std::memcpy(&known, given, std::min(given->struct_size, sizeof known));
  options.rank = known.rank;
  options.size = known.size;
  options.local_rank = known.local_rank;
  options.local_size = known.local_size;
  if (known.rendezvous != nullptr) options.rendezvous = known.rendezvous;
  if (known.job_key != nullptr) options.job_key = known.job_key;
  if (known.interrupted != nullptr) {
    options.interrupted = [function = known.interrupted, context = known.interrupted_context] {
      return function(context) != 0;
    };
  }
  if (known.waiting != nullptr) {
    options.waiting = [function = known.waiting, awake = known.stays_awake, context = known.waiting_context] {
      function(context);
      return awake != nullptr && awake(context) != 0;
    };
  }
  if (known.stalled != nullptr) {
    options.stalled = [function = known.stalled, context = known.stalled_context](const std::string& text) {
      function(text.c_str(), context);
    };
  }
  if (known.stacks != nullptr) {
    options.stacks = [function = known.stacks, context = known.stacks_context] {
      return read_stacks(function, context);
    };
  }
  if (known.share != nullptr && known.rank < 0) {
    return Status(Code::invalid_argument, "fdl_world_options.share needs rank and size");
  }
  if (known.share != nullptr) {
    options.share = [function = known.share, context = known.share_context](const std::string& word) {
      return share_word(function, context, word);
    };
  }
  if (known.option_count > 0 && known.options == nullptr) {
    return Status(Code::invalid_argument, "fdl_world_options.options is NULL, but option_count is not 0");
  }
  for (std::size_t i = 0; i < known.option_count; ++i) {
    if (known.options[2 * i] == nullptr || known.options[2 * i + 1] == nullptr) {
      return Status(Code::invalid_argument, "fdl_world_options.options holds NULL in pair " + std::to_string(i));
    }
    // Of two pairs with the same name the later one counts.
    options.knobs[known.options[2 * i]] = known.options[2 * i + 1];
  }
  return options;
}

}  // namespace

void fdl_world_options_init(fdl_world_options* options) {
  *options = fdl_world_options{};
  options->struct_size = sizeof *options;
  options->rank = -1;
  options->local_rank = -1;
  options->local_size = -1;
}

fdl_result fdl_world_create(const fdl_world_options* options, fdl_world** world) try {
  if (world == nullptr) return refuse("fdl_world_create: world must not be NULL");
  auto translated = translate(options);
  if (!translated.ok()) return report(translated.status());
  // Blocks until all ranks have arrived or start_timeout_s has passed.
  auto runtime = Runtime::create(*translated);
  if (!runtime.ok()) return report(runtime.status());
  *world = adopt(runtime.take());
  return FDL_OK;
}
FDL_REPORT_EXCEPTIONS

void fdl_shrink_options_init(fdl_shrink_options* options) {
  *options = fdl_shrink_options{};
  options->struct_size = sizeof *options;
}

fdl_result fdl_world_shrink(fdl_world* world, const fdl_shrink_options* options, fdl_world** survivors) try {
  if (survivors == nullptr) return refuse("fdl_world_shrink: survivors must not be NULL");
  fdl_shrink_options known;
  fdl_shrink_options_init(&known);
  if (options != nullptr) {
    if (auto fault = fault_of_size("fdl_shrink_options", options->struct_size)) {
      return refuse("fdl_world_shrink: " + *fault);
    }
    std::memcpy(&known, options, std::min(options->struct_size, sizeof known));
  }
  if (known.timeout_ns < 0) return refuse("fdl_world_shrink: options->timeout_ns must not be negative");
  Status status = check(world);
  if (!status.ok()) return report(status);
  auto runtime = Runtime::shrink(*world->runtime, static_cast<double>(known.timeout_ns) / 1e9);
  if (!runtime.ok()) return report(runtime.status());
  *survivors = adopt(runtime.take());
  return FDL_OK;
}
FDL_REPORT_EXCEPTIONS

void fdl_world_destroy(fdl_world* world) try {
  if (world == nullptr) return;
  if (world->runtime->drives_here()) {
    // The end would wait for this thread. The world stays, so that nothing that the callback may still use is freed.
    static_cast<void>(refuse("fdl_world_destroy must not be called in a callback: call it after the callback"));
    return log_error("rank {}: {}", world->runtime->facts().rank, fdl_last_error()->text);
  }
  // A forked child must not end the parent's world. Handles and communicators that are left keep the object.
  if (!world->runtime->is_forked_child()) world->runtime->shut_down();
  world->release();
}
FDL_KEEP_EXCEPTIONS

fdl_result fdl_world_info(fdl_world* world, fdl_world_facts* facts) try {
  if (facts == nullptr) return refuse("fdl_world_info: facts must not be NULL");
  if (auto fault = fault_of_size("fdl_world_facts", facts->struct_size)) return refuse("fdl_world_info: " + *fault);
  Status status = check(world);
  if (!status.ok()) return report(status);
  // The texts belong to the world: the pointers are valid until fdl_world_destroy().
  const WorldFacts& known = world->runtime->facts();
  copy_known(*facts, fdl_world_facts{.struct_size = sizeof(fdl_world_facts),
                                     .rank = known.rank,
                                     .size = known.size,
                                     .local_rank = known.local_rank,
                                     .local_size = known.local_size,
                                     .cross_rank = known.cross_rank,
                                     .cross_size = known.cross_size,
                                     .host = known.host.c_str(),
                                     .source = known.source.c_str(),
                                     .rendezvous = known.rendezvous.c_str(),
                                     .transports = known.transports.c_str(),
                                     .is_homogeneous = known.is_homogeneous ? 1 : 0});
  return FDL_OK;
}
FDL_REPORT_EXCEPTIONS

fdl_result fdl_metrics(fdl_world* world, fdl_counters* counters) try {
  if (counters == nullptr) return refuse("fdl_metrics: counters must not be NULL");
  if (auto fault = fault_of_size("fdl_counters", counters->struct_size)) return refuse("fdl_metrics: " + *fault);
  Status status = check(world);
  if (!status.ok()) return report(status);
  fdl_counters known{.struct_size = sizeof(fdl_counters)};
  known.wakeups = world->runtime->wakeups();  // first, because count_named() may wake the progress thread
  const Runtime::NamedCounts named = world->runtime->count_named();
  known.named_operations = named.operations;
  known.buckets = named.buckets;
  known.control_messages = named.control_messages;
  known.locked_steps = named.locked_steps;
  known.lock_epochs = named.lock_epochs;
  known.strangers_refused = world->runtime->strangers();
  copy_known(*counters, known);
  return FDL_OK;
}
FDL_REPORT_EXCEPTIONS

fdl_result fdl_timeline_start(fdl_world* world, const char* path, int mark_cycles) try {
  if (path == nullptr) return refuse("fdl_timeline_start: path must not be NULL");
  Status status = check(world);
  if (status.ok()) status = world->runtime->start_timeline(path, mark_cycles != 0);
  return status.ok() ? FDL_OK : report(status);
}
FDL_REPORT_EXCEPTIONS

fdl_result fdl_timeline_stop(fdl_world* world) try {
  Status status = check(world);
  if (status.ok()) status = world->runtime->stop_timeline();
  return status.ok() ? FDL_OK : report(status);
}
FDL_REPORT_EXCEPTIONS

fdl_result fdl_device_open(fdl_world* world, fdl_device_kind kind, int index) try {
  Status status = check(world);
  // The CPU needs no opening. A device stays open until the world ends, and opening it again has no effect.
  if (status.ok() && kind != FDL_DEVICE_CPU) status = world->runtime->device(kind, index).status();
  return status.ok() ? FDL_OK : report(status);
}
FDL_REPORT_EXCEPTIONS

// ---- groups ----

fdl_group* fdl_group_all(fdl_world* world) { return world == nullptr ? nullptr : &world->all; }

fdl_result fdl_group_create(fdl_world* world, const int* ranks, size_t count, fdl_group** group) try {
  if (ranks == nullptr || group == nullptr) return refuse("fdl_group_create: ranks and group must not be NULL");
  Status status = check(world);
  if (!status.ok()) return report(status);
  const HeldWorld held(world);
  auto made = world->runtime->make_group(std::vector<int>(ranks, ranks + count));
  if (!made.ok()) return report(made.status());
  *group = adopt(world, *made);
  return FDL_OK;
}
FDL_REPORT_EXCEPTIONS

fdl_result fdl_group_split(fdl_group* group, int color, int key, fdl_group** part) try {
  if (group == nullptr || part == nullptr) return refuse("fdl_group_split: group and part must not be NULL");
  Status status = check(group->world);
  if (!status.ok()) return report(status);
  fdl_world* const world = group->world;  // the group of all ranks is a part of it
  const HeldWorld held(world);
  auto made = world->runtime->split(*group->group, color, key);
  if (!made.ok()) return report(made.status());
  // A rank with a negative color takes part in the collective call and is in no group.
  *part = *made == nullptr ? nullptr : adopt(world, *made);
  return FDL_OK;
}
FDL_REPORT_EXCEPTIONS

int fdl_group_rank(const fdl_group* group) { return group == nullptr ? -1 : group->group->rank(); }
int fdl_group_size(const fdl_group* group) { return group == nullptr ? 0 : group->group->size(); }

int fdl_group_world_rank(const fdl_group* group, int rank) {
  if (group == nullptr || rank < 0 || rank >= group->group->size()) return -1;
  return group->group->members()[static_cast<std::size_t>(rank)].world_rank;
}

// The group of all ranks is a part of the world and is destroyed with it.
void fdl_group_destroy(fdl_group* group) try {
  if (group == nullptr || group == &group->world->all) return;
  // A forked child leaves the parent's connections alone.
  if (!group->world->runtime->is_forked_child()) group->world->runtime->end(*group->group);
  group->world->release();
  delete group;
}
FDL_KEEP_EXCEPTIONS
