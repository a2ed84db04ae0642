# fastpath_add_plugin(NAME SOURCES file...): a plugin `fastpath_NAME.so` that exports the query function and nothing else.
include_guard(GLOBAL)

function(fastpath_add_plugin name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES")
  if(NOT arg_SOURCES)
    message(FATAL_ERROR "fastpath_add_plugin(${name}): SOURCES is empty")
  endif()
  set(export_map "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/plugin.map")  # also where the caller sees no variable of this file
  add_library(fastpath_plugin_${name} MODULE ${arg_SOURCES})
  target_link_libraries(fastpath_plugin_${name} PRIVATE fastpath::sdk)
  set_target_properties(fastpath_plugin_${name} PROPERTIES
    PREFIX "" OUTPUT_NAME "fastpath_${name}"
    CXX_VISIBILITY_PRESET hidden C_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    LINK_DEPENDS "${export_map}")
  target_link_options(fastpath_plugin_${name} PRIVATE "LINKER:--version-script=${export_map}")
  # An undefined symbol is an error when the plugin is linked, not when it is loaded. Clang's sanitizers need some.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_link_options(fastpath_plugin_${name} PRIVATE "LINKER:-z,defs")
  endif()
endfunction()
