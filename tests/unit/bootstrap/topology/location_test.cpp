// Tests of the location of a host: its sources with their precedence, topology files, and the locations of a world.
#include "bootstrap/topology/location.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/bytes.h"
#include "bootstrap/topology/member_locations.h"
#include "bootstrap/topology/topology_file.h"
#include "tests/support/descriptors.h"
#include "tests/support/variables.h"

namespace fdl {
namespace {

using namespace fdl::test;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A folder with files of a test, which is removed after it.
class Folder {
 public:
  Folder() : path_(::testing::TempDir() + "location_test." + std::to_string(::getpid())) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string write(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = std::filesystem::path(path_) / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The host has no board tag of its own unless a test gives it one.
Result<HostLocation> find(Vars variables, std::string_view host = "host-a.cluster") {
  variables.try_emplace("FARANDOLE_SYSFS_ROOT", "/nonexistent");
  const Environment environment(variables);
  const auto config = Config::read(environment);
  EXPECT_TRUE(config.ok()) << config.status().text();
  return find_location(environment, *config, host);
}

std::string answer(const Vars& variables, std::string_view host = "host-a.cluster") {
  return describe_location(find(variables, host));
}

std::string error_of(const Vars& variables) {
  const auto found = find(variables);
  EXPECT_FALSE(found.ok()) << found->path;
  if (found.ok()) return {};
  EXPECT_EQ(found.status().code(), Code::invalid_argument);
  return std::string(found.status().text());
}

const std::string kUnknown = "not known (set FARANDOLE_LOCATION or FARANDOLE_TOPOLOGY)";
const Vars kSlurm = {{"SLURM_STEP_ID", "0"},
                     {"SLURM_STEP_NUM_TASKS", "2"},
                     {"SLURM_JOB_ID", "4711"},
                     {"SLURMD_NODENAME", "tux7"},
                     {"SLURM_TOPOLOGY_ADDR", "s0.s4.tux7"},
                     {"SLURM_TOPOLOGY_ADDR_PATTERN", "switch.switch.node"}};

// ---- FARANDOLE_LOCATION ----

TEST(Location, IsThatOfTheVariable) {
  EXPECT_EQ(answer({}), kUnknown);
  EXPECT_EQ(answer({{"FARANDOLE_LOCATION", ""}}), kUnknown);
  EXPECT_EQ(answer({{"FARANDOLE_LOCATION", "zone-a/rack-3"}}), "zone-a/rack-3 (from FARANDOLE_LOCATION)");
}

TEST(Location, DropsEmptyNamesAtItsEndOnly) {
  EXPECT_EQ(find({{"FARANDOLE_LOCATION", "zone-a//"}})->path, "zone-a");
  EXPECT_EQ(find({{"FARANDOLE_LOCATION", "zone-a/rack-3/"}})->path, "zone-a/rack-3");
  EXPECT_EQ(answer({{"FARANDOLE_LOCATION", "/"}}), kUnknown);
  EXPECT_EQ(answer({{"FARANDOLE_LOCATION", "//"}}), kUnknown);
  EXPECT_EQ(error_of({{"FARANDOLE_LOCATION", "/rack-3"}}),
            "FARANDOLE_LOCATION = '/rack-3': name 1 is empty and a later one is not; write the groups of this host, "
            "widest first, such as zone-a/rack-3, or unset it");
  EXPECT_THAT(error_of({{"FARANDOLE_LOCATION", "zone-a//rack-3"}}),
              HasSubstr("name 2 is empty and a later one is not"));
}

TEST(Location, HasLimits) {
  const std::string longest(kMostLocationName, 'x');
  std::string most = longest;
  for (std::size_t i = 1; i < kMostLocationNames; ++i) most += "/" + longest;
  EXPECT_EQ(most.size(), kMostLocation);
  EXPECT_EQ(find({{"FARANDOLE_LOCATION", most}})->path, most);
  EXPECT_EQ(find({{"FARANDOLE_LOCATION", most + "//"}})->path, most);
  EXPECT_THAT(error_of({{"FARANDOLE_LOCATION", "a/" + longest + "x"}}),
              HasSubstr("name 2 has 129 bytes; at most 128 are allowed"));
  EXPECT_THAT(error_of({{"FARANDOLE_LOCATION", "1/2/3/4/5/6/7/8/9"}}),
              AllOf(HasSubstr("'1/2/3/4/5/6/7/8/9': there are 9 names; at most 8 are allowed"), HasSubstr("unset it")));
  EXPECT_LT(error_of({{"FARANDOLE_LOCATION", std::string(100'000, '/') + "x"}}).size(), 500u);
}

TEST(Location, HasPrintableCharactersOnly) {
  for (const char* text : {"a/b c", "a/ b", "a/b\t", "a/b\n", "a/\x7f", "a/\xc3\xa9", "a/\x01"}) {
    const std::string error = error_of({{"FARANDOLE_LOCATION", text}});
    EXPECT_THAT(error, HasSubstr("name 2 has a space or a character that is not printable")) << text;
    EXPECT_EQ(error.find_first_of("\t\n\x01\x7f\xc3"), std::string::npos);
  }
  EXPECT_EQ(find({{"FARANDOLE_LOCATION", "a.b-c_d#e:f/s[0-1],t"}})->path, "a.b-c_d#e:f/s[0-1],t");
}

// ---- Precedence ----

TEST(Location, TheVariableWinsOverTheFileAndTheFileOverSlurm) {
  const Folder folder;
  const std::string file = folder.write("topology", "host-a rack-of-file\n");
  EXPECT_EQ(find(kSlurm)->path, "s0/s4");
  EXPECT_EQ(find(kSlurm + Vars{{"FARANDOLE_TOPOLOGY", "auto"}})->path, "s0/s4");
  EXPECT_EQ(find(kSlurm + Vars{{"FARANDOLE_TOPOLOGY", file}})->path, "rack-of-file");
  EXPECT_EQ(find(kSlurm + Vars{{"FARANDOLE_TOPOLOGY", file}, {"FARANDOLE_LOCATION", "mine"}})->path, "mine");
  EXPECT_EQ(find(kSlurm + Vars{{"FARANDOLE_TOPOLOGY", file}, {"FARANDOLE_LOCATION", "//"}})->path, "rack-of-file");
  EXPECT_EQ(find(kSlurm + Vars{{"FARANDOLE_TOPOLOGY", "/no/file"}, {"FARANDOLE_LOCATION", "mine"}})->path, "mine");
}

TEST(Location, AHostThatTheFileDoesNotListHasNone) {
  const Folder folder;
  const std::string file = folder.write("topology", "host-b rack-1\n");
  EXPECT_EQ(answer(kSlurm + Vars{{"FARANDOLE_TOPOLOGY", file}}),
            "not known (" + file + " lists none of: host-a.cluster, host-a)");
}

TEST(Location, OffIgnoresAllSources) {
  const std::string off = "not known (FARANDOLE_TOPOLOGY=off)";
  EXPECT_EQ(answer(kSlurm + Vars{{"FARANDOLE_TOPOLOGY", "off"}}), off);
  EXPECT_EQ(answer({{"FARANDOLE_TOPOLOGY", "off"}, {"FARANDOLE_LOCATION", "zone-a"}}), off);
  EXPECT_EQ(answer({{"FARANDOLE_TOPOLOGY", "off"}, {"FARANDOLE_LOCATION", "/broken"}}), off);
}

// ---- Slurm ----

TEST(LocationOfSlurm, IsTheAddressWithoutTheNode) {
  EXPECT_EQ(answer(kSlurm), "s0/s4 (from SLURM_TOPOLOGY_ADDR)");
  const auto located = [](const std::string& address, const std::string& pattern) {
    Vars variables = kSlurm + Vars{{"SLURM_TOPOLOGY_ADDR", address}, {"SLURM_TOPOLOGY_ADDR_PATTERN", pattern}};
    variables.erase("SLURMD_NODENAME");
    return find(variables)->path;
  };
  EXPECT_EQ(located("s0.tux7.rack.example", "switch.node"), "s0") << "a node with points";
  EXPECT_EQ(located("s[0-1].s4.tux7", "switch.switch.node"), "s[0-1]/s4");
  EXPECT_EQ(located("b1.b12.tux7", "block.anything.node"), "b1/b12");
  EXPECT_EQ(located("tux7", "node"), "") << "no plugin for topologies";
  EXPECT_EQ(located("tux7.rack.example", "node"), "");
}

TEST(LocationOfSlurm, IsUnknownWhereAddressAndPatternDoNotMatch) {
  for (const auto& [address, pattern] :
       std::vector<std::pair<std::string, std::string>>{{"s4.tux7", "switch.switch.node"},
                                                        {"s0.s4.tux7", "switch.switch"},
                                                        {"s0.s4.tux7", "switch.node.node"},
                                                        {"s0.s4.tux7", "node.switch.switch"},
                                                        {"s0.s4.tux7", ""},
                                                        {"s0..tux7", "switch.switch.node"},
                                                        {".s4.tux7", "switch.switch.node"},
                                                        {"s0.s4.tux7", ".switch.node"},
                                                        {"s0.s/4.tux7", "switch.switch.node"},
                                                        {"s0.s 4.tux7", "switch.switch.node"},
                                                        {"s0.s4.tux8", "switch.switch.node"},
                                                        {"s0.s4.more.tux7", "switch.switch.node"},
                                                        {"1.2.3.4.5.6.7.8.9.tux7", "a.b.c.d.e.f.g.h.i.node"}}) {
    const std::string text =
        answer(kSlurm + Vars{{"SLURM_TOPOLOGY_ADDR", address}, {"SLURM_TOPOLOGY_ADDR_PATTERN", pattern}});
    EXPECT_EQ(text, "not known (SLURM_TOPOLOGY_ADDR = '" + address +
                        "' does not match SLURM_TOPOLOGY_ADDR_PATTERN = '" + pattern +
                        "'; set FARANDOLE_LOCATION or FARANDOLE_TOPOLOGY)");
  }
}

TEST(LocationOfSlurm, CountsInTasksAndBatchScriptsOnly) {
  Vars batch = kSlurm;
  batch.erase("SLURM_STEP_ID");
  EXPECT_EQ(find(batch, "tux7")->path, "s0/s4") << "the batch script, or a rank of its mpirun";
  EXPECT_EQ(find(batch, "tux7.cluster")->path, "s0/s4");
  EXPECT_EQ(answer(batch, "tux8"), kUnknown) << "the variables are those of another host";
  Vars shell = batch;
  shell["SLURM_STEP_ID"] = "4294967291";  // of a shell of salloc on the login node
  shell.erase("SLURMD_NODENAME");
  EXPECT_EQ(answer(shell, "login"), kUnknown);
  Vars exported = kSlurm;
  for (const char* name : {"SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_JOB_ID"}) exported.erase(name);
  EXPECT_EQ(answer(exported, "tux7"), kUnknown);
}

// ---- Text files ----

TEST(TopologyFile, HasALineForEachHost) {
  const auto file = parse_topology_file(
      "# the racks of the hall\n\n  host-a\tzone-a/rack-1   # a comment\r\nhost-b zone-a/rack-2\n"
      "host-a zone-a/rack-1/\n* zone-b\nhost-c#1 rack#3",
      "/f");
  ASSERT_TRUE(file.ok()) << file.status().text();
  std::vector<std::string> lines;
  for (const auto& [host, location, line] : file->entries) {
    lines.push_back(host + " " + location + " " + std::to_string(line));
  }
  EXPECT_THAT(lines,
              ElementsAre("host-a zone-a/rack-1 3", "host-b zone-a/rack-2 4", "* zone-b 6", "host-c#1 rack#3 7"));
  EXPECT_THAT(parse_topology_file("", "/f")->entries, IsEmpty());
  EXPECT_THAT(parse_topology_file("\n  # nothing", "/f")->entries, IsEmpty());
}

TEST(TopologyFile, FindsAHostByEachOfItsNames) {
  const Folder folder;
  const auto located = [&](const std::string& text, const Vars& more = {}) {
    return find(Vars{{"FARANDOLE_TOPOLOGY", folder.write("topology", text)}} + more)->path;
  };
  EXPECT_EQ(located("host-a.cluster full\nhost-a short\n* other"), "full");
  EXPECT_EQ(located("host-b no\nhost-a short\n* other"), "short");
  EXPECT_EQ(located("host-b no\n* other\n"), "other");
  EXPECT_EQ(located("* other\nhost-a short\n"), "short") << "the line of the host wins wherever it stands";
  EXPECT_EQ(located("host-b no\n"), "");
  EXPECT_EQ(located("node-7 rack-7\n", {{"FARANDOLE_NODE_NAME", "node-7"}}), "rack-7");
  EXPECT_EQ(located("node-7 rack-7\nhost-a short", {{"FARANDOLE_NODE_NAME", "node-7"}}), "short");
  EXPECT_EQ(located("i-0abc rack-9\n", {{"FARANDOLE_NODE_NAME", "i-0abc.ec2.internal"}}), "rack-9");
  const std::string tag = folder.write("sys/devices/virtual/dmi/id/board_asset_tag", "i-0af01c0123456789a\n");
  const Vars sysfs = {{"FARANDOLE_SYSFS_ROOT", folder.path() + "/sys"}};
  EXPECT_EQ(located("i-0af01c0123456789a rack-5\n* other\n", sysfs), "rack-5");
  folder.write("sys/devices/virtual/dmi/id/board_asset_tag", "Not Specified\n");
  EXPECT_EQ(located("Not rack-5\n* other\n", sysfs), "other");
}

TEST(TopologyFile, SourceNamesTheLine) {
  const Folder folder;
  const std::string file = folder.write("topology", "# first\nhost-a rack-1\n");
  EXPECT_EQ(answer({{"FARANDOLE_TOPOLOGY", file}}), "rack-1 (from " + file + ", line 2)");
}

TEST(TopologyFile, ErrorsNameTheLineAndTheRemedy) {
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
           {"a x\nb\n", "/f, line 2: the host has no location"},
           {"b # zone-a\n", "/f, line 1: the host has no location"},
           {"a x\n\nb x y\n", "/f, line 3: more than two words"},
           {"a x\nb y\na y\n", "/f, line 3: a has the location y here and x in line 1"},
           {"* x\n* y\n", "/f, line 2: * has the location y here and x in line 1"},
           {"a /x\n", "/f, line 1: location '/x': name 1 is empty and a later one is not"},
           {"a //\n", "/f, line 1: the location names no group of hosts"},
           {"a 1/2/3/4/5/6/7/8/9\n",
            "/f, line 1: location '1/2/3/4/5/6/7/8/9': there are 9 names; at most 8 are allowed"},
           {"a x\x01\n", "/f, line 1: location 'x?': name 1 has a space or a character that is not printable"},
           {std::string(256, 'h') + " x\n", "/f, line 1: the host is not a name of 1 to 255 printable characters"},
           {"\xef\xbb\xbfhost x\n", "/f, line 1: the host is not a name of 1 to 255 printable characters"}}) {
    const auto file = parse_topology_file(text, "/f");
    ASSERT_FALSE(file.ok()) << text;
    EXPECT_EQ(file.status().code(), Code::invalid_argument);
    EXPECT_EQ(file.status().text(), part + "; a line is HOST LOCATION, such as: node-7 zone-a/rack-3")
        << file.status().text();
  }
  const Folder folder;
  EXPECT_THAT(
      error_of({{"FARANDOLE_TOPOLOGY", folder.write("topology", "a x\nb\n")}}),
      HasSubstr("FARANDOLE_TOPOLOGY: " + folder.path() + "/topology, line 2: the host has no location; a line"));
}

TEST(TopologyFile, ThatCannotBeReadIsAnError) {
  const Folder folder;
  EXPECT_EQ(error_of({{"FARANDOLE_TOPOLOGY", "/no/such/file"}}),
            "FARANDOLE_TOPOLOGY: '/no/such/file' cannot be read: No such file or directory; name a file that each host "
            "has, or auto or off");
  EXPECT_THAT(error_of({{"FARANDOLE_TOPOLOGY", folder.path()}}), HasSubstr("it is no regular file"));
  const std::string pipe = folder.path() + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(error_of({{"FARANDOLE_TOPOLOGY", pipe}}), HasSubstr("it is no regular file"));
  const std::string large = folder.write("large", "");
  std::filesystem::resize_file(large, 16_MiB + 1);
  EXPECT_THAT(error_of({{"FARANDOLE_TOPOLOGY", large}}), HasSubstr("it has more than 16 MiB"));
  {
    const test::NoDescriptors none;
    const Status shortage = find({{"FARANDOLE_TOPOLOGY", large}}).status();
    EXPECT_EQ(shortage.code(), Code::resource);
    EXPECT_THAT(shortage.text(), HasSubstr("raise `ulimit -n`"));
  }
  if (::geteuid() != 0) {
    const std::string secret = folder.write("secret", "* x");
    ::chmod(secret.c_str(), 0);
    EXPECT_THAT(error_of({{"FARANDOLE_TOPOLOGY", secret}}), HasSubstr("Permission denied"));
  }
}

// ---- The answer of EC2 ----

const std::string kAnswer = R"({"Instances": [
  {"InstanceId": "i-1111111111example", "InstanceType": "p4d.24xlarge", "GroupName": "ML-group", "CapacityBlockId": null,
   "NetworkNodes": ["nn-1111111111example", "nn-2222222222example", "nn-3333333333example"],
   "ZoneId": "usw2-az2", "AvailabilityZone": "us-west-2a"},
  {"InstanceId": "i-2222", "NetworkNodes": ["nn-1", "nn-2"], "ZoneId": "usw2-az2"},
  {"InstanceId": "i-3333", "AvailabilityZone": "us-west-2b", "NetworkNodes": null},
  {"InstanceId": "i-4444"},
  {"InstanceId": "i-5555", "NetworkNodes": ["nn-9"]}], "NextToken": "more"})";

TEST(TopologyFile, ReadsTheAnswerOfEc2) {
  const auto file = parse_topology_file("\n" + kAnswer, "/f");
  ASSERT_TRUE(file.ok()) << file.status().text();
  std::vector<std::string> entries;
  for (const auto& [host, location, line] : file->entries) entries.push_back(host + " " + location);
  EXPECT_THAT(
      entries,
      ElementsAre("i-1111111111example us-west-2a/nn-1111111111example/nn-2222222222example/nn-3333333333example",
                  "i-2222 usw2-az2/nn-1/nn-2", "i-3333 us-west-2b", "i-5555 nn-9"));
  const Folder folder;
  const std::string path = folder.write("ec2.json", kAnswer);
  EXPECT_EQ(answer({{"FARANDOLE_TOPOLOGY", path}}, "i-2222.ec2.internal"), "usw2-az2/nn-1/nn-2 (from " + path + ")");
  folder.write("sys/devices/virtual/dmi/id/board_asset_tag", "i-3333\n");
  const Vars sysfs = {{"FARANDOLE_TOPOLOGY", path}, {"FARANDOLE_SYSFS_ROOT", folder.path() + "/sys"}};
  EXPECT_EQ(find(sysfs, "pod-7")->path, "us-west-2b");
  EXPECT_EQ(find({{"FARANDOLE_TOPOLOGY", path}}, "pod-7")->path, "");
}

TEST(TopologyFile, ErrorsInAnAnswerNameTheInstanceAndTheRemedy) {
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
           {"{", "/f: invalid JSON at character 2"},
           {R"({"Instances": 3})", "/f: there is no list Instances"},
           {"[]", "/f: there is no list Instances"},
           {"{}", "/f: there is no list Instances"},
           {R"({"Instances": [3]})", "/f, instance 1: there is no InstanceId"},
           {R"({"Instances": [{"InstanceId": "i-1"}, {"InstanceId": 7}]})", "/f, instance 2: there is no InstanceId"},
           {R"({"Instances": [{"InstanceId": "", "ZoneId": "z"}]})",
            "/f, instance 1: the host is not a name of 1 to 255 printable characters"},
           {R"({"Instances": [{"InstanceId": "i-1", "NetworkNodes": "nn"}]})",
            "/f, instance 1: NetworkNodes is not a list"},
           {R"({"Instances": [{"InstanceId": "i-1", "NetworkNodes": [1]}]})",
            "/f, instance 1: a zone or a network node is not a name"},
           {R"({"Instances": [{"InstanceId": "i-1", "NetworkNodes": ["a/b"]}]})",
            "/f, instance 1: a zone or a network node is not a name"},
           {R"({"Instances": [{"InstanceId": "i-1", "ZoneId": "z", "NetworkNodes": ["", "b"]}]})",
            "/f, instance 1: a zone or a network node is not a name"},
           {R"({"Instances": [{"InstanceId": "i-1", "ZoneId": "z z"}]})",
            "/f, instance 1: location 'z z': name 1 has a space or a character that is not printable"},
           {R"({"Instances": [{"InstanceId": "i-1", "ZoneId": "z"}, {"InstanceId": "i-1", "ZoneId": "y"}]})",
            "/f, instance 2: i-1 has the location y here and z before"}}) {
    const auto file = parse_topology_file(text, "/f");
    ASSERT_FALSE(file.ok()) << text;
    EXPECT_EQ(file.status().code(), Code::invalid_argument);
    EXPECT_EQ(file.status().text(), part + "; write the whole answer of `aws ec2 describe-instance-topology` there");
  }
}

// ---- The locations of a world ----

std::vector<Member> world_on(const std::vector<std::string>& hosts) {
  std::vector<Member> world;
  for (const std::string& host : hosts) {
    world.push_back({.world_rank = static_cast<int>(world.size()), .host_id = "id of " + host, .host_name = host});
  }
  return world;
}

std::vector<int> indices_of(const std::vector<Member>& world) {
  std::vector<int> indices;
  for (const Member& member : world) indices.push_back(member.location);
  return indices;
}

TEST(MemberLocations, OfAHostIsThatOfItsLowestRank) {
  std::vector<Member> world = world_on({"b", "a", "b", "c", "d", "a"});
  const auto locations = assign_locations(world, {"z/2", "z/1", "other", "", "z/2", ""});
  ASSERT_NE(locations, nullptr);
  EXPECT_THAT(*locations, ElementsAre("z/1", "z/2"));
  EXPECT_THAT(indices_of(world), ElementsAre(1, 0, 1, -1, 1, 0));
}

TEST(MemberLocations, AreListedInTheLog) {
  EXPECT_EQ(line_of_locations({"z/1", "z/2"}), "locations of hosts in the network: z/1 and z/2");
  EXPECT_EQ(line_of_locations(std::vector<std::string>(10, "z")),
            "locations of hosts in the network: z, z, z, z, z, z, z, z and 2 more");
}

TEST(MemberLocations, AreNullIfNoneIsKnown) {
  std::vector<Member> world = world_on({"a", "b", "b"});
  EXPECT_EQ(assign_locations(world, {"", "", "only rank 2 has it"}), nullptr);
  EXPECT_THAT(indices_of(world), ElementsAre(-1, -1, -1));
}

TEST(MemberLocations, WarnsOfHostsWithoutALocationAmongOthers) {
  std::vector<Member> world = world_on({"a", "b", "c", "c", "d", "e"});
  EXPECT_EQ(warning_of_unknown_locations(world), "") << "none is known";
  assign_locations(world, {"z", "z", "", "", "", "z"});
  EXPECT_THAT(warning_of_unknown_locations(world),
              AllOf(HasSubstr("2 of 5 hosts have no location in the network: c and d. They count as one group"),
                    HasSubstr("set FARANDOLE_LOCATION there")));
  assign_locations(world, {"z", "z", "z", "z", "z", "z"});
  EXPECT_EQ(warning_of_unknown_locations(world), "");
  std::vector<Member> large = world_on({"a", "b", "c", "d", "e", "f"});
  assign_locations(large, {"", "z", "", "", "", ""});
  EXPECT_THAT(warning_of_unknown_locations(large),
              HasSubstr("5 of 6 hosts have no location in the network: a, c, d and 2 more."));
}

}  // namespace
}  // namespace fdl
