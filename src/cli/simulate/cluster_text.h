// The cluster text functions read and print the units of `farandole simulate`: times, bandwidths, links and
// levels of switches.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "simulate/cluster.h"

namespace fdl {

Result<double> parse_seconds(std::string_view text);    // "10us", "0.5us", "1ms", "250ns", "2s"
Result<double> parse_bandwidth(std::string_view text);  // bytes per second: "100Gbit", "12.5GB", "200Mbit"
Result<double> parse_fraction(std::string_view text);   // "5%" or "0.05"

// "100Gbit,10us,0.5us" or "100Gbit,10us,0.5us,gap=1us": bandwidth, latency, overhead.
Status parse_link(const std::string& text, ClusterLink& link);
// "flat"; "rack:32,2:1": racks of 32 hosts whose uplinks have half of the bandwidth of their cards; or several levels
// from the widest to the narrowest, with the latency that a message between two groups has in addition:
// "zone:512,4:1,400us/rack:32,2:1". Replaces the levels of the cluster.
Status parse_topology(const std::string& text, Cluster& cluster);
// "3:10ms": three ranks begin 10 ms late.
Status parse_stragglers(const std::string& text, Cluster& cluster);
inline constexpr int64_t kMostBytes = int64_t{1} << 44;
// "4,64K,1M", or "4:1G": from the first to the last in steps of a factor. Each is between `least` and `most`.
Result<std::vector<int64_t>> parse_sizes(const std::string& text, int64_t factor, int64_t least,
                                         int64_t most = kMostBytes);

std::string seconds_text(double seconds);  // "12.3 us"
std::string bytes_text(double bytes);      // "1 MiB"
std::string cluster_text(const Cluster& cluster);

}  // namespace fdl
