// farandole inspect merges the histories that ranks have left behind, and says which rank was first behind.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cli/inspect/history_report.h"
#include "cli/subcommands.h"

namespace fdl {
namespace {

struct InspectOptions {
  std::vector<std::string> files;
  std::size_t last = 10;
  bool json = false;
};

int fail(const std::string& text) {
  fmt::print(stderr, "farandole inspect: {}\n", text);
  return kExitBadEnvironment;
}

int inspect(const InspectOptions& options) {
  std::vector<RankHistory> histories;
  for (const std::string& path : options.files) {
    auto history = read_history_file(path);
    if (!history.ok()) return fail(history.status().text());
    histories.push_back(history.take());
  }
  std::ranges::sort(histories, {}, &RankHistory::rank);
  if (const Status alike = check_one_job(histories); !alike.ok()) return fail(alike.text());
  const HistoryReport report = report_of(histories);
  if (options.json) {
    fmt::print("{}\n", history_json(histories, report).str());
    return kExitOk;
  }
  for (const std::string& line : history_lines(histories, report, options.last)) fmt::print("{}\n", line);
  return kExitOk;
}

}  // namespace

void add_inspect(CLI::App& app, Work& work) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command =
      app.add_subcommand("inspect", "Merge the histories that ranks left behind, and find the rank that was behind");
  command
      ->add_option("files", options->files, "farandole-history-<job>-<rank>.bin of each rank (FARANDOLE_HISTORY_DIR)")
      ->required();
  command->add_option("-n,--last", options->last, "How many of the last operations of each communicator are shown");
  command->add_flag("--json", options->json, "One JSON object, without the operations");
  command->callback([options, &work] { work = [options] { return inspect(*options); }; });
}

}  // namespace fdl
