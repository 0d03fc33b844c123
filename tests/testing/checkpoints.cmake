# Random checkpoints for tests, made when the tests run: BATON_CHECKPOINT_DIR/<name>.
include_guard(DIRECTORY)

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
