# Installs the library, its headers, its CMake package and the command, for a system or for a wheel.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

function(farandole_install)
  cmake_parse_arguments(TO "EXCLUDE_FROM_ALL" "NAMELINK;COMPONENT;LIBRARY;INCLUDE;CMAKE;PROGRAM" "" ${ARGN})
  set(rule COMPONENT ${TO_COMPONENT})
  if(TO_EXCLUDE_FROM_ALL)
    list(APPEND rule EXCLUDE_FROM_ALL)
  endif()
  set(here ${PROJECT_BINARY_DIR}/cmake/${TO_COMPONENT})

  install(TARGETS farandole EXPORT farandole_${TO_COMPONENT}
    LIBRARY DESTINATION ${TO_LIBRARY} ${rule} ${TO_NAMELINK} INCLUDES DESTINATION ${TO_INCLUDE})
  if(TARGET farandole_metrics)
    install(TARGETS farandole_metrics LIBRARY DESTINATION ${TO_LIBRARY} ${rule})
  endif()
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/farandole DESTINATION ${TO_INCLUDE} ${rule})
  install(EXPORT farandole_${TO_COMPONENT} NAMESPACE farandole:: FILE farandoleTargets.cmake
    DESTINATION ${TO_CMAKE} ${rule})
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/farandoleConfig.cmake.in ${here}/farandoleConfig.cmake
    INSTALL_DESTINATION ${TO_CMAKE} NO_SET_AND_CHECK_MACRO)
  write_basic_package_version_file(${here}/farandoleConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${here}/farandoleConfig.cmake ${here}/farandoleConfigVersion.cmake DESTINATION ${TO_CMAKE} ${rule})

  if(TARGET farandole_program)
    install(TARGETS farandole_program RUNTIME DESTINATION ${TO_PROGRAM} ${rule})
  endif()
endfunction()

farandole_install(COMPONENT system LIBRARY ${CMAKE_INSTALL_LIBDIR} INCLUDE ${CMAKE_INSTALL_INCLUDEDIR}
  CMAKE ${CMAKE_INSTALL_LIBDIR}/cmake/farandole PROGRAM ${CMAKE_INSTALL_BINDIR})
