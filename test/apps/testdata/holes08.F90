#define F08
#include "holes.F90"
