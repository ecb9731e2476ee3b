// Fuzzes TuningTable::parse(): the text of an accepted table is accepted again and means the same table.
#include "algorithms/choice/tuning_table.h"

#include "tests/fuzz/targets.h"

namespace fdl::fuzz {
namespace {

bool run(ConstBytes input) {
  const auto table = TuningTable::parse(text_of(input), "the input");
  if (!table.ok()) {
    FDL_CHECK(table.status().text().find("the input") != std::string::npos);
    return false;
  }
  const std::string text = table->text();
  const auto again = TuningTable::parse(text, "the text");
  FDL_CHECK(again.ok() && again->text() == text);
  for (const auto& [place, sizes] : table->rows()) {
    FDL_CHECK(place.hosts >= 1 && place.ranks_per_host >= 1);
    for (const auto& [bytes, ways] : sizes) {
      for (const auto& [way, us] : ways) FDL_CHECK(us >= 0);
    }
  }
  return true;
}

std::vector<std::string> seeds() {
  return {"farandole tuning 1\n",
          "farandole tuning 1\n# collective\nallreduce tcp 4 65536 ring=210.5 halving_doubling=120.25\n"
          "allreduce shm+tcp 2x4 65536 whole=90.1 ring=310\nbuckets tcp 4 up_to=1048576 alone_above=65536\n"};
}

}  // namespace

const Target tuning_table{"tuning_table", run, seeds};

}  // namespace fdl::fuzz
