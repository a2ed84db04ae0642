# fastpath_add_plugin(NAME SOURCES file...): a plugin `fastpath_NAME.so` that exports the query function and nothing else.
# The target is fastpath_plugin_NAME. C and C++ sources; undefined symbols are errors when it is linked.
include_guard(GLOBAL)

function(fastpath_add_plugin name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES")
  if(NOT arg_SOURCES)
    message(FATAL_ERROR "fastpath_add_plugin(${name}): SOURCES is empty")
  endif()
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "fastpath_add_plugin(${name}): unknown arguments: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  set(export_map "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/plugin.map")  # also where the caller sees no variable of this file
  add_library(fastpath_plugin_${name} MODULE ${arg_SOURCES})
  target_link_libraries(fastpath_plugin_${name} PRIVATE fastpath::sdk)
  set_target_properties(fastpath_plugin_${name} PROPERTIES
    PREFIX "" SUFFIX ".so" OUTPUT_NAME "fastpath_${name}"
    CXX_VISIBILITY_PRESET hidden C_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    LINK_DEPENDS "${export_map}")
  target_link_options(fastpath_plugin_${name} PRIVATE "LINKER:--version-script=${export_map}")
  # At the end of the directory, when it is known what else the plugin is built with.
  cmake_language(EVAL CODE "cmake_language(DEFER CALL fastpath_refuse_undefined_symbols fastpath_plugin_${name})")
endfunction()

# An undefined symbol is then an error when the plugin is linked, not when it is loaded. Clang's sanitizers leave some to
# the program that is started.
function(fastpath_refuse_undefined_symbols target)
  get_target_property(options ${target} LINK_OPTIONS)
  string(TOUPPER "${CMAKE_BUILD_TYPE}" config)
  foreach(language IN ITEMS C CXX)
    string(APPEND options " ${CMAKE_${language}_FLAGS} ${CMAKE_${language}_FLAGS_${config}}")
    if("${CMAKE_${language}_COMPILER_ID}" MATCHES "Clang")
      set(clang TRUE)
    endif()
  endforeach()
  string(APPEND options " ${CMAKE_MODULE_LINKER_FLAGS}")
  if(NOT (clang AND options MATCHES "-fsanitize"))
    target_link_options(${target} PRIVATE "LINKER:-z,defs")
  endif()
endfunction()
