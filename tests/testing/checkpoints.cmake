# Random checkpoints for tests, made when the tests run: BATON_CHECKPOINT_DIR/<name>.
if(NOT DEFINED BATON_PYTHON)
  set(BATON_PYTHON ${PROJECT_SOURCE_DIR}/.venv/bin/python3 CACHE FILEPATH
      "Python with numpy, for tests that make checkpoints; scripts/setup makes the default one")
endif()
set(BATON_CHECKPOINTS_MADE ${PROJECT_BINARY_DIR}/tests/checkpoints)
set(BATON_CHECKPOINT_DIR ${BATON_CHECKPOINTS_MADE})
if(BATON_ENGINE_ONLY)
  set(BATON_CHECKPOINT_DIR checkpoints)  # where the program is run
endif()

# baton_checkpoint(tiny-qwen2-sharded SHAPE tiny-qwen2 ARGS --shards 3)
# A test that needs it sets FIXTURES_REQUIRED to checkpoint_<name>. Several folders may ask for one.
function(baton_checkpoint name)
  cmake_parse_arguments(ARG "" "SHAPE" "ARGS" ${ARGN})
  get_property(made GLOBAL PROPERTY baton_checkpoint_${name})
  if(made)
    return()
  endif()
  set_property(GLOBAL PROPERTY baton_checkpoint_${name} TRUE)
  add_test(NAME checkpoint_${name}
    COMMAND ${BATON_PYTHON} ${PROJECT_SOURCE_DIR}/scripts/make_checkpoint.py
            ${ARG_SHAPE} ${BATON_CHECKPOINTS_MADE}/${name} ${ARG_ARGS})
  set_tests_properties(checkpoint_${name} PROPERTIES FIXTURES_SETUP checkpoint_${name} TIMEOUT 120)
endfunction()

# baton_gguf(tiny-qwen2-q8_0 FROM tiny-qwen2 ARGS --type Q8_0)
# The GGUF file of such a checkpoint, <name>.gguf beside it, and <name>-float, the values that it stands for.
# A test that needs them sets FIXTURES_REQUIRED to checkpoint_gguf_<name>.
function(baton_gguf name)
  cmake_parse_arguments(ARG "" "FROM" "ARGS" ${ARGN})
  add_test(NAME checkpoint_gguf_${name}
    COMMAND ${BATON_PYTHON} ${PROJECT_SOURCE_DIR}/scripts/make_gguf.py ${BATON_CHECKPOINTS_MADE}/${ARG_FROM}
            ${BATON_CHECKPOINTS_MADE}/${name}.gguf --dequantized ${BATON_CHECKPOINTS_MADE}/${name}-float ${ARG_ARGS})
  set_tests_properties(checkpoint_gguf_${name} PROPERTIES
    FIXTURES_SETUP checkpoint_gguf_${name} FIXTURES_REQUIRED checkpoint_${ARG_FROM} TIMEOUT 120)
endfunction()

# baton_device_test(engine_test SRCS a_test.cc DEPS room FIXTURES checkpoint_x): a test on the devices of
# devices.h. Where CUDA is built, devices_gpu_test has the sources of all of them, for the GPU that is
# there: one program, because each carries all kernels.
function(baton_device_test name)
  cmake_parse_arguments(ARG "" "PROGRAM" "SRCS;DEPS;FIXTURES" ${ARGN})
  baton_test(${name} SRCS ${ARG_SRCS} DEPS ${ARG_DEPS} baton_testing_devices TIMEOUT 900 PROGRAM "${ARG_PROGRAM}")
  set_tests_properties(${name} PROPERTIES FIXTURES_REQUIRED "${ARG_FIXTURES}")
  list(TRANSFORM ARG_SRCS PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  foreach(list SRCS DEPS FIXTURES)
    set_property(GLOBAL APPEND PROPERTY baton_device_tests_${list} ${ARG_${list}})
  endforeach()
endfunction()

# After all of them.
function(baton_device_tests_on_gpu name)
  foreach(list SRCS DEPS FIXTURES)
    get_property(${list} GLOBAL PROPERTY baton_device_tests_${list})
    list(REMOVE_DUPLICATES ${list})
  endforeach()
  baton_test(${name} ALONE SRCS ${SRCS} ${PROJECT_SOURCE_DIR}/tests/testing/gpu_main.cc
             DEPS ${DEPS} baton_testing_gpu_devices)
  set_tests_properties(${name} PROPERTIES
    FIXTURES_REQUIRED "${FIXTURES}" SKIP_RETURN_CODE 77 RESOURCE_LOCK gpu)
endfunction()
