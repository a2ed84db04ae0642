# fastpath_add_conformance_test(TARGET [NAME name] [ARGS argument...]): a test that runs `fastpath verify` on the plugin
# of TARGET, a target of fastpath_add_plugin. NAME is by default conformance.TARGET; ARGS are options of `fastpath verify`,
# such as --quick. Without the program `fastpath` (component core) it runs fastpath-conformance, which compares no numbers
# with the definitions of ops. The test has the label `conformance`.
include_guard(GLOBAL)

function(fastpath_add_conformance_test target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "NAME" "ARGS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "fastpath_add_conformance_test(${target}): unknown arguments: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT TARGET ${target})
    message(FATAL_ERROR "fastpath_add_conformance_test(${target}): there is no target of that name")
  endif()
  if(NOT arg_NAME)
    set(arg_NAME "conformance.${target}")
  endif()
  add_test(NAME "${arg_NAME}" COMMAND ${fastpath_VERIFY_COMMAND} "$<TARGET_FILE:${target}>" ${arg_ARGS})
  set_tests_properties("${arg_NAME}" PROPERTIES LABELS conformance TIMEOUT 600)
endfunction()
