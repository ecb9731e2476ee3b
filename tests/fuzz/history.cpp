// Fuzzes read_history() and what `farandole inspect` makes of an accepted history.
#include "cli/inspect/history_report.h"
#include "tests/fuzz/targets.h"
#include "tests/support/recorded_histories.h"

namespace fdl::fuzz {
namespace {

bool run(ConstBytes input) {
  auto history = read_history(input);
  if (!history.ok()) {
    FDL_CHECK(!history.status().text().empty());
    return false;
  }
  FDL_CHECK(history->operations.size() <= History::kRecords);
  FDL_CHECK(history->rank >= 0 && history->rank < history->size);
  // A second rank, which is never damaged, so that ranks are compared.
  std::vector<RankHistory> histories{history.take()};
  test::Recorded other(histories.front().rank == 0 ? 1 : 0, 3);
  other.run(2);
  histories.push_back(read_history(bytes_of(other.bytes())).take());
  if (!check_one_job(histories).ok()) histories.pop_back();
  const HistoryReport report = report_of(histories);
  for (const std::string& line : history_lines(histories, report, 3)) {
    FDL_CHECK(line.find('\n') == std::string::npos && line.find('\x1b') == std::string::npos);
  }
  FDL_CHECK(!history_json(histories, report).str().empty());
  return true;
}

std::vector<std::string> seeds() {
  test::Recorded few(0);
  few.run(3);
  few.submit("grad");
  few.send(1);
  test::Recorded full(1);
  full.run(static_cast<int>(History::kRecords) + 100);
  return {few.bytes(), full.bytes()};
}

}  // namespace

const Target history{"history", run, seeds, 3000};

}  // namespace fdl::fuzz
