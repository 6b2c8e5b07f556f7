// See grouped_route.h: of one workgroup.
#include "grouped_route.h"

extern "C" __global__ void __launch_bounds__(ROUTING) grouped_route(const PlacesArguments p) { route_pairs(p); }
