// check_request() checks what FlatBuffers cannot check in a request, and what a caller may submit.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "agree/wire/limits.h"
#include "agree/wire/wire.h"
#include "data/reduce.h"

namespace fdl {

Status check_request(const Request& request) {
  const auto reject = [&](std::string_view what) {
    return Status(Code::invalid_argument, fmt::format("'{:.200}': {}", request.name, what));
  };
  if (request.name.empty()) return Status(Code::invalid_argument, "an operation needs a name");
  if (request.name.size() > kMaxNameBytes) return reject("a name may have at most 65536 bytes");
  if (request.group.size() > kMaxNameBytes) return reject("the name of a group may have at most 65536 bytes");
  if (!is_op(request.op)) return reject(fmt::format("{} is no reduce op", request.op));
  if (request.shape.size() > kMaxDimensions) return reject("a tensor may have at most 64 dimensions");
  int64_t count = 1;
  for (const int64_t dimension : request.shape) {
    if (dimension < 0) return reject("a dimension is negative");
    // Count zeros as ones: other readers multiply in any order and must not overflow on the way.
    if (dimension > 0 && count > kMaxElements / dimension) return reject("a tensor has too many elements");
    count *= std::max<int64_t>(dimension, 1);
  }
  if (!std::isfinite(request.prescale) || !std::isfinite(request.postscale)) return reject("a scale is not finite");
  if (request.root < -1) return reject("the root is negative");
  if (request.device < -1 || request.device > kMaxDevice) return reject("there is no such kind of device");
  if (request.place < -1) return reject("there is no such place");
  if (request.group.empty() != (request.group_size == 0) || request.group_size < 0 ||
      request.group_size > kMaxGroupSize) {
    return reject("the size of its group does not fit");
  }
  return ok_status();
}

Status check_group(std::size_t requests, std::size_t bytes) {
  if (requests <= MessageRoom::kRequests && bytes <= MessageRoom::kBytes) return ok_status();
  return Status(
      Code::invalid_argument,
      fmt::format("{} operations in one call, whose names, shapes and splits take {:.1f} MiB: a call may have "
                  "at most {} operations and {} MiB of these; use several calls, or shorter names",
                  requests, static_cast<double>(bytes) / (1024 * 1024), MessageRoom::kRequests,
                  MessageRoom::kBytes / (1024 * 1024)));
}

}  // namespace fdl
