/* Talweg: whole networks. Each adds its layers to a model and returns the logits [N, classes]. Names are PyTorch's. */
#ifndef TALWEG_ZOO_H
#define TALWEG_ZOO_H

#include <talweg/model.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Dense layers with relu in between: x -> widths[0] -> ... -> widths[count-1] (the classes). Layers fc1, fc2, ... */
TW_API tw_value *tw_zoo_mlp(tw_model *model, tw_value *x, int count, const int64_t *widths);

/** LeNet-5 (LeCun et al. 1998) with relu and max pooling: conv 5x5x6 padded to keep 28x28, conv 5x5x16, 120, 84,
 *  classes. x[N,C,H,W], H and W at least 12. Layers conv1, conv2, fc1, fc2, fc3; Kaiming initial values (uniform)
 *  before each relu. */
TW_API tw_value *tw_zoo_lenet5(tw_model *model, tw_value *x, int64_t classes);

typedef struct tw_resnet_options {
    size_t size;
    int64_t width; /**< channels of the first stage; 0: 16 for resnet20, 64 for resnet18 and resnet50 */
} tw_resnet_options;
#define TW_RESNET_OPTIONS_INIT {sizeof(tw_resnet_options), 0}

/** ResNet-20 for small images (He et al. 2016, section 4.2), with 1x1 projections: 3x3 stem, 3 stages of 3 basic
 *  blocks. */
TW_API tw_value *tw_zoo_resnet20(tw_model *model, tw_value *x, int64_t classes, const tw_resnet_options *options);
/** ResNet-18 (He et al. 2016): 7x7 stem with stride 2 and max pooling, 4 stages of 2 basic blocks. */
TW_API tw_value *tw_zoo_resnet18(tw_model *model, tw_value *x, int64_t classes, const tw_resnet_options *options);
/** ResNet-50 (He et al. 2016), stride in the 3x3 convolutions: 4 stages of 3, 4, 6, 3 bottleneck blocks. */
TW_API tw_value *tw_zoo_resnet50(tw_model *model, tw_value *x, int64_t classes, const tw_resnet_options *options);

#ifdef __cplusplus
}
#endif
#endif
