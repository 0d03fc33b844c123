#include "tests/simulation/simulation.h"

#include <gtest/gtest.h>
