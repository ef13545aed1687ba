# find_package(Weir) makes the target Weir::client, for #include "client/client.h".
get_filename_component(_weir "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
# The libraries of what Abseil's headers declare.
file(GLOB _weir_absl "${_weir}/lib/libabsl_*")
if(NOT TARGET Weir::client)
  add_library(Weir::client SHARED IMPORTED)
  set_target_properties(Weir::client PROPERTIES
    IMPORTED_LOCATION "${_weir}/lib/libweir_client.so"
    INTERFACE_COMPILE_FEATURES cxx_std_17
    INTERFACE_INCLUDE_DIRECTORIES "${_weir}/include"
    # RPATH, not RUNPATH: the libraries need it for each other.
    INTERFACE_LINK_OPTIONS "-Wl,--disable-new-dtags;-Wl,-rpath-link,${_weir}/lib"
    INTERFACE_LINK_LIBRARIES "${_weir_absl}")
endif()
unset(_weir)
unset(_weir_absl)
