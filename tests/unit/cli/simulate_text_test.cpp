// Tests of the options of `farandole simulate` (units, links, topologies, ranges) and of its picture.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "cli/simulate/cluster_text.h"
#include "cli/simulate/picture.h"
#include "cli/simulate/training_models.h"

namespace fdl {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

TEST(ClusterText, ReadsTimes) {
  EXPECT_DOUBLE_EQ(*parse_seconds("250ns"), 250e-9);
  EXPECT_DOUBLE_EQ(*parse_seconds("0.5us"), 0.5e-6);
  EXPECT_DOUBLE_EQ(*parse_seconds("1.5 ms"), 1.5e-3);
  EXPECT_DOUBLE_EQ(*parse_seconds("0s"), 0);
  for (const char* wrong : {"", "10", "us", "-1us", "10 minutes", "nan", "inf", "1e300s", "3601s", "1us2"}) {
    const auto result = parse_seconds(wrong);
    ASSERT_FALSE(result.ok()) << wrong;
    EXPECT_THAT(result.status().text(), HasSubstr("'" + std::string(wrong) + "' is not a time")) << wrong;
  }
}

TEST(ClusterText, ReadsBandwidths) {
  EXPECT_DOUBLE_EQ(*parse_bandwidth("100Gbit"), 12.5e9);
  EXPECT_DOUBLE_EQ(*parse_bandwidth("12.5GB"), 12.5e9);
  EXPECT_DOUBLE_EQ(*parse_bandwidth("200Mbit"), 25e6);
  for (const char* wrong : {"", "100", "0Gbit", "-1GB", "100gbps", "1e400GB", "1e9TB", "inf"}) {
    ASSERT_FALSE(parse_bandwidth(wrong).ok()) << wrong;
    EXPECT_THAT(parse_bandwidth(wrong).status().text(), HasSubstr("such as 100Gbit")) << wrong;
  }
}

TEST(ClusterText, ReadsLinks) {
  ClusterLink link;
  ASSERT_TRUE(parse_link("100Gbit,10us,0.5us", link).ok());
  EXPECT_DOUBLE_EQ(link.bytes_per_s, 12.5e9);
  EXPECT_DOUBLE_EQ(link.latency_s, 10e-6);
  EXPECT_DOUBLE_EQ(link.overhead_s, 0.5e-6);
  EXPECT_EQ(link.gap_s, 0);
  ASSERT_TRUE(parse_link("1GB,1us,1us,gap=2us", link).ok());
  EXPECT_DOUBLE_EQ(link.gap_s, 2e-6);
  for (const char* wrong : {"", "100Gbit", "100Gbit,10us", "10us,100Gbit,1us", "1GB,1us,1us,2us", "1GB,1us,1us,gap=x"})
    EXPECT_FALSE(parse_link(wrong, link).ok()) << wrong;
}

TEST(ClusterText, ReadsTopologies) {
  Cluster cluster{.hosts = 64};
  ASSERT_TRUE(parse_topology("rack:32,2:1", cluster).ok());
  ASSERT_EQ(cluster.switches.size(), 1u);
  EXPECT_EQ(cluster.switches[0].name, "rack");
  EXPECT_EQ(cluster.switches[0].hosts, 32);
  EXPECT_DOUBLE_EQ(cluster.switches[0].oversubscription, 2);
  EXPECT_EQ(cluster.switches[0].latency_s, 0);
  ASSERT_TRUE(parse_topology("rack:16,3:2", cluster).ok());
  ASSERT_EQ(cluster.switches.size(), 1u);
  EXPECT_DOUBLE_EQ(cluster.switches[0].oversubscription, 1.5);
  ASSERT_TRUE(parse_topology("rack:16", cluster).ok());
  EXPECT_DOUBLE_EQ(cluster.switches[0].oversubscription, 1);
  ASSERT_TRUE(parse_topology("flat", cluster).ok());
  EXPECT_TRUE(cluster.switches.empty());
  for (const char* wrong : {"",
                            "rack",
                            "rack:",
                            ":32",
                            "rack:0",
                            "rack:2.5",
                            "rack:32,1:2",
                            "rack:32,2:0",
                            "rack:32,2",
                            "tree",
                            "rack:32,2:1,3",
                            "rack:32,5us,2:1",
                            "rack:32,2:1,5us,5us",
                            "rack:32,2:1,-5us",
                            "rack:32,2:1,2h",
                            "rack:99999999999",
                            "my rack:32",
                            "zone:512/",
                            "/rack:32",
                            "zone:512//rack:32",
                            "zone:512/flat",
                            "zone:512/rack:32,2",
                            "rack:32/zone:512",
                            "zone:32/rack:32"}) {
    ASSERT_FALSE(parse_topology(wrong, cluster).ok()) << wrong;
    EXPECT_THAT(parse_topology(wrong, cluster).text(), HasSubstr("'" + std::string(wrong) + "' is not a topology"));
    EXPECT_THAT(parse_topology(wrong, cluster).text(), HasSubstr("zone:512,4:1,400us/rack:32,2:1")) << wrong;
  }
}

TEST(ClusterText, ReadsTopologiesOfSeveralLevelsFromTheWidestOn) {
  Cluster cluster{.hosts = 2048};
  ASSERT_TRUE(parse_topology("region:1024,3ms/zone-a:512,4:1,400us/rack_2:32,2:1", cluster).ok());
  ASSERT_EQ(cluster.switches.size(), 3u);
  const auto expect = [&](std::size_t level, const char* name, int hosts, double oversubscription, double latency_s) {
    EXPECT_EQ(cluster.switches[level].name, name);
    EXPECT_EQ(cluster.switches[level].hosts, hosts);
    EXPECT_DOUBLE_EQ(cluster.switches[level].oversubscription, oversubscription);
    EXPECT_DOUBLE_EQ(cluster.switches[level].latency_s, latency_s);
  };
  expect(0, "rack_2", 32, 2, 0);
  expect(1, "zone-a", 512, 4, 400e-6);
  expect(2, "region", 1024, 1, 3e-3);
}

TEST(ClusterText, WritesTopologies) {
  Cluster cluster{.hosts = 2048};
  EXPECT_THAT(cluster_text(cluster), Not(HasSubstr("rack")));
  ASSERT_TRUE(parse_topology("rack:32,2:1", cluster).ok());
  EXPECT_THAT(cluster_text(cluster), EndsWith("; racks of 32 hosts, 2:1"));
  ASSERT_TRUE(parse_topology("zone:512,4:1,400us/rack:32,3:2", cluster).ok());
  EXPECT_THAT(cluster_text(cluster), EndsWith("; zones of 512 hosts, 4:1, latency +400 us; racks of 32 hosts, 1.5:1"));
}

TEST(ClusterText, ReadsStragglers) {
  Cluster cluster{.hosts = 8};
  ASSERT_TRUE(parse_stragglers("3:10ms", cluster).ok());
  EXPECT_EQ(cluster.stragglers, 3);
  EXPECT_DOUBLE_EQ(cluster.straggler_delay_s, 10e-3);
  for (const char* wrong : {"3", "3:", ":1ms", "x:1ms", "-1:1ms", "3:10", "1.5:1ms"})
    EXPECT_FALSE(parse_stragglers(wrong, cluster).ok()) << wrong;
}

TEST(ClusterText, ReadsRanges) {
  EXPECT_THAT(*parse_sizes("4,64K", 4, 4), ElementsAre(4, 65536));
  EXPECT_THAT(*parse_sizes("4:256", 4, 4), ElementsAre(4, 16, 64, 256));
  EXPECT_THAT(*parse_sizes("2:12", 2, 1), ElementsAre(2, 4, 8, 12));
  for (const char* wrong : {"", "0", "3:1", "1:", "99999T", "17000G", "x", "-4"})
    EXPECT_FALSE(parse_sizes(wrong, 4, 1).ok()) << wrong;
}

TEST(ClusterText, WritesUnits) {
  EXPECT_EQ(seconds_text(12.34e-6), "12.34 us");
  EXPECT_EQ(seconds_text(0.2), "200 ms");
  EXPECT_EQ(bytes_text(1 << 20), "1 MiB");
}

TEST(Picture, HasALineForEachWayAndTheBound) {
  std::vector<SimulatedPoint> points;
  for (const int64_t bytes : {4, 1024, 1 << 20}) {
    SimulatedPoint point{.cluster = {.hosts = 4}, .bytes = bytes, .bound_s = 1e-5};
    point.rows.push_back({.name = "ring", .run = SimulatedCollective{.seconds = 2e-5}});
    point.rows.push_back({.name = "a<b", .refusal = "too large"});
    points.push_back(point);
  }
  const std::string picture = picture_of(points, "title", false);
  EXPECT_THAT(picture, HasSubstr("</svg>"));
  EXPECT_THAT(picture, HasSubstr("stroke-dasharray"));
  EXPECT_THAT(picture, HasSubstr(">lower bound</text>"));
  EXPECT_THAT(picture, HasSubstr(">ring</text>"));
  EXPECT_THAT(picture, HasSubstr(">a&lt;b (too large)</text>"));
  EXPECT_THAT(picture, Not(HasSubstr("nan")));
  EXPECT_THAT(picture, Not(HasSubstr("inf")));
}

// The numbers of parameters are those that the papers and the reference programs give.
TEST(TrainingModels, HaveTheParametersOfTheirNetworks) {
  const auto count = [](const char* model) {
    const auto sizes = *parameters_of(model);
    return std::pair(sizes.size(), std::accumulate(sizes.begin(), sizes.end(), int64_t{0}));
  };
  EXPECT_EQ(count("resnet50"), std::pair(std::size_t{161}, int64_t{25'557'032}));
  EXPECT_EQ(count("bert-base"), std::pair(std::size_t{199}, int64_t{109'482'240}));
  EXPECT_THAT(*parameters_of("4M,64K,1000"), ElementsAre(4 << 20, 64 << 10, 1000));
  for (const char* wrong : {"", "resnet", "4:64", "0", "x,4"}) {
    ASSERT_FALSE(parameters_of(wrong).ok()) << wrong;
    EXPECT_THAT(parameters_of(wrong).status().text(), HasSubstr("none of resnet50 and bert-base")) << wrong;
  }
}

}  // namespace
}  // namespace fdl
