# Installs into two fresh prefixes. Variables: build, everything, sdk_alone.
file(REMOVE_RECURSE "${everything}" "${sdk_alone}")
foreach(component IN ITEMS sdk core plugins)
  execute_process(COMMAND "${CMAKE_COMMAND}" --install "${build}" --prefix "${everything}" --component ${component}
    OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
endforeach()
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${build}" --prefix "${sdk_alone}" --component sdk
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
