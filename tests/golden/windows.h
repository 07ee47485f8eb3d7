/* Written by make_windows.py: PyTorch 1.13.0a0, f32 on the CPU. */
static const double lenet5_window_losses[] = {
    2.30401561, 2.30954522, 2.31324431};
static const double lenet5_gradient_norms[] = {
    0.00704567538, 0.00339334426, 0.024091123, 0.00697685445, 0.0314538193,
    0.0158676213, 0.0174436645, 0.0339037857, 0.0276587976, 0.082290817};
static const double small_window_losses[] = {
    1.13111001, 1.12504181};
static const double small_fc1_weight[] = {
    -0.503961384, 0.160536155, -0.160427481, 0.22107935, -0.516903698,
    0.125095531, -0.464500904, -0.302613229, -0.251403719, 0.0604696646,
    -0.534738898, -0.376665711};
static const double small_fc1_bias[] = {
    -0.5, 0.167073682, -0.165837377, 0.293867379};
static const double small_bn1_weight[] = {
    0.992527604, 0.999063313, 0.996475697, 0.917624712};
static const double small_bn1_bias[] = {
    -0.00259502558, 0.000637695193, -0.0118343737, -0.0454607755};
static const double small_bn1_running_mean[] = {
    -0.159364313, 0.0385737047, -0.0021053222, 0.173760146};
static const double small_bn1_running_var[] = {
    0.550473988, 0.551442504, 0.541669905, 0.547232628};
static const double small_bn1_num_batches_tracked[] = {
    6};
static const double small_fc2_weight[] = {
    -0.499431849, 0.111138776, -0.160787389, 0.166614622, -0.469501883,
    0.0117835607, -0.440074682, -0.270966411, -0.30989626, 0.196556807,
    -0.431453943, -0.363668561};
static const double small_fc2_bias[] = {
    -0.576280594, 0.202458635, -0.124941707};
