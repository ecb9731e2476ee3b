// prefer_numa_node() makes the system call directly, so that no library is needed for it.
#include "system/process/memory_node.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <vector>

namespace fdl {

// The names in sysfs have lower case. The driver of a device pads the domain to 8 digits on some systems.
int numa_node_of_pci_device(const std::string& sysfs, std::string_view bus_id) {
  std::string name(bus_id);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::size_t domain = name.find(':');
  if (domain != std::string::npos && domain > 4) name = name.substr(domain - 4);
  std::ifstream file(sysfs + "/bus/pci/devices/" + name + "/numa_node");
  int node = -1;
  file >> node;
  return file ? node : -1;
}

bool prefer_numa_node(void* memory, std::size_t bytes, int node) {
  constexpr std::size_t kBits = 8 * sizeof(unsigned long);
  if (node < 0) return false;
  const auto number = static_cast<std::size_t>(node);
  std::vector<unsigned long> mask(number / kBits + 1, 0);
  mask[number / kBits] = 1ul << (number % kBits);
  // The kernel uses one bit less than the number that it gets.
  return ::syscall(SYS_mbind, memory, bytes, MPOL_PREFERRED, mask.data(), mask.size() * kBits + 1, 0) == 0;
}

}  // namespace fdl
