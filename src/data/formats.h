/* The data set formats that tw_dataset_open knows: each looks through a folder for files of its own. */
#ifndef TWI_DATA_FORMATS_H
#define TWI_DATA_FORMATS_H

#include "dataset.h"
#include "folder.h"

/* Opens the split's files of this format in the folder. *out stays NULL, with TW_OK, where the folder holds none. */
typedef tw_status (*twi_format_open_fn)(tw_dataset **out, tw_context *context, const twi_folder *folder, tw_split split,
                                        const tw_dataset_options *options);

tw_status twi_idx_open(tw_dataset **out, tw_context *context, const twi_folder *folder, tw_split split,
                       const tw_dataset_options *options);
tw_status twi_cifar_open(tw_dataset **out, tw_context *context, const twi_folder *folder, tw_split split,
                         const tw_dataset_options *options);

#endif
