// The number of EFA devices of EC2's instance types.
#pragma once

#include <string_view>

namespace fdl {

// Where the table below comes from, for reports.
inline constexpr std::string_view kEfaTableSource = "Karpenter's instance-types, generated from EC2";

// Returns how many EFA devices an instance type can have; 0 for types without EFA and for types that this table does
// not list. Newer types appear every few months: FARANDOLE_EXPECT_EFA replaces the table.
int efa_devices_of(std::string_view instance_type);

}  // namespace fdl
