// This header places memory of the host on NUMA nodes, and finds the node of a PCI device.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace fdl {

// The NUMA node of the device with this bus id ("0000:3B:00.0"); -1 if the system does not report one. `sysfs`: usually
// "/sys".
int numa_node_of_pci_device(const std::string& sysfs, std::string_view bus_id);

// The pages of this range that are touched from now on come from the node, while it has free memory. `memory` begins
// at a page. False: there is no such node, or the process may not choose nodes, as in some containers.
bool prefer_numa_node(void* memory, std::size_t bytes, int node);

}  // namespace fdl
