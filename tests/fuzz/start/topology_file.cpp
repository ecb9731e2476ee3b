// Fuzzes topology files, the locations in them, and FARANDOLE_LOCATION.
#include "bootstrap/topology/topology_file.h"

#include "bootstrap/topology/location.h"
#include "tests/fuzz/targets.h"

namespace fdl::fuzz {
namespace {

// What parse_location() returns is returned again for itself.
void check_location(const std::string& location) {
  FDL_CHECK(!location.empty() && location.size() <= kMostLocation);
  const auto again = parse_location(location);
  FDL_CHECK(again.ok() && *again == location);
}

bool run(ConstBytes input) {
  const std::string_view text = text_of(input);
  if (const auto location = parse_location(text); location.ok() && !location->empty()) check_location(*location);
  const auto file = parse_topology_file(text, "file");
  if (!file.ok()) {
    FDL_CHECK(file.status().text().starts_with("file"));
    return false;
  }
  for (const TopologyFile::Entry& entry : file->entries) {
    check_location(entry.location);
    const std::vector<std::string> names{entry.host};
    FDL_CHECK(file->find(names) == &entry);
  }
  return true;
}

std::vector<std::string> seeds() {
  return {
      "# racks\nhost-a zone-a/rack-1\nhost-b zone-a/rack-2 # b\n* zone-b\n",
      R"({"Instances": [{"InstanceId": "i-0abc", "NetworkNodes": ["nn-1", "nn-2"], "AvailabilityZone": "us-west-2a"},
              {"InstanceId": "i-0def", "NetworkNodes": null, "ZoneId": "usw2-az2"}]})"};
}

}  // namespace

const Target topology_file{"topology_file", run, seeds};

}  // namespace fdl::fuzz
