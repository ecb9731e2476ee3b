# Finds the libraries that the modules use, from Debian's packages (tests/packages.txt).
find_package(Threads REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(spdlog REQUIRED)
find_package(fmt REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET hwloc)
find_program(FLATC flatc REQUIRED)
