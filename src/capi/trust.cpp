// C API, part trust: seals of the program's own messages.
#include <cstring>
#include <vector>

#include "capi/objects.h"

using namespace fdl;
using namespace fdl::capi;

namespace {

Status check(const fdl_group* group, const char* purpose, const void* const* parts, const size_t* sizes, size_t count,
             const void* seal) {
  if (group == nullptr || purpose == nullptr || seal == nullptr ||
      (count > 0 && (parts == nullptr || sizes == nullptr))) {
    return Status(Code::invalid_argument, "group, purpose, seal, parts and sizes must not be NULL");
  }
  if (auto fault = fault_of_count(count, sizeof *parts)) return Status(Code::invalid_argument, *fault);
  for (size_t i = 0; i < count; ++i) {
    if (parts[i] == nullptr && sizes[i] > 0) {
      return Status(Code::invalid_argument, "part " + std::to_string(i) + " is NULL and not empty");
    }
  }
  return group->world->runtime->usable();
}

std::vector<ConstBytes> spans_of(const void* const* parts, const size_t* sizes, size_t count) {
  std::vector<ConstBytes> spans;
  for (size_t i = 0; i < count; ++i) spans.emplace_back(static_cast<const std::byte*>(parts[i]), sizes[i]);
  return spans;
}

}  // namespace

fdl_result fdl_group_trust(fdl_group* group) try {
  if (group == nullptr) return refuse("fdl_group_trust: group must not be NULL");
  Status status = group->world->runtime->usable();
  if (status.ok()) status = group->world->runtime->check_trust(*group->group);
  return status.ok() ? FDL_OK : report(status);
}
FDL_REPORT_EXCEPTIONS

fdl_result fdl_group_seal(fdl_group* group, const char* purpose, const void* const* parts, const size_t* sizes,
                          size_t count, void* seal) try {
  const Status status = check(group, purpose, parts, sizes, count, seal);
  if (!status.ok()) return report(status.while_doing("fdl_group_seal"));
  const GroupSeal made = group->world->runtime->seals(*group->group).seal(purpose, spans_of(parts, sizes, count));
  static_assert(sizeof made == FDL_SEAL_BYTES);
  std::memcpy(seal, made.data(), made.size());
  return FDL_OK;
}
FDL_REPORT_EXCEPTIONS

fdl_result fdl_group_open(fdl_group* group, int sender, const char* purpose, const void* const* parts,
                          const size_t* sizes, size_t count, const void* seal) try {
  Status status = check(group, purpose, parts, sizes, count, seal);
  if (!status.ok()) return report(status.while_doing("fdl_group_open"));
  if (sender < 0 || sender >= group->group->size()) {
    return refuse("fdl_group_open: sender " + std::to_string(sender) + " is no rank of a group of " +
                  std::to_string(group->group->size()));
  }
  GroupSeal given;
  std::memcpy(given.data(), seal, given.size());
  status = group->world->runtime->seals(*group->group).open(sender, purpose, spans_of(parts, sizes, count), given);
  return status.ok() ? FDL_OK : report(status);
}
FDL_REPORT_EXCEPTIONS
