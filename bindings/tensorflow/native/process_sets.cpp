// The table of process sets, and the functions with which the Python package fills it.
#include "process_sets.h"

#include <map>
#include <mutex>

namespace farandole_tensorflow {

namespace {

// Kernels hold the mutex shared while they submit, which does not block. A world that ends takes it alone before its
// groups are destroyed, so that no kernel uses a group that is gone.
struct Table {
  std::shared_mutex mutex;
  std::map<int, ProcessSet> sets;  // a handful
  RankFacts facts;
  bool was_initialized = false;
};

Table& table() {
  // Intentionally leaked: threads of TensorFlow may run kernels while static objects are destroyed.
  static Table* one = new Table;
  return *one;
}

}  // namespace

UsedProcessSet::UsedProcessSet(int id) : lock_(table().mutex) {
  const auto found = table().sets.find(id);
  if (found != table().sets.end()) set_ = &found->second;
}

const RankFacts& UsedProcessSet::facts() const { return table().facts; }

UsedProcessSet::Absence UsedProcessSet::absence() const {
  if (!table().sets.empty())
    return {FDL_INVALID_ARGUMENT,
            "the process set does not exist, or has not been registered; give it to init(process_sets=...) or "
            "add_process_set"};
  if (!table().was_initialized) return {FDL_NOT_INITIALIZED, "farandole has not been initialized; use hvd.init()."};
  return {FDL_SHUT_DOWN, "farandole has been shut down; call init() again to create a new world"};
}

}  // namespace farandole_tensorflow

// Called by farandole/tensorflow/library.py. `group` is null on a rank outside the set; size is 0 for a set that ends.
extern "C" __attribute__((visibility("default"))) void farandole_tensorflow_set(int id, fdl_group* group, int size) {
  auto& table = farandole_tensorflow::table();
  std::unique_lock lock(table.mutex);
  if (size > 0) {
    table.sets[id] = {id, group, size};
    table.was_initialized = true;
  } else {
    table.sets.erase(id);
  }
}

extern "C" __attribute__((visibility("default"))) void farandole_tensorflow_rank(int rank, int local_rank,
                                                                                 int local_size) {
  auto& table = farandole_tensorflow::table();
  std::unique_lock lock(table.mutex);
  table.facts = {rank, local_rank, local_size};
}
