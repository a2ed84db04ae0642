# Copies the plugin FILE to FOLDER under the name of every one of WAYS, separated by commas.
string(REPLACE "," ";" ways "${WAYS}")
foreach(way IN LISTS ways)
  configure_file("${FILE}" "${FOLDER}/fastpath_lying_${way}.so" COPYONLY)
endforeach()
