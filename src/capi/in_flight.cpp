// still_in_flight() words the error of a wait that timed out before its handle was done.
//
// Only the root of a group learns which ranks have submitted a name. Its report reaches the other ranks after the
// option stall_warning_s. This thread must not wait for an answer, so the text has what this rank has got until now.
#include "capi/in_flight.h"

#include <fmt/format.h>

#include <algorithm>

#include "agree/negotiation/message.h"

namespace fdl::capi {
namespace {

double tenths_of_seconds(int64_t duration_ns) {
  const int64_t tenths = std::max<int64_t>(duration_ns, 0) / 100'000'000;
  return static_cast<double>(tenths) / 10;
}

std::string title_of_handle(const Handle& handle, const std::vector<std::string>& names) {
  const std::string first = title_of(handle.kind(), names.front());
  return names.size() == 1 ? first : fmt::format("{} and {} more", first, names.size() - 1);
}

// What takes the place of a report that this rank has not got.
std::string without_report(double stall_warning_s, int64_t age_ns) {
  if (stall_warning_s <= 0) {
    return "ranks that have not submitted it are not reported, because stall_warning_s is 0; `farandole where` shows "
           "them";
  }
  if (age_ns < seconds_to_ns(stall_warning_s)) {
    return fmt::format(
        "ranks that have not submitted it are reported after {:g} s (stall_warning_s), also here; `farandole where` "
        "shows them before",
        stall_warning_s);
  }
  return "this rank has got no report of ranks that have not submitted it; `farandole where` shows what each rank "
         "waits for";
}

}  // namespace

Status still_in_flight(const fdl_handle& handle) {
  const Runtime& runtime = *handle.world->runtime;
  const int rank = runtime.facts().rank;
  const std::vector<std::string>& names = handle.handle->names().list();
  if (names.empty()) {
    const char* remedy =
        handle.is_own ? "it waits for fdl_handle_complete" : "fdl_comm_diagnose names the rank it waits for";
    return Status(Code::timeout, fmt::format("the handle is not done on rank {}; {}", rank, remedy));
  }
  const std::string title = title_of_handle(*handle.handle, names);
  const Handle::Stall stall = handle.handle->stall();
  const int64_t now = now_ns();
  const int64_t age_ns = now - handle.handle->begun_ns();
  const std::string known =
      stall.text ? fmt::format("reported {:g} s ago: {}", tenths_of_seconds(now - stall.at_ns), *stall.text)
                 : without_report(runtime.config().stall_warning_s, age_ns);
  return Status(Code::timeout, fmt::format("{} is still in flight on rank {} after {:g} s; {}", title, rank,
                                           tenths_of_seconds(age_ns), known))
      .during(title);
}

}  // namespace fdl::capi
