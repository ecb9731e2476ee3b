# Installs the library, its headers, its CMake package, its pkg-config file and the command, for a system or a wheel.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# farandole_install([IN_WHEEL] LIBRARY folder INCLUDE folder CMAKE folder PKGCONFIG folder PROGRAM folder). A system has
# the components runtime, development and program, which become packages of their own. A wheel is one component.
function(farandole_install)
  cmake_parse_arguments(TO "IN_WHEEL" "LIBRARY;INCLUDE;CMAKE;PKGCONFIG;PROGRAM" "" ${ARGN})
  set(development COMPONENT development)
  set(runtime COMPONENT runtime)
  set(namelink NAMELINK_COMPONENT development)
  set(program COMPONENT program)
  set(name system)
  if(TO_IN_WHEEL)
    set(name wheel)
    set(development COMPONENT wheel EXCLUDE_FROM_ALL)
    set(runtime ${development})
    set(namelink NAMELINK_SKIP)
    set(program ${development})
  endif()
  set(here ${PROJECT_BINARY_DIR}/cmake/${name})

  install(TARGETS farandole EXPORT farandole_${name} LIBRARY DESTINATION ${TO_LIBRARY} ${runtime} ${namelink}
    INCLUDES DESTINATION ${TO_INCLUDE})
  if(TARGET farandole_metrics)
    install(TARGETS farandole_metrics LIBRARY DESTINATION ${TO_LIBRARY} ${runtime})
  endif()
  foreach(preload farandole_mpi_preload_openmpi farandole_mpi_preload_mpich farandole_mpi_preload_standard)
    if(TARGET ${preload})
      install(TARGETS ${preload} LIBRARY DESTINATION ${TO_LIBRARY} ${runtime})
    endif()
  endforeach()
  if(TO_IN_WHEEL)
    # A wheel has no symbolic links: -lfarandole finds a linker script that names the library.
    file(WRITE ${here}/libfarandole.so "INPUT(libfarandole.so.${PROJECT_VERSION_MAJOR})\n")
    install(FILES ${here}/libfarandole.so DESTINATION ${TO_LIBRARY} ${development})
  endif()
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/farandole DESTINATION ${TO_INCLUDE} ${development})
  install(EXPORT farandole_${name} NAMESPACE farandole:: FILE farandoleTargets.cmake
    DESTINATION ${TO_CMAKE} ${development})
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/farandoleConfig.cmake.in ${here}/farandoleConfig.cmake
    INSTALL_DESTINATION ${TO_CMAKE} NO_SET_AND_CHECK_MACRO)
  write_basic_package_version_file(${here}/farandoleConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${here}/farandoleConfig.cmake ${here}/farandoleConfigVersion.cmake
    DESTINATION ${TO_CMAKE} ${development})
  # The file for pkg-config names folders relative to its own, so that the installed tree can be moved.
  file(RELATIVE_PATH libraries /${TO_PKGCONFIG} /${TO_LIBRARY})
  file(RELATIVE_PATH headers /${TO_PKGCONFIG} /${TO_INCLUDE})
  configure_file(${PROJECT_SOURCE_DIR}/cmake/farandole.pc.in ${here}/farandole.pc @ONLY)
  install(FILES ${here}/farandole.pc DESTINATION ${TO_PKGCONFIG} ${development})

  if(TARGET farandole_program)
    install(TARGETS farandole_program RUNTIME DESTINATION ${TO_PROGRAM} ${program})
  endif()
endfunction()

farandole_install(LIBRARY ${CMAKE_INSTALL_LIBDIR} INCLUDE ${CMAKE_INSTALL_INCLUDEDIR}
  CMAKE ${CMAKE_INSTALL_LIBDIR}/cmake/farandole PKGCONFIG ${CMAKE_INSTALL_LIBDIR}/pkgconfig
  PROGRAM ${CMAKE_INSTALL_BINDIR})
