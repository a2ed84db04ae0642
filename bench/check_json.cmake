# Runs fastpath_bench on a tiny size and checks that its JSON has every member that README.md names.
execute_process(
  COMMAND "${bench}" --model "${model}" --structure "${structure}" --sizes 24,48 --budget 2 --min-rounds 2 --threads 1
          --json "${json}"
  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE errors)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "fastpath_bench ended with ${status}\n${output}${errors}")
endif()
file(READ "${json}" text)

# expect(TYPE member...): stops unless there is such a member of that type.
function(expect type)
  string(JSON found ERROR_VARIABLE error TYPE "${text}" ${ARGN})
  if(error OR NOT found STREQUAL type)
    message(FATAL_ERROR "${ARGN}: ${found} ${error}, expected ${type}\n${text}")
  endif()
endfunction()

foreach(member IN ITEMS bench date "machine;cpu" "machine;arch" "machine;system" "build;version" "build;compiler"
    "build;build_type" "build;sanitizer" "build;flags" "settings;command" "settings;device" "settings;structure"
    "model;path" "model;name" "model;architecture")
  expect(STRING ${member})
endforeach()
foreach(member IN ITEMS format_version "machine;units" "machine;memory_bytes" "settings;budget_seconds"
    "settings;min_rounds" "model;r_max" "model;layers" "model;l_max" "model;channels" "model;parameters")
  expect(NUMBER ${member})
endforeach()
expect(ARRAY slower)
foreach(size IN ITEMS 0 1)
  foreach(member IN ITEMS atoms edges seconds_graph)
    expect(NUMBER results ${size} ${member})
  endforeach()
  expect(STRING results ${size} dtype)
  expect(STRING results ${size} pass)
  foreach(arm IN ITEMS 0 1)
    expect(STRING results ${size} arms ${arm} name)
    expect(STRING results ${size} arms ${arm} failure)
    expect(ARRAY results ${size} arms ${arm} plugins)
    foreach(member IN ITEMS threads median_seconds mad_seconds min_seconds runs seconds_per_atom seconds_per_edge
        first_seconds memory_before_bytes memory_peak_bytes memory_bytes energy modules modules_fast ratio "seconds;0"
        "seconds;1")
      expect(NUMBER results ${size} arms ${arm} ${member})
    endforeach()
  endforeach()
endforeach()

# Facts, not only shapes: the second box is the first one twice, and the model is what it is.
string(JSON atoms GET "${text}" results 1 atoms)
string(JSON small GET "${text}" results 0 edges)
string(JSON large GET "${text}" results 1 edges)
string(JSON channels GET "${text}" model channels)
string(JSON l_max GET "${text}" model l_max)
math(EXPR twice "2 * ${small}")
if(NOT atoms EQUAL 48 OR NOT large EQUAL twice OR NOT channels EQUAL 8 OR NOT l_max EQUAL 3)
  message(FATAL_ERROR "48 atoms, ${twice} edges, 8 channels and l_max 3 expected\n${text}")
endif()
