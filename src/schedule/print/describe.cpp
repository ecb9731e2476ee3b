// describe() formats single steps, one rank's list, and the table of all ranks.
#include "schedule/print/describe.h"

#include <algorithm>

namespace fdl {
namespace {

std::string words(ChunkRange range) {
  const char* space = range.space == Space::input ? "input " : range.space == Space::scratch ? "scratch " : "";
  const std::string first = std::to_string(range.first);
  if (range.count == 1) return space + ("chunk " + first);
  return space + ("chunks " + first + "-" + std::to_string(range.first + range.count - 1));
}

// The parts of a table cell: "send 3 >1", "recv_reduce 2 <0", "copy 1 = in1".
std::string brief_text(ChunkRange range) {
  const char* space = range.space == Space::input ? "in" : range.space == Space::scratch ? "tmp" : "";
  std::string text = space + std::to_string(range.first);
  if (range.count > 1) text += "-" + std::to_string(range.first + range.count - 1);
  return text;
}

std::string brief_text(const Step& step) {
  const std::string kind(name_of(step.kind));
  switch (step.kind) {
    case StepKind::send:
      return kind + " " + brief_text(step.source) + " >" + std::to_string(step.peer);
    case StepKind::recv:
    case StepKind::recv_reduce:
      return kind + " " + brief_text(step.target) + " <" + std::to_string(step.peer);
    case StepKind::copy:
    case StepKind::reduce:
      return kind + " " + brief_text(step.target) + " = " + brief_text(step.source);
  }
  return kind;
}

}  // namespace

std::string_view name_of(Collective collective) {
  switch (collective) {
    case Collective::allreduce:
      return "allreduce";
    case Collective::reduce:
      return "reduce";
    case Collective::broadcast:
      return "broadcast";
    case Collective::allgather:
      return "allgather";
    case Collective::reduce_scatter:
      return "reduce_scatter";
    case Collective::alltoall:
      return "alltoall";
    case Collective::gather:
      return "gather";
    case Collective::scatter:
      return "scatter";
    case Collective::barrier:
      return "barrier";
  }
  return "unknown collective";
}

std::string_view name_of(StepKind kind) {
  switch (kind) {
    case StepKind::send:
      return "send";
    case StepKind::recv:
      return "recv";
    case StepKind::recv_reduce:
      return "recv_reduce";
    case StepKind::copy:
      return "copy";
    case StepKind::reduce:
      return "reduce";
  }
  return "unknown step";
}

std::string describe(const Step& step) {
  const std::string kind(name_of(step.kind));
  switch (step.kind) {
    case StepKind::send:
      return kind + " " + words(step.source) + " to rank " + std::to_string(step.peer);
    case StepKind::recv:
    case StepKind::recv_reduce:
      return kind + " " + words(step.target) + " from rank " + std::to_string(step.peer);
    case StepKind::copy:
      return kind + " " + words(step.source) + " to " + words(step.target);
    case StepKind::reduce:
      return kind + " " + words(step.source) + " into " + words(step.target);
  }
  return kind;
}

std::string describe(const Schedule& schedule, std::size_t step) {
  return schedule.name + ", step " + std::to_string(step) + ": " + describe(schedule.steps.at(step));
}

std::string describe(const Schedule& schedule) {
  std::string text = std::string(name_of(schedule.collective)) + " by " + schedule.name + ", rank " +
                     std::to_string(schedule.rank) + " of " + std::to_string(schedule.size) + "\n";
  for (std::size_t i = 0; i < schedule.steps.size(); ++i) {
    text += "  step " + std::to_string(i) + "  " + describe(schedule.steps[i]) + "\n";
  }
  return text;
}

std::string describe(const std::vector<Schedule>& schedules) {
  std::size_t rows = 0;
  for (const Schedule& schedule : schedules) rows = std::max(rows, schedule.steps.size());
  std::vector<std::string> lines(rows + 1);
  lines[0] = "step";
  for (std::size_t row = 0; row < rows; ++row) lines[row + 1] = std::to_string(row);
  std::size_t width = 4;
  for (const Schedule& schedule : schedules) {
    width += 2;
    for (std::string& line : lines) line.resize(width, ' ');
    lines[0] += "rank " + std::to_string(schedule.rank);
    for (std::size_t row = 0; row < schedule.steps.size(); ++row) lines[row + 1] += brief_text(schedule.steps[row]);
    for (const std::string& line : lines) width = std::max(width, line.size());
  }
  std::string text;
  for (std::string& line : lines) text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  return text;
}

}  // namespace fdl
