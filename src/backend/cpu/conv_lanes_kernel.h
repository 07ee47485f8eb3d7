/* The convolutions of conv_lanes.h, written once; conv_lanes_<isa>.c compiles them as LANES_RECORD.
 *
 * A group of VEC_WIDTH images is turned into lanes (lanes_turn_kernel.h), unless it lies so. Then loops over output
 * channels, positions and kernel taps multiply vectors by weights, or vectors by vectors, on tiles of sums that stay in
 * registers. */
#include "lanes_forward_kernel.h"
#include "lanes_steps_kernel.h"
#include "lanes_weights_kernel.h"
#include "windows_chosen_kernel.h"
#include "windows_pairs_kernel.h"
#include "winners_data_kernel.h"
#include "winners_weights_kernel.h"

const twi_lanes LANES_RECORD = {
    .width = VEC_WIDTH,
    .forward_tiling = forward_tiling,
    .weights_tiling = weights_tiling,
    .forward_scratch = forward_scratch,
    .backward_weights_scratch = backward_weights_scratch,
    .forward = forward,
    .backward_weights = backward_weights,
    .bias_relu_scratch = bias_relu_scratch,
    .bias_relu = bias_relu,
    .rows_to_image = rows_to_image,
    .image_to_rows = image_to_rows,
    .windows = {{chosen_scratch, chosen_weights}, pairs_scratch, pairs_packed, pairs_pack, pairs_forward},
    .winners = {{winners_weights_scratch, winners_weights}, winners_data_scratch, winners_packed, winners_pack,
                winners_data},
};
