# snapmla_dependency(<package> <url> [args of find_package...]): the installed package, or, where there is
# none and FetchContent may download, its release archive.
include(FetchContent)
option(SNAPMLA_FETCH "Download dependencies that are not installed" ON)

macro(snapmla_dependency package url)
  find_package(${package} QUIET ${ARGN})
  if(NOT ${package}_FOUND)
    if(NOT SNAPMLA_FETCH)
      message(FATAL_ERROR "${package} is not installed (see scripts/setup for the package names)")
    endif()
    message(STATUS "${package} is not installed; fetching ${url}")
    FetchContent_Declare(${package} URL ${url})
    FetchContent_MakeAvailable(${package})
  endif()
endmacro()
