// Fuzzes TimelineEvents with any names of tensors: every line of the timeline remains valid JSON.
//
// An input is a list of records: a byte for the kind, a byte for the number of a request, and a name with its length.
#include <algorithm>

#include "bootstrap/launchers/json.h"
#include "runtime/telemetry/timeline_events.h"
#include "tests/fuzz/targets.h"

namespace fdl::fuzz {
namespace {

constexpr TraceKind kKinds[] = {TraceKind::submitted, TraceKind::ready,    TraceKind::decided,   TraceKind::bucket,
                                TraceKind::runs,      TraceKind::activity, TraceKind::completed, TraceKind::cycle};

void add(TimelineEvents& events, TraceRecord record, std::string_view text, std::string& out) {
  record.text_bytes = static_cast<uint16_t>(text.size());
  events.add(record, text, out);
}

bool run(ConstBytes bytes) {
  TimelineEvents events(0, "rank 0 of 2 on here");
  std::string out;
  int64_t now = 1000;
  add(events, {.time_ns = now, .subject = 2, .kind = TraceKind::group}, "all", out);
  for (Input input(bytes); !input.empty();) {
    const TraceKind kind = kKinds[input.number() % std::size(kKinds)];
    const unsigned number = input.number();
    const uint32_t value = kind == TraceKind::completed || kind == TraceKind::activity ? number % 3 : number % 2;
    const std::string_view text = input.text().substr(0, TraceRing::kMaxText);
    add(events, {.time_ns = now += 1000, .subject = number, .value = value, .kind = kind}, text, out);
  }
  events.end(now + 1000, out);
  while (!out.empty()) {
    std::string_view line = std::string_view(out).substr(0, out.find('\n'));
    const std::size_t taken = std::min(out.size(), line.size() + 1);
    if (line.ends_with(',')) line.remove_suffix(1);
    if (line.starts_with(',')) line.remove_prefix(1);
    for (const char c : line) FDL_CHECK(static_cast<unsigned char>(c) >= 0x20);
    FDL_CHECK(line.empty() || parse_json(line).ok());
    out.erase(0, taken);
  }
  return true;
}

std::string record(unsigned kind, unsigned number, std::string_view name = {}) {
  return std::string{static_cast<char>(kind), static_cast<char>(number)} + with_length(name);
}

std::vector<std::string> seeds() {
  const std::string_view activity("tcp\0ring", 8);
  const std::string one = record(0, 1, "layer.0/weight") + record(1, 1, "layer.0/weight") + record(2, 1) +
                          record(3, 0) + record(4, 1) + record(5, 1, activity) + record(6, 1);
  return {one, record(0, 2, "quote\" back\\slash\n") + one, record(7, 0) + one + one};
}

}  // namespace

const Target timeline{"timeline", run, seeds, 5'000};

}  // namespace fdl::fuzz
