# Installs five components: `sdk`, `core` and `conformance`, each with an export set of its own so that sdk and core are
# found without the others, `plugins`, and `torchscript`, which needs libtorch. Each plugin's own rule stands in plugins/CMakeLists.txt.
include_guard(GLOBAL)
include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/fastpath")
set(plugin_dir "${CMAKE_INSTALL_LIBDIR}/fastpath/plugins")

install(TARGETS fastpath_sdk EXPORT fastpath-sdk FILE_SET HEADERS COMPONENT sdk)
install(FILES sdk/cmake/FastpathPlugin.cmake sdk/cmake/plugin.map DESTINATION "${package_dir}" COMPONENT sdk)
install(DIRECTORY sdk/template DESTINATION "${CMAKE_INSTALL_DATADIR}/fastpath" COMPONENT sdk)
# What a vendor reads, with the documents that these refer to.
install(FILES docs/plugin-contract.md docs/write-a-plugin.md docs/abi-policy.md docs/reasons.md docs/operators.md
              docs/conventions.md docs/conformance.md
  DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT sdk)

install(TARGETS fastpath EXPORT fastpath-core
  LIBRARY COMPONENT core
  FILE_SET HEADERS COMPONENT core)
install(TARGETS fastpath_probe RUNTIME COMPONENT core)
if(TARGET fastpath_torchscript)
  install(TARGETS fastpath_torchscript LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}/fastpath" COMPONENT torchscript)
endif()
if(TARGET fastpath_cli)
  # Not by install(TARGETS): CMake would end the RUNPATH of a program whose RUNPATH it is going to change with an empty
  # entry, which the dynamic linker takes for the current directory. So it is changed here, and has to be as long as the
  # one that it becomes: a second way of writing the directory makes it longer.
  set(build_rpath "${PROJECT_BINARY_DIR}/lib")
  set(install_rpath "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  set(longer "")
  string(LENGTH "${build_rpath}" have)
  string(LENGTH "${install_rpath}" need)
  if(have LESS need)
    set(longer "${build_rpath}/.")
    math(EXPR have "2 * ${have} + 3")
    while(have LESS need)
      string(APPEND longer "/.")
      math(EXPR have "${have} + 2")
    endwhile()
    set_target_properties(fastpath_cli PROPERTIES BUILD_RPATH "${longer}")
    string(PREPEND build_rpath "${longer}:")
  endif()
  set(installed_program "\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}/$<TARGET_FILE_NAME:fastpath_cli>")
  install(PROGRAMS "$<TARGET_FILE:fastpath_cli>" DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT core)
  install(CODE "
    file(RPATH_CHANGE FILE \"${installed_program}\" OLD_RPATH [==[${build_rpath}]==] NEW_RPATH [==[${install_rpath}]==])
    if(CMAKE_INSTALL_DO_STRIP)
      execute_process(COMMAND [==[${CMAKE_STRIP}]==] \"${installed_program}\" COMMAND_ERROR_IS_FATAL ANY)
    endif()" COMPONENT core)
endif()

install(TARGETS fastpath_conformance EXPORT fastpath-conformance
  ARCHIVE COMPONENT conformance
  FILE_SET HEADERS COMPONENT conformance)
install(TARGETS fastpath_conformance_program RUNTIME COMPONENT conformance)
install(FILES sdk/conformance/cmake/FastpathConformance.cmake DESTINATION "${package_dir}" COMPONENT conformance)

set(bin_dir "${CMAKE_INSTALL_BINDIR}")
configure_package_config_file(cmake/fastpath-config.cmake.in generated/fastpath-config.cmake
  INSTALL_DESTINATION "${package_dir}" PATH_VARS plugin_dir bin_dir)
write_basic_package_version_file(generated/fastpath-config-version.cmake COMPATIBILITY SameMinorVersion)
foreach(component IN ITEMS sdk core conformance)
  install(EXPORT fastpath-${component} NAMESPACE fastpath:: FILE fastpath-${component}-targets.cmake
    DESTINATION "${package_dir}" COMPONENT ${component})
  install(FILES "${PROJECT_BINARY_DIR}/generated/fastpath-config.cmake"
                "${PROJECT_BINARY_DIR}/generated/fastpath-config-version.cmake"
    DESTINATION "${package_dir}" COMPONENT ${component})
  install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT ${component})
endforeach()
